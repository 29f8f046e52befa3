"""Signals: what operators send each other besides rows, and how watermarks are merged.

Pure. Event times are whole microseconds since 1970-01-01 UTC, negative before it, and fit a
signed 64-bit integer.

| Signal | Meaning |
|---|---|
| `EventTime` | no row before this instant will follow |
| `Idle` | this input has no rows and must not hold the others back |
| `CheckpointBarrier` | the rows of this epoch are complete: write a checkpoint |
| `Stop` | stop now, without flushing windows |
| `EndOfData` | no row will ever follow |

These rules say how far the event time of an operator with several inputs has come:

| Rule | Reason |
|---|---|
| an input without a watermark yet keeps the result unknown | its rows may have any time |
| an idle input is left out | it must not hold the others back |
| so is one without event time that has sent none, beside inputs with event time | it may never have one |
| if all inputs are idle, the result is idle | an input that wakes may still fill open windows |
| an ended input is left out, too | the result is the end only when all inputs have ended |
| an end tells how far event time came before it; of several ends the furthest counts | which input ends last must not matter |
| the result never goes back | what was closed stays closed |

Producers repeat their watermark in every epoch, so only one value per input of an operator
is stored. It is in the manifest and is the same for all subtasks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, UserError

MIN_MICROS = -(1 << 63)
MAX_MICROS = (1 << 63) - 1


@dataclass(frozen=True, slots=True, order=True)
class EventTime:
    """A watermark: no row with an earlier event time will follow."""

    micros: int
    reached_micros: int | None = field(default=None, compare=False, repr=False)
    """For the end of data: how far event time came before it; None if that is not known."""

    def __post_init__(self) -> None:
        if not MIN_MICROS <= self.micros <= MAX_MICROS:
            raise UserError(
                f"{self.micros} microseconds are no instant: need -2**63 <= microseconds < 2**63",
                code=ErrorCode.INVALID_NUMBER,
                micros=self.micros,
            )


@dataclass(frozen=True, slots=True)
class Idle:
    """A watermark without a promise: the input has no rows and is left out of the merge."""


IDLE = Idle()
MAX_EVENT_TIME = EventTime(MAX_MICROS)
"""The watermark of an input that has ended: it closes every window."""

Watermark: TypeAlias = EventTime | Idle


@dataclass(frozen=True, slots=True)
class InputWatermark:
    """How far one input of an operator has come; with the defaults it has sent nothing yet."""

    event_time_micros: int | None = None
    idle: bool = False
    producer: str = ""
    """The operator and output that feed the input; "" if that is not known."""
    reached_micros: int | None = None
    """For an input that has ended: how far its event time came; None if that is not known."""


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The end of an epoch's rows: with one from every input, an operator writes its state."""

    epoch: Epoch
    min_epoch: Epoch
    """The oldest epoch still retained; state that only older epochs need may be dropped."""
    timestamp_micros: int
    """When the driver began the epoch, by its clock."""
    then_stop: bool = False
    """Stop after this checkpoint, without flushing windows."""

    def __post_init__(self) -> None:
        EventTime(self.timestamp_micros)  # refuses what is no instant
        if self.min_epoch > self.epoch:
            raise UserError(
                f"a barrier of epoch {self.epoch} cannot retain epochs from "
                f"{self.min_epoch} on: need min_epoch <= epoch",
                code=ErrorCode.INVALID_NUMBER,
                epoch=self.epoch,
                min_epoch=self.min_epoch,
            )


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop at once. Windows stay open, so that a restart goes on where this run stopped."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The input has ended for good: windows are flushed."""


SignalMessage: TypeAlias = CheckpointBarrier | EventTime | Idle | Stop | EndOfData


def merge(latest: Iterable[Watermark | None]) -> Watermark | None:
    """Return the watermark that all have reached: None while one has none, idle if all are.

    If every input is idle or ended and one is idle, the result is idle, not ended: the idle
    input may wake up.
    """
    times: list[EventTime] = []
    has_idle = False
    for watermark in latest:
        if watermark is None:
            return None
        if isinstance(watermark, Idle):
            has_idle = True
        else:
            times.append(watermark)
    lowest = _lowest(times) if times else None
    if lowest is None or (has_idle and lowest == MAX_EVENT_TIME):
        return IDLE
    return lowest


@dataclass(frozen=True, slots=True)
class Advance:
    """The event time of an operator after an epoch's input."""

    inputs: tuple[InputWatermark, ...]
    """The value to store for each input."""
    watermark: Watermark | None
    """The argument of `handle_watermark`, which is not called for None."""
    event_time: EventTime | None = None
    """How far event time has come, also while all inputs are idle."""
    has_ended: bool = False
    """Whether no row will ever come."""


def advance(
    previous: Sequence[InputWatermark], sent: Sequence[Watermark | None]
) -> Advance:
    """Merge what the inputs sent in this epoch into the watermarks of the epoch before.

    An input that was left out while idle comes back at the operator's watermark, because the
    operator has already promised that watermark to its consumers.
    """
    known = [_advance_input(old, new) for old, new in zip(previous, sent, strict=True)]
    watermark = merge(map(current, known))
    inputs = _raise_idle(known, watermark)
    event_time = event_time_of(inputs)
    return Advance(inputs, watermark, event_time, event_time == MAX_EVENT_TIME)


def merge_subtasks(
    of_subtasks: Sequence[Sequence[InputWatermark]],
) -> tuple[InputWatermark, ...]:
    """Return one value per input for all subtasks of an operator.

    Behind an exchange the subtasks have equal values. Behind a forward edge the slowest
    subtask counts and idle ones are left out, exactly as an exchange would merge them.
    """
    columns = list(zip(*of_subtasks, strict=True))
    merged = [merge(map(current, column)) for column in columns]
    inputs = []
    for column, watermark in zip(columns, merged, strict=True):
        if watermark is None:
            inputs.append(InputWatermark())
        elif isinstance(watermark, EventTime):
            reached_micros = watermark.reached_micros
            inputs.append(InputWatermark(watermark.micros, reached_micros=reached_micros))
        else:
            times = [known.event_time_micros for known in column if known.idle]
            raised = [micros for micros in times if micros is not None]
            # While another input has no watermark, the operator has promised none, so an idle
            # input has no watermark to come back at.
            if None in merged and None in times:
                raised = []
            inputs.append(InputWatermark(min(raised, default=None), idle=True))
    return _raise_idle(inputs, merge(merged))


def event_time_of(inputs: Sequence[InputWatermark]) -> EventTime | None:
    """Return how far an operator's event time has come; None before all inputs have sent one."""
    times = [_time_of(known) for known in inputs]
    known_times = [time for time in times if time is not None]
    if not times or len(known_times) < len(times):
        return None
    return _lowest(known_times)


def has_ended(inputs: Sequence[InputWatermark]) -> bool:
    """Tell whether all inputs have ended; False for a source, which has no inputs."""
    return event_time_of(inputs) == MAX_EVENT_TIME


def _advance_input(previous: InputWatermark, sent: Watermark | None) -> InputWatermark:
    match sent:
        case None:
            # No watermark is not idle: such an input may still have rows of any time.
            return replace(previous, idle=False)
        case Idle() if previous.event_time_micros == MAX_EVENT_TIME.micros:
            return previous
        case Idle():
            return InputWatermark(previous.event_time_micros, idle=True)
        case EventTime():
            return InputWatermark(
                _latest(previous.event_time_micros, sent.micros),
                reached_micros=_latest(previous.reached_micros, sent.reached_micros),
            )


def current(known: InputWatermark) -> Watermark | None:
    """Return the current watermark of an input, or None while it has sent none."""
    return IDLE if known.idle else _time_of(known)


def _time_of(known: InputWatermark) -> EventTime | None:
    if known.event_time_micros is None:
        return None
    return EventTime(known.event_time_micros, known.reached_micros)


def _lowest(times: Sequence[EventTime]) -> EventTime:
    """Return the lowest time, or the end if all are: it tells how far the furthest came."""
    lowest = min(times)
    if lowest < MAX_EVENT_TIME:
        return lowest
    return EventTime(MAX_MICROS, _latest(*(time.reached_micros for time in times)))


def _latest(*times: int | None) -> int | None:
    return max((micros for micros in times if micros is not None), default=None)


def _raise_idle(
    inputs: list[InputWatermark], watermark: Watermark | None
) -> tuple[InputWatermark, ...]:
    """Raise idle inputs to the watermark of their operator; those ahead of it stay there."""
    raised = []
    for known in inputs:
        before = known.event_time_micros
        if known.idle and isinstance(watermark, EventTime):
            raised.append(InputWatermark(_latest(before, watermark.micros), idle=True))
        else:
            raised.append(known)
    return tuple(raised)
