"""The clock: the only reader of wall time, and the instants the rest of Penstock uses.

Instants are whole microseconds since 1970-01-01 UTC, negative before it.
"""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Whatever can tell the time."""

    def now_micros(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_micros(self) -> int:
        """Return microseconds since 1970-01-01 UTC by the machine's clock."""
        return time.time_ns() // 1_000


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to: for tests and replays."""

    micros: int = 0

    def now_micros(self) -> int:
        """Return the instant it was last set to."""
        return self.micros

    def advance(self, micros: int) -> None:
        """Move forward; a clock that went back would break what was decided by it."""
        if micros < 0:
            raise ValueError("a clock only moves forward")
        self.micros += micros
