"""What a driver does next. Pure: facts in, an action out.

stop asked for: immediate ──► Finish(STOPPED)
a failure that may pass ────► Wait until its time, then Restart
all operators have ended ───► Finish(FINISHED)
stop asked for otherwise ───► RunEpoch(final) once, then Finish(STOPPED)
data, or a source ended ────► RunEpoch
nothing to do ──────────────► Wait until the next poll, tick, timer or idle timeout

Status: what a job is doing, as immutable values for the command line and the console.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias


class JobPhase(StrEnum):
    """Where a driver is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """No data; it wakes up by itself."""
    RESTARTING = "restarting"
    """A failure may pass: it tries again in a while."""
    STOPPED = "stopped"
    """Stopped on request; a start goes on from the last epoch."""
    FINISHED = "finished"
    """All sources have ended; a start changes nothing."""
    FAILED = "failed"
    FENCED = "fenced"
    """Another driver owns the job."""


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """One operator after the last epoch that ran."""

    operator: str
    kind: str
    parallelism: int
    rows_taken: int = 0
    rows_emitted: Mapping[str, int] = field(default_factory=dict)
    """In total since the driver started, by output."""
    counters: Mapping[str, int] = field(default_factory=dict)
    watermark_micros: int | None = None
    is_idle: bool = False
    state_bytes: int = 0
    state_files: int = 0
    is_sink: bool = False
    """Nothing reads from it: what it took has left the job."""


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """One epoch as it was run."""

    epoch: int
    is_published: bool
    """False for one that changed nothing."""
    processing_time_micros: int
    duration_micros: int
    rows_read: int
    bytes_read: int
    bytes_written: int
    """Of state files."""
    compactions: int
    """Results swapped in."""
    waited_for_compaction: bool = False
    storage_requests: int = 0
    """Of all tasks; the driver's own, a dozen or so to publish an epoch, come on top."""
    cache_hits: int = 0
    cache_misses: int = 0
    """Pieces of state files that tasks looked up in their cache, in vain."""

    @property
    def cache_hit_rate(self) -> float | None:
        """Hits among all lookups; None if there were none."""
        lookups = self.cache_hits + self.cache_misses
        return self.cache_hits / lookups if lookups else None


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as its driver sees it now."""

    job: str
    phase: JobPhase
    generation: int | None = None
    epoch: int | None = None
    """The newest acknowledged epoch."""
    epochs_run: int = 0
    epochs_published: int = 0
    rows_read: int = 0
    restarts: int = 0
    torn_epochs: int = 0
    last: EpochProgress | None = None
    operators: tuple[OperatorStatus, ...] = ()
    error: str | None = None
    """What it failed of, or is about to try again after."""
    next_wake_up_micros: int | None = None


class StopMode(StrEnum):
    """How a job is asked to stop. None of them flushes windows: that is for the end of data."""

    GRACEFUL = "graceful"
    """One more epoch in which operators close; then stop."""
    CHECKPOINT = "checkpoint"
    """One more epoch; then stop. Operators do not close."""
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
    """Nothing to do until then, or until a stop is requested."""

    until_micros: int | None
    phase: JobPhase = JobPhase.WAITING


@dataclass(frozen=True, slots=True)
class Restart:
    """Take the job over again and go on from the last acknowledged epoch."""


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
