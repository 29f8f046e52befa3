"""Until: when `penstock run` stops a job that would not end by itself.

idle        no rows came for a few seconds, and the sources have nothing left
epoch:N     epoch N is committed
10m         so much time has passed
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.clock import to_micros
from penstock.errors import ErrorCode, UserError
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.running_job import RunningJob

_LOOK_SECONDS = 0.1
_IDLE_SECONDS = 3.0
"""How long nothing may come before a job counts as idle."""


@dataclass(frozen=True, slots=True)
class Until:
    """When to stop; exactly one of its fields is set."""

    is_idle: bool = False
    epoch: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, text: str) -> "Until":
        """Read what a user wrote.

        >>> Until.of("epoch:12").epoch, Until.of("1m30s").seconds, Until.of("idle").is_idle
        (12, 90.0, True)
        """
        if text == "idle":
            return cls(is_idle=True)
        kind, _, number = text.partition(":")
        if kind == "epoch" and number.isascii() and number.isdigit():
            return cls(epoch=int(number))
        try:
            return cls(seconds=to_micros(text, "time") / 1_000_000)
        except UserError as error:
            raise UserError(
                f"--until {text}: write idle, epoch:N, or a time such as 30s or 10m",
                code=ErrorCode.INVALID_CONFIG,
            ) from error

    def attend(
        self,
        job: RunningJob,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Look at a job until it is time, then ask it to stop; return when it has ended."""
        began = changed = now()
        seen: tuple[int, int] | None = None
        while job.is_running:
            status = job.status
            told = (status.rows_read, status.epochs_published)
            if told != seen:
                seen, changed = told, now()
            if self._is_time(status, now() - began, now() - changed):
                job.stop()
                return
            sleep(_LOOK_SECONDS)

    def _is_time(self, status: JobStatus, elapsed: float, quiet: float) -> bool:
        if self.seconds is not None:
            return elapsed >= self.seconds
        if self.epoch is not None:
            return status.epoch is not None and status.epoch >= self.epoch
        is_waiting = status.phase is JobPhase.WAITING and not status.lag
        return is_waiting and status.epochs_run > 0 and quiet >= _IDLE_SECONDS
