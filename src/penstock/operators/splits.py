"""Splits, budgets and deadlines: what a source reads, how far it came, how much it may take.

All are immutable values, except the meter of a budget, the deadline and the times of splits,
which serve one epoch.
A split's state is stored in the source's global table.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.arrow_types import to_micros_within_reach
from penstock.core.clock import Clock
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MIN_MICROS
from penstock.errors import SchemaError


class SplitState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far one split was read. Stored as msgpack; new fields need defaults."""

    offset: Any = None
    """Where to go on, in the source's own terms; None before the first row."""
    ended: bool = False
    """The split will never have another row."""
    max_event_time_micros: int | None = None
    """The latest event time seen; the split's watermark follows from it."""
    last_active_micros: int | None = None
    """The processing time of the last epoch that read rows of it."""
    filtered_micros: int | None = None
    """The earliest event time of filtered rows that is beyond all that passed; see `SplitTimes`."""


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """What to read of one split in one epoch: `[start, end)` in the source's own terms."""

    name: str
    start: Any = None
    """The stored offset; None from the beginning."""
    end: Any = None
    """Where to stop; None if the source stops at its budget."""
    weight: int = 1
    """How much there is to read compared with other splits; used to deal them evenly."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a source is behind what there is to read."""

    rows: int
    micros: int | None = None
    """How old the next row is at most; None if that is not known."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a source reads in one epoch, as decided on the driver."""

    splits: tuple[SplitPlan, ...]
    is_complete: bool
    """True if no split will ever be added: when all known ones have ended, so has the source."""
    has_more: bool = False
    """True if there is more to read than this plan reads."""
    fed: str | None = None
    """Names the rows that the executor brings as `SourceContext.fed`; None if `run` reads.

    An executor brings only what its engine has, such as a Spark DataFrame. Every subtask of a
    fed source gets a part of the rows, so each needs a split to read.
    """
    waiting: tuple[str, ...] = ()
    """Known splits that have rows left but are not read in this epoch: they are not idle."""
    forgotten: tuple[str, ...] = ()
    """Ended splits whose states are dropped: they are not known any longer after this epoch.

    A split of such a name that is planned later is a new one and is read from its beginning.
    """
    holds_watermark: bool = False
    """True if splits wait that were not begun, with rows of any time: event time stays."""
    lag: Lag | None = None
    """What this plan leaves unread, for the job's status; None if the source cannot tell."""
    is_indivisible: bool = False
    """True if all of it must be read in this epoch, so `run` may take as long as that takes."""


@dataclass(frozen=True, slots=True)
class SourceBudget:
    """How much one subtask may read in one epoch."""

    rows: int = 1_000_000
    size_bytes: int = 256 << 20
    wall_micros: int = 1_000_000
    overrun_micros: int = 60_000_000
    """How long past its wall time a source may be busy; see `Deadline`."""
    subtasks: int = 1
    """How many subtasks have as much each; `plan_splits` plans for all of them."""


FED_BUDGET = SourceBudget(rows=1 << 50, size_bytes=1 << 50, wall_micros=1 << 50)
"""The budget of a fed subtask: it takes all rows it is brought, however long that takes."""


class BudgetMeter:
    """What is left of a budget while a source runs. It also limits time, by the clock."""

    def __init__(self, budget: SourceBudget, clock: Clock) -> None:
        self.budget = budget
        self.rows_read = 0
        self.bytes_read = 0
        self._clock = clock
        self._started_micros = clock.now_micros()

    def spend(self, rows: int, size_bytes: int) -> None:
        """Note what was emitted."""
        self.rows_read += rows
        self.bytes_read += size_bytes

    @property
    def elapsed_micros(self) -> int:
        """How long the source has been reading."""
        return self._clock.now_micros() - self._started_micros

    def has_overrun(self, part: float = 1 / 2) -> bool:
        """Return whether this part of the time is over that a source has beyond its wall time."""
        limits = self.budget
        return self.elapsed_micros >= limits.wall_micros + limits.overrun_micros * part

    @property
    def is_spent(self) -> bool:
        """Return whether the source should return now."""
        return (
            self.rows_read >= self.budget.rows
            or self.bytes_read >= self.budget.size_bytes
            or self.elapsed_micros >= self.budget.wall_micros
        )


class SourceOverrunError(BaseException):
    """Raised inside a source that is too late. It is no `Exception`, so user code lets it pass."""


class Deadline:
    """The time by which `run` of a source must return, by the machine's clock.

    It is checked where the source calls Penstock, in `SourceCollector.collect` and
    `SourceContext.advance`, and when `run` ends. A source that blocks in C, or loops without
    either call, is not interrupted: its epoch fails when `run` ends.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._ends_at = time.monotonic() + seconds

    def check(self) -> None:
        """Raise `SourceOverrunError` if the source is too late."""
        if time.monotonic() >= self._ends_at:
            raise SourceOverrunError

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the body, in which later operators process the rows."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._ends_at += time.monotonic() - began


class SplitTimes:
    """Notes the latest event time of every split of one subtask, epoch by epoch.

    Rows that pass the filters behind the source count. A row that is filtered counts as soon as
    rows of any split have passed with its event time or a later one. So no filtered row moves
    the watermark by itself, however far in the future it is, and a split of which no row
    passes does not hold the others back for ever.
    """

    def __init__(self, source: str, stream: StreamSchema) -> None:
        """Note what a source emits as `stream`, the schema of its rows with their event time."""
        self._source = source
        self._stream = stream
        self._limit_micros: int | None = None
        self.split: str | None = None
        """The split whose rows are being emitted."""
        self.latest: dict[str | None, int | None] = {}
        """The latest event time of each split that gave rows in this epoch; None if unknown."""
        self._ahead: dict[str | None, int] = {}
        """The earliest event time of each split that no row of the source had passed with."""

    def begin_epoch(self, limit_micros: int | None) -> None:
        """Forget the epoch before; `limit_micros` is as `SourceAssignment.latest_micros`."""
        self._limit_micros = limit_micros
        self.latest.clear()
        self._ahead.clear()

    def note_read(self, batch: pa.RecordBatch) -> None:
        """Note rows that may be filtered later."""
        timed = self._timed(batch)
        if timed is None:
            return
        # A row that is too far away to count may be dropped by the filters.
        times = to_micros_within_reach(timed.column(0))
        limit = MIN_MICROS if self._limit_micros is None else self._limit_micros
        is_ahead = times > limit
        if is_ahead.any():
            first = int(times[is_ahead].min())
            self._ahead[self.split] = min(first, self._ahead.get(self.split, first))
            times = times[~is_ahead]
        if len(times):
            self._note(int(times.max()))

    def settled(self, given: str | None, state: SplitState) -> SplitState:
        """Return the state of a split after an epoch, with what its filtered rows tell.

        `given` is the name under which its rows were emitted: None if there is one split only.
        """
        found = [
            micros
            for micros in (state.filtered_micros, self._ahead.get(given))
            if micros is not None
        ]
        if not found:
            return state
        limit = self._limit_micros
        passed = [micros for micros in found if limit is not None and micros <= limit]
        latest = state.max_event_time_micros
        known = passed if latest is None else [*passed, latest]
        return msgspec.structs.replace(
            state,
            max_event_time_micros=max(known, default=None),
            filtered_micros=min(set(found) - set(passed), default=None),
        )

    def note_passed(self, batch: pa.RecordBatch) -> None:
        """Note rows that count."""
        timed = self._timed(batch)
        if timed is None:
            return
        try:
            times = self._stream.event_times_of(timed)
        except SchemaError as error:
            raise SchemaError(
                f"source {self._source!r} emitted rows whose event time cannot be told: "
                f"{error.message}",
                operator=self._source,
                split=self.split,
            ) from error
        self._note(int(times.max()))

    def _note(self, micros: int) -> None:
        known = self.latest.get(self.split)
        self.latest[self.split] = micros if known is None else max(known, micros)

    def _timed(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the event times of rows that have one; None without any."""
        name = self._stream.time_column
        if name is None:
            return None
        timed = batch.select([name])
        if timed.column(0).null_count:
            # Operators that need event times decide what happens to rows without one.
            timed = timed.filter(timed.column(0).is_valid())
        return timed if timed.num_rows else None


def deal_splits(
    splits: Sequence[SplitPlan], parallelism: int
) -> tuple[tuple[SplitPlan, ...], ...]:
    """Deal splits to subtasks, the heaviest first, each to the subtask with the least weight.

    Deterministic.
    """
    dealt: list[list[SplitPlan]] = [[] for _ in range(parallelism)]
    loads = [0] * parallelism
    for split in sorted(splits, key=lambda split: (-split.weight, split.name)):
        index = loads.index(min(loads))
        dealt[index].append(split)
        loads[index] += max(1, split.weight)
    return tuple(tuple(sorted(part, key=lambda split: split.name)) for part in dealt)


class SourcePhase(Enum):
    """Where a source is in its life."""

    READING = "reading"
    ENDING = "ending"
    """All splits have ended: in this epoch the last watermark is sent."""
    ENDED = "ended"
    """The last watermark was sent in an earlier epoch."""


@dataclass(frozen=True, slots=True)
class SourceAssignment:
    """What one subtask of a source does in one epoch, as dealt by the driver."""

    phase: SourcePhase = SourcePhase.READING
    splits: tuple[SplitPlan, ...] = ()
    """The splits to read."""
    resting: tuple[str, ...] = ()
    """The splits that are not read in this epoch; this subtask sends their watermarks."""
    budget: SourceBudget = field(default_factory=SourceBudget)
    fed: str | None = None
    """Names the rows that the executor brings, as in `SourcePlan.fed`; None if `run` reads."""
    waiting: tuple[str, ...] = ()
    """The resting splits that have rows left, as in `SourcePlan.waiting`."""
    watermark_micros: int | None = None
    """The watermark of all subtasks, if no split is open; None if it follows from the splits.

    For a source that ends or has ended it is how far event time came before the end.
    """
    latest_micros: int | None = None
    """The latest event time of all splits of the source before this epoch; None without any."""
    ended_micros: int | None = None
    """The latest event time of those that had ended by then; None without any."""
    forgotten: tuple[str, ...] = ()
    """The splits whose states this subtask drops, as in `SourcePlan.forgotten`."""
    holds_watermark: bool = False
    """No subtask sends a watermark, as in `SourcePlan.holds_watermark`."""


def have_ended(known: Mapping[str, SplitState], *, is_complete: bool) -> bool:
    """Return whether a source has ended: all its splits have, and none will be added."""
    return is_complete and all(state.ended for state in known.values())
