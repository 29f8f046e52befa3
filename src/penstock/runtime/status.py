"""Status: what a job is doing, as immutable values for the command line and the console."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
