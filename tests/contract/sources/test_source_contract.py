"""The contract of sources: what every connector promises of the rows that it reads.

`source_under_test.py` says how a connector adds itself.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.watermark import EventTime
from penstock.errors import PenstockError, UserError
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget, SplitState
from penstock.testing import Amnesia, SourceHarness
from penstock.testing.given import shared_registry
from tests.builders.profile import by_profile
from tests.contract.sources.source_under_test import EPOCH, Drift, Line, SourceUnderTest

Fresh: TypeAlias = Callable[..., SourceUnderTest]
BUDGET = SourceBudget()
MAX_EPOCHS = 60


def operator_of(source: SourceUnderTest, *, follows: bool = False) -> SourceOperator:
    made = shared_registry().construct(source.spec(follows=follows)).operator
    assert isinstance(made, SourceOperator)
    return made


def a_harness(
    source: SourceUnderTest, *, follows: bool = False, **options: Any
) -> SourceHarness:
    return SourceHarness(source.spec(follows=follows), now=EPOCH, **options)


def check_rows(source: SourceUnderTest, rows: Sequence[Any], wanted: Iterable[int]) -> None:
    """Check that the rows are those of the numbers, each once and whole."""
    rows = source.folded(rows)
    assert sorted(map(source.number_of, rows)) == sorted(wanted)
    for row in rows:
        source.check_row(row)


def read_to_the_end(harness: SourceHarness, rows: int) -> None:
    harness.read_all(rows=rows, max_epochs=MAX_EPOCHS)


# ---- split planning


def test_a_plan_follows_from_what_is_known_alone(fresh: Fresh) -> None:
    source = fresh(Line.PLANNING)
    source.write(range(20))
    source.write(range(20, 40))
    small = SourceBudget(rows=5, subtasks=2)
    first, second = operator_of(source), operator_of(source)
    plan = first.plan_splits({}, small, 0)
    assert plan == first.plan_splits({}, small, 0)
    assert plan == second.plan_splits({}, small, 0)
    names = [split.name for split in plan.splits]
    assert len(set(names)) == len(names)
    first.release()
    second.release()


def test_a_plan_says_where_an_epoch_ends_and_survives_being_stored(fresh: Fresh) -> None:
    source = fresh(Line.PLANNING)
    source.write(range(30))
    planner = operator_of(source)
    for split in planner.plan_splits({}, SourceBudget(rows=7), 0).splits:
        assert split.end is not None
    planner.release()
    with a_harness(source) as harness:
        harness.read(rows=7)
        known = harness.splits
    stored = msgspec.msgpack.encode(known)
    again = msgspec.msgpack.decode(stored, type=dict[str, SplitState])
    one, other = operator_of(source), operator_of(source)
    assert one.plan_splits(known, BUDGET, 0) == other.plan_splits(again, BUDGET, 0)
    one.release()
    other.release()


def test_planning_reads_nothing(fresh: Fresh) -> None:
    source = fresh(Line.PLANNING)
    source.write(range(30))
    with a_harness(source) as harness:
        for turn in range(4):
            planner = harness._session.planner
            assert planner.has_waiting(rows=1, size_bytes=None, now_micros=turn)
        read_to_the_end(harness, 10)
        check_rows(source, harness.rows(), range(30))


def test_what_was_stored_passes_its_own_check(fresh: Fresh) -> None:
    source = fresh(Line.PLANNING)
    source.write(range(30))
    with a_harness(source) as harness:
        harness.read(rows=7)
        starting = operator_of(source)
        starting.check_splits(harness.splits)
        starting.release()


# ---- resume, rescale, replay


@pytest.mark.parametrize("amnesia", list(Amnesia))
def test_every_epoch_goes_on_from_the_checkpoint(fresh: Fresh, amnesia: Amnesia) -> None:
    source = fresh(Line.RESUME)
    source.write(range(25))
    source.write(range(25, 50))
    with a_harness(source, parallelism=2, amnesia=amnesia) as harness:
        for _ in range(4):
            harness.read(rows=5)
            harness.close()  # a new driver goes on
        read_to_the_end(harness, 8)
        check_rows(source, harness.rows(), range(50))


def test_rows_of_a_split_keep_their_order(fresh: Fresh) -> None:
    source = fresh(Line.RESUME)
    source.write(range(40))
    with a_harness(source) as harness:
        read_to_the_end(harness, 6)
        read = [source.number_of(row) for row in harness.rows()]
    for group in {source.order_group(n) for n in read}:
        same = [n for n in read if source.order_group(n) == group]
        assert same == sorted(same)
    assert sorted(read) == list(range(40))


def test_any_number_of_subtasks_goes_on_with_the_splits(fresh: Fresh) -> None:
    source = fresh(Line.RESCALE)
    for start in range(0, 60, 20):
        source.write(range(start, start + 20))
    with a_harness(source) as harness:
        for parallelism in (3, 1, 4, 2):
            harness.read(rows=3)
            harness.rescale(parallelism)
        read_to_the_end(harness, 10)
        check_rows(source, harness.rows(), range(60))


def test_an_epoch_that_runs_again_reads_the_same_rows_whatever_came_meanwhile(
    fresh: Fresh,
) -> None:
    source = fresh(Line.REPLAY)
    source.write(range(20))
    follows = Line.IDLE not in source.cannot
    written = 20

    def write_more() -> None:
        nonlocal written
        if follows:
            source.write(range(written, written + 10))
            written += 10

    with a_harness(source, follows=follows, parallelism=2) as harness:
        for _ in range(3):
            harness.read(rows=6, again_after=write_more)
            harness.advance(source.poll)
        read_all_that_is_there(harness, source)
        check_rows(source, harness.rows(), range(written))


def read_all_that_is_there(harness: SourceHarness, source: SourceUnderTest) -> None:
    """Read until two epochs in a row gave nothing."""
    silent = 0
    for _ in range(MAX_EPOCHS):
        silent = 0 if harness.read().rows() else silent + 1
        if silent == 2 or harness.has_ended:
            return
        harness.advance(source.poll)
    raise AssertionError("the source does not come to rest")


def test_a_source_that_cannot_replay_says_so_to_the_engine(fresh: Fresh) -> None:
    source = fresh()
    source.write(range(3))
    made = operator_of(source)
    assert made.is_rewindable() == (Line.REPLAY not in source.cannot)
    made.release()


# ---- budget


@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_epoch_keeps_to_its_rows_and_still_comes_forward(
    fresh: Fresh, parallelism: int
) -> None:
    source = fresh(Line.BUDGET)
    for start in range(0, 60, 20):
        source.write(range(start, start + 20))
    with a_harness(source, parallelism=parallelism) as harness:
        read = 0
        while read < 60:
            count = len(harness.read(rows=10).rows())
            # A subtask may get a third more, or one piece that cannot be smaller.
            piece = max(source.smallest_piece, 10 / 3)
            assert count > 0 or source.leaves_rows_out
            assert count <= parallelism * (10 + piece)
            read += count
        check_rows(source, harness.rows(), range(60))


def test_an_epoch_keeps_to_its_bytes(fresh: Fresh) -> None:
    source = fresh(Line.BUDGET)
    source.write(range(400))
    with a_harness(source, budget=SourceBudget(size_bytes=2_000)) as harness:
        first = len(harness.read().rows())
        # A row of the suite has more than 10 bytes in every format.
        assert 0 < first < 200
        harness.read_all(rows=100_000, max_epochs=500)
        check_rows(source, harness.rows(), range(400))


def test_a_plan_tells_whether_more_is_left(fresh: Fresh) -> None:
    source = fresh(Line.BUDGET)
    source.write(range(30))
    planner = operator_of(source)
    assert planner.plan_splits({}, SourceBudget(rows=5), 0).has_more
    assert not planner.plan_splits({}, SourceBudget(rows=1_000), 0).has_more
    planner.release()


# ---- idle and end


def test_a_source_without_news_is_silent_and_then_finds_them(fresh: Fresh) -> None:
    source = fresh(Line.IDLE)
    source.write(range(10))
    with a_harness(source, follows=True) as harness:
        read_all_that_is_there(harness, source)
        check_rows(source, harness.rows(), range(10))
        for _ in range(3):
            harness.advance(source.poll)
            assert harness.read().rows() == []
        assert not harness.has_ended
        source.write(range(10, 15))
        harness.advance(source.poll)
        read_all_that_is_there(harness, source)
        check_rows(source, harness.rows(), range(15))


def test_a_source_that_was_empty_at_first_gives_what_comes(fresh: Fresh) -> None:
    source = fresh(Line.IDLE)
    with a_harness(source, follows=True) as harness:
        for _ in range(2):
            assert harness.read().rows() == []
            harness.advance(source.poll)
        source.write(range(5))
        harness.advance(source.poll)
        read_all_that_is_there(harness, source)
        check_rows(source, harness.rows(), range(5))


def test_the_watermark_follows_the_rows_and_never_goes_back(fresh: Fresh) -> None:
    source = fresh(Line.IDLE, Line.EVENT_TIME)
    source.write(range(30))
    told: list[int] = []
    with a_harness(source, follows=True, idle_timeout="10s") as harness:
        for turn in range(14):
            if turn == 6:
                source.write(range(30, 40))
            output = harness.read(rows=12)
            if isinstance(output.watermark, EventTime):
                told.append(output.watermark.micros)
            harness.advance(source.poll)
        check_rows(source, harness.rows(), range(40))
        # Whoever is silent, a split of another partition or an old file, holds nothing back.
        harness.advance("20s")
        harness.read()
        source.write(range(40, 45))
        harness.advance(source.poll)
        last = [harness.read().watermark for _ in range(3)]
    told += [mark.micros for mark in last if isinstance(mark, EventTime)]
    assert all(before <= after for before, after in pairwise(told))
    start = int(EPOCH.timestamp()) * 1_000_000
    assert told
    latest = {source.order_group(n): n for n in range(40, 45)}
    # The slowest of the splits that gave rows tells the time.
    assert told[-1] == start + min(latest.values()) * 1_000_000


def test_a_bounded_source_ends_with_its_last_row_and_stays_so(fresh: Fresh) -> None:
    source = fresh(Line.END)
    source.write(range(20))
    with a_harness(source, parallelism=2) as harness:
        read_to_the_end(harness, 7)
        check_rows(source, harness.rows(), range(20))
        harness.close()
        assert harness.read().rows() == []
        assert harness.has_ended
        assert all(state.ended for state in harness.splits.values())
        check_rows(source, harness.rows(), range(20))


def test_a_bounded_source_ends_at_what_was_there_at_first(fresh: Fresh) -> None:
    source = fresh(Line.END, Line.IDLE)
    source.write(range(20))
    with a_harness(source) as harness:
        harness.read(rows=5)
        source.write(range(20, 30))
        harness.advance(source.poll)
        read_to_the_end(harness, 7)
        check_rows(source, harness.rows(), range(20 if source.is_bound_at_first else 30))


# ---- bad rows and schema drift


def test_a_bad_row_fails_the_job_and_is_named(fresh: Fresh) -> None:
    source = fresh(Line.BAD_ROWS)
    source.write(range(5))
    source.write_bad(1)
    with a_harness(source) as harness:
        with pytest.raises(UserError, match="divert") as failure:
            read_to_the_end(harness, 100)
        assert failure.value.code == "unreadable-input"


def test_bad_rows_are_set_aside_each_once(fresh: Fresh) -> None:
    source = fresh(Line.BAD_ROWS)
    source.write(range(10))
    source.write_bad(3)
    source.write(range(10, 20))
    spec = source.spec(follows=False, diverts_bad=True)
    with SourceHarness(spec, parallelism=2, now=EPOCH) as harness:
        harness.read(rows=4)
        harness.close()
        harness.rescale(1)
        read_to_the_end(harness, 4)
        check_rows(source, harness.rows(), range(20))
        bad = harness.rows(source.bad_output)
        assert len(bad) == 3
        assert all(row["error"] for row in bad)


@pytest.mark.parametrize("drift", list(Drift))
def test_drifted_rows_are_read_right_or_refused_by_name(fresh: Fresh, drift: Drift) -> None:
    source = fresh(Line.DRIFT)
    source.write(range(5))
    source.write_drifted(range(5, 10), drift)
    with a_harness(source) as harness:
        failure: PenstockError | None = None
        try:
            read_to_the_end(harness, 100)
        except PenstockError as error:
            failure = error
        rows = source.folded(harness.rows())
    if failure is not None or drift is Drift.OTHER_TYPE:
        assert isinstance(failure, UserError)
        # It names the column, or shows the value that is no number.
        column = {Drift.NEW_COLUMN: "more", Drift.MISSING_COLUMN: "s"}.get(drift, "n")
        assert re.search(rf"['\"]{column}['\"]|'n5\b", str(failure))
        return
    numbers = sorted(map(source.number_of, rows))
    assert numbers == list(range(10))
    for row in rows:
        if drift is Drift.MISSING_COLUMN and source.number_of(row) >= 5:
            assert row["s"] is None
        else:
            source.check_row(row)


# ---- all of it together

steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 15)),
        st.tuples(st.just("again"), st.integers(1, 15)),
        st.tuples(st.just("write"), st.integers(1, 12)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("rescale"), st.integers(1, 3)),
    ),
    max_size=12,
)


@pytest.mark.slow
def test_whatever_happens_every_row_is_read_once(fresh: Fresh) -> None:
    follows = Line.IDLE not in fresh().cannot

    @settings(
        max_examples=by_profile(4, 10, 100),
        suppress_health_check=[HealthCheck.too_slow],
        deadline=None,
    )
    @given(steps=steps)
    def holds(steps: list[tuple[str, int]]) -> None:
        source = fresh(Line.RESUME, Line.RESCALE, Line.REPLAY)
        source.write(range(20))
        written = 20
        with a_harness(source, follows=follows) as harness:
            for step, number in steps:
                if step in ("read", "again"):
                    again = (lambda: None) if step == "again" else None
                    harness.read(rows=number, again_after=again)
                    harness.advance(source.poll)
                elif step == "write" and follows:
                    source.write(range(written, written + number))
                    written += number
                elif step == "restart":
                    harness.close()
                elif step == "rescale":
                    harness.rescale(number)
            read_all_that_is_there(harness, source)
            check_rows(source, harness.rows(), range(written))
        source.close()

    holds()
