"""Signals: what travels between operators beside the rows.

Event times are whole microseconds since 1970-01-01 UTC, negative before it, and fit a
signed 64-bit integer.

| Signal | Says |
|---|---|
| `EventTime` | no row before this instant will follow |
| `Idle` | this input has nothing to say and must not hold the others back |
| `CheckpointBarrier` | the rows of this epoch are complete: write a checkpoint |
| `Stop` | stop now, without flushing windows |
| `EndOfData` | no row will ever follow |
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, UserError

MIN_MICROS = -(1 << 63)
MAX_MICROS = (1 << 63) - 1


def _check_micros(micros: int) -> None:
    if not MIN_MICROS <= micros <= MAX_MICROS:
        raise UserError(
            f"{micros} microseconds are no instant: need -2**63 <= microseconds < 2**63",
            code=ErrorCode.INVALID_NUMBER,
            micros=micros,
        )


@dataclass(frozen=True, slots=True, order=True)
class EventTime:
    """A watermark: no row with an earlier event time will follow."""

    micros: int

    def __post_init__(self) -> None:
        _check_micros(self.micros)


@dataclass(frozen=True, slots=True)
class Idle:
    """A watermark that makes no promise: the input is silent and must be left out."""


IDLE = Idle()
MAX_EVENT_TIME = EventTime(MAX_MICROS)
"""The watermark of an input that has ended: it closes every window."""

Watermark: TypeAlias = EventTime | Idle


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """The end of an epoch's rows: whoever has seen it on every input writes its state."""

    epoch: Epoch
    min_epoch: Epoch
    """The oldest epoch still retained; what only older ones need may be dropped."""
    timestamp_micros: int
    """When the driver began the epoch, by its clock."""
    then_stop: bool = False
    """Stop after this checkpoint, without flushing windows."""

    def __post_init__(self) -> None:
        _check_micros(self.timestamp_micros)
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
    """Stop at once: windows stay open, so that a restart goes on where this run stopped."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The input has ended for good: windows are flushed."""


SignalMessage: TypeAlias = CheckpointBarrier | EventTime | Idle | Stop | EndOfData
