"""History, then live, as one source: what its state holds, forgets, and refuses."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import penstock as pen
from penstock.connectors.history.handover import merge_ends
from penstock.connectors.history.sides import ends_of
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SplitState
from penstock.testing import SourceHarness
from penstock.testing.given import shared_registry
from tests.builders.live_stream import LiveStream, LiveTopic
from tests.builders.placed_rows import has_handed_over, pipeline_of, rows_of, two_partitions
from tests.contract.sources.concat_sources import PLACED, placed_files, write_placed
from tests.contract.sources.source_under_test import EPOCH


@pytest.fixture
def live(tmp_path: Path) -> LiveStream:
    return two_partitions(tmp_path)


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


@pytest.mark.parametrize("kind", ["files", "table"])
def test_offsets_of_files_that_were_read_are_folded_into_the_hand_over(
    live: LiveStream, tmp_path: Path, kind: str
) -> None:
    # The highest offset of partition 0 is in the first file, that of partition 1 in the third.
    parts = [
        rows_of(1, start=9),
        rows_of(2, 3),
        rows_of(4, partition=1, start=5),
        rows_of(5, partition=1),
        rows_of(6),
        rows_of(7),
        rows_of(8),
    ]
    for rows in parts:
        write_placed(tmp_path / "old", rows)
        table = pa.Table.from_pylist(rows, PLACED)
        write_deltalake(str(tmp_path / "table"), table, mode="append")
    for partition in range(2):
        live.write(partition, rows_of(*range(100, 111), partition=partition))
    history: Any = placed_files(tmp_path / "old")
    if kind == "table":
        history = pen.delta(tmp_path / "table", time_column="at")
    both = pen.concat_sources(history=history, live=LiveTopic(live))
    ends = {"topic/0": 10, "topic/1": 6}
    kept = []
    with SourceHarness(both.source_spec()) as harness:
        # Several files end in the first epoch, so that several keep their own.
        harness.read(rows=4)
        assert len(kept_by_splits(harness)) > 1
        while not has_handed_over(harness):
            harness.close()
            harness.read(rows=1)
            kept.append(kept_by_splits(harness))
            named = harness.splits["#handover"].offset[1]
            assert merge_ends([named or {}, *kept[-1]]) == ends
        assert max(map(len, kept)) == 1, "no more than those of the last epoch"
        assert harness.splits["#handover"].offset[1] == ends
        harness.read()
        assert sorted(row["n"] for row in harness.rows()) == [
            *range(1, 9),
            *range(106, 111),
            110,
        ]


def kept_by_splits(harness: SourceHarness) -> list[dict[str, int]]:
    """Return the offsets that splits of history keep for themselves."""
    states = (s for name, s in harness.splits.items() if name.startswith("history/"))
    return [ends for state in states if (ends := ends_of(state))]
