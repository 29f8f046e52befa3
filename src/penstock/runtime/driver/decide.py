"""Decides what a driver does next, and holds the status values that show what it is doing.

Pure: `next_action` turns facts into an action. The first row that applies counts:

| facts | action |
|---|---|
| an immediate stop is requested, or the last epoch of a stop has run | Finish(STOPPED) |
| a failure may pass, and a stop is requested | Finish(STOPPED) |
| a failure may pass | Wait until the time to retry, then Restart |
| all operators have ended | Finish(FINISHED) |
| another stop is requested | RunEpoch(stop) |
| there is data, or a source ended | RunEpoch |
| a trigger depends on how much waits at the sources, and it is time to look | AskSources |
| there is nothing to do | Wait until the next poll, tick, timer or idle timeout |

`JobStatus` and its parts are immutable values for the command line and the console.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from penstock.core.figures import (
    show_bytes,
    show_count,
    show_fields,
    show_instant,
    show_seconds,
)
from penstock.graph.logical import BAD, LATE
from penstock.runtime.driver.progress import EpochProgress


class JobPhase(StrEnum):
    """Where a driver is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    """There is no data; the driver wakes up by itself."""
    RESTARTING = "restarting"
    """A failure may pass; the driver tries again later."""
    STOPPING = "stopping"
    """The last epoch before a stop runs."""
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
    """The total since the driver started, by output."""
    counters: Mapping[str, int] = field(default_factory=dict)
    watermark_micros: int | None = None
    is_idle: bool = False
    state_bytes: int = 0
    state_files: int = 0
    is_sink: bool = False
    """No operator reads from it: the rows it took have left the job."""
    slowest_split: str | None = None
    """For a source with event time: the split that holds its watermark back."""
    unread: tuple[str, ...] = ()
    """Its side outputs that nothing reads: their rows are counted and dropped."""
    lag_rows: int | None = None
    """For a source that can tell: how many rows the last epoch left unread."""
    lag_micros: int | None = None
    """How old the next of these rows is at most."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job as its driver sees it. Immutable."""

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
    """The error that it failed of, or after which it tries again."""
    next_wake_up_micros: int | None = None
    doing: str | None = None
    """What takes its time right now, such as "starting Spark"."""

    @property
    def rows_written(self) -> int:
        """How many rows the sinks have taken since the driver started."""
        return sum(each.rows_taken for each in self.operators if each.is_sink)

    @property
    def rows_aside(self) -> dict[str, int]:
        """How many rows were late or bad since the driver started; without kinds of none."""
        found = {
            kind: sum(each.rows_emitted.get(kind, 0) for each in self.operators)
            for kind in (LATE, BAD)
        }
        return {kind: count for kind, count in found.items() if count}

    @property
    def lag(self) -> str:
        """How far the sources that can tell are behind, as text; empty if they are not."""
        rows = sum(each.lag_rows or 0 for each in self.operators)
        micros = max((each.lag_micros or 0 for each in self.operators), default=0)
        age = f" ({show_seconds(micros)})" if micros else ""
        return f"{show_count(rows, 'row')}{age}" if rows else ""

    @property
    def watermark_micros(self) -> int | None:
        """The lowest watermark of all operators that have one."""
        known = [each.watermark_micros for each in self.operators]
        return min((micros for micros in known if micros is not None), default=None)

    @property
    def state_bytes(self) -> int:
        """How large the state of all operators is."""
        return sum(each.state_bytes for each in self.operators)

    @property
    def state_files(self) -> int:
        """How many files hold the state of all operators."""
        return sum(each.state_files for each in self.operators)

    def __str__(self) -> str:
        """Return the figures that an operator of the job looks for first, in a few lines."""
        title = f"job {self.job}: {self.doing or self.phase}"
        if self.epoch is not None:
            title += f", epoch {self.epoch}"
        aside = "".join(f", {count:,} {kind}" for kind, count in self.rows_aside.items())
        state = f"{show_bytes(self.state_bytes)} in {show_count(self.state_files, 'file')}"
        ran = self.epochs_run > 0
        return show_fields(
            title,
            {
                "rows": f"{self.rows_read:,} read, {self.rows_written:,} written{aside}"
                if ran
                else "",
                "behind": self.lag,
                "watermark": show_instant(self.watermark_micros) if ran else "",
                "state": state if ran else "",
                "restarts": str(self.restarts or ""),
                "error": self.error or "",
            },
        )


class StopMode(StrEnum):
    """How a job stops on request. None of the modes flushes windows: only the end of data does."""

    GRACEFUL = "graceful"
    """The job runs one more epoch, in which operators close, then stops."""
    CHECKPOINT = "checkpoint"
    """The job runs one more epoch, in which operators do not close, then stops."""
    IMMEDIATE = "immediate"
    """The job stops at once: the epoch that runs does not count."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a decision depends on."""

    now_micros: int
    stop: StopMode | None = None
    has_stopped: bool = False
    """The last epoch of this run was published, or was not needed."""
    is_finished: bool = False
    """Every operator has ended."""
    retry_at_micros: int | None = None
    """The time to try again after a failure that may pass."""
    has_work: bool = True
    """A source has more to read or has just ended, or no epoch has run yet."""
    wake_up_micros: int | None = None
    """The earliest poll, tick, timer or idle timeout; None if nothing will ever happen."""
    next_epoch_micros: int = 0
    """The earliest time of an epoch without work: such epochs keep a distance."""
    ask_micros: int | None = None
    """The time to ask the sources whether enough waits for an epoch; None for never."""


@dataclass(frozen=True, slots=True)
class RunEpoch:
    """Run one epoch."""

    stop: StopMode | None = None
    """The requested stop, set for the last epoch of this run."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until that time, or until a stop is requested or the driver is woken up."""

    until_micros: int | None
    phase: JobPhase = JobPhase.WAITING


@dataclass(frozen=True, slots=True)
class AskSources:
    """Ask the sources whether so much waits that the next epoch need not wait longer."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Claim the job again and go on from the last acknowledged epoch."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Leave the loop."""

    phase: JobPhase


Action: TypeAlias = RunEpoch | Wait | AskSources | Restart | Finish


def next_action(facts: Facts) -> Action:
    """Return what to do next."""
    if facts.stop is StopMode.IMMEDIATE or facts.has_stopped:
        return Finish(JobPhase.STOPPED)
    if facts.retry_at_micros is not None:
        return _retry(facts, facts.retry_at_micros)
    if facts.is_finished:
        return Finish(JobPhase.FINISHED)
    if facts.stop is not None or facts.has_work:
        return RunEpoch(facts.stop)
    return _wait(facts)


def _retry(facts: Facts, at_micros: int) -> Action:
    if facts.stop is not None:
        # The job could only stop after a successful epoch, which may never come.
        return Finish(JobPhase.STOPPED)
    if facts.now_micros < at_micros:
        return Wait(at_micros, JobPhase.RESTARTING)
    return Restart()


def _wait(facts: Facts) -> Action:
    if facts.wake_up_micros is None:
        return Wait(None)
    until = max(facts.wake_up_micros, facts.next_epoch_micros)
    if until <= facts.now_micros:
        return RunEpoch()
    if facts.ask_micros is not None and facts.ask_micros <= facts.now_micros:
        return AskSources()
    return Wait(until if facts.ask_micros is None else min(until, facts.ask_micros))
