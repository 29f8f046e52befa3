"""Windows as users write them: mistakes are named, with the step they are in."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import ErrorCode, SchemaError, UserError
from tests.builders.windows import ROWS


def rows(**options: Any) -> pen.Stream:
    p = pen.Pipeline("windows", parallelism=2)
    return p.read("rows", pen.list_source([], ROWS), **{"event_time": "at", **options})


@pytest.mark.parametrize(
    ("window", "problems"),
    [
        (pen.tumbling("0s"), ["a width of 0 microseconds", "a slide of 0 microseconds"]),
        (pen.tumbling(-5), ["-5 is not a valid width"]),
        (
            pen.tumbling(timedelta(days=-1)),
            ["is not a valid width: it must not be negative"],
        ),
        (pen.sliding("0s", "-1s"), ["'-1s' is not a valid slide"]),
        (pen.sliding("10s", "0s"), ["a slide of 0 microseconds"]),
        (
            pen.sliding("ten", "x"),
            ["'ten' is not a valid width", "'x' is not a valid slide"],
        ),
        (pen.tumbling("4000000d"), ["a width of 345600000000000000 microseconds"]),
        (pen.session("0s"), ["a gap of 0 microseconds"]),
        (pen.session("-1s"), ["'-1s' is not a valid gap"]),
        ("10s", ["use pen.tumbling, pen.sliding or pen.session"]),
    ],
    ids=str,
)
def test_windows_that_cannot_be_are_refused_with_the_name_of_the_step(
    window: Any, problems: list[str]
) -> None:
    keyed = rows().key_by("key")
    keyed.window("per-key", window).aggregate(n=pen.count())
    with pytest.raises(UserError, match="window 'per-key' cannot be") as caught:
        keyed.builder.graph()
    assert all(problem in caught.value.message for problem in problems)


def test_a_tumbling_window_is_not_told_of_a_slide_that_nobody_gave() -> None:
    stream = rows()
    stream.window("w", pen.tumbling("1 minute")).aggregate(n=pen.count())
    with pytest.raises(UserError, match="'1 minute' is not a valid width") as caught:
        stream.builder.graph()
    assert "slide" not in caught.value.message


def test_everything_that_is_wrong_with_aggregates_is_said_at_once() -> None:
    not_one: Any = 5
    computed = (
        rows()
        .key_by("key")
        .window("w", pen.tumbling("1s"))
        .aggregate(
            total=pen.sum("valeu"), key=pen.count(), window_end=pen.count(), five=not_one
        )
    )
    with pytest.raises(SchemaError, match="window 'w' cannot be computed") as caught:
        computed.builder.graph()
    for problem in ("did you mean 'value'", "key:", "window_end:", "five"):
        assert problem in caught.value.message


def test_nothing_to_aggregate_and_nothing_to_go_by_are_refused() -> None:
    nothing = rows().window("w", pen.session("1s")).aggregate()
    with pytest.raises(SchemaError, match="computes nothing"):
        nothing.builder.graph()
    untimed = rows(event_time=None).window("w", pen.session("1s")).aggregate(n=pen.count())
    with pytest.raises(SchemaError, match="its rows have no event time"):
        untimed.builder.graph()


def test_a_key_that_is_called_like_a_column_of_windows_is_refused() -> None:
    schema = pa.schema([("window_start", pa.int64()), ("at", pa.timestamp("us"))])
    stream = pen.Pipeline("p").read("r", pen.list_source([], schema), event_time="at")
    windows = stream.key_by("window_start").window("w", pen.tumbling("1s"))
    counts = windows.aggregate(n=pen.count())
    with pytest.raises(SchemaError, match="key column 'window_start' has the name"):
        counts.builder.graph()


def test_unknown_ways_with_bad_rows_are_refused() -> None:
    wrong: Any = "diverted"
    stream = rows()
    stream.window("w", pen.tumbling("1s"), on_bad=wrong)
    with pytest.raises(UserError, match="on_bad is 'diverted': use 'fail' or 'divert'"):
        stream.builder.graph()


@pytest.mark.parametrize(
    "window", [pen.tumbling("1s"), pen.sliding("3s", "1s"), pen.session("1s")], ids=str
)
def test_late_and_bad_rows_are_side_outputs_of_the_result(window: Any) -> None:
    counts = rows().key_by("key").window("w", window).aggregate(n=pen.count())
    assert counts.side_output(pen.LATE).schema.arrow == ROWS
    counts.side_output(pen.BAD)
    with pytest.raises(UserError, match="no side output 'bad'") as caught:
        counts.builder.graph()
    assert caught.value.code is ErrorCode.UNKNOWN_OUTPUT
    counts = rows().window("w", window, on_bad="divert").aggregate(n=pen.count())
    assert counts.side_output(pen.BAD).schema.arrow == ROWS


BY_CLOCK: Any = {"time_domain": "processing-time"}


@pytest.mark.parametrize(
    ("window", "options", "problem"),
    [
        (
            pen.session("1s", **BY_CLOCK),
            {},
            "sessions are of event time only. Use pen.tumbling",
        ),
        (pen.tumbling("1s", **BY_CLOCK), {"on_bad": "divert"}, "leave on_bad out"),
        (
            pen.sliding("2s", "1s", **BY_CLOCK),
            {"on_bad": "divert", "allowed_lateness": "5s"},
            "no row is late or has a bad time: leave allowed_lateness and on_bad out",
        ),
        (
            pen.tumbling("1s", time_domain="processing"),
            {},
            "window 'w': time_domain is 'processing'; did you mean 'processing-time'",
        ),
    ],
    ids=str,
)
def test_windows_by_the_clock_that_cannot_be_are_refused_with_the_way_out(
    window: Any, options: Any, problem: str
) -> None:
    stream = rows()
    stream.window("w", window, **options).aggregate(n=pen.count())
    with pytest.raises(UserError) as caught:
        stream.builder.graph()
    assert problem in str(caught.value)
    assert "'w'" in str(caught.value)


def test_a_join_in_windows_by_the_clock_is_refused_with_the_way_out() -> None:
    stream, window = rows(), pen.tumbling("1s", **BY_CLOCK)
    stream.join("j", stream, on="key", window=window)
    with pytest.raises(UserError, match=r"of joins are of event time.*same_window"):
        stream.builder.graph()


def test_a_window_by_the_clock_over_a_changelog_is_refused_with_the_way_out() -> None:
    changes = rows().key_by("key").aggregate("counts", n=pen.count())
    changes.window("w", pen.tumbling("1s", **BY_CLOCK)).aggregate(n=pen.count())
    with pytest.raises(
        UserError, match=r"cannot follow a changelog.*Use windows by event time"
    ):
        changes.builder.graph()


def test_windows_by_the_clock_need_no_event_time_and_have_no_late_rows() -> None:
    untimed = rows(event_time=None).window("w", pen.tumbling("1s", **BY_CLOCK))
    counts = untimed.aggregate(n=pen.count())
    assert counts.schema.time_column == "window_time"
    assert counts.schema.arrow.field("window_end").type == pa.timestamp("us")
    assert "window=tumbling(1s, processing-time)" in shown_of(counts)
    counts.side_output(pen.LATE)
    with pytest.raises(
        UserError, match="Only windows and joins by event time have late rows"
    ):
        counts.builder.graph()


def shown_of(stream: pen.Stream) -> str:
    return " ".join(map(str, stream.builder.displays.values()))


def test_results_have_keys_then_the_window_then_what_was_computed() -> None:
    zoned = ROWS.set(1, pa.field("at", pa.timestamp("ms", "Europe/Berlin")))
    stream = pen.Pipeline("p").read("r", pen.list_source([], zoned), event_time="at")
    counts = stream.key_by("key").window("w", pen.tumbling("1s")).aggregate(n=pen.count())
    instant = pa.timestamp("us", "Europe/Berlin")
    assert counts.schema.time_column == "window_time"
    assert counts.schema.arrow == pa.schema(
        [
            ("key", pa.int64()),
            ("window_start", instant),
            ("window_end", instant),
            ("window_time", instant),
            ("n", pa.int64()),
        ]
    )


def test_explain_shows_windows_and_what_they_compute() -> None:
    p = pen.Pipeline("p", parallelism=2)
    stream = p.read("r", pen.list_source([], ROWS), event_time="at")
    keyed = stream.key_by("key")
    keyed.window("a", pen.sliding("3s", "1s")).aggregate(n=pen.count()).write(
        "out-a", pen.blackhole()
    )
    stream.window("b", pen.session("3s")).aggregate(n=pen.count()).write(
        "out-b", pen.blackhole()
    )
    shown = p.explain()
    assert "window=sliding(3s, 1s), computes=n=count()" in shown
    assert "session_window(window=session(3s), computes=n=count())" in shown
    assert "x1, task" in shown


@pytest.mark.parametrize("window", [pen.tumbling("1h"), pen.session("1h")], ids=str)
def test_rows_that_are_sent_to_all_subtasks_count_once_in_windows(window: Any) -> None:
    pipeline = pen.Pipeline("windows", parallelism=3)
    values = [{"key": n, "at": n, "value": n} for n in range(5)]
    source = pen.list_source(values, ROWS)
    read = pipeline.read("rows", source, event_time="at").broadcast()
    out = pen.list_sink(f"out-{new_token()}")
    read.window("w", window).aggregate(n=pen.count()).write("out", out)
    pipeline.run_in_process("memory:")
    assert [row["n"] for row in out.rows()] == [5]


def test_sessions_of_all_rows_refuse_a_column_of_the_name_they_add() -> None:
    schema = ROWS.append(pa.field("all_rows", pa.int64()))
    pipeline = pen.Pipeline("windows")
    read = pipeline.read("rows", pen.list_source([], schema), event_time="at")
    read.window("w", pen.session("5s")).aggregate(m=pen.max("all_rows")).write(
        "out", pen.blackhole()
    )
    with pytest.raises(pen.PenstockError, match="'all_rows' has the name of a column"):
        pipeline.graph()


def test_late_rows_of_a_keyed_session_keep_all_their_columns() -> None:
    schema = ROWS.append(pa.field("all_rows", pa.int64()))
    pipeline = pen.Pipeline("windows")
    read = pipeline.read("rows", pen.list_source([], schema), event_time="at").key_by("key")
    results = read.window("w", pen.session("5s")).aggregate(m=pen.max("all_rows"))
    assert "all_rows" in results.side_output(pen.LATE).schema.arrow.names


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("window", [pen.tumbling("1h"), pen.session("1h")], ids=str)
def test_dictionaries_count_as_their_values_in_windows(window: Any, splits: int) -> None:
    sizes = pl.Enum(["small", "medium", "large"])
    rows = pl.DataFrame(
        {
            "at": pl.Series([0, 1, 2], dtype=pl.Datetime("us")),
            "size": pl.Series(["large", "small", "medium"], dtype=sizes),
        }
    )
    pipeline = pen.Pipeline("windows", parallelism=splits)
    read = pipeline.read("rows", pen.list_source(rows, splits=splits), event_time="at")
    out = pen.list_sink(f"out-{new_token()}")
    read.window("w", window).aggregate(
        least=pen.min("size"),
        most=pen.max("size"),
        kinds=pen.count_distinct("size"),
        short=pen.count(where=pl.col("size").str.starts_with("s")),
    ).write("out", out)
    pipeline.run_in_process("memory:")
    (found,) = out.rows()
    assert (found["least"], found["most"]) == ("large", "small"), "in order of text"
    assert (found["kinds"], found["short"]) == (3, 1)


@pytest.mark.parametrize(
    "other",
    [pen.tumbling("7s"), pen.sliding("10s", "5s"), pen.tumbling("10s", offset="1s")],
)
def test_another_grid_under_the_same_name_is_refused(other: Any, tmp_path: Path) -> None:
    def run(window: Any) -> pen.JobStatus:
        pipeline = pen.Pipeline("windows")
        source = pen.list_source([{"key": 1, "at": 1, "value": 1}], ROWS)
        read = pipeline.read("rows", source, event_time="at").key_by("key")
        read.window("w", window).aggregate(n=pen.count()).write("out", pen.blackhole())
        return pipeline.run_in_process(str(tmp_path), restore=restore)

    restore = None
    run(pen.tumbling("10s"))
    restore = 1
    with pytest.raises(pen.PenstockError, match="windows 10s wide, every 10s, from 0s"):
        run(other)
    assert run(pen.tumbling("10000ms")).phase is pen.JobPhase.FINISHED


def test_rows_that_a_source_reads_without_a_time_are_bad_rows_of_the_window() -> None:
    listed = [{"key": 1, "at": at, "value": 1} for at in (0, None, 1)]
    for on_bad in ("divert", "fail"):
        pipeline = pen.Pipeline("windows")
        read = pipeline.read("rows", pen.list_source(listed, ROWS), event_time="at")
        out, bad = (pen.list_sink(f"out-{new_token()}") for _ in range(2))
        cut = read.window("w", pen.tumbling("1h"), on_bad=on_bad)
        results = cut.aggregate(n=pen.count())
        results.write("out", out)
        if on_bad == "divert":
            results.side_output(pen.BAD).write("bad", bad)
            pipeline.run_in_process("memory:")
            assert [row["n"] for row in out.rows()] == [2]
            assert bad.rows() == [listed[1]]
            continue
        with pytest.raises(pen.PenstockError, match="null"):
            pipeline.run_in_process("memory:")
