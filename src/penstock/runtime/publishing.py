"""Publishing an epoch: from the tasks' reports to an acknowledged checkpoint.

nothing changed? → done, no number is used
swap compactions in → write changed metadata → manifest → epoch record → fence
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from penstock.core.ids import OperatorId
from penstock.graph.logical import LogicalGraph
from penstock.operators.nodes import OperatorReport
from penstock.operators.watermarks import merge_subtasks
from penstock.runtime.compactions import PendingCompactions
from penstock.runtime.environment import JobEnvironment
from penstock.runtime.epoch_plan import EpochPlan
from penstock.runtime.input_watermarks import known_inputs, label_inputs
from penstock.runtime.job_state import JobState
from penstock.runtime.watched_store import NO_USAGE, StoreUsage
from penstock.runtime.worker import Metadata
from penstock.state.checkpoints.backend import ParquetBackend
from penstock.state.checkpoints.job_checkpoints import JobCheckpoints
from penstock.state.protocol.publication import (
    CommitRequired,
    PublicationOutcome,
    Published,
)
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    InputWatermark,
    ObjectRef,
    OperatorEntry,
)

Watermarks: TypeAlias = dict[OperatorId, tuple[InputWatermark, ...]]
AllMetadata: TypeAlias = dict[OperatorId, dict[int, Metadata]]
"""By operator and subtask."""


@dataclass(frozen=True, slots=True)
class EpochResults:
    """What all subtasks of all operators reported, of one agreed run."""

    reports: Mapping[tuple[OperatorId, int], OperatorReport]
    usage: StoreUsage = NO_USAGE
    """Of all tasks."""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The epoch moved nothing: it is as if it had not run."""


@dataclass(frozen=True, slots=True)
class EpochPublisher:
    """Publishes the epochs of one session."""

    environment: JobEnvironment
    checkpoints: JobCheckpoints
    claim: ClaimRecord
    compactions: PendingCompactions

    def publish(
        self, state: JobState, plan: EpochPlan, results: EpochResults
    ) -> PublicationOutcome | Unchanged:
        """Acknowledge an epoch; `state` moves on only if that succeeded."""
        watermarks = _watermarks(self.environment, results)
        if not _has_changed(self.environment.graph, state, results, watermarks):
            return Unchanged()
        reports = results.reports
        epoch = plan.terms.barrier.epoch
        metadata = _next_metadata(self.environment, state, results)
        changed = {task for task, report in reports.items() if report.checkpoint.changed}
        changed |= self.compactions.swap(metadata, epoch)
        ref = CheckpointRef(self.environment.graph.job, self.claim.generation, epoch)
        written = self._write(ref, metadata, changed)
        manifest = CheckpointManifest(
            ref=ref,
            parent=None if state.base is None else state.base.ref,
            created_at_micros=self.environment.clock.now_micros(),
            processing_time_micros=plan.terms.processing_time_micros,
            needs_commit=any(r.checkpoint.metadata.commit_data for r in reports.values()),
            operators=tuple(
                OperatorEntry(
                    node.operator,
                    _refs(node.operator, state, metadata, written),
                    label_inputs(
                        self.environment.graph, node.operator, watermarks[node.operator]
                    ),
                )
                for node in self.environment.graph.nodes
            ),
        )
        outcome = self.checkpoints.publish(self.claim, manifest, state.base)
        if isinstance(outcome, Published | CommitRequired):
            state.manifest, state.metadata = manifest, metadata
            state.next_epoch = epoch.next()
        return outcome

    def _write(
        self,
        ref: CheckpointRef,
        metadata: AllMetadata,
        changed: set[tuple[OperatorId, int]],
    ) -> dict[tuple[OperatorId, int], ObjectRef]:
        """Write what changed, side by side: on an object store each takes its time."""
        backend = ParquetBackend(self.environment.store)
        tasks = sorted(changed & {(name, i) for name in metadata for i in metadata[name]})
        calls = [
            partial(backend.write_operator_checkpoint_metadata, ref, metadata[name][index])
            for name, index in tasks
        ]
        return dict(zip(tasks, self.environment.side_work.run_all(calls), strict=True))


def _refs(
    operator: OperatorId,
    state: JobState,
    metadata: AllMetadata,
    written: Mapping[tuple[OperatorId, int], ObjectRef],
) -> tuple[ObjectRef, ...]:
    """Return the objects of an operator; an unchanged subtask refers to its parent's."""
    entries = () if state.manifest is None else state.manifest.operators
    parents = {entry.operator: entry.subtasks for entry in entries}
    return tuple(
        written[operator, index]
        if (operator, index) in written
        else parents[operator][index]
        for index in sorted(metadata.get(operator, {}))
    )


def _watermarks(environment: JobEnvironment, results: EpochResults) -> Watermarks:
    return {
        node.operator: merge_subtasks(
            [results.reports[node.operator, i].inputs for i in range(node.parallelism)]
        )
        for node in environment.graph.nodes
    }


def _has_changed(
    graph: LogicalGraph, state: JobState, results: EpochResults, watermarks: Watermarks
) -> bool:
    """Tell whether anything would be lost if the epoch were forgotten."""
    if watermarks != known_inputs(graph, state.manifest):
        return True
    return any(
        report.has_fired
        or report.splits
        or _has_news(report, state.metadata.get(operator, {}).get(index))
        for (operator, index), report in results.reports.items()
    )


def _has_news(report: OperatorReport, known: Metadata | None) -> bool:
    """Tell whether a subtask wrote anything.

    Metadata differs from the parent's also when it only lists empty tables, or no longer
    holds what the parent had to commit: neither is worth an epoch.
    """
    done = report.checkpoint
    if not done.changed:
        return False
    tables = dict(done.metadata.table_checkpoint_metadata)
    before = {} if known is None else dict(known.table_checkpoint_metadata)
    return bool(done.metadata.commit_data) or tables != before


def _next_metadata(
    environment: JobEnvironment, state: JobState, results: EpochResults
) -> AllMetadata:
    """Return the metadata of all subtasks with tables: new where changed, else the parent's."""
    metadata: AllMetadata = {}
    for node in environment.graph.nodes:
        if not environment.tables[node.operator]:
            continue
        parts = metadata[node.operator] = {}
        for index in range(node.parallelism):
            done = results.reports[node.operator, index].checkpoint
            known = state.metadata.get(node.operator, {})
            parts[index] = done.metadata if done.changed else known[index]
    return metadata
