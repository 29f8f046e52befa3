"""What a run of an epoch came to: it counts, it was torn, or it was lost to another driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import Epoch, OperatorId
from penstock.errors import ErrorCode, PenstockError, StorageError
from penstock.operators.nodes import OperatorReport
from penstock.operators.source import SourceFinishType
from penstock.runtime.planning import ReadingPlan
from penstock.runtime.publishing import EpochResults
from penstock.runtime.receipts import Failed
from penstock.runtime.reports import from_error_part
from penstock.runtime.watched_store import NO_USAGE, StoreUsage
from penstock.state.protocol.records import CheckpointRef


@dataclass(frozen=True, slots=True)
class EpochRan:
    """An epoch ran and counts."""

    epoch: Epoch
    is_published: bool
    reports: Mapping[tuple[OperatorId, int], OperatorReport]
    reading: ReadingPlan
    processing_time_micros: int
    duration_micros: int
    compactions: int
    waited_for_compaction: bool
    finish: SourceFinishType | None
    """What a source asked for."""
    usage: StoreUsage = NO_USAGE
    """Of all tasks."""


@dataclass(frozen=True, slots=True)
class EpochTorn:
    """A run did not hold together; nothing of it counts and it can be run again."""

    reason: str


@dataclass(frozen=True, slots=True)
class EpochLost:
    """Another driver owns the epoch, and may be gone already: take over anew."""

    winner: CheckpointRef


EpochOutcome: TypeAlias = EpochRan | EpochTorn | EpochLost


def torn_error(job: str, reason: str) -> StorageError:
    """Return the error of an epoch that stays torn."""
    return StorageError(
        f"an epoch of job {job!r} did not hold together: {reason}. Nothing of it was "
        "published; it is run again",
        code=ErrorCode.TORN_EPOCH,
        job=job,
    )


def combined_error(failed: Failed) -> PenstockError:
    """Return the first failure, with the others as notes."""
    errors = [from_error_part(part) for part in failed.errors]
    first = errors[0]
    for other in errors[1:]:
        first.add_note(f"Also failed: {other.message}")
    return first


def finish_of(results: EpochResults) -> SourceFinishType | None:
    """Return the most urgent wish of any source subtask; an end concerns only the source."""
    wishes = {report.finish for report in results.reports.values()}
    for wish in (SourceFinishType.IMMEDIATE, SourceFinishType.GRACEFUL):
        if wish in wishes:
            return wish
    return None
