"""Windows with allowed lateness, and windows of changelogs: what is emitted when, and refused."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import PenstockError, SchemaError, UserError
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import fold
from tests.builders.lives import a_job_of

NOON = datetime(2026, 1, 1, 12)  # noqa: DTZ001 (rows without a zone)
_COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "k": pa.string(),
    "at": pa.timestamp("us"),
    "v": pa.float64(),
}
SCHEMA = pa.schema(_COLUMNS)


def rows_at(*given: tuple[int, float]) -> list[dict[str, Any]]:
    """Return rows of one key, given their seconds and values."""
    return [
        {"id": number, "k": "a", "at": NOON + timedelta(seconds=second), "v": value}
        for number, (second, value) in enumerate(given)
    ]


class Job:
    """A window over rows that come one per epoch, with its results and late rows."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        window: Any,
        *,
        is_table: bool = False,
        schema: pa.Schema = SCHEMA,
        aggregates: Mapping[str, pen.Aggregate] | None = None,
        **options: Any,
    ) -> None:
        self.pipeline = pen.Pipeline("windows")
        source = pen.list_source(list(rows), schema)
        stream: Any = self.pipeline.read("rows", source, event_time="at")
        if is_table:
            stream = stream.from_upserts("table", key="id", deleted="gone")
        self.windows = stream.key_by("k").window("w", window, **options)
        self.out, self.late = (
            pen.list_sink(f"{name}-{new_token()}") for name in ("out", "late")
        )
        if aggregates is not None:
            self.results = self.windows.aggregate(**aggregates)
            self.write(self.results)

    def write(self, results: pen.Stream) -> None:
        results.write("out", self.out)
        results.side_output(pen.LATE).write("late", self.late)

    def run(self) -> list[tuple[Any, ...]]:
        """Return changes, starts in seconds and the other columns, but keys and ends."""
        a_job_of(self.pipeline, 1).run()
        return [
            (
                row.get("change"),
                (row["window_start"] - NOON) // timedelta(seconds=1),
                *(v for n, v in row.items() if n not in ("change", "k", *WINDOW)),
            )
            for row in self.out.rows()
        ]


WINDOW = ("window_start", "window_end", "window_time")
N: dict[str, pen.Aggregate] = {"n": pen.count()}


def test_a_late_row_updates_its_window_or_inserts_one_until_the_lateness_is_over() -> None:
    rows = rows_at((1, 1), (35, 1), (2, 1), (12, 1), (39, 1), (41, 1), (3, 1), (14, 1))
    job = Job(rows, pen.tumbling("10s"), aggregates=N, allowed_lateness="30s")
    assert job.run() == [
        ("insert", 0, 1),
        ("update-before", 0, 1),
        ("update-after", 0, 2),
        ("insert", 10, 1),
        ("insert", 30, 2),
        ("update-before", 10, 1),
        ("update-after", 10, 2),
        ("insert", 40, 1),
    ]
    # At the watermark 41 the window until 10 is over, that until 20 is not.
    assert [row["id"] for row in job.late.rows()] == [6]


def test_a_late_row_that_changes_no_result_emits_nothing() -> None:
    rows = rows_at((1, 9), (35, 1), (2, 5))
    aggregates = {"most": pen.max("v")}
    job = Job(rows, pen.tumbling("10s"), aggregates=aggregates, allowed_lateness="1h")
    assert job.run() == [("insert", 0, 9.0), ("insert", 30, 1.0)]
    assert job.late.rows() == []


def test_a_late_row_joins_two_sessions_that_were_emitted() -> None:
    rows = rows_at((0, 1), (8, 1), (60, 1), (4, 1), (62, 1), (120, 1))
    job = Job(rows, pen.session("5s"), aggregates=N, allowed_lateness="1h")
    found = job.run()
    assert sorted(found[:2]) == [("insert", 0, 1), ("insert", 8, 1)]
    assert sorted(found[2:5]) == [("delete", 0, 1), ("delete", 8, 1), ("insert", 0, 3)]
    assert found[5:] == [("insert", 60, 2), ("insert", 120, 1)]


def test_a_late_row_opens_a_session_again_that_was_emitted() -> None:
    rows = rows_at((0, 1), (6, 1), (5, 1), (30, 1), (60, 1))
    for row in (rows[1], rows[3], rows[4]):
        row["k"] = "b"
    job = Job(rows, pen.session("5s"), aggregates=N, allowed_lateness="1h")
    found = job.run()
    # The session until 5 was closed by the watermark 6, and lasts until 10 after all.
    assert found[:2] == [("insert", 0, 1), ("delete", 0, 1)]
    assert sorted(found[2:4]) == [("insert", 0, 2), ("insert", 6, 1)]
    assert found[4:] == [("insert", 30, 1), ("insert", 60, 1)]


def test_what_is_taken_back_is_what_was_said_to_the_last_bit() -> None:
    draw = random.Random(7)
    given = [
        (draw.randrange(10), draw.random() * 10 ** draw.randrange(9)) for _ in range(60)
    ]
    rows = rows_at((0, 0.1), (11, 0.1), *given)
    for window in (pen.tumbling("10s"), pen.sliding("10s", "3s"), pen.session("9s")):
        aggregates = {"total": pen.sum("v"), "mean": pen.avg("v"), "spread": pen.var("v")}
        job = Job(rows, window, aggregates=aggregates, allowed_lateness="1h")
        a_job_of(job.pipeline, 3).run()
        assert fold(job.out.rows(), ["k", "window_start", "window_end"])


def test_a_result_that_was_not_emitted_because_it_is_equal_is_not_taken_back() -> None:
    rows = rows_at((1, 0.0), (60, 1), (2, -0.0), (3, -5))
    job = Job(
        rows,
        pen.tumbling("10s"),
        aggregates={"last": pen.last("v")},
        allowed_lateness="1h",
    )
    said = [(change, str(value)) for change, start, value in job.run() if start == 0]
    assert said == [("insert", "0.0"), ("update-before", "0.0"), ("update-after", "-5.0")]


def test_no_change_is_late_for_the_windows_behind() -> None:
    rows = rows_at((1, 1), (35, 1), (2, 1), (70, 1), (3, 1), (300, 1))
    job = Job(rows, pen.tumbling("10s"), allowed_lateness="2m")
    tens = job.windows.aggregate(n=pen.count())
    minutes = tens.window("minutes", pen.tumbling("1m")).aggregate(rows=pen.sum("n"))
    job.write(minutes)
    a_job_of(job.pipeline, 1).run()
    assert sorted(row["rows"] for row in job.out.rows()) == [1, 1, 4]
    assert "change" not in minutes.schema.arrow.names
    assert job.late.rows() == []


def test_windows_without_lateness_are_the_operators_and_tables_that_they_were() -> None:
    for window, kinds in (
        (pen.sliding("10s", "5s"), ["pane_combiner", "window"]),
        (pen.session("5s"), ["session_window"]),
    ):
        job = Job([], window, aggregates=N)
        nodes = job.pipeline.graph().nodes
        found = [node.spec.kind for node in nodes if node.operator.startswith("w")]
        assert found == kinds
        assert all("lateness" not in str(node.spec.config) for node in nodes)


def test_the_schema_says_that_results_change() -> None:
    job = Job([], pen.tumbling("10s"), aggregates=N, allowed_lateness="1m")
    schema = job.results.schema
    assert schema.table_key == ("k", "window_start", "window_end")
    assert schema.time_column == "window_time"
    assert schema.arrow.names == ["change", "k", *WINDOW, "n"]
    assert Job([], pen.tumbling("10s"), aggregates=N).results.schema.table_key is None


@pytest.mark.parametrize("window", [pen.tumbling("10s"), pen.session("10s")], ids=str)
def test_explain_shows_how_long_state_is_kept(window: Any) -> None:
    job = Job([], window, aggregates=N, allowed_lateness="5m")
    shown = str(job.pipeline.explain())
    assert "allowed_lateness=5m" in shown
    assert "keeps=until the watermark is 5m beyond the window's end" in shown


def test_explain_shows_how_long_windows_of_a_changelog_are_kept() -> None:
    job = Job([], pen.tumbling("10s"), is_table=True, schema=TABLE, aggregates=N)
    shown = str(job.pipeline.explain())
    assert "keeps=until the watermark has reached the window's end" in shown


@pytest.mark.parametrize("window", [pen.tumbling("10s"), pen.session("5s")], ids=str)
def test_all_rows_together_may_be_late_as_well(window: Any) -> None:
    pipeline = pen.Pipeline("all")
    rows = rows_at((1, 1), (35, 1), (2, 1), (90, 1), (3, 1))
    stream = pipeline.read("rows", pen.list_source(rows, SCHEMA), event_time="at")
    counted = stream.window("w", window, allowed_lateness="30s").aggregate(n=pen.count())
    out, late = (pen.list_sink(f"{name}-{new_token()}") for name in ("out", "late"))
    counted.write("out", out)
    counted.side_output(pen.LATE).write("late", late)
    a_job_of(pipeline, 1).run(parallelism=3)
    table = fold(out.rows(), ["window_start", "window_end"])
    assert sorted(row["n"] for row in table.values()) == [1, 1, 2]
    assert [row["id"] for row in late.rows()] == [4]


@pytest.mark.parametrize(
    ("lateness", "problem"),
    [
        ("0s", "it must be positive"),
        ("-1m", "'-1m' is not a valid allowed_lateness of window 'w'"),
        ("soon", "'soon' is not a valid allowed_lateness of window 'w'"),
        (True, "True is not a valid allowed_lateness"),
        ("4000000d", "at most 9999 years"),
    ],
)
def test_a_lateness_that_cannot_be_is_refused(lateness: Any, problem: str) -> None:
    job = Job([], pen.tumbling("10s"), aggregates=N, allowed_lateness=lateness)
    with pytest.raises(UserError, match=problem):
        job.pipeline.graph()


@pytest.mark.parametrize("window", [pen.tumbling("10s"), pen.session("10s")], ids=str)
@pytest.mark.parametrize(("before", "after"), [("1m", "2m"), (None, "1m"), ("1m", None)])
def test_the_lateness_of_a_window_cannot_change_under_its_name(
    window: Any, before: str | None, after: str | None
) -> None:
    rows = rows_at(*((second, 1) for second in range(0, 60, 4)))
    first = Job(rows, window, aggregates=N, allowed_lateness=before)
    job = a_job_of(first.pipeline, 2)
    job.run(epochs=3)
    second = Job(rows, window, aggregates=N, allowed_lateness=after)
    other = LocalJob(second.pipeline, store=job.store)
    with pytest.raises(PenstockError, match="the pipeline does not fit"):
        other.run()


def test_the_gap_of_sessions_that_may_change_cannot_change_under_their_name() -> None:
    # What was emitted would be taken back with another end.
    rows = rows_at((0, 1), (30, 1), (2, 1), (60, 1), (3, 1))
    first = Job(rows, pen.session("4s"), aggregates=N, allowed_lateness="1h")
    job = a_job_of(first.pipeline, 1)
    job.run(epochs=3)
    second = Job(rows, pen.session("6s"), aggregates=N, allowed_lateness="1h")
    other = LocalJob(second.pipeline, store=job.store)
    with pytest.raises(PenstockError, match="the pipeline does not fit"):
        other.run()


@pytest.mark.parametrize("window", [pen.tumbling("10s"), pen.session("10s")], ids=str)
def test_no_aggregate_joins_windows_that_may_change(window: Any) -> None:
    # An update would take back a value of it that nobody was told.
    rows = rows_at((0, 1), (30, 1), (2, 1), (60, 1), (3, 1))
    first = Job(rows, window, aggregates=N, allowed_lateness="1h")
    job = a_job_of(first.pipeline, 1)
    job.run(epochs=3)
    more = {**N, "kinds": pen.count_distinct("v")}
    second = Job(rows, window, aggregates=more, allowed_lateness="1h")
    with pytest.raises(PenstockError, match="the pipeline does not fit"):
        LocalJob(second.pipeline, store=job.store).run()


def changes_at(*given: tuple[int, int | None, float]) -> list[dict[str, Any]]:
    """Return upserts, given id, second (None for gone) and value."""
    return [
        {
            "id": number,
            "k": "a",
            "at": NOON + timedelta(seconds=second or 0),
            "v": value,
            "gone": second is None,
        }
        for number, second, value in given
    ]


TABLE = SCHEMA.append(pa.field("gone", pa.bool_()))


def test_windows_of_a_changelog_without_event_time_name_no_clock_that_they_refuse() -> None:
    pipeline = pen.Pipeline("windows")
    table = pipeline.read("rows", pen.list_source([], TABLE)).from_upserts("t", key="id")
    table.window("w", pen.tumbling("10s")).aggregate(**N)
    with pytest.raises(SchemaError, match="have no event time") as refused:
        pipeline.graph()
    assert "processing-time" not in str(refused.value)


def test_rows_that_are_removed_before_a_window_closes_are_not_in_it() -> None:
    rows = changes_at((1, 1, 5), (2, 2, 7), (1, 3, 6), (2, None, 0), (3, 12, 1), (9, 30, 1))
    aggregates = {"n": pen.count(), "least": pen.min("v")}
    job = Job(rows, pen.tumbling("10s"), is_table=True, schema=TABLE, aggregates=aggregates)
    assert job.run() == [(None, 0, 1, 6.0), (None, 10, 1, 1.0), (None, 30, 1, 1.0)]


def test_windows_that_kept_values_cannot_go_on_with_partials_even_if_state_may_go() -> None:
    rows = changes_at((1, 1, 5), (2, 2, 7), (4, 2, 8), (2, None, 0), (3, 12, 1), (9, 30, 1))
    values = {**N, "least": pen.min("v")}
    first = Job(rows, pen.tumbling("10s"), is_table=True, schema=TABLE, aggregates=values)
    job = a_job_of(first.pipeline, 1)
    job.run(epochs=3)
    second = Job(rows, pen.tumbling("10s"), is_table=True, schema=TABLE, aggregates=N)
    with pytest.raises(PenstockError, match="give the step another name"):
        second.pipeline.run_in_process(job.store, allow_dropped_state=True)


def test_a_row_moves_between_windows_with_its_event_time() -> None:
    rows = changes_at((1, 1, 5), (1, 14, 5), (2, 2, 1), (9, 30, 1))
    job = Job(
        rows,
        pen.sliding("10s", "5s"),
        is_table=True,
        schema=TABLE,
        aggregates=N,
        allowed_lateness="1h",
    )
    job.run()
    table = fold(job.out.rows(), ["k", "window_start", "window_end"])
    starts = {
        (key[1] - NOON) // timedelta(seconds=1): row["n"] for key, row in table.items()
    }
    assert starts == {-5: 1, 0: 1, 5: 1, 10: 1, 25: 1, 30: 1}


def test_a_removal_behind_its_window_is_late_and_stands_for_itself() -> None:
    rows = changes_at((1, 1, 5), (9, 30, 1), (1, 31, 6))
    job = Job(rows, pen.tumbling("10s"), is_table=True, schema=TABLE, aggregates=N)
    assert job.run() == [(None, 0, 1), (None, 30, 2)]
    (late,) = job.late.rows()
    assert (late["change"], late["id"], late["v"]) == ("delete", 1, 5.0)
    assert job.results.side_output(pen.LATE).schema.table_key is None


def test_a_window_that_loses_its_last_row_is_deleted() -> None:
    rows = changes_at((1, 1, 5), (9, 30, 1), (1, 31, 6))
    for aggregates in (N, {"least": pen.min("v")}):
        job = Job(
            rows,
            pen.tumbling("10s"),
            is_table=True,
            schema=TABLE,
            aggregates=aggregates,
            allowed_lateness="1h",
        )
        assert [row[:2] for row in job.run()] == [
            ("insert", 0),
            ("delete", 0),
            ("insert", 30),
        ]


def test_values_that_cannot_be_kept_name_the_way_out() -> None:
    schema = TABLE.append(pa.field("tags", pa.list_(pa.string())))
    counted = pen.aggregate_rows(len, returns=pa.int64(), columns=["tags"])
    aggregates = {"tagged": counted}
    job = Job([], pen.tumbling("10s"), is_table=True, schema=schema, aggregates=aggregates)
    with pytest.raises(SchemaError, match="has no order: make text or a struct of it"):
        job.pipeline.graph()


def test_sessions_of_a_changelog_are_refused_with_the_way_out() -> None:
    job = Job([], pen.session("10s"), is_table=True, schema=TABLE, aggregates=N)
    with pytest.raises(UserError, match=r"may split a session.*Use pen\.tumbling"):
        job.pipeline.graph()


@pytest.mark.parametrize("rank", [None, "rank"])
def test_a_ranking_in_windows_follows_late_rows(rank: str | None) -> None:
    rows = rows_at((1, 5), (2, 7), (3, 6), (35, 1), (4, 9))
    job = Job(rows, pen.tumbling("10s"), allowed_lateness="1h")
    job.write(job.windows.top(2, by="v", rank=rank))
    a_job_of(job.pipeline, 1).run()
    key = ["k", "window_start", "window_end", rank] if rank else ["k", "window_start", "id"]
    found = sorted(row["v"] for row in fold(job.out.rows(), key).values())
    assert found == [1.0, 7.0, 9.0]


def test_a_ranking_in_windows_of_a_changelog_ranks_what_is_left() -> None:
    rows = changes_at((1, 1, 5), (2, 2, 7), (3, 3, 6), (2, None, 0), (9, 30, 1))
    job = Job(rows, pen.tumbling("10s"), is_table=True, schema=TABLE)
    job.windows.top(2, by="v").filter(pl.col("v") > 1).write("out", job.out)
    a_job_of(job.pipeline, 1).run()
    assert sorted(row["v"] for row in job.out.rows()) == [5.0, 6.0]
