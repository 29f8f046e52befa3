"""Where a job stands: the newest acknowledged checkpoint, as its driver holds it in memory."""

from dataclasses import dataclass

from penstock.core.ids import Epoch, OperatorId
from penstock.runtime.worker import Metadata
from penstock.state.protocol.publication import ReadyCheckpoint
from penstock.state.protocol.records import CheckpointManifest


@dataclass(slots=True)
class JobState:
    """Owned by one session; moved on only by a successful publication."""

    next_epoch: Epoch
    base: ReadyCheckpoint | None
    """What the next epoch builds on."""
    manifest: CheckpointManifest | None
    """The base's; of another job if a branch has not published yet."""
    metadata: dict[OperatorId, dict[int, Metadata]]
    """Of every subtask of the base, by operator and index."""
