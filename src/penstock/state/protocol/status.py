"""What a checkpoint or a driver is, derived from which records exist. Never stored. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import Generation
from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    CommitMarker,
    EpochRecord,
)


@dataclass(frozen=True, slots=True)
class Invisible:
    """No manifest: to everybody but its writer this checkpoint does not exist."""


@dataclass(frozen=True, slots=True)
class Unacknowledged:
    """A manifest, but no record of its epoch: nobody may build on it or commit it."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The epoch belongs to another checkpoint."""

    winner: CheckpointRef


@dataclass(frozen=True, slots=True)
class Committing:
    """Acknowledged; its sinks have to commit, perhaps once more, before anything builds on it."""

    manifest: CheckpointManifest
    record: EpochRecord


@dataclass(frozen=True, slots=True)
class Ready:
    """Acknowledged and committed, or with nothing to commit. May be a parent."""

    manifest: CheckpointManifest


CheckpointStatus: TypeAlias = Invisible | Unacknowledged | Superseded | Committing | Ready


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer generation owns the job: stop for good, commit and delete nothing."""

    generation: Generation
    """The generation that was replaced."""
    acknowledged: CheckpointRef | None = None
    """What this driver still made the record of; its successor commits it, if it is news to it."""


def derive_status(
    ref: CheckpointRef,
    manifest: CheckpointManifest | None,
    record: EpochRecord | None,
    marker: CommitMarker | None,
) -> CheckpointStatus:
    """Say what `ref` is, given what was found at its places; contradictions are corruption."""
    if manifest is None:
        return Invisible()
    _require(manifest.ref == ref, ref, f"its manifest says it is {manifest.ref}")
    if record is None:
        return Unacknowledged()
    _require(record.ref.epoch == ref.epoch, ref, f"its epoch record is of {record.ref}")
    if record.ref != ref:
        return Superseded(record.ref)
    _require(
        record.parent == manifest.parent, ref, "manifest and epoch record differ in parent"
    )
    if not manifest.needs_commit:
        return Ready(manifest)
    if marker is None:
        return Committing(manifest, record)
    _require(marker.ref == ref, ref, f"its committed marker is of {marker.ref}")
    return Ready(manifest)


def _require(holds: bool, ref: CheckpointRef, what: str) -> None:  # noqa: FBT001 (an assertion)
    if not holds:
        raise CorruptStateError(
            f"checkpoint {ref} contradicts itself: {what}. Nothing was changed; objects were "
            "moved or edited by hand, bring them back or restore another epoch",
            code=ErrorCode.PROTOCOL_VIOLATION,
            checkpoint=str(ref),
        )
