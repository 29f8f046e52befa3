"""Tests the reader of ranges where a partition gives nothing, or not what was there before."""

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
from typing_extensions import override

from penstock.connectors.kafka import reading
from penstock.connectors.kafka.fetched import Range
from penstock.connectors.kafka.positions import Partition
from penstock.errors import ExternalError
from tests.builders.kafka_log import Error, Knowing, Log, Message, reader_of

Q, P = Partition("a", 0), Partition("a", 1)


class Ticks:
    """The reader's clock: time passes only while it waits for messages."""

    now_seconds = 0.0

    def monotonic(self) -> float:
        return self.now_seconds


@dataclass
class Trickle(Log):
    """A cluster that gives a record per call, of partitions in turn that are not mute."""

    records: Mapping[Partition, Sequence[int]] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=lambda: {Q: 10**9, P: 10**9})
    dice: random.Random = field(default_factory=lambda: Knowing(0))
    mute: set[Partition] = field(default_factory=set)
    assigned: list[Partition] = field(default_factory=list)
    opened: int = 0
    calls: int = 0
    script: list[list[Message]] = field(default_factory=list)
    """What the next calls give instead."""
    ticks: Ticks = field(default_factory=Ticks)

    def consumer(self, *_: Any, **__: Any) -> "Trickle":
        self.opened += 1
        return self

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        super().incremental_assign(partitions)
        self.assigned += [Partition(each.topic, each.partition) for each in partitions]

    @override
    def consume(self, count: int, seconds: float) -> list[Message]:
        self.ticks.now_seconds += seconds
        assert self.ticks.now_seconds < 1_000, "the reader waits for ever"
        given = sorted(self.positions.keys() - self.mute - self.paused)
        self.calls += 1
        next_ = given[self.calls % len(given)] if given else None
        found = [] if next_ is None else [Message(next_, self.positions[next_])]
        if self.script:
            found = self.script.pop(0)
        came = [each for each in found if each.error_ is None]
        self.positions |= {each.partition_: each.offset_ + 1 for each in came}
        return found


class Reading:
    """A reader, and what it asked and gave."""

    def __init__(self, patch: pytest.MonkeyPatch, *mute: Partition) -> None:
        self.log = log = Trickle(mute=set(mute))
        patch.setattr(reading, "time", log.ticks)
        self.reader = reader_of(log)
        self.stalls = 0
        self.gone: list[tuple[Partition, int]] = []
        self.goes_on_at = 0

    def __call__(
        self,
        ranges: Mapping[Partition, Range],
        is_late: Callable[[], bool] = lambda: False,
        pieces: int | None = None,
    ) -> dict[Partition, list[int]]:
        """Return the offsets that came; an epoch of so many pieces is broken off."""
        found: dict[Partition, list[int]] = {}
        reading_ = self.reader.read(
            ranges,
            kept=[Q, P],
            on_gone=self._go_on,
            on_stall=self._note_stall,
            is_late=is_late,
        )
        for piece in islice(reading_, pieces):
            offsets = [int(each) for chunk in piece.chunks for each in chunk.offsets]
            found.setdefault(piece.partition, []).extend(offsets)
        return found

    def _go_on(self, partition: Partition, at: int) -> int:
        self.gone.append((partition, at))
        return max(self.goes_on_at, at)

    def _note_stall(self) -> None:
        self.stalls += 1


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned of since the last call."""
    found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_a_partition_that_is_mute_beside_others_with_traffic_is_named_once_and_placed_anew(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Reading(monkeypatch, Q)
    assert read({Q: Range(0, 5), P: Range(0, 3)}) == {P: [0, 1, 2]}
    assert read.stalls
    assert read.log.assigned.count(Q) > 1
    assert Q not in read.log.positions
    (told,) = warnings(caplog)
    assert "a/0" in told
    assert "a/1" not in told
    assert read({Q: Range(0, 5), P: Range(3, 6)}) == {P: [3, 4, 5]}
    assert not warnings(caplog)
    read.log.mute.clear()
    found = read({Q: Range(0, 5), P: Range(6, 9)})
    assert found == {Q: [0, 1, 2, 3, 4], P: [6, 7, 8]}
    read.log.mute.add(Q)
    assert read({Q: Range(5, 9), P: Range(9, 12)}) == {P: [9, 10, 11]}
    assert len(warnings(caplog)) == 1


def test_a_partition_that_stays_mute_has_the_next_epoch_open_another_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Reading(monkeypatch, Q)
    for epoch in range(2):
        assert read.log.opened <= 1
        read({Q: Range(0, 5), P: Range(3 * epoch, 3 * epoch + 3)})
    assert read({Q: Range(0, 5), P: Range(6, 9)}) == {P: [6, 7, 8]}
    assert read.log.opened == 2


def test_records_that_nobody_awaits_do_not_hide_that_the_awaited_ones_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Reading(monkeypatch, Q)
    # Of an epoch that is broken off both partitions stay assigned.
    assert read({P: Range(0, 3), Q: Range(0, 5)}, pieces=1) == {P: [0, 1, 2]}
    assert P in read.log.positions
    with pytest.raises(ExternalError, match="a/0 cannot be read"):
        read({Q: Range(0, 5)})


def test_a_late_epoch_gives_up_what_is_mute_and_keeps_what_is_only_slow(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Reading(monkeypatch, Q)
    calls = iter(range(20))
    found = read(
        {Q: Range(0, 5), P: Range(0, 500)}, is_late=lambda: next(calls, None) is None
    )
    assert found == {P: [*range(20)]}
    assert read.log.positions.keys() == {P}
    (told,) = warnings(caplog)
    assert "a/0" in told
    assert "a/1" not in told


def out_of_range(partition: Partition) -> Message:
    return Message(partition, -1001, Error("_AUTO_OFFSET_RESET"))


@pytest.mark.parametrize("ranges", [{P: Range(0, 400)}, {Q: Range(0, 1), P: Range(0, 400)}])
def test_offsets_behind_a_range_that_one_leader_has_lost_are_read_from_another(
    ranges: dict[Partition, Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Reading(monkeypatch)
    read.goes_on_at = 1000
    came = [Message(P, at) for at in range(500)]
    # It is told while another partition is waited for, or when an epoch begins without it.
    read.log.script = [came, [out_of_range(P)]] if Q in ranges else [came]
    assert read(ranges)[P] == [*range(400)]
    if Q not in ranges:
        read.log.script = [[out_of_range(P)]]
        read({Q: Range(0, 1)})
    assert not read.gone
    assert read({P: Range(400, 1200)}) == {P: [*range(400, 1200)]}


def test_a_range_whose_rest_is_gone_ends_there_and_passes_over_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Reading(monkeypatch)
    read.goes_on_at = 1000
    read.log.script = [[Message(P, at) for at in range(300)], [out_of_range(P)]]
    assert read({P: Range(0, 400)}) == {P: [*range(300)]}
    assert read.gone == [(P, 300)]
    # Another leader holds what is behind it: nothing counts it as lost, so it must come.
    assert read({P: Range(400, 1200)}) == {P: [*range(400, 1200)]}
