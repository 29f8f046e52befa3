"""What a driver does next. Pure: facts in, an action out.

stop asked for: immediate ──► Finish(STOPPED)
a failure that may pass ────► Wait until its time, then Restart
all operators have ended ───► Finish(FINISHED)
stop asked for otherwise ───► RunEpoch(final) once, then Finish(STOPPED)
data, or a source ended ────► RunEpoch
nothing to do ──────────────► Wait until the next poll, tick, timer or idle timeout
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from penstock.runtime.status import JobPhase


class StopMode(StrEnum):
    """How a job is asked to stop. None of them flushes windows: that is for the end of data."""

    GRACEFUL = "graceful"
    """One more epoch in which operators close; then stop."""
    CHECKPOINT = "checkpoint"
    """One more epoch; then stop. Operators are not told."""
    IMMEDIATE = "immediate"
    """Now: the epoch that runs does not count."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the decision rests on."""

    now_micros: int
    stop: StopMode | None = None
    has_stopped: bool = False
    """The last epoch of this run was published, or was not needed."""
    is_finished: bool = False
    """Every operator has ended."""
    retry_at_micros: int | None = None
    """After a failure that may pass: when to try again."""
    has_work: bool = True
    """A source has more to read or has just ended, or nothing ran yet."""
    wake_up_micros: int | None = None
    """The earliest poll, tick, timer or idle timeout; None if nothing will ever happen."""
    next_epoch_micros: int = 0
    """Not before this, unless there is work: epochs without data keep a distance."""


@dataclass(frozen=True, slots=True)
class RunEpoch:
    """Run one epoch."""

    stop: StopMode | None = None
    """Set for the last one of this run."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until then, or until somebody asks to stop."""

    until_micros: int | None
    phase: JobPhase = JobPhase.WAITING


@dataclass(frozen=True, slots=True)
class Restart:
    """Take the job over anew and go on from the last acknowledged epoch."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Leave the loop."""

    phase: JobPhase


Action: TypeAlias = RunEpoch | Wait | Restart | Finish


def next_action(facts: Facts) -> Action:
    """Say what to do next."""
    if facts.stop is StopMode.IMMEDIATE or facts.has_stopped:
        return Finish(JobPhase.STOPPED)
    if facts.retry_at_micros is not None:
        return _retry(facts, facts.retry_at_micros)
    if facts.is_finished:
        return Finish(JobPhase.FINISHED)
    if facts.stop is not None:
        return RunEpoch(facts.stop)
    if facts.has_work:
        return RunEpoch()
    return _wait(facts)


def _retry(facts: Facts, at_micros: int) -> Action:
    if facts.stop is not None:
        # It could only stop after a successful epoch, which may never come.
        return Finish(JobPhase.STOPPED)
    if facts.now_micros < at_micros:
        return Wait(at_micros, JobPhase.RESTARTING)
    return Restart()


def _wait(facts: Facts) -> Action:
    if facts.wake_up_micros is None:
        return Wait(None)
    until = max(facts.wake_up_micros, facts.next_epoch_micros)
    return RunEpoch() if until <= facts.now_micros else Wait(until)
