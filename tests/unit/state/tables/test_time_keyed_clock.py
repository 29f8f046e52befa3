"""Tables that expire by processing time: the same life as by event time, by another clock."""

from typing import Any

import pytest

from penstock.core.ids import Epoch
from penstock.errors import StateError
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.columns import domain_of
from penstock.state.tables.expiry import clock_after_epoch, clock_within_epoch
from penstock.state.tables.specs import TimeDomain, time_keyed_table
from penstock.state.tables.table import CompactionConfig, Frontier
from penstock.state.tables.table_manager import SubtaskCheckpoint, TableManager
from tests.builders.kept_epochs import files_of
from tests.unit.state.tables.table_builders import an_environment, compact_subtask
from tests.unit.state.tables.time_rows import COLUMNS, PANES, a_batch, rows_in

BY_CLOCK = time_keyed_table(
    "panes",
    COLUMNS,
    key_columns=["user"],
    time_column="at",
    time_domain=TimeDomain.PROCESSING_TIME,
)
Metadata = dict[int, state_pb2.OperatorCheckpointMetadata]


class Subtask:
    """One subtask with one table by processing time, kept between epochs unless told."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.manager: TableManager | None = None
        self._attempts = 0

    def begin(self, metadata: Metadata, now: int, previous: int | None) -> TableManager:
        self._attempts += 1
        environment = an_environment(self.store, attempt=self._attempts)
        if self.manager is None:
            self.manager = TableManager.load(environment, [BY_CLOCK], metadata)
        else:
            self.manager.catch_up(environment, metadata)
        self.manager.begin_epoch(Frontier(None, now, previous))
        return self.manager

    def insert(self, *rows: tuple[str, int]) -> None:
        """Insert keys with the instant at which each expires."""
        assert self.manager is not None
        batch = a_batch(*((key, expiry, 0) for key, expiry in rows))
        expiries: Any = batch.column("at")
        self.manager.get_time_keyed_state("panes").insert(batch, expiries)

    def seen(self) -> list[str | None]:
        assert self.manager is not None
        rows = rows_in(self.manager.get_time_keyed_state("panes").rows())
        return sorted((row[0] for row in rows), key=repr)

    def finish(self, epoch: int) -> SubtaskCheckpoint:
        assert self.manager is not None
        return self.manager.checkpoint(Epoch(epoch), Epoch(1), None)


def test_a_row_is_seen_in_the_epoch_that_passes_it_and_not_after() -> None:
    subtask = Subtask()
    subtask.begin({}, 10, None)
    subtask.insert(("a", 15), ("b", 99))
    metadata = {0: subtask.finish(1).metadata}
    for epoch, now, previous, expected in (
        (2, 14, 10, ["a", "b"]),
        (3, 20, 14, ["a", "b"]),
        (4, 30, 20, ["b"]),
    ):
        subtask.begin(metadata, now, previous)
        assert subtask.seen() == expected
        metadata = {0: subtask.finish(epoch).metadata}


def test_a_file_leaves_the_list_when_processing_time_has_passed_it() -> None:
    subtask = Subtask()
    subtask.begin({}, 10, None)
    subtask.insert(("a", 15))
    first = subtask.finish(1).metadata
    assert len(files_of(first, "panes")) == 1
    subtask.begin({0: first}, 14, 10)
    second = subtask.finish(2).metadata
    assert files_of(second, "panes") == files_of(first, "panes")
    subtask.begin({0: second}, 15, 14)
    assert files_of(subtask.finish(3).metadata, "panes") == ()


def test_rows_of_a_file_that_a_torn_epoch_dropped_are_not_seen_twice() -> None:
    subtask = Subtask()
    subtask.begin({}, 10, None)
    subtask.insert(("a", 15))
    metadata = {0: subtask.finish(1).metadata}
    for epoch, now in ((2, 20), (3, 25)):
        subtask.begin(metadata, now, 10)
        assert subtask.seen() == ["a"]
        subtask.finish(epoch)


def test_rows_that_a_torn_epoch_did_not_write_are_forgotten() -> None:
    subtask = Subtask()
    subtask.begin({}, 10, None)
    subtask.insert(("a", 99))
    metadata = {0: subtask.finish(1).metadata}
    subtask.begin(metadata, 20, 10)
    subtask.insert(("b", 15))
    subtask.finish(2)
    subtask.begin(metadata, 25, 10)
    assert subtask.seen() == ["a"]


def test_a_restored_epoch_shows_what_had_expired_since_though_the_clock_went_on() -> None:
    subtask = Subtask()
    subtask.begin({}, 10, None)
    subtask.insert(("a", 15))
    subtask.insert(("b", 99))
    metadata = {0: subtask.finish(1).metadata}
    for epoch, now, previous, expected in (
        (2, 20, 10, ["a", "b"]),
        (3, 30, 20, ["b"]),
        (4, 40, 10, ["a", "b"]),
    ):
        manager = subtask.begin(metadata, now, previous)
        assert subtask.seen() == expected
        manager.get_time_keyed_state("panes").expire()
        subtask.finish(epoch)


def test_compaction_drops_what_processing_time_has_passed() -> None:
    subtask = Subtask()
    metadata: Metadata = {}
    for epoch, (key, expiry) in enumerate([("a", 15), ("b", 99), ("c", 99)], start=1):
        subtask.begin(metadata, epoch, epoch - 1 or None)
        subtask.insert((key, expiry), (key.upper(), 100))
        metadata = {0: subtask.finish(epoch).metadata}
    environment = an_environment(subtask.store, attempt=99)
    config = CompactionConfig(Epoch(4), Frontier(1_000, 15), min_compaction_epochs=2)
    compacted = compact_subtask([BY_CLOCK], environment, config, metadata)["panes"]
    merged = state_pb2.TimeKeyedTableCheckpointMetadata.FromString(compacted.data)
    assert [file.row_count for file in merged.files] == [5]


@pytest.mark.parametrize("declared", [PANES, BY_CLOCK])
def test_the_clock_of_a_table_cannot_change(declared: Any) -> None:
    other = BY_CLOCK if declared is PANES else PANES
    writer = TableManager.load(an_environment(), [declared], {})
    writer.begin_epoch(Frontier())
    metadata = {0: writer.checkpoint(Epoch(1), Epoch(1), None).metadata}
    with pytest.raises(StateError, match="keep that clock"):
        TableManager.load(an_environment(attempt=2), [other], metadata)


def test_a_declaration_from_before_there_was_a_choice_means_event_time() -> None:
    config = state_pb2.TimeKeyedTableConfig.FromString(PANES.config)
    assert config.time_domain == state_pb2.MISSING_TIME_DOMAIN
    assert domain_of(config) == state_pb2.EVENT_TIME


def test_each_domain_has_its_clock() -> None:
    frontier = Frontier(3, 20, 10)
    assert clock_within_epoch(state_pb2.EVENT_TIME, frontier) == 3
    assert clock_within_epoch(state_pb2.PROCESSING_TIME, frontier) == 10
    assert clock_after_epoch(state_pb2.EVENT_TIME, frontier) == 3
    assert clock_after_epoch(state_pb2.PROCESSING_TIME, frontier) == 20


def test_a_chunk_that_is_searched_often_answers_as_before() -> None:
    subtask = Subtask()
    manager = subtask.begin({}, 0, None)
    times = [(number * 7_919) % 1_000 for number in range(1_000)]
    subtask.insert(*((f"u{time}", time + 1) for time in times))
    view = manager.get_time_keyed_state("panes")
    answers: list[Any] = [(view.rows(100, 200), view.min_time(500)) for _ in range(40)]
    assert {len(rows) for rows, _ in answers} == {100}
    assert all(rows.equals(answers[0][0]) for rows, _ in answers)
    assert {earliest for _, earliest in answers} == {500}


def test_the_earliest_time_follows_the_clock_and_own_writes_stay_few_chunks() -> None:
    subtask = Subtask()
    metadata: Metadata = {}
    for epoch in range(1, 60):
        manager = subtask.begin(metadata, epoch, epoch - 1 or None)
        subtask.insert((f"u{epoch}", epoch + 5))
        view = manager.get_time_keyed_state("panes")
        first = max(6, epoch)
        assert view.min_time() == first
        assert view.min_time(first + 1) == (first + 1 if epoch > 1 else None)
        metadata = {0: subtask.finish(epoch).metadata}
        assert len(view._chunks) <= 6
