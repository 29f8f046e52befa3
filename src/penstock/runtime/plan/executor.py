"""Executor: where the tasks of an epoch run. Everything else is the same everywhere.

All implementations pass one contract suite; the in-process one is the specification.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.core.clock import new_token
from penstock.core.ids import Generation, OperatorId, TaskInfo
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.physical import CompiledJob
from penstock.runtime.plan.reports import TaskReport
from penstock.state.files.cache import FileCache
from penstock.state.proto.state_pb2 import TableCheckpointMetadata
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import TableCompaction, run_compactions
from penstock.state.tables.table import CompactionConfig, TableEnvironment


@dataclass(frozen=True, slots=True)
class CompactionOrder:
    """One subtask's merges, planned by the driver, to be run off the critical path."""

    task: TaskInfo
    generation: Generation
    config: CompactionConfig
    tables: tuple[TableCompaction, ...]

    @property
    def due_bytes(self) -> int:
        """How large the files are that are merged."""
        return sum(table.plan.size_bytes for table in self.tables)

    def run(self, store: ObjectStore, cache: FileCache) -> "CompactionResult":
        """Merge as planned, as a new attempt."""
        environment = TableEnvironment(
            self.task, self.generation, new_token(), store, cache
        )
        done = run_compactions(self.tables, environment, self.config)
        return CompactionResult(self.task.operator, done)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """New files by table, to be swapped in by a later epoch."""

    operator: OperatorId
    tables: dict[str, TableCheckpointMetadata]


class Executor(Protocol):
    """Runs tasks. A storage or engine failure is raised; the driver then decides what follows."""

    def run_epoch(
        self, job: CompiledJob, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        """Run all supersteps once and return every report that came back.

        No promise is made about them: the driver checks that they belong together. `parent`
        is the manifest that the plan names, for executors that can spare workers the read.
        An executor that can cancel tasks does so when the plan's deadline has passed, and
        raises the error of sources that overran.
        """
        ...

    def compact(self, orders: Sequence[CompactionOrder]) -> None:
        """Start compactions; never waits for them."""
        ...

    @property
    def is_compacting(self) -> bool:
        """Tell whether a compaction is under way, or done and not taken yet.

        What it merges would be ordered again.
        """
        ...

    def compacted(self, *, wait: bool = False) -> Sequence[CompactionResult]:
        """Return, once, what was compacted since the last call; `wait` for all that is started."""
        ...

    def forget_compactions(self) -> None:
        """Drop what is started or done: the job goes on from elsewhere."""
        ...

    def close(self) -> None:
        """Stop for good; chains are released."""
        ...
