"""Compactions of a job: ordered after an epoch, swapped in by a later one, never waited for.

Except when a table has more runs than reads can bear: then the next epoch waits. What is
pending dies with the session: after a restart or restore its inputs may be gone.

Where a job stands: the newest acknowledged checkpoint, as its driver holds it in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.ids import Epoch, Generation, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import event_time_of
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.plan.executor import CompactionOrder, CompactionResult
from penstock.state.checkpoints import Metadata
from penstock.state.protocol.publication import ReadyCheckpoint
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.tables.operator_tables import (
    apply_compaction,
    is_overfull,
    plan_compactions,
)
from penstock.state.tables.table import CompactionConfig, Frontier


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


_ONLY_TOO_MANY = 1_000_000
"""As `min_files`: merge only because there are too many runs."""


class PendingCompactions:
    """What one session has ordered."""

    def __init__(self, environment: JobEnvironment, generation: Generation) -> None:
        self._environment = environment
        self._generation = generation
        self._urgent: list[CompactionResult] = []
        self.swapped = 0
        """How many results the last published epoch took in."""

    def start(self, state: JobState) -> None:
        """Order what is due in the tables of the epoch just published."""
        executor = self._environment.executor
        if executor.is_compacting:
            return
        orders = [order for order in self._orders(state) if order.tables]
        if orders:
            executor.compact(orders)

    def wait_if_needed(self, state: JobState) -> bool:
        """Merge at once where there are too many runs; tell whether that was so.

        The results are swapped in by the epoch that follows.
        """
        if self._urgent:
            return False
        overfull = list(self._orders(state, only_overfull=True))
        if not overfull:
            return False
        executor = self._environment.executor
        if not executor.is_compacting:  # else what is under way may be what is needed
            executor.compact(overfull)
        self._urgent += executor.compacted(wait=True)
        return True

    def swap(
        self, metadata: dict[OperatorId, dict[int, Metadata]], epoch: Epoch
    ) -> set[tuple[OperatorId, int]]:
        """Swap finished results into the metadata about to be published; return which."""
        rules = self._environment.settings.rules
        changed: set[tuple[OperatorId, int]] = set()
        self.swapped = 0
        results = [*self._urgent, *self._environment.executor.compacted()]
        self._urgent = []
        for result in results:
            parts = metadata.get(result.operator)
            if parts is None:
                continue
            swapped = apply_compaction(parts, result.tables, epoch=epoch, rules=rules)
            parts.update(swapped)
            changed |= {(result.operator, index) for index in swapped}
            self.swapped += bool(swapped)
        return changed

    def _orders(
        self, state: JobState, *, only_overfull: bool = False
    ) -> Iterator[CompactionOrder]:
        """Plan what each subtask should merge: all that is due, or only what must not wait."""
        manifest = state.manifest
        if manifest is None:
            return
        settings = self._environment.settings.compaction
        least, levels = settings.min_files, settings.compact_generations
        if only_overfull:  # The limit of runs holds whatever else is set.
            least, levels = _ONLY_TOO_MANY, None
        for node in self._environment.graph.nodes:
            specs = self._environment.tables[node.operator]
            parts = state.metadata.get(node.operator, {})
            # After a rescale the lists belong to other subtasks until the first epoch.
            if not specs or len(parts) != node.parallelism:
                continue
            config = CompactionConfig(
                state.next_epoch,
                frontier_of(manifest, node.operator),
                compact_generations=None if levels is None else frozenset(levels),
                min_compaction_epochs=least,
                min_expiring_epochs=max(least, settings.min_expiring_files),
                max_runs=settings.max_runs,
                target_file_bytes=settings.target_file_bytes,
            )
            for index in range(node.parallelism):
                if only_overfull and not is_overfull(parts[index], settings.max_runs):
                    continue
                subtask = Subtask(index, node.parallelism)
                task = TaskInfo(self._environment.graph.job, node.operator, subtask)
                due = plan_compactions(specs, task, config, parts)
                yield CompactionOrder(task, self._generation, config, due)


def frontier_of(manifest: CheckpointManifest, operator: OperatorId) -> Frontier:
    """Return the time by which an operator's state is judged as of a checkpoint."""
    for entry in manifest.operators:
        if entry.operator == operator:
            known = event_time_of(entry.input_watermarks)
            micros = None if known is None else known.micros
            return Frontier(micros, manifest.processing_time_micros)
    return Frontier(None, manifest.processing_time_micros)
