"""The plan of one epoch, fixed by the driver before any task runs. Plain data.

Small whatever the job's size: the checkpoint it starts from is named, not contained; tasks
read what they need of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.core.ids import Generation, JobId, OperatorId
from penstock.operators.nodes import EpochTerms
from penstock.operators.splits import SourceAssignment
from penstock.state.protocol.records import CheckpointRef


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Everything a run of an epoch depends on besides the graph and the checkpoint."""

    job: JobId
    generation: Generation
    terms: EpochTerms
    run: int
    """Counts the runs of this driver; a run that is repeated gets a new number."""
    accepted_run: int | None = None
    """The last run that counted: only what remembers exactly that may go on from memory."""
    parent: CheckpointRef | None = None
    """The checkpoint the epoch builds on."""
    assignments: Mapping[OperatorId, tuple[SourceAssignment, ...]] = field(
        default_factory=dict
    )
    """What each subtask of each source reads."""
    allow_dropped_state: bool = False
    """Whether tables that operators no longer declare may be left behind."""
