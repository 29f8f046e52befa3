"""Publishing a checkpoint and committing its sinks: which driver may, and in which order.

    metadata → manifest → epoch record → fence check → sink commits → committed marker

The epoch record is the acknowledgement: its first creator owns the epoch for good. The fence
is read after the record was created and before the first commit, so a driver that was
replaced meanwhile leaves the commit to its successor. Permission is a value that only these
decisions make: `ReadyCheckpoint` (may be a parent) and `CommitPermit` (may commit).
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.core.ids import Generation
from penstock.errors import CorruptStateError, ErrorCode, InternalError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.reading import create_record, is_fenced
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    CommitMarker,
    EpochRecord,
    Fenced,
)
from penstock.state.protocol.steps import Steps, create_once


@dataclass(frozen=True, slots=True)
class ReadyCheckpoint:
    """Proof that a checkpoint is acknowledged and committed: an epoch may build on it."""

    ref: CheckpointRef


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """Proof that this generation may commit this checkpoint's sinks."""

    record: EpochRecord
    manifest: CheckpointManifest
    generation: Generation
    """The generation that commits; in a replay another than the one that published."""

    def __post_init__(self) -> None:
        if (
            self.record.ref != self.manifest.ref
            or self.record.parent != self.manifest.parent
            or not self.manifest.needs_commit
            or self.generation < self.record.ref.generation
        ):
            raise InternalError(
                f"no permit to commit {self.manifest.ref}: its record is of {self.record.ref}, "
                f"needs_commit is {self.manifest.needs_commit}, committing generation is "
                f"{self.generation}",
                code=ErrorCode.PROTOCOL_VIOLATION,
            )

    @property
    def ref(self) -> CheckpointRef:
        """The checkpoint to commit."""
        return self.manifest.ref


@dataclass(frozen=True, slots=True)
class LostEpoch:
    """Another driver owns the epoch: claim a new generation, recover, go on."""

    winner: CheckpointRef


PublicationOutcome: TypeAlias = ReadyCheckpoint | CommitPermit | LostEpoch | Fenced
"""An acknowledged checkpoint comes back as ready if it has nothing to commit. With a permit,
commit the sinks, then call `complete_commit`."""


def decide_publication(
    claim: ClaimRecord,
    manifest: CheckpointManifest,
    record: EpochRecord,
    winner: EpochRecord,
    *,
    fenced: bool,
) -> PublicationOutcome:
    """Decide from the winner of the epoch record and from the fence."""
    won = winner.ref == record.ref
    if fenced:
        return Fenced(claim.generation, record.ref if won else None)
    if not won:
        return LostEpoch(winner.ref)
    if manifest.needs_commit:
        return CommitPermit(record, manifest, claim.generation)
    return ReadyCheckpoint(record.ref)


def publish_checkpoint(
    claim: ClaimRecord,
    manifest: CheckpointManifest,
    parent: ReadyCheckpoint | None,
) -> Steps[PublicationOutcome]:
    """Create manifest and epoch record, then read the fence.

    Repeating the call with the same manifest after an error is safe: objects that are already
    there are recognised by their bytes. A *different* manifest in the same slot is refused; a
    driver that cannot repeat its manifest claims a new generation instead.
    """
    _check_request(claim, manifest, parent)
    path = paths.manifest_path(manifest.ref)
    if (yield from create_once(path, codec.encode(manifest))) is not None:
        raise InternalError(
            f"{path!r} already holds another manifest of this generation; claim a new "
            "generation before running the epoch again",
            code=ErrorCode.PROTOCOL_VIOLATION,
            path=path,
        )
    record = EpochRecord(manifest.ref, manifest.parent, manifest.created_at_micros)
    winner = (yield from create_record(record)) or record
    fenced = yield from is_fenced(claim)
    return decide_publication(claim, manifest, record, winner, fenced=fenced)


def _check_request(
    claim: ClaimRecord, manifest: CheckpointManifest, parent: ReadyCheckpoint | None
) -> None:
    expected_parent = None if parent is None else parent.ref
    ref = manifest.ref
    if (ref.job, ref.generation) != (claim.job, claim.generation):
        what = f"it belongs to {ref.job} generation {ref.generation}"
    elif manifest.parent != expected_parent:
        what = f"its parent {manifest.parent} is not the ready checkpoint {expected_parent}"
    elif parent is not None and parent.ref.epoch >= ref.epoch:
        what = f"its parent {parent.ref} is not older"
    elif ref.epoch < claim.first_epoch:
        what = f"the job's first epoch is {claim.first_epoch}"
    else:
        return
    raise InternalError(
        f"generation {claim.generation} of {claim.job} cannot publish {ref}: {what}",
        code=ErrorCode.PROTOCOL_VIOLATION,
    )


def complete_commit(permit: CommitPermit, *, now_micros: int) -> Steps[ReadyCheckpoint]:
    """Create the committed marker after every sink has committed.

    If another generation has replayed the same commit and created the marker first, its
    marker counts.
    """
    existing = yield from create_record(
        CommitMarker(permit.ref, permit.generation, now_micros)
    )
    if existing is not None and existing.ref != permit.ref:
        path = paths.marker_path(permit.ref)
        raise CorruptStateError(
            f"{path!r} is the committed marker of {existing.ref}: objects were moved by "
            "hand. Nothing was changed; put them back where they were written",
            code=ErrorCode.PROTOCOL_VIOLATION,
            path=path,
        )
    return ReadyCheckpoint(permit.ref)
