"""Decides whether the reports of an epoch belong together, and so whether the epoch counts.

The driver publishes only if, from the last level down to the first, every task is named by
one token: the one its consumers hold receipts for, or for a task without consumers the only
one that reported. That attempt's report must have arrived and be whole, and it must itself
hold a receipt for every producer it reads. Otherwise the epoch is torn and runs again.

A run of an epoch counts, is torn, or is lost to another driver. Most steps of the protocol
return `Fenced` themselves. But a replaced driver may find missing objects first, because its
successor collects checkpoints that it was about to read. Missing objects are damage only as
long as no newer driver owns the job.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from penstock.core.ids import JobId
from penstock.errors import (
    CorruptStateError,
    FencedError,
    PenstockError,
)
from penstock.operators.operator import SourceFinishType
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.progress import EpochProgress
from penstock.runtime.plan.epoch_plan import ReadingPlan
from penstock.runtime.plan.executor import ErrorPart, Reports, TaskReport, from_error_part
from penstock.runtime.plan.physical import PhysicalPlan
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.records import CheckpointRef, ClaimRecord, Fenced

TaskKey: TypeAlias = tuple[int, int]
"""Level and task."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Every task has exactly one attempt that counts."""

    reports: dict[TaskKey, TaskReport]


@dataclass(frozen=True, slots=True)
class Torn:
    """Attempts were mixed, repeated or lost: this run does not count, and can be run again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Some tasks failed, and reported their errors as values."""

    errors: tuple[ErrorPart, ...]


Agreement: TypeAlias = Agreed | Torn | Failed


@dataclass(frozen=True, slots=True)
class EpochRan:
    """An epoch ran and counts."""

    progress: EpochProgress
    reports: Reports
    reading: ReadingPlan
    finish: SourceFinishType | None
    """The stop that a source requested."""


@dataclass(frozen=True, slots=True)
class EpochLost:
    """Another driver owns the epoch and may have ended since: the job must be claimed again."""

    winner: CheckpointRef


@dataclass(frozen=True, slots=True)
class EpochSkipped:
    """The epoch would have found what the one before found, which changed nothing: it did not run."""


EpochOutcome: TypeAlias = EpochRan | EpochSkipped | Torn | EpochLost


def is_idle_as(reading: ReadingPlan, before: ReadingPlan) -> bool:
    """Return whether no source reads anything, and each does what it did in an epoch before."""
    parts = [part for parts in reading.assignments.values() for part in parts]
    if any(part.splits or part.forgotten for part in parts):
        return False
    return _without_budgets(reading) == _without_budgets(before)


def _without_budgets(reading: ReadingPlan) -> ReadingPlan:
    """Leave out what changes with every epoch, and means nothing where nothing is read."""
    unused = SourceBudget()
    return replace(
        reading,
        assignments={
            operator: tuple(replace(part, budget=unused) for part in parts)
            for operator, parts in reading.assignments.items()
        },
    )


def find_agreement(plan: PhysicalPlan, reports: Iterable[TaskReport]) -> Agreement:
    """Return whether the reports of a run agree, are torn, or hold failures."""
    arrived: dict[TaskKey, dict[str, TaskReport]] = {}
    for report in reports:
        attempts = arrived.setdefault((report.level, report.task), {})
        known = attempts.setdefault(report.token, report)
        if known != report:
            return Torn(f"{_name(report.level, report.task)} sent two different reports")
    outcome = _agree(plan, arrived)
    if isinstance(outcome, Agreed):
        return outcome
    everything = [report for attempts in arrived.values() for report in attempts.values()]
    torn = sorted(report.torn for report in everything if report.torn is not None)
    if torn:
        return Torn(torn[0])
    errors = tuple(report.error for report in everything if report.error is not None)
    return Failed(errors) if errors else outcome


def _agree(
    plan: PhysicalPlan, arrived: dict[TaskKey, dict[str, TaskReport]]
) -> Agreed | Torn:
    chosen: dict[TaskKey, TaskReport] = {}
    consumed: dict[TaskKey, set[str]] = {}
    for level, task in reversed(list(plan.tasks())):
        attempts = arrived.get((level, task), {})
        # Consumers were chosen before, with a receipt for every task that they read.
        tokens = consumed.get((level, task), set(attempts))
        if len(tokens) != 1:
            return Torn(f"{_name(level, task)} is known by {len(tokens)} attempts, not one")
        report = attempts.get(tokens.pop())
        if report is None:
            return Torn(
                f"the attempt of {_name(level, task)} that was consumed did not report"
            )
        if not report.is_whole:
            return Torn(f"{_name(level, task)} did not finish")
        missing = set(plan.senders(*plan.task(level, task)))
        producers = {sender[1:] for sender in missing}
        for receipt in report.receipts:
            missing.discard((receipt.edge, receipt.level, receipt.task))
            # A receipt for a task that this one does not read names no attempt of it.
            if (receipt.level, receipt.task) in producers:
                consumed.setdefault((receipt.level, receipt.task), set()).add(receipt.token)
        if missing:
            return Torn(f"{_name(level, task)} has no receipt for {len(missing)} producers")
        chosen[level, task] = report
    return Agreed(chosen)


def _name(level: int, task: int) -> str:
    return f"task {task} of level {level}"


def combined_error(failed: Failed) -> PenstockError:
    """Return the first failure, with the others as notes."""
    first, *others = map(from_error_part, failed.errors)
    for other in others:
        first.add_note(f"Also failed: {other.message}")
    return first


def fenced_error(job: JobId, fenced: Fenced) -> FencedError:
    """Return the error of a driver that was replaced."""
    return FencedError(
        f"generation {fenced.generation} of job {job!r} was replaced: a newer driver has "
        "claimed the job. This one stops for good and changes nothing more",
        job=str(job),
        generation=int(fenced.generation),
    )


@contextmanager
def damage_while_owned(checkpoints: JobCheckpoints, claim: ClaimRecord) -> Iterator[None]:
    """Turn CorruptStateError into FencedError if a newer driver owns the job.

    That driver may have collected the objects that are missing.
    """
    try:
        yield
    except CorruptStateError as error:
        if checkpoints.is_fenced(claim):
            raise fenced_error(claim.job, Fenced(claim.generation)) from error
        raise
