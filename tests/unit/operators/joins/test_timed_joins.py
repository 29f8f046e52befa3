"""Joins by event time, one epoch at a time: when they emit what, and what they keep."""

from datetime import UTC, datetime
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.catalog import default_registry
from penstock.core.clock import new_token
from penstock.core.watermark import IDLE
from penstock.errors import SchemaError, StateError
from penstock.operators import EventTime
from penstock.operators.user_functions import source_spec
from penstock.testing import EOF, PAUSE, LocalJob, OperatorHarness, ScriptedSource
from tests.builders.joins import SECOND, JoinJob, in_order, left_row, result_of, right_row


def a_row(at: int, n: int = 0, key: int | None = 1) -> dict[str, Any]:
    return {"key": key, "text": "a", "at": at, "n": n}


class Join(OperatorHarness):
    """A join under test; instants are in seconds."""

    def __init__(self, **options: Any) -> None:
        graph = JoinJob([], [], **options).pipeline.graph()
        node = next(node for node in graph.nodes if node.operator == "join")
        super().__init__(node.spec, *node.inputs)

    def step(
        self, *left: dict[str, Any], right: Any = (), watermark: int | None = None
    ) -> list[Any]:
        self.push([left_row(row) for row in left], input=0)
        self.push([right_row(row) for row in right], input=1)
        if watermark is not None:
            self.watermark(EventTime(watermark * SECOND))
        self.barrier()
        return in_order(map(result_of, self.take()))

    def kept(self) -> tuple[int, int]:
        return self.state("left").num_rows, self.state("right").num_rows


def test_pairs_are_emitted_at_once_whichever_side_comes_later() -> None:
    with Join(within=("-5s", "5s")) as join:
        assert join.step(a_row(10, 1)) == []
        assert join.step(right=[a_row(15, 2)]) == [(1, 2, 15)]
        assert join.step(a_row(12, 3)) == [(3, 2, 15)]


def test_both_bounds_are_included() -> None:
    with Join(within=("-2s", "3s")) as join:
        right = [a_row(at, at) for at in (7, 8, 13, 14)]
        assert join.step(a_row(10), right=right) == [(0, 8, 10), (0, 13, 13)]


def test_an_unmatched_row_comes_when_the_watermark_is_beyond_its_last_partner() -> None:
    with Join(how="left", within=("-2s", "3s")) as join:
        assert join.step(a_row(10, 1), watermark=10) == []
        assert join.step(watermark=13) == []  # a partner may still come at 13
        assert join.step(watermark=14) == [(1, None, 10)]
        assert join.step(watermark=99) == []


def test_a_partner_at_the_last_moment_counts() -> None:
    with Join(how="left", within=("-2s", "3s")) as join:
        assert join.step(a_row(10, 1), watermark=13) == []
        assert join.step(right=[a_row(13, 2)], watermark=99) == [(1, 2, 13)]
        assert join.step(watermark=200) == []


def test_a_row_that_had_a_match_is_not_emitted_alone_later() -> None:
    with Join(how="full", within=("-2s", "3s")) as join:
        assert join.step(a_row(10, 1), right=[a_row(8, 2)], watermark=0) == [(1, 2, 10)]
        assert join.step(watermark=12) == []  # no further row could match the right one
        assert join.step(watermark=99) == []


def test_a_row_that_comes_behind_its_last_partner_is_emitted_at_once() -> None:
    with Join(how="full", within=("-9s", "-5s")) as join:
        join.step(watermark=10)
        assert join.step(a_row(12, 1), watermark=11) == [(1, None, 12)]


def test_a_semi_join_emits_a_row_once_however_many_matches_follow() -> None:
    with Join(how="semi", within=("-5s", "5s")) as join:
        join.step(a_row(10, 1))
        assert join.step(right=[a_row(11), a_row(12)]) == [(1, None)]
        assert join.step(right=[a_row(13)]) == []


def test_state_is_gone_when_nothing_can_match_it() -> None:
    with Join(within=("-2s", "3s")) as join:
        join.step(a_row(10), right=[a_row(10)], watermark=12)
        assert join.kept() == (1, 1)
        join.step(watermark=13)
        assert join.kept() == (1, 0)  # a left row at 13 or later is too far away
        join.step(watermark=14)
        assert join.kept() == (0, 0)


def test_rows_of_an_inner_join_without_a_key_are_not_kept() -> None:
    with Join(within=("-2s", "3s")) as join:
        join.step(a_row(10, key=None), right=[a_row(10, key=None)], watermark=0)
        assert join.kept() == (0, 0)


def test_late_rows_of_each_side_have_an_output_of_their_own() -> None:
    with Join(within=("-2s", "3s")) as join:
        join.step(watermark=10)
        assert join.step(a_row(9, 1), a_row(10, 2), right=[a_row(8, 3)]) == []
        assert [row["n"] for row in join.take(pen.LATE)] == [1]
        assert [row["n"] for row in join.take(pen.LATE_RIGHT)] == [3]
        assert join.counters["late_rows"] == 2


def test_an_idle_side_does_not_hold_the_other_one() -> None:
    with Join(how="left", within=("-2s", "3s")) as join:
        join.push([left_row(a_row(10, 1))], input=0)
        join.watermark(EventTime(99 * SECOND), input=0)
        join.barrier()
        assert join.take() == []  # the right side has not said anything yet
        join.watermark(IDLE, input=1)
        join.barrier()
        assert list(map(result_of, join.take())) == [(1, None, 10)]


@pytest.mark.parametrize(
    "options",
    [
        {"within": ("0s", "5s")},
        {"window": pen.tumbling("5s")},
        {"window": pen.sliding("5s", "5s")},
        {"window": pen.session("5s")},
    ],
    ids=["within", "tumbling", "sliding", "session"],
)
@pytest.mark.parametrize(
    ("idle_timeout", "found"), [("5s", [(1, None)]), (None, [])], ids=["idle", "waiting"]
)
def test_a_source_that_is_silent_holds_a_join_until_it_counts_as_idle(
    idle_timeout: str | None, found: list[Any], options: dict[str, Any]
) -> None:
    def at(second: int, **more: int) -> dict[str, Any]:
        return {"key": 1, "at": datetime.fromtimestamp(second, UTC), **more}

    talking = [at(10, n=1), PAUSE("20s"), at(1_000, n=2), PAUSE("20s"), EOF, at(2_000, n=3)]
    silent = [at(0, m=1), PAUSE("1h"), at(2_000, m=2)]
    p, out = pen.Pipeline("p"), pen.list_sink(f"idle-{new_token()}")
    left = p.read("left", source_spec(ScriptedSource(talking)), event_time="at")
    right = p.read(
        "right",
        source_spec(ScriptedSource(silent)),
        event_time="at",
        idle_timeout=idle_timeout,
    )
    joined = left.join("join", right, on="key", how="left", **options)
    joined.select("n", "m").write("out", out)
    LocalJob(p).run(epochs=30)
    assert [(row["n"], row["m"]) for row in out.rows()] == found


@pytest.mark.parametrize(
    ("how", "held_back"),
    [("inner", 0), ("left", 3), ("anti", 3), ("semi", 3), ("right", 2), ("full", 3)],
)
def test_the_watermark_is_held_back_so_that_no_emitted_row_is_late(
    how: str, held_back: int
) -> None:
    job = JoinJob([], [], how=how, within=("-2s", "3s"))
    node = next(n for n in job.pipeline.graph().nodes if n.operator == "join")
    operator: Any = default_registry().construct(node.spec).operator
    passed = operator.handle_watermark(EventTime(100 * SECOND), None, None)
    assert passed == EventTime((100 - held_back) * SECOND)
    assert operator.handle_watermark(IDLE, None, None) is IDLE


def test_windows_emit_when_they_close_and_nothing_before() -> None:
    with Join(how="full", window=pen.tumbling("10s")) as join:
        right = [a_row(3, 2), a_row(13, 3)]
        assert join.step(a_row(1, 1), right=right, watermark=9) == []
        assert join.step(watermark=10) == [(1, 2, 0, 10)]
        assert join.step(watermark=20) == [(None, 3, 10, 20)]
        assert join.kept() == (0, 0)


def test_windows_far_apart_are_closed_without_looking_at_those_between() -> None:
    year = 365 * 24 * 3600
    with Join(window=pen.tumbling("1s")) as join:
        join.step(a_row(0, 1), a_row(9 * year, 3), right=[a_row(0, 2), a_row(9 * year, 4)])
        found = join.step(watermark=10 * year)
        assert found == [(1, 2, 0, 1), (3, 4, 9 * year, 9 * year + 1)]


def test_rows_between_windows_are_counted() -> None:
    with Join(window=pen.sliding("2s", "5s")) as join:
        assert join.step(a_row(3), a_row(1, 1), right=[a_row(0, 2)], watermark=9) == [
            (1, 2, 0, 2)
        ]
        assert join.counters["rows_outside_windows"] == 1


def test_a_session_is_cut_over_the_rows_of_both_sides() -> None:
    with Join(window=pen.session("5s")) as join:
        join.step(a_row(0, 1), a_row(10, 3), right=[a_row(5, 2)], watermark=6)
        assert join.step(watermark=15) == []
        assert join.step(watermark=16) == [(1, 2, 0, 15), (3, 2, 0, 15)]
        assert join.kept() == (0, 0)


def test_a_session_that_goes_on_keeps_its_first_rows() -> None:
    with Join(window=pen.session("5s")) as join:
        join.step(a_row(0, 1), right=[a_row(5, 2)], watermark=0)
        assert join.step(a_row(10, 3), watermark=8) == []
        assert join.step(a_row(14, 4), watermark=12) == []
        assert [one[:2] for one in join.step(watermark=20)] == [(1, 2), (3, 2), (4, 2)]


@pytest.mark.parametrize(
    "options", [{"within": ("0s", "1s")}, {"window": pen.tumbling("1s")}], ids=str
)
def test_rows_without_an_event_time_fail_the_job_or_go_aside(
    options: dict[str, Any],
) -> None:
    bad = {"id": 1, "text": "a", "seen": None, "n": 7}
    with Join(**options) as join:
        join.push([bad], input=1)
        with pytest.raises(SchemaError, match="event time"):
            join.barrier()
    with Join(**options, on_bad="divert") as join:
        join.push([bad], input=1)
        join.push([{**left_row(a_row(0)), "at": None}], input=0)
        join.barrier()
        assert [row["n"] for row in join.take(pen.BAD_RIGHT)] == [7]
        assert [row["n"] for row in join.take(pen.BAD)] == [0]
        assert join.counters["bad_rows"] == 2


def test_the_ends_of_time_are_joined_like_any_other() -> None:
    first, last = -62_135_596_800, 253_402_300_799
    with Join(how="full", within=("-1s", "1s")) as join:
        rows = [a_row(first, 1), a_row(last, 2)]
        found = join.step(*rows, right=rows)
        assert [one[:2] for one in found] == [(1, 1), (2, 2)]
        join.end()
        assert join.take() == []


def test_keys_may_differ_in_layout() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    at = datetime(2026, 1, 1, tzinfo=UTC)
    p, out = pen.Pipeline("p"), pen.list_sink("layouts")
    left = pa.table({"k": pa.array(["a", "b"]).cast(kind), "at": [at, at]})
    right = pa.table({"k": pa.array(["a"], pa.large_string()), "ts": [at]})
    lefts = p.read("left", pen.list_source(left.to_pylist(), left.schema), event_time="at")
    rights = p.read(
        "right", pen.list_source(right.to_pylist(), right.schema), event_time="ts"
    )
    lefts.join("j", rights, on="k", how="full", window=pen.tumbling("1m")).write("out", out)
    p.run_in_process("memory:")
    assert sorted((row["k"], row["ts"]) for row in out.rows() if row["ts"]) == [("a", at)]


def test_a_join_can_be_joined_and_windowed_again() -> None:
    def at(second: int) -> datetime:
        return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)

    p, out = pen.Pipeline("p", parallelism=2), pen.list_sink("again")
    streams = [
        p.read(
            name,
            pen.list_source([{"k": k, f"{name}_at": at(k + n)} for k in (1, 2)]),
            event_time=f"{name}_at",
        )
        for n, name in enumerate("abc")
    ]
    a, b, c = streams
    first = a.join("ab", b, on="k", how="left", within=("0s", "5s"))
    second = first.join("abc", c, on="k", how="left", within=("0s", "5s"))
    counts = second.key_by("k").window("w", pen.tumbling("10s")).aggregate(n=pen.count())
    counts.write("out", out)
    p.run_in_process("memory:")
    assert sorted((row["k"], row["n"]) for row in out.rows()) == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        ({"within": ("0s", "5s")}, {"within": ("0s", "6s")}, True),
        ({"within": ("0s", "5s")}, {"within": ("0s", "5s"), "how": "left"}, True),
        ({"within": ("0s", "5s")}, {"within": ("0s", "5s"), "suffix": "_r"}, False),
        ({"window": pen.tumbling("5s")}, {"window": pen.tumbling("6s")}, True),
        (
            {"window": pen.tumbling("5s")},
            {"window": pen.tumbling("5s"), "how": "full"},
            False,
        ),
        ({"window": pen.session("5s")}, {"window": pen.session("6s")}, True),
    ],
    ids=str,
)
def test_state_that_was_kept_for_another_time_is_refused(
    before: dict[str, Any], after: dict[str, Any], is_refused: bool
) -> None:
    with Join(**before) as join:
        join.step(a_row(1, 1), right=[a_row(20, 2)], watermark=0)
        kept = join.checkpoint()
    graph = JoinJob([], [], **after).pipeline.graph()
    changed = next(node.spec for node in graph.nodes if node.operator == "join")
    with OperatorHarness.restore(kept, operator=changed) as restored:
        if is_refused:
            with pytest.raises(StateError, match="rows"):
                restored.barrier()
        else:
            restored.barrier()


def test_a_stream_can_be_joined_with_itself() -> None:
    rows = [
        {"k": 1, "n": n, "at": datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC)} for n in (1, 2, 9)
    ]
    p, out = pen.Pipeline("p"), pen.list_sink("with-itself")
    stream = p.read("rows", pen.list_source(rows), event_time="at")
    next_ones = stream.join("next", stream, on="k", within=("1us", "5s"), parallelism=2)
    next_ones.select("n", "n_right").write("out", out)
    p.run_in_process("memory:")
    assert out.rows() == [{"n": 1, "n_right": 2}]


def test_aggregates_over_equal_windows_are_joined_by_window_and_key() -> None:
    rows = [
        {"k": k, "at": datetime(2026, 1, 1, 0, 0, s, tzinfo=UTC)}
        for k, s in [(1, 1), (1, 2), (2, 11)]
    ]
    p, out = pen.Pipeline("p"), pen.list_sink("same-window")
    counts = []
    for name, given in (("left", rows), ("right", rows[:2])):
        stream = p.read(name, pen.list_source(given), event_time="at")
        windows = stream.key_by("k").window(f"{name}-w", pen.tumbling("10s"))
        counts.append(windows.aggregate(**{name: pen.count()}))
    joined = counts[0].join("j", counts[1], on="k", how="left", window=pen.same_window())
    assert joined.schema.arrow.names == [
        *("k", "window_start", "window_end", "window_time", "left", "right")
    ]
    assert joined.schema.time_column == "window_time"
    joined.write("out", out)
    p.run_in_process("memory:")
    found = sorted((row["k"], row["left"], row["right"]) for row in out.rows())
    assert found == [(1, 2, 2), (2, 1, None)]


def test_a_residual_predicate_decides_what_is_unmatched() -> None:
    where = pl.col("n") < pl.col("n_right")
    with Join(how="full", within=("-5s", "5s"), where=where) as join:
        join.step(a_row(10, 5), right=[a_row(10, 4)], watermark=0)
        assert join.step(watermark=99) == [(None, 4, 10), (5, None, 10)]
