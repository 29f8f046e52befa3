"""Publishes an epoch: makes an acknowledged, committed checkpoint of the tasks' reports.

    nothing changed? → done, no number is used
    swap compactions in → write changed metadata → manifest → epoch record → fence

**Compactions** are ordered after an epoch and swapped in by a later one. No epoch waits for
them, except when a table has too many runs to read: then the next epoch waits. Pending
compactions are dropped with the session: after a restart or restore their inputs may be gone.

What an acknowledged epoch holds for sinks is committed by `committing`.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from penstock.core.ids import Epoch, Generation, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import event_time_of, merge_subtasks
from penstock.operators.nodes import OperatorReport
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.plan.epoch_plan import EpochPlan, known_inputs, label_inputs
from penstock.runtime.plan.executor import CompactionOrder, CompactionResult, Reports
from penstock.state.checkpoints import JobCheckpoints, Metadata
from penstock.state.protocol.publication import (
    CommitPermit,
    PublicationOutcome,
    ReadyCheckpoint,
)
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    ObjectRef,
    OperatorEntry,
)
from penstock.state.tables.operator_tables import (
    apply_compaction,
    expired_inputs,
    is_overfull,
    plan_compactions,
)
from penstock.state.tables.table import CompactionConfig, Frontier

AllMetadata: TypeAlias = dict[OperatorId, dict[int, Metadata]]
"""By operator and subtask."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class JobState:
    """The checkpoint that a session stands on. Only a successful publication changes it."""

    next_epoch: Epoch
    base: ReadyCheckpoint | None
    """The checkpoint that the next epoch builds on."""
    manifest: CheckpointManifest | None
    """The manifest of the base, which belongs to another job if a branch has not published yet."""
    metadata: AllMetadata
    """The metadata of every subtask of the base."""


_ONLY_TOO_MANY = 1_000_000
"""A `min_files` that no table reaches: files are merged only if there are too many runs."""
_LEAST_FILES = 2
_MOST_ROUNDS = 4
"""How often merges are ordered when all were asked for: epochs write new files meanwhile."""


class PendingCompactions:
    """The compactions that one session has ordered."""

    def __init__(self, environment: JobEnvironment, generation: Generation) -> None:
        self._environment = environment
        self._generation = generation
        self._urgent: list[CompactionResult] = []
        self._ordered: list[CompactionOrder] = []
        """What is under way, or done and not swapped in yet; nothing is ordered meanwhile."""
        self.swapped = 0
        """How many results the last published epoch swapped in."""
        self._on_done: Callable[[int], None] | None = None
        """Set while somebody waits until there is nothing left to merge."""
        self._merged = 0
        """How many merges were swapped in since then."""
        self._rounds = 0
        """How often merges were ordered since then."""

    def ask(self, on_done: Callable[[int], None]) -> None:
        """Have everything merged that can be, and say when; asking again changes nothing."""
        if self._on_done is None:
            self._merged = self._rounds = 0
            self._on_done = on_done

    def start(self, state: JobState) -> None:
        """Order the compactions that are due in the tables of the epoch just published."""
        executor = self._environment.executor
        if executor.is_compacting:
            return
        if self._rounds >= _MOST_ROUNDS:
            self._end_asked()
        orders = [order for order in self._orders(state) if order.tables]
        if orders:
            self._rounds += self._on_done is not None
            self._order(orders)
        else:
            self._end_asked()

    def _end_asked(self) -> None:
        done, self._on_done = self._on_done, None
        self._rounds = 0
        if done is not None:
            done(self._merged)

    def continue_asked(self, state: JobState) -> bool:
        """Go on with what was asked for; return whether an epoch should swap results in."""
        if self._on_done is None:
            return False
        self._urgent += self._environment.executor.compacted()
        if not self._urgent:
            self.start(state)
        return bool(self._urgent)

    def wait_if_needed(self, state: JobState) -> bool:
        """Merge at once where there are too many runs; return whether that was so.

        The following epoch swaps the results in.
        """
        if self._urgent:
            return False
        overfull = list(self._orders(state, only_overfull=True))
        if not overfull:
            return False
        executor = self._environment.executor
        if not executor.is_compacting:  # what is under way may be what is needed
            self._order(overfull)
        self._urgent += executor.compacted(wait=True)
        return True

    def _order(self, orders: list[CompactionOrder]) -> None:
        self._ordered = orders
        self._environment.executor.compact(orders)

    def swap(
        self, metadata: AllMetadata, epoch: Epoch, processing_time_micros: int
    ) -> set[tuple[OperatorId, int]]:
        """Swap finished results into metadata about to be published; return whose changed."""
        rules = self._environment.settings.rules
        changed: set[tuple[OperatorId, int]] = set()
        self.swapped = 0
        results = [*self._urgent, *self._environment.executor.compacted()]
        self._urgent = []
        for result in results:
            parts = metadata.get(result.operator)
            if parts is None:
                continue
            swapped = apply_compaction(
                parts,
                result.tables,
                epoch=epoch,
                rules=rules,
                expired=self._expired(result.operator, parts, processing_time_micros),
            )
            parts.update(swapped)
            changed |= {(result.operator, index) for index in swapped}
            self.swapped += bool(swapped)
        self._merged += self.swapped
        return changed

    def _expired(
        self, operator: OperatorId, parts: Mapping[int, Metadata], now_micros: int
    ) -> frozenset[str]:
        """Return which inputs of an operator's merges its subtasks dropped as expired."""
        found: frozenset[str] = frozenset()
        for order in self._ordered:
            if order.task.operator == operator:
                written = parts[order.task.subtask.index].operator_metadata
                known = written.HasField("watermark_micros")
                watermark = written.watermark_micros if known else None
                found |= expired_inputs(order.tables, Frontier(watermark, now_micros))
        return found

    def _orders(
        self, state: JobState, *, only_overfull: bool = False
    ) -> Iterator[CompactionOrder]:
        """Yield what each subtask merges: all that is due, or only what must not wait."""
        manifest = state.manifest
        if manifest is None:
            return
        settings = self._environment.settings.compaction
        least, levels = settings.min_files, settings.compact_generations
        expiring = max(least, settings.min_expiring_files)
        if self._on_done is not None:
            least, expiring, levels = _LEAST_FILES, _LEAST_FILES, None
        if only_overfull:  # the limit of runs holds with any settings
            least, expiring, levels = _ONLY_TOO_MANY, _ONLY_TOO_MANY, None
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
                min_expiring_epochs=expiring,
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
    """Return the frontier by which an operator's state expires as of a checkpoint."""
    inputs = {entry.operator: entry.input_watermarks for entry in manifest.operators}
    known = event_time_of(inputs.get(operator, ()))
    micros = None if known is None else known.micros
    return Frontier(micros, manifest.processing_time_micros)


@dataclass(frozen=True, slots=True)
class EpochPublisher:
    """Publishes the epochs of one session."""

    environment: JobEnvironment
    checkpoints: JobCheckpoints
    claim: ClaimRecord
    compactions: PendingCompactions

    def publish(
        self, state: JobState, plan: EpochPlan, reports: Reports
    ) -> PublicationOutcome | None:
        """Acknowledge an epoch, or return None if it changed nothing.

        `state` changes only if the epoch is acknowledged.
        """
        graph = self.environment.graph
        watermarks = {
            node.operator: merge_subtasks(
                [reports[node.operator, i].inputs for i in range(node.parallelism)]
            )
            for node in graph.nodes
        }
        is_asked = self.compactions.continue_asked(state)
        if (
            not is_asked
            and watermarks == known_inputs(graph, state.manifest)
            and not any(
                _has_news(report, state.metadata.get(operator, {}).get(index))
                for (operator, index), report in reports.items()
            )
        ):
            return None
        epoch = plan.terms.barrier.epoch
        changed = {task for task, report in reports.items() if report.checkpoint.changed}
        # Every subtask with tables has metadata: new one, or that of the parent.
        metadata: AllMetadata = {
            node.operator: {
                index: reports[node.operator, index].checkpoint.metadata
                if (node.operator, index) in changed
                else state.metadata[node.operator][index]
                for index in range(node.parallelism)
            }
            for node in graph.nodes
            if self.environment.tables[node.operator]
        }
        now_micros = plan.terms.processing_time_micros
        changed |= self.compactions.swap(metadata, epoch, now_micros)
        ref = CheckpointRef(graph.job, self.claim.generation, epoch)
        refs = self._write(ref, state, metadata, changed)
        manifest = CheckpointManifest(
            ref=ref,
            parent=None if state.base is None else state.base.ref,
            created_at_micros=self.environment.clock.now_micros(),
            processing_time_micros=plan.terms.processing_time_micros,
            needs_commit=any(r.checkpoint.metadata.commit_data for r in reports.values()),
            operators=tuple(
                OperatorEntry(
                    node.operator,
                    refs.get(node.operator, ()),
                    label_inputs(graph, node.operator, watermarks[node.operator]),
                )
                for node in graph.nodes
            ),
        )
        outcome = self.checkpoints.publish(self.claim, manifest, state.base)
        if isinstance(outcome, ReadyCheckpoint | CommitPermit):
            state.manifest, state.metadata = manifest, metadata
            state.next_epoch = epoch.next()
        return outcome

    def _write(
        self,
        ref: CheckpointRef,
        state: JobState,
        metadata: AllMetadata,
        changed: set[tuple[OperatorId, int]],
    ) -> dict[OperatorId, tuple[ObjectRef, ...]]:
        """Write what changed; return all objects: an unchanged subtask keeps its parent's.

        The writes are made side by side, because each waits for the object store.
        """
        backend = self.environment.backend
        tasks = sorted(changed & {(name, i) for name in metadata for i in metadata[name]})
        calls = [
            partial(backend.write_operator_checkpoint_metadata, ref, metadata[name][index])
            for name, index in tasks
        ]
        written = dict(zip(tasks, self.environment.side_work.run_all(calls), strict=True))
        entries = () if state.manifest is None else state.manifest.operators
        parents = {entry.operator: entry.subtasks for entry in entries}
        return {
            name: tuple(
                written[name, index] if (name, index) in written else parents[name][index]
                for index in sorted(parts)
            )
            for name, parts in metadata.items()
        }


def _has_news(report: OperatorReport, known: Metadata | None) -> bool:
    """Return whether anything of a subtask would be lost if the epoch were not published.

    Metadata that only lists empty tables, or only lacks what the parent had to commit, differs
    from the parent's too: neither is a reason to publish.
    """
    if report.has_fired or report.splits:
        return True
    done = report.checkpoint
    if not done.changed:
        return False
    tables = dict(done.metadata.table_checkpoint_metadata)
    before = {} if known is None else dict(known.table_checkpoint_metadata)
    return bool(done.metadata.commit_data) or tables != before
