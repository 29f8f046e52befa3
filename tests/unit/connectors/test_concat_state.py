"""History, then live, as one source: what its state holds, forgets, and refuses."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SplitState
from penstock.testing import SourceHarness
from penstock.testing.given import shared_registry
from tests.builders.live_stream import LiveStream, LiveTopic
from tests.builders.placed_rows import has_handed_over, rows_of, two_partitions
from tests.contract.sources.concat_sources import placed_files, write_placed
from tests.contract.sources.source_under_test import EPOCH


@pytest.fixture
def live(tmp_path: Path) -> LiveStream:
    return two_partitions(tmp_path)


def pipeline_of(both: Any, name: str = "job") -> pen.Pipeline:
    pipeline = pen.Pipeline(name)
    pipeline.read("both", both).write("out", pen.blackhole())
    return pipeline


def test_history_is_forgotten_after_the_hand_over_and_may_go(
    live: LiveStream, tmp_path: Path
) -> None:
    for index in range(3):
        write_placed(tmp_path / "old", rows_of(index, start=index))
    live.write(0, rows_of(0, 1, 2, 3))
    both = pen.concat_sources(history=placed_files(tmp_path / "old"), live=LiveTopic(live))
    with SourceHarness(both.source_spec()) as harness:
        harness.read(rows=1)
        assert not has_handed_over(harness)
        while not has_handed_over(harness):
            harness.read(rows=1)
        # Partitions that history has no row of are not in the point.
        names = ["columns", "kafka_partition", "kafka_offset"]
        assert harness.splits["#handover"].offset == [names, {"topic/0": 3}]
        for path in (tmp_path / "old").iterdir():
            path.unlink()
        harness.close()
        live.write(0, rows_of(4))
        harness.read()
        harness.read()
        assert sorted(harness.splits) == ["#handover", "live/topic/0", "live/topic/1"]
        assert [row["n"] for row in harness.rows()] == [0, 1, 2, 3, 4]


def test_offsets_by_number_are_those_of_the_only_topic(
    live: LiveStream, tmp_path: Path
) -> None:
    write_placed(tmp_path / "old", rows_of(0, 1, 2))
    live.write(0, rows_of(0, 1, 2, 3))
    both = pen.concat_sources(
        history=placed_files(tmp_path / "old"), live=LiveTopic(live), at={0: 2, 1: 0}
    )
    with SourceHarness(both.source_spec()) as harness:
        for _ in range(4):
            harness.read()
        assert [row["n"] for row in harness.rows()] == [0, 1, 2, 3]


def test_state_of_another_source_is_refused(live: LiveStream, tmp_path: Path) -> None:
    write_placed(tmp_path / "old", rows_of(1))
    files = placed_files(tmp_path / "old")
    place = tmp_path / "state"
    pipeline_of(files).run_in_process(place)
    both = pen.concat_sources(history=files, live=LiveTopic(live))
    problems = pipeline_of(both).check(place).problems
    assert [problem.code for problem in problems] == [ErrorCode.UNKNOWN_SPLIT]


@pytest.mark.parametrize("is_live", [False, True])
def test_another_point_is_refused_on_both_sides_of_the_hand_over(
    live: LiveStream, tmp_path: Path, is_live: bool
) -> None:
    write_placed(tmp_path / "old", rows_of(0, 1, 2, 3, 4, 5))
    live.write(0, rows_of(0, 1, 2, 3, 4, 5, 6))

    def both(second: int) -> Any:
        at = EPOCH + timedelta(seconds=second)
        return pen.concat_sources(
            history=placed_files(tmp_path / "old"), live=LiveTopic(live), at=at, by="at"
        ).source_spec()

    with SourceHarness(both(3)) as harness:
        harness.read(rows=4)
        while is_live and not has_handed_over(harness):
            harness.read()
        known = harness.splits
    changed: Any = shared_registry().construct(both(4)).operator
    for call in (changed.check_splits, lambda known: changed.plan_splits(known, None, 0)):
        with pytest.raises(UserError, match="hand-over point was time at") as failure:
            call(known)
        assert failure.value.code == ErrorCode.INPUT_CHANGED
    same: Any = shared_registry().construct(both(3)).operator
    same.check_splits(known)


def test_other_columns_of_offsets_are_refused_until_the_point_is_found(
    live: LiveStream, tmp_path: Path
) -> None:
    write_placed(tmp_path / "old", rows_of(0, 1, 2, 3, 4, 5))
    live.write(0, rows_of(0, 1, 2, 3, 4, 5, 6))

    def both(offset: str) -> Any:
        return pen.concat_sources(
            history=placed_files(tmp_path / "old"),
            live=LiveTopic(live),
            offset_columns={"partition": "kafka_partition", "offset": offset},
        ).source_spec()

    other: Any = shared_registry().construct(both("n")).operator
    with SourceHarness(both("kafka_offset")) as harness:
        harness.read(rows=4)
        with pytest.raises(
            UserError, match="was columns kafka_partition kafka_offset when"
        ):
            other.check_splits(harness.splits)
        # The state of a job that was begun before names were kept.
        stored = {**harness.splits, "#handover": SplitState(offset=[["columns"], None])}
        other.check_splits(stored)
        while not has_handed_over(harness):
            harness.read()
        other.check_splits(harness.splits)
