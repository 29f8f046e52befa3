"""JobReport: how a job is, from its URL and name alone, and why it is not well.

Three things are looked at: the newest claim and whether its driver has left, the newest event of
the journal, and the newest epoch. A driver that has not left and says nothing any more has died,
or cannot reach the store: the report calls it silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock.core.clock import Clock, SystemClock
from penstock.core.figures import show_count, show_fields, show_instant, show_seconds
from penstock.core.ids import JobId
from penstock.errors import PenstockError, UserError
from penstock.runtime.driver.decide import JobPhase, JobStatus, OperatorStatus
from penstock.runtime.driver.progress import EpochPhase
from penstock.runtime.journal.events import Event
from penstock.runtime.journal.reading import newest_event
from penstock.runtime.journal.writer import INTERVAL_MICROS
from penstock.runtime.plan.executor import KeySample
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import StorePlace, to_store

_SILENT_MICROS = 4 * INTERVAL_MICROS
"""How long a driver may say nothing before it counts as silent: several events are missing."""

_HOT_SHARE = 0.2
"""From which share of an exchange's rows on a key is called hot."""


class Health(StrEnum):
    """How a job is."""

    RUNNING = "running"
    STARTING = "starting"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    SILENT = "silent"
    """Its driver has died, or cannot reach the store."""
    UNKNOWN = "unknown"
    """It was claimed, and no event tells more: an older Penstock wrote none."""


_OF_PHASES = {
    JobPhase.WAITING: Health.RUNNING,
    JobPhase.FENCED: Health.SILENT,
} | {JobPhase(each.value): each for each in Health if each.value in list(JobPhase)}
_ALIVE = frozenset({Health.RUNNING, Health.STARTING, Health.RESTARTING, Health.STOPPING})


@dataclass(frozen=True, slots=True)
class WatermarkHolder:
    """The source that holds a job's watermark back."""

    operator: str
    split: str | None
    """The slowest of its splits, such as a partition."""
    watermark_micros: int | None
    """None before its first row with an event time."""

    def __str__(self) -> str:
        split = "" if self.split is None else f", split {self.split}"
        return f"{self.operator}{split} at {show_instant(self.watermark_micros)}"


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key that has many of the rows that go to an operator."""

    operator: str
    key: str
    share: float
    """Of the rows of one epoch, by a sample."""

    def __str__(self) -> str:
        return f"{self.key} has {self.share:.0%} of the rows of {self.operator}"


@dataclass(frozen=True, slots=True)
class JobReport:
    """How a job is at one instant."""

    url: str
    job: str
    health: Health
    problems: tuple[str, ...]
    """Why it is not well, the worst first; empty for a healthy job."""
    generation: int
    epoch: int | None
    """The newest acknowledged epoch."""
    claimed_at_micros: int
    last_sign_micros: int
    """When it last gave a sign: the newest event, or its claim."""
    seen_at_micros: int
    held_back_by: WatermarkHolder | None = None
    event: Event | None = None
    """The newest event of its journal."""

    @property
    def hot_keys(self) -> tuple[HotKey, ...]:
        """The most frequent key of each exchange, if it has a large share of the rows."""
        found = [] if self.event is None else map(_hottest, self.event.keys)
        return tuple(key for key in found if key is not None and key.share >= _HOT_SHARE)

    @property
    def status(self) -> JobStatus | None:
        """What its driver said last."""
        return None if self.event is None else self.event.status

    def __str__(self) -> str:
        status, event = self.status, self.event
        title = f"job {self.job}: {self.health}"
        fields: dict[str, str] = {}
        if event is not None:
            place = event.driver
            fields["driver"] = (
                f"process {place.process} on {place.host}, generation {self.generation}"
            )
        age = show_seconds(max(0, self.seen_at_micros - self.last_sign_micros))
        fields["last sign"] = f"{age} ago"
        fields["epoch"] = "none yet" if self.epoch is None else str(self.epoch)
        if status is not None and status.epochs_run:
            aside = "".join(f", {n:,} {kind}" for kind, n in status.rows_aside.items())
            fields["rows"] = (
                f"{status.rows_read:,} read, {status.rows_written:,} written{aside}"
            )
            fields["behind"] = status.lag
            fields["watermark"] = show_instant(status.watermark_micros)
            fields["held back by"] = str(self.held_back_by or "")
            fields["restarts"] = str(status.restarts or "")
            fields["hot keys"] = "; ".join(map(str, self.hot_keys))
        for number, problem in enumerate(self.problems):
            fields["problems" if number == 0 else " " * number] = problem
        return show_fields(title, fields)


def report_job(
    url: StorePlace, job: str, *, clock: Clock | None = None, **store_options: Any
) -> JobReport:
    """Return how a job is; a job that was never started is a `StateError`.

    >>> import penstock as pen
    >>> p = pen.Pipeline("numbers")
    >>> p.read("in", pen.impulse(count=10)).write("out", pen.blackhole())
    >>> status = p.run_in_process("memory:doctest-of-reports")
    >>> report = report_job("memory:doctest-of-reports", "numbers")
    >>> str(report.health), report.problems
    ('finished', ())
    """
    store = to_store(url, **store_options)
    return read_report(store, JobId(job), clock or SystemClock())


def report_jobs(
    url: StorePlace, *, clock: Clock | None = None, **store_options: Any
) -> tuple[JobReport, ...]:
    """Return how every job is whose checkpoints lie below a URL, in order of name."""
    store = to_store(url, **store_options)
    return tuple(
        read_report(store, job, clock or SystemClock()) for job in find_jobs(store)
    )


def find_jobs(store: ObjectStore) -> Iterator[JobId]:
    """Yield the jobs of a store: the folders that hold a first claim."""
    for name in store.folders(""):
        try:
            job = JobId(name)
        except UserError:
            continue  # somebody else's folder
        if JobCheckpoints(store, job).newest_claim() is not None:
            yield job


def read_report(store: ObjectStore, job: JobId, clock: Clock) -> JobReport:
    """Return how a job of a store is."""
    checkpoints = JobCheckpoints(store, job, clock)
    claim = checkpoints.require_claim()
    problems: list[str] = []
    event: Event | None = None
    try:
        event = newest_event(store, job)
    except PenstockError as error:
        problems.append(f"its journal cannot be read: {error.message}")
    now = clock.now_micros()
    sign = claim.created_at_micros
    if event is not None and event.generation >= claim.generation:
        sign = event.at_micros
    health = _health_of(
        event,
        int(claim.generation),
        may_run=checkpoints.running() is not None,
        silent_micros=now - sign,
    )
    holder = None if event is None else _find_holder(event.status)
    last = checkpoints.last_epoch()
    return JobReport(
        store.url,
        str(job),
        health,
        (*_problems_of(health, event, now - sign), *problems),
        int(claim.generation),
        last or None,
        claim.created_at_micros,
        sign,
        now,
        holder,
        event,
    )


def _health_of(
    event: Event | None, generation: int, *, may_run: bool, silent_micros: int
) -> Health:
    is_current = event is not None and event.generation == generation
    if event is None or not is_current:
        # It was claimed and has said nothing since.
        if not may_run:
            return Health.STOPPED if event is not None else Health.UNKNOWN
        return Health.STARTING if silent_micros < _SILENT_MICROS else Health.SILENT
    told = _OF_PHASES[event.status.phase]
    if told in _ALIVE and not may_run:
        return Health.STOPPED
    return Health.SILENT if told in _ALIVE and silent_micros > _SILENT_MICROS else told


def _problems_of(health: Health, event: Event | None, silent_micros: int) -> Iterator[str]:
    if health is Health.SILENT:
        yield (
            f"its driver has said nothing for {show_seconds(silent_micros)}: it has died, or "
            "cannot reach the store. Start the job again; it goes on from its last epoch"
        )
    if event is None:
        return
    status = event.status
    if health in {Health.FAILED, Health.RESTARTING} and status.error:
        yield f"it failed: {status.error.splitlines()[0]}"
    retried = sum(each.count for each in event.failures if each.is_retried)
    if retried and health is not Health.FAILED:
        yield f"{show_count(retried, 'failure')} in the last hour, after which it went on"
    if status.torn_epochs:
        yield f"{show_count(status.torn_epochs, 'epoch')} ran again because of lost records"
    for kind, count in status.rows_aside.items():
        yield f"{show_count(count, 'row')} came {kind if kind == 'late' else 'with bad values'}"
    waited = event.epochs.phases.get(EpochPhase.WAIT, 0)
    if waited * 2 > event.epochs.duration_micros:
        yield "epochs wait for compactions: more cores, or a larger compaction.max_runs, help"


def _hottest(sample: KeySample) -> HotKey | None:
    """Return the most frequent key of a sample; None without rows."""
    for key, rows in sample.rows_by_key.items():
        return HotKey(sample.target, key, rows / max(1, sample.rows))
    return None


def _find_holder(status: JobStatus) -> WatermarkHolder | None:
    """Return the source whose watermark is the lowest; one without any comes first."""
    sources = [each for each in status.operators if each.slowest_split is not None]

    def place(source: OperatorStatus) -> tuple[bool, int]:
        return source.watermark_micros is not None, source.watermark_micros or 0

    waiting = [each for each in sources if not each.is_idle]
    if not waiting:
        return None
    slowest = min(waiting, key=place)
    return WatermarkHolder(
        slowest.operator, slowest.slowest_split, slowest.watermark_micros
    )
