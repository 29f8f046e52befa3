"""Waiting between epochs: until an instant, or until somebody wants the driver's attention."""

import threading
from typing import Protocol

from penstock.core.clock import Clock, ManualClock


class Pacer(Protocol):
    """How a driver waits."""

    def wait_until(self, micros: int | None) -> None:
        """Wait until that time, for ever if None; return early when interrupted."""
        ...

    def interrupt(self) -> None:
        """End the wait under way, or the next one. May be called from other threads."""
        ...


class ClockPacer:
    """Waits by a real clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attention = threading.Event()

    def wait_until(self, micros: int | None) -> None:
        """Sleep until that time or until interrupted."""
        seconds = None
        if micros is not None:
            seconds = max(0, micros - self._clock.now_micros()) / 1_000_000
        self._attention.wait(seconds)
        self._attention.clear()

    def interrupt(self) -> None:
        """Wake the driver up."""
        self._attention.set()


class ManualPacer:
    """Moves a manual clock instead of waiting: for tests, which then take no time."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.waits: list[int | None] = []
        """Every instant that was waited for."""

    def wait_until(self, micros: int | None) -> None:
        """Move the clock there; to wait for ever means that the test has ended."""
        self.waits.append(micros)
        if micros is None:
            raise RuntimeError(
                "nothing will ever happen again: the driver would wait for ever"
            )
        self._clock.micros = max(self._clock.micros, micros)

    def interrupt(self) -> None:
        """There is nothing to interrupt."""
