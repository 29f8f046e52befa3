"""Event time as users declare it: by column or expression, and by a step of its own."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from typing_extensions import override

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.errors import PenstockError
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext
from penstock.testing import CUT, PAUSE, LocalJob, ScriptedSource, run_pipeline
from tests.builders.pipelines import a_list

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC).replace(tzinfo=None)
YEAR_9999 = datetime(9999, 6, 1, tzinfo=UTC).replace(tzinfo=None)
BAD_ROW: dict[str, Any] = {"user": "bad", "at": YEAR_9999}
_USER: Any = pa.field("user", pa.string())
MILLIS = pa.schema([_USER, pa.field("ms", pa.int64())])
TEXT = pa.schema([_USER, pa.field("at", pa.string())])
TIMED = pa.schema([_USER, pa.field("at", pa.timestamp("us"))])


def per_minute(stream: Any) -> tuple[Any, Any]:
    """Count rows per user and minute; return what comes out, and what was late."""
    out, late = a_list(), a_list()
    counts = stream.key_by("user").window("w", pen.tumbling("1m")).aggregate(n=pen.count())
    counts.write("out", out)
    counts.side_output(pen.LATE).write("late", late)
    return out, late


def found(out: Any) -> list[tuple[str, datetime, int]]:
    return sorted((r["user"], r["window_start"], r["n"]) for r in out.rows())


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def epochs(batches: Iterable[list[dict[str, Any]]]) -> list[Any]:
    """Return a script that reads one batch per epoch."""
    return [step for batch in batches for step in (batch, CUT)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_epoch_milliseconds_become_event_time(parallelism: int) -> None:
    start = int(NOON.replace(tzinfo=UTC).timestamp() * 1000)
    rows = [{"user": "ada", "ms": start + 1000 * n} for n in range(120)]
    p = pen.Pipeline("p", parallelism=parallelism)
    source = pen.list_source(rows, MILLIS, splits=2)
    stream = p.read("r", source, event_time=pl.from_epoch("ms", time_unit="ms").alias("at"))
    out, late = per_minute(stream)
    assert stream.schema.time_column == "at"
    assert stream.schema.arrow.names == ["user", "ms", "at"]
    run_pipeline(p)
    assert found(out) == [("ada", at(0), 60), ("ada", at(60), 60)]
    assert late.rows() == []


@pytest.mark.parametrize("ending", ["", "Z", "+00:00"])
@pytest.mark.parametrize("is_guessed", [False, True])
def test_iso_text_becomes_event_time(ending: str, is_guessed: bool) -> None:
    rows = [{"user": "ada", "at": at(30 * n).isoformat() + ending} for n in range(4)]
    p = pen.Pipeline("p")
    form = None if is_guessed else "%+" if ending else "%FT%T%.f"
    when = pl.col("at").str.to_datetime(form, time_zone="UTC" if ending else None)
    stream = p.read("r", pen.list_source(rows, TEXT), event_time=when)
    out, _ = per_minute(stream)
    run_pipeline(p)
    assert [n for _, _, n in found(out)] == [2, 2]
    assert stream.schema.arrow.names == ["user", "at"]


def test_windows_close_while_the_job_runs_if_event_time_is_computed() -> None:
    millis = int(NOON.replace(tzinfo=UTC).timestamp() * 1000)
    batches = [[{"user": "ada", "ms": millis + 40_000 * n}] for n in range(6)]
    p = pen.Pipeline("p")
    stream = p.read(
        "r",
        ScriptedSource([*epochs(batches), PAUSE("1000d")], MILLIS),
        event_time=pl.from_epoch("ms", time_unit="ms"),
        watermark_delay="5s",
    )
    out, _ = per_minute(stream)
    job = LocalJob(p)
    job.run(epochs=6)
    # The latest row is that of second 200: minutes that end by second 195 have closed.
    assert [start for _, start, _ in found(out)] == [at(0), at(60), at(120)]


def test_a_column_that_is_no_timestamp_is_refused_with_the_expression_to_write() -> None:
    p = pen.Pipeline("p")
    p.read("r", pen.list_source([], MILLIS), event_time="ms")
    with pytest.raises(PenstockError, match=r"event_time=pl\.from_epoch\('ms', time_unit="):
        p.graph()


def test_inferred_text_times_are_refused_with_the_expression_to_write(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text('{"at": "noon, 1 January"}\n')
    p = pen.Pipeline("p")
    p.read("r", pen.files(f"{tmp_path}/*.jsonl"), event_time="at")
    with pytest.raises(
        PenstockError, match=r"event_time=pl\.col\('at'\)\.str\.to_datetime"
    ):
        p.graph()


@pytest.mark.parametrize(
    ("event_time", "message"),
    [
        (pl.col("ms") * 2, "gives the column 'ms' the type int64: it must give timestamps"),
        (pl.from_epoch("mss"), "there is no column 'mss'"),
        (pl.col("ms").cum_sum().cast(pl.Datetime("us")), "row by row"),
        (pl.struct(pl.all()), "it must give timestamps"),
        (pl.col("user", "ms").cast(pl.Datetime("us")), "one column"),
        (
            pl.col("user").str.to_datetime(strict=False),
            "give it one, such as '%\\+' for ISO 8601",
        ),
        (7, "is neither the name of a column nor a Polars expression"),
    ],
)
def test_what_is_no_event_time_is_refused(event_time: Any, message: str) -> None:
    p = pen.Pipeline("p")
    p.read("r", pen.list_source([], MILLIS), event_time=event_time)
    with pytest.raises(PenstockError, match=message):
        p.graph()


def test_rows_whose_event_time_is_computed_as_null_move_no_watermark() -> None:
    rows = [{"user": "ada", "at": text} for text in ("2026-01-01T12:00:00", "never")]
    p = pen.Pipeline("p")
    when = pl.col("at").str.to_datetime("%FT%T", strict=False)
    stream = p.read("r", pen.list_source(rows, TEXT), event_time=when)
    out = a_list()
    stream.filter(pl.col("at").is_not_null()).window("w", pen.tumbling("1m")).aggregate(
        n=pen.count()
    ).write("out", out)
    run_pipeline(p)
    assert [row["n"] for row in out.rows()] == [1]


# ---- filters behind the source


def poisoned(count: int = 6) -> list[list[dict[str, Any]]]:
    """Return rows in order, among them one of the year 9999 alone in its epoch."""
    batches = [[{"user": "ada", "at": at(40 * n)}] for n in range(count)]
    return [*batches[:1], [{"user": "bad", "at": YEAR_9999}], *batches[1:]]


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(
    "predicates",
    [
        [pl.col("at") < pl.lit(datetime(2100, 1, 1))],  # noqa: DTZ001 (rows have no zone)
        [pl.col("user") != "bad"],
        [pl.col("user").is_not_null(), pl.col("user") != "bad"],
    ],
    ids=["by time", "by another column", "by the second filter"],
)
def test_a_row_of_the_year_9999_that_is_filtered_behind_the_source_moves_no_watermark(
    predicates: list[pl.Expr], parallelism: int
) -> None:
    p = pen.Pipeline("p", parallelism=parallelism)
    stream = p.read("r", ScriptedSource(epochs(poisoned()), TIMED), event_time="at")
    for predicate in predicates:
        stream = stream.filter(predicate)
    out, late = per_minute(stream)
    run_pipeline(p)
    assert late.rows() == []
    assert sum(n for *_, n in found(out)) == 6


def test_a_filter_behind_a_computed_event_time_keeps_its_rows_from_the_watermark() -> None:
    millis = [
        [{"user": r["user"], "ms": int(r["at"].replace(tzinfo=UTC).timestamp() * 1000)}]
        for (r,) in poisoned()
    ]
    p = pen.Pipeline("p")
    stream = p.read(
        "r",
        ScriptedSource(epochs(millis), MILLIS),
        event_time=pl.from_epoch("ms", time_unit="ms"),
    )
    out, late = per_minute(stream.filter(pl.col("user") != "bad"))
    run_pipeline(p)
    assert (late.rows(), sum(n for *_, n in found(out))) == ([], 6)


def test_a_stream_that_is_also_read_without_the_filter_has_the_watermark_of_all_rows() -> (
    None
):
    p = pen.Pipeline("p")
    stream = p.read("r", ScriptedSource(epochs(poisoned()), TIMED), event_time="at")
    _, late = per_minute(stream.filter(pl.col("user") != "bad"))
    stream.write("all", a_list())
    run_pipeline(p)
    assert len(late.rows()) == 5


def test_a_split_whose_rows_are_all_filtered_does_not_hold_the_others_back_for_ever() -> (
    None
):
    scripts = {
        name: [
            *epochs([[{"user": name, "at": at(40 * n)}] for n in range(9)]),
            PAUSE("900d"),
        ]
        for name in ("ada", "bob")
    }
    p = pen.Pipeline("p", parallelism=2)
    stream = p.read("r", ScriptedSource(scripts, TIMED), event_time="at")
    out, late = per_minute(stream.filter(pl.col("user") == "ada"))
    LocalJob(p).run(epochs=9)
    assert len(found(out)) > 3
    assert late.rows() == []


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_filtered_row_of_the_future_does_not_let_its_split_catch_up(
    parallelism: int,
) -> None:
    slow: list[list[dict[str, Any]]] = [
        [{"user": "ada", "at": at(10 * n)}, *([BAD_ROW] if n == 4 else [])]
        for n in range(20)
    ]
    fast = [[{"user": "bob", "at": at(1000 + 40 * n)}] for n in range(20)]
    p = pen.Pipeline("p", parallelism=parallelism)
    source = ScriptedSource({"slow": epochs(slow), "fast": epochs(fast)}, TIMED)
    stream = p.read("r", source, event_time="at").filter(pl.col("user") != "bad")
    out, late = per_minute(stream)
    run_pipeline(p)
    assert (late.rows(), sum(n for *_, n in found(out))) == ([], 40)


@pytest.mark.parametrize("seconds", [2**62, -(2**62)])
def test_an_instant_too_far_away_to_count_fails_nothing_if_it_is_filtered_behind_the_source(
    seconds: int,
) -> None:
    kind = pa.timestamp("s")
    columns: dict[str, Any] = {
        "user": ["ada", "bad", "ada"],
        "at": pa.array([0, seconds, 30], kind),
    }
    p = pen.Pipeline("p")
    source = ScriptedSource([pa.table(columns)], TIMED.set(1, pa.field("at", kind)))
    stream = p.read("r", source, event_time="at").filter(pl.col("user") != "bad")
    out, _ = per_minute(stream)
    run_pipeline(p)
    assert [n for *_, n in found(out)] == [2]


# ---- the step `watermark`


def test_a_watermark_step_gives_event_time_to_a_stream_without(tmp_path: Path) -> None:
    batches = [[{"user": "ada", "at": at(40 * n)}] for n in range(6)]
    p = pen.Pipeline("p")
    rows = p.read("r", ScriptedSource([*epochs(batches), PAUSE("900d")], TIMED))
    timed = rows.watermark("time", "at", delay="5s")
    out, _ = per_minute(timed)
    LocalJob(p).run(epochs=6)
    assert timed.schema.time_column == "at"
    assert [start for _, start, _ in found(out)] == [at(0), at(60), at(120)]


def test_a_watermark_step_refines_the_event_time_of_a_source() -> None:
    schema = TIMED.append(pa.field("sent", pa.timestamp("us")))
    rows = [{"user": "ada", "at": at(n), "sent": at(600 + n)} for n in range(3)]
    p = pen.Pipeline("p")
    stream = p.read("r", pen.list_source(rows, schema), event_time="at")
    out, _ = per_minute(stream.watermark("sent", "sent"))
    run_pipeline(p)
    assert found(out) == [("ada", at(600), 3)]


@pytest.mark.parametrize("partition_column", [None, "user"])
def test_rows_without_a_time_move_no_watermark_of_a_step_and_can_be_diverted_behind_it(
    partition_column: str | None,
) -> None:
    times = [at(0), None, at(90)]
    batches: list[Any] = [[{"user": "ada", "at": time}] for time in times]
    p, out, bad = pen.Pipeline("p"), a_list(), a_list()
    rows = p.read("r", ScriptedSource([*epochs(batches), PAUSE("900d")], TIMED))
    timed = rows.watermark("time", "at", partition_column=partition_column)
    counts = timed.window("w", pen.tumbling("1m"), on_bad="divert").aggregate(n=pen.count())
    counts.write("out", out)
    counts.side_output(pen.BAD).write("bad", bad)
    LocalJob(p).run(epochs=3)
    assert [row["window_start"] for row in out.rows()] == [at(0)]
    assert bad.rows() == [{"user": "ada", "at": None}]


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int8(), pa.string())])
def test_each_partition_of_a_watermark_step_has_its_own_order(kind: Any) -> None:
    schema = TIMED.set(0, pa.field("user", kind))
    users = {"ada": 0, "bob": 500}
    batches = [
        [{"user": user, "at": at(40 * n - behind)} for user, behind in users.items()]
        for n in range(20)
    ]
    p = pen.Pipeline("p")
    rows = p.read("r", ScriptedSource([*epochs(batches), PAUSE("900d")], schema))
    out, late = per_minute(rows.watermark("time", "at", partition_column="user"))
    LocalJob(p).run(epochs=20)
    assert late.rows() == []
    # The slower one, at second 260 in the end, tells the time.
    assert max(start for _, start, _ in found(out)) == at(180)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["time", "att"], {}, "its time column 'att' is not a column; did you mean 'at'"),
        (["time", "user"], {}, "time column 'user' has the type string"),
        (["time", pl.col("at")], {}, "takes the name of a column"),
        (["time", "at"], {"partition_column": "usr"}, "did you mean 'user'"),
        (["time", "at"], {"partition_column": "tags"}, "has the type list<item: string>"),
        (["time", "at"], {"delay": "soon"}, "'soon' is not a valid delay"),
        (["time", "at"], {"idle_timeout": "0s"}, "'idle_timeout' must be positive"),
    ],
)
def test_a_watermark_step_that_cannot_work_is_refused(
    arguments: list[Any], options: dict[str, Any], message: str
) -> None:
    p = pen.Pipeline("p")
    schema = TIMED.append(pa.field("tags", pa.list_(pa.string())))
    p.read("r", pen.list_source([], schema)).watermark(*arguments, **options)
    with pytest.raises(PenstockError, match=message):
        p.graph()


# ---- streams that can never get a watermark


def declared(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_time_column_without_any_watermark_is_refused_with_the_way_out() -> None:
    p = pen.Pipeline("p")
    rows = p.read("r", pen.list_source([], TIMED))
    timed = rows.map_batches(declared, schema=StreamSchema(TIMED, "at"))
    per_minute(timed)
    with pytest.raises(PenstockError) as raised:
        p.graph()
    assert "no watermark can ever come" in str(raised.value)
    assert "event_time=" in str(raised.value)
    assert ".watermark(" in str(raised.value)


def test_a_time_column_that_a_function_declares_can_get_a_watermark_behind_it() -> None:
    rows = [{"user": "ada", "at": at(n)} for n in range(3)]
    p = pen.Pipeline("p")
    timed = p.read("r", pen.list_source(rows, TIMED)).map_batches(
        declared, schema=StreamSchema(TIMED, "at")
    )
    out, _ = per_minute(timed.watermark("time", "at"))
    run_pipeline(p)
    assert found(out) == [("ada", at(0), 3)]


class FirstOfTwo(ArrowOperator):
    """Passes on the rows of its first input."""

    @override
    def name(self) -> str:
        return "first of two"

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return inputs[0]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)

    @override
    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        if index == 0:
            self.process_batch(batch, ctx, collector)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_input_without_event_time_does_not_hold_the_other_back(parallelism: int) -> None:
    batches = [[{"user": "ada", "at": at(40 * n)}] for n in range(6)]
    rules = [[{"rule": n}] for n in range(6)]
    p = pen.Pipeline("p", parallelism=parallelism)
    rows = p.read(
        "r", ScriptedSource([*epochs(batches), PAUSE("900d")], TIMED), event_time="at"
    )
    side = p.read("rules", ScriptedSource([*epochs(rules), PAUSE("900d")]))
    out, late = per_minute(rows.process("two", FirstOfTwo(), side.broadcast()))
    LocalJob(p).run(epochs=6)
    assert [start for _, start, _ in found(out)] == [at(0), at(60), at(120)]
    assert late.rows() == []
