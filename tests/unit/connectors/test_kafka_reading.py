"""Tests the reader of ranges against a log in memory, whose records come as they please."""

import random
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.kafka import fetched, reading
from penstock.connectors.kafka.fetched import Range
from penstock.connectors.kafka.positions import Partition
from penstock.connectors.kafka.reading import PartitionReader
from penstock.errors import ExternalError
from tests.builders.kafka_log import Error, Knowing, Log, Message, reader_of


def read(
    reader: PartitionReader, ranges: Mapping[Partition, Range], kept: Sequence[Partition]
) -> dict[Partition, list[int]]:
    """Return the offsets of the records that were read, as their values tell them."""
    found: dict[Partition, list[int]] = {partition: [] for partition in ranges}
    reached = {partition: each.start for partition, each in ranges.items()}
    order = list(ranges)
    for piece in reader.read(
        ranges, kept=kept, on_gone=lambda _, at: at, on_stall=lambda: None
    ):
        # Partitions come in turn, so that a replay gives the same rows in the same order.
        order = order[order.index(piece.partition) :]
        assert piece.next > reached[piece.partition]
        reached[piece.partition] = piece.next
        for chunk in piece.chunks:
            values = [int(value) for value in chunk.values.to_pylist()]
            assert values == chunk.offsets.tolist()
            assert chunk.last_millis == values[-1] * 10
            assert chunk.size_bytes == sum(len(str(value)) for value in values)
            found[piece.partition] += values
    assert reached == {partition: each.end for partition, each in ranges.items()}
    return found


logs = st.dictionaries(
    st.builds(Partition, st.sampled_from(["a", "b"]), st.integers(0, 2)),
    st.tuples(st.sets(st.integers(0, 59), max_size=60), st.integers(0, 5)),
    min_size=1,
    max_size=4,
)
cuts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 30), st.booleans()), max_size=12
)


@given(logs, cuts, st.integers(0, 1 << 30), st.integers(1, 9), st.integers(0, 30))
def test_every_record_of_a_range_is_read_once_however_records_come(
    found: dict[Partition, tuple[set[int], int]],
    cuts: list[tuple[int, int, bool]],
    seed: int,
    most_held: int,
    most_left_alone: int,
) -> None:
    records = {key: sorted(offsets) for key, (offsets, _) in found.items()}
    ends = {
        key: max(records[key], default=-1) + 1 + more for key, (_, more) in found.items()
    }
    reader = reader_of(Log(records, ends, random.Random(seed)))
    at = dict.fromkeys(records, 0)
    keys = sorted(records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetched, "MOST_HELD", most_held)
        patch.setattr(fetched, "MOST_HELD_BYTES", 3 * most_held)
        patch.setattr(reading, "MOST_LEFT_ALONE", most_left_alone)
        patch.setattr(fetched, "RECORDS_PER_PIECE", 7)
        patch.setattr(reading, "MESSAGES_PER_CALL", 20)
        patch.setattr(reading, "_PATIENCE_SECONDS", 0.5)
        for left_out, step, again in cuts:
            ranges = {
                key: Range(at[key], min(at[key] + step, ends[key]))
                for index, key in enumerate(keys)
                if index != left_out and at[key] < ends[key]
            }
            for _ in range(1 + again):
                read_ = read(reader, ranges, keys)
                assert read_ == {
                    key: [n for n in records[key] if each.start <= n < each.end]
                    for key, each in ranges.items()
                }
            at |= {key: each.end for key, each in ranges.items()}


def test_what_comes_of_a_paused_partition_in_the_same_call_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched, "MOST_HELD", 1)
    monkeypatch.setattr(reading, "MOST_LEFT_ALONE", -1_000_000)
    one, other = Partition("a", 0), Partition("a", 1)
    run = [Message(one, at) for at in range(4)]
    end = Message(one, 5, Error("_PARTITION_EOF"))
    log = Log(
        {one: range(5), other: range(5)},
        {one: 5, other: 5},
        Knowing(0),
        first=[*run, Message(other, 0), Message(one, 4), end],
    )
    reader = reader_of(log)
    first = {one: Range(0, 1), other: Range(0, 1)}
    assert read(reader, first, []) == {one: [0], other: [0]}
    then = {one: Range(1, 5), other: Range(1, 5)}
    assert read(reader, then, []) == {one: [1, 2, 3, 4], other: [1, 2, 3, 4]}


@given(st.integers(0, 1 << 30), st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3))))
def test_an_epoch_that_is_broken_off_is_gone_on_with_by_ranges_of_any_length(
    seed: int, epochs: list[tuple[int, int]]
) -> None:
    keys = [Partition("a", 0), Partition("a", 1)]
    log = Log(dict.fromkeys(keys, range(60)), dict.fromkeys(keys, 60), random.Random(seed))
    reader = reader_of(log)
    at = dict.fromkeys(keys, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetched, "RECORDS_PER_PIECE", 7)
        patch.setattr(reading, "MOST_LEFT_ALONE", 20)
        for step, pieces in epochs:
            ranges = {
                key: Range(at[key], min(at[key] + step, 60)) for key in keys if at[key] < 60
            }
            reading_ = reader.read(
                ranges, kept=keys, on_gone=lambda _, at: at, on_stall=lambda: None
            )
            for piece in islice(reading_, pieces):
                values = [
                    int(each) for chunk in piece.chunks for each in chunk.values.to_pylist()
                ]
                assert values == list(range(at[piece.partition], piece.next))
                at[piece.partition] = piece.next


def test_large_records_behind_a_range_pause_their_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched, "MOST_HELD_BYTES", 3)
    monkeypatch.setattr(reading, "MOST_LEFT_ALONE", -1_000_000)
    one, other = Partition("a", 0), Partition("a", 1)
    log = Log(
        {one: range(9), other: range(9)},
        {one: 9, other: 9},
        Knowing(0),
        first=[Message(one, at) for at in range(6)],
    )
    reader = reader_of(log)
    first = {one: Range(0, 1), other: Range(0, 1)}
    assert read(reader, first, []) == {one: [0], other: [0]}
    assert log.paused == {one}
    then = {one: Range(1, 9), other: Range(1, 9)}
    assert read(reader, then, []) == {one: [*range(1, 9)], other: [*range(1, 9)]}


def test_only_what_is_far_from_its_end_is_fetched_between_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "MOST_LEFT_ALONE", 10)
    far, near = Partition("a", 0), Partition("a", 1)
    log = Log({far: range(50), near: range(50)}, {far: 50, near: 50}, Knowing(0))
    reader = reader_of(log)
    ranges = {far: Range(30, 40), near: Range(31, 41)}
    assert read(reader, ranges, []) == {far: [*range(30, 40)], near: [*range(31, 41)]}
    assert log.positions.keys() == {far}
    then = {far: Range(40, 50), near: Range(41, 50)}
    assert read(reader, then, []) == {far: [*range(40, 50)], near: [*range(41, 50)]}
    assert not log.positions


class _LateLog(Log):
    """A cluster whose leader of one partition is silent for some calls."""

    late: Partition
    late_calls = 50
    calls = assigned = 0

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        self.assigned += len(partitions)
        super().incremental_assign(partitions)

    def consume(self, count: int, seconds: float) -> list[Message]:
        self.calls += 1
        if self.calls > self.late_calls or self.late not in self.positions:
            return super().consume(count, seconds)
        place = self.positions.pop(self.late)
        found = super().consume(count, seconds)
        self.positions[self.late] = place
        return found


def test_a_partition_that_waits_for_its_turn_is_not_read_far_behind_its_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetched, "MOST_HELD", 10)
    monkeypatch.setattr(reading, "MOST_LEFT_ALONE", -1_000_000)
    late, other = Partition("a", 0), Partition("a", 1)
    log = _LateLog(
        {late: range(5), other: range(5_000)}, {late: 5, other: 5_000}, Knowing(0)
    )
    log.late = late
    reader = reader_of(log)
    ranges = {late: Range(0, 5), other: Range(0, 5)}
    assert read(reader, ranges, []) == {late: [*range(5)], other: [*range(5)]}
    assert log.calls > 50
    assert log.assigned == 2
    assert reader._fetches[other].later_rows <= 10 + reading.MESSAGES_PER_CALL


class _SlowLog(Log):
    """A cluster whose first answer takes a while; how often it was asked is counted."""

    asked = 0
    silent_calls = 20

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        self.asked += 1
        super().incremental_assign(partitions)

    def consume(self, count: int, seconds: float) -> list[Message]:
        self.silent_calls -= 1
        return [] if self.silent_calls > 0 else super().consume(count, seconds)


def test_an_answer_that_is_under_way_is_not_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_STALLED_SECONDS", 0.0)
    one = Partition("a", 0)
    log = _SlowLog({one: range(9)}, {one: 9}, Knowing(0))
    reader = reader_of(log)
    looked: list[bool] = []
    ranges = {one: Range(0, 9)}
    pieces = list(
        reader.read(ranges, on_gone=lambda _, at: at, on_stall=lambda: looked.append(True))
    )
    assert sum(len(chunk.offsets) for piece in pieces for chunk in piece.chunks) == 9
    assert looked
    assert log.asked == 1


@given(st.integers(0, 1 << 30), st.integers(1, 25))
def test_epochs_that_are_late_hand_out_what_has_come_and_nothing_is_passed_over(
    seed: int, calls: int
) -> None:
    dice = random.Random(seed)
    keys = [Partition("a", number) for number in range(3)]
    reader = reader_of(Log(dict.fromkeys(keys, range(40)), dict.fromkeys(keys, 40), dice))
    found: dict[Partition, list[int]] = {key: [] for key in keys}
    while any(len(values) < 40 for values in found.values()):
        ranges = {key: Range(len(v), 40) for key, v in found.items() if len(v) < 40}
        asked = iter(range(calls))
        for piece in reader.read(
            ranges,
            kept=keys,
            on_gone=lambda _, at: at,
            on_stall=lambda: None,
            is_late=lambda asked=asked: next(asked, None) is None,  # type: ignore[misc]  # bound here
        ):
            values = [int(v) for chunk in piece.chunks for v in chunk.values.to_pylist()]
            found[piece.partition] += values
            assert found[piece.partition] == list(range(piece.next))


def test_partitions_do_not_wait_for_one_whose_leader_is_gone_once_the_epoch_is_late() -> (
    None
):
    gone, other = Partition("a", 0), Partition("a", 1)
    log = _LateLog({gone: range(5), other: range(9)}, {gone: 5, other: 9}, Knowing(0))
    log.late = gone
    reader = reader_of(log)
    ranges = {gone: Range(0, 5), other: Range(0, 9)}
    pieces = reader.read(
        ranges,
        on_gone=lambda _, at: at,
        on_stall=lambda: None,
        is_late=lambda: log.calls >= 20,
    )
    assert [(piece.partition, piece.next) for piece in pieces] == [(other, 9)]


def test_where_nothing_more_comes_what_has_come_ends_the_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_PATIENCE_SECONDS", 0.2)
    gone, other = Partition("a", 0), Partition("a", 1)
    log = _LateLog({gone: range(5), other: range(9)}, {gone: 5, other: 9}, Knowing(0))
    log.late, log.late_calls = gone, 1_000_000_000
    reader = reader_of(log)
    ranges = {gone: Range(0, 5), other: Range(0, 9)}
    pieces = reader.read(ranges, on_gone=lambda _, at: at, on_stall=lambda: None)
    assert [(piece.partition, piece.next) for piece in pieces] == [(other, 9)]
    with pytest.raises(ExternalError, match="no broker gave offset 0"):
        read(reader, {gone: Range(0, 5)}, [])


def test_a_partition_that_a_broker_does_not_know_yet_is_tried_again() -> None:
    one = Partition("a", 0)
    unknown = Message(one, -1001, Error("_UNKNOWN_PARTITION"))
    log = Log({one: range(5)}, {one: 5}, Knowing(0), first=[unknown])
    with pytest.raises(ExternalError, match="a/0 cannot be read"):
        read(reader_of(log), {one: Range(0, 5)}, [])
