"""Positions in partitions: where reading starts, what one epoch reads, and what was lost. Pure.

A split is a partition, named `topic/number`. Its offset in the state is a `PartitionOffset`. An
epoch reads `[next, end)` of it, where `end` is at most the last stable offset: the place before
which every record is decided. Offsets in between may have no record, because they hold the
marker of a transaction, were aborted, or compacted away; so a range is done when a position
behind it is reached, not when a record of its last offset came.

    known partition    goes on at `next`
    new partition      begins at its first offset, because all of it came after the job began
    first epoch        begins where `Start` says

Budgets are shares: of one subtask's budget a record takes the larger of its share of rows and
its share of bytes. The partitions of a subtask are filled evenly up to 1, as water fills a
vessel: who has little gives what it leaves to the others.

Where positions and what is `held` are given, a partition that does not answer has a position
alone: nothing is planned, lost or compared of it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from penstock.connectors.history.handover import Handover
from penstock.errors import ErrorCode, ExternalError, UserError
from penstock.operators.splits import Lag, SourceBudget

StartKind: TypeAlias = Literal[
    "earliest",
    "latest",
    "time",
    "offsets",
    "group",
    "after-history",
    "after-offsets",
    "after-time",
]
BEGIN_ANEW = (
    "give the step another name, so that it begins anew where start= says (and pass "
    "allow_dropped_state=True once, which drops the positions of the old one)"
)
UNKNOWN_RECORD_BYTES = 1_000
"""How large records are taken to be before any was read."""


class Partition(NamedTuple):
    """One partition of a topic."""

    topic: str
    number: int

    @property
    def split(self) -> str:
        """The name of its split. No topic has a slash in its name."""
        return f"{self.topic}/{self.number}"

    @classmethod
    def of_split(cls, name: str) -> "Partition":
        """Return the partition of a split."""
        topic, _, number = name.rpartition("/")
        return cls(topic, int(number))


class PartitionOffset(NamedTuple):
    """How far a partition was read: the offset of its split, stored as a list.

    New fields need defaults.
    """

    topic_id: str
    """Kafka's own id: a topic that was deleted and made again has another."""
    next: int
    """The first offset that was not read."""
    record_bytes: int = 0
    """The average size of its last records; 0 if none was read."""
    last_millis: int | None = None
    """The timestamp of the last record that was read."""
    end: int | None = None
    """Where the partition ends for this job; None if it is followed for ever."""
    lost: int = 0
    """How many offsets were removed before they were read."""

    def without(self, loss: "Loss") -> "PartitionOffset":
        """Return the position behind what was lost."""
        return self._replace(next=loss.stop, lost=self.lost + loss.size)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which topics are read: those of a list, or all that match a pattern."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that the whole name must match."""

    def has(self, topic: str) -> bool:
        """Return whether a topic is one of them.

        Kafka's own topics and those of markers are only read by name: a job that reads its
        own markers would never be done.
        """
        if self.pattern is None:
            return topic in self.topics
        is_for_rows = not topic.startswith(("__", MARKERS))
        return is_for_rows and re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"the pattern {self.pattern!r}"
        return "the list " + ", ".join(map(repr, self.topics))


MARKERS = "penstock.markers."
"""What names of marker topics begin with, unless users name them."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the partitions of the first epoch begin."""

    kind: StartKind = "earliest"
    micros: int | None = None
    """Of kinds "time" and "after-time": the first record with this timestamp or a later one."""
    offsets: Mapping[str, int] = field(default_factory=dict)
    """Of kinds "offsets" and "after-offsets": by split."""
    group: str | None = None
    """Of kind "group": whose committed offsets are taken over."""
    reads_all: bool = False
    """Of kind "after-time": all that is held is read; the instant only tells whether that will do."""


class Held(NamedTuple):
    """What the brokers hold of a partition at some moment: offsets `[first, end)`."""

    first: int
    end: int
    """The last stable offset."""


class Loss(NamedTuple):
    """Offsets `[start, stop)` of a split that were removed before they were read."""

    split: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many offsets are gone: as many records, or fewer."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.split}"


def start_after(handover: Handover, timestamp_column: str | None) -> Start:
    """Return where to begin behind history; `timestamp_column` is the record's own timestamp.

    Every record before the first one of a timestamp is older than that. So nothing is left out
    that is at or after the point by its own timestamp; by another column a record may be as
    much older than the row in it says as clocks differ.
    """
    if handover.kind != "time":
        return Start("after-offsets", offsets=handover.offsets)
    skew = 0 if handover.by == timestamp_column else handover.skew_micros
    micros = max(0, (handover.micros or 0) - (skew or 0))
    return Start("after-time", micros=micros, reads_all=skew is None)


def check_decided(
    start: Start, starts: Mapping[str, int], held: Mapping[str, Held]
) -> None:
    """Have a start tried again where the brokers name a place that is not decided yet."""
    if start.kind not in ("group", "time", "after-time"):
        return
    for split, at in starts.items():
        if at > held[split].end:
            named = (
                f"the group {start.group!r} has read {split} up to offset {at}"
                if start.kind == "group"
                else f"the first record of {split} at the time to start at has offset {at}"
            )
            raise ExternalError(
                f"{named}, and what is decided ends at {held[split].end}: a transaction is open "
                "there, or the record has just come, so this is tried again. If it stays so, the "
                "topic was made again since: start elsewhere",
                split=split,
            )


def check_point(start: Start, starts: Mapping[str, int], held: Mapping[str, Held]) -> None:
    """Refuse a hand-over point that the brokers do not hold, or that they never had."""
    unknown = sorted(start.offsets.keys() - starts.keys())
    ahead = [name for name, at in starts.items() if at > held[name].end]
    if unknown or ahead:
        what = (
            f"{', '.join(unknown)}, which the live side does not have"
            if unknown
            else f"{ahead[0]} up to offset {starts[ahead[0]] - 1}, and it ends at "
            f"{held[ahead[0]].end}"
        )
        raise UserError(
            f"the hand-over point has rows of {what}: the topic was made again, or it is another "
            "one. Give the topics that history was written from",
            code=ErrorCode.INPUT_CHANGED,
        )
    # Of a time it is not known how much is gone: nothing may be, and the first record be it.
    lost = [
        name
        for name, at in sorted(starts.items())
        if at < held[name].first
        or (start.kind == "after-time" and at == held[name].first > 0)
    ]
    if lost:
        told = ", ".join(f"{name} begins at {held[name].first}" for name in lost[:5])
        wanted = f" and the point is {starts[lost[0]]}" if start.offsets else ""
        raise UserError(
            "Kafka does not hold the hand-over point any longer: retention or somebody removed "
            f"records that may be behind it ({told}{wanted}). Let history reach further, so that "
            "the point is a later one; or pass on_lost='continue' to go on without them",
            code=ErrorCode.INPUT_LOST,
            splits=tuple(lost),
        )


def find_losses(
    known: Mapping[str, PartitionOffset], held: Mapping[str, Held]
) -> tuple[Loss, ...]:
    """Return what retention has removed of what is still to be read."""
    return tuple(
        Loss(split, offset.next, first if offset.end is None else min(first, offset.end))
        for split, offset in known.items()
        if split in held
        for first in [held[split].first]
        if offset.next < first and (offset.end is None or offset.next < offset.end)
    )


def check_not_shrunk(
    known: Mapping[str, PartitionOffset], held: Mapping[str, Held]
) -> None:
    """Refuse to go on where a partition ends before the position up to which it was read."""
    for split, offset in known.items():
        if split in held and held[split].end < offset.next:
            raise ExternalError(
                f"{split} ends at offset {held[split].end}, and this job has read it up to "
                f"{offset.next}. A new leader may still catch up, so this is tried again. If it "
                "stays so, the brokers have lost records (an unclean election of a leader): "
                f"{BEGIN_ANEW}",
                split=split,
            )


def plan_ends(
    known: Mapping[str, PartitionOffset],
    held: Mapping[str, Held],
    budget: SourceBudget,
) -> dict[str, int]:
    """Return the end of the range that the next epoch reads of each split with rows left.

    The splits are dealt to the subtasks in turn, in order of name, as `deal_splits` does with
    equal weights. So a partition stays with its subtask, which fetches ahead for it.
    """
    names = sorted(known)
    subtasks = max(1, budget.subtasks)
    ends: dict[str, int] = {}
    for subtask in range(subtasks):
        mine = {name: known[name] for name in names[subtask::subtasks]}
        rests = {
            name: rest
            for name, offset in mine.items()
            if name in held and (rest := stop_of(offset, held[name]) - offset.next) > 0
        }
        shares = {name: share_of_record(mine[name], mine, budget) for name in rests}
        demands = {name: rest * shares[name] for name, rest in rests.items()}
        given = fill_evenly(demands)
        for name, rest in rests.items():
            # At least one: a partition with rows is never left out, nor found idle.
            count = (
                rest if given[name] >= demands[name] else int(given[name] / shares[name])
            )
            ends[name] = mine[name].next + min(rest, max(1, count))
    return ends


def stop_of(offset: PartitionOffset, held: Held) -> int:
    """Return up to where a partition can be read now."""
    return held.end if offset.end is None else min(held.end, offset.end)


def share_of_record(
    offset: PartitionOffset, beside: Mapping[str, PartitionOffset], budget: SourceBudget
) -> float:
    """Return which share of a subtask's budget a record takes; sizes are guessed by others'."""
    size = offset.record_bytes
    if not size:
        sizes = [other.record_bytes for other in beside.values() if other.record_bytes]
        size = max(sizes, default=UNKNOWN_RECORD_BYTES)
    return max(1 / max(1, budget.rows), size / max(1, budget.size_bytes))


def fill_evenly(demands: Mapping[str, float], capacity: float = 1.0) -> dict[str, float]:
    """Deal a capacity out, to each as much as to any other unless it needs less.

    >>> fill_evenly({"a": 0.1, "b": 2.0, "c": 2.0})
    {'a': 0.1, 'b': 0.45, 'c': 0.45}
    """
    given: dict[str, float] = {}
    left = capacity
    for position, name in enumerate(sorted(demands, key=lambda each: demands[each])):
        given[name] = min(demands[name], left / (len(demands) - position))
        left -= given[name]
    return given


def lag_of(
    known: Mapping[str, PartitionOffset],
    held: Mapping[str, Held],
    ends: Mapping[str, int],
    now_micros: int,
) -> Lag:
    """Return how many rows an epoch leaves unread, and how old they may be.

    Of partitions that were never read the age is not known: records have not been seen. Nor is
    it while one does not answer.
    """
    rows, ages = 0, [0]
    is_known = known.keys() <= held.keys()
    for split, offset in known.items():
        if split not in held:
            continue
        left = stop_of(offset, held[split]) - ends.get(split, offset.next)
        if left > 0:
            rows += left
            is_known &= offset.last_millis is not None
            ages.append(now_micros - (offset.last_millis or 0) * 1_000)
    return Lag(rows, max(ages) if is_known else None)


def check_same_topics(known: Iterable[str], selection: Selection) -> None:
    """Refuse to go on without a topic that the job has read: its rows would be left out."""
    for topic in sorted({Partition.of_split(name).topic for name in known}):
        if not selection.has(topic):
            raise UserError(
                f"this step has read the topic {topic!r} before, and {selection} does not name "
                f"it: name it again; or {BEGIN_ANEW}",
                code=ErrorCode.INPUT_CHANGED,
                topic=topic,
            )
