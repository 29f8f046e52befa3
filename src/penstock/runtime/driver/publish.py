"""Publishing an epoch: from the tasks' reports to an acknowledged checkpoint.

nothing changed? → done, no number is used
swap compactions in → write changed metadata → manifest → epoch record → fence

Commits: handing every sink what an acknowledged epoch holds for it, once per operator.

Everything comes from the epoch's metadata objects, so a commit can be repeated by any later
driver. Runs on the driver only, and only with a permit.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import InputWatermark, merge_subtasks
from penstock.errors import ErrorCode, PenstockError, StateError, UserCodeError
from penstock.graph.logical import LogicalGraph
from penstock.operators.context import CommitContext
from penstock.operators.nodes import OperatorReport
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Registry
from penstock.runtime.driver.compactions import JobState, PendingCompactions
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.plan.epoch_plan import EpochPlan, known_inputs, label_inputs
from penstock.state.checkpoints import JobCheckpoints, Metadata, ParquetBackend
from penstock.state.protocol.publication import (
    CommitPermit,
    CommitRequired,
    PublicationOutcome,
    Published,
)
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    ObjectRef,
    OperatorEntry,
)
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.watched import NO_USAGE, StoreUsage

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


_log = logging.getLogger(__name__)

CommitData = Mapping[str, Mapping[int, bytes]]
"""By table and subtask."""


def commit_sinks(
    permit: CommitPermit,
    graph: LogicalGraph,
    registry: Registry,
    store: ObjectStore,
    *,
    identity: str,
    metadata: Mapping[OperatorId, Mapping[int, Metadata]] | None = None,
) -> int:
    """Call `handle_commit` of every operator that staged something; return how many did.

    `metadata` is that of the epoch, for who has just written it; otherwise it is read.
    Raises at the first failure: the epoch stays open and is committed again at the next
    start, all sinks of it.
    """
    backend = ParquetBackend(store)
    committed = 0
    for entry in permit.manifest.operators:
        if metadata is None:
            parts = [
                backend.read_operator_checkpoint_metadata(ref) for ref in entry.subtasks
            ]
        else:
            parts = [part for _, part in sorted(metadata.get(entry.operator, {}).items())]
        data = _commit_data(parts)
        if data:
            subtask = Subtask(0, max(1, entry.parallelism))
            task = TaskInfo(permit.ref.job, entry.operator, subtask)
            sink = _sink(entry.operator, graph, registry, permit)
            _commit(
                sink,
                permit.ref.epoch,
                data,
                CommitContext(task, store, identity),
            )
            committed += 1
    return committed


def _commit_data(metadata: list[Metadata]) -> dict[str, dict[int, bytes]]:
    found: dict[str, dict[int, bytes]] = {}
    for index, part in enumerate(metadata):
        for table, data in part.commit_data.items():
            found.setdefault(table, {})[index] = data
    return found


def _commit(
    sink: ArrowOperator, epoch: Epoch, data: CommitData, context: CommitContext
) -> None:
    operator = context.task.operator
    try:
        sink.handle_commit(epoch, data, context)
    except PenstockError as error:
        error.context.setdefault("operator", str(operator))
        error.context.setdefault("epoch", int(epoch))
        raise
    except Exception as error:
        raise UserCodeError(
            f"operator {operator!r} raised {type(error).__name__} in handle_commit of epoch "
            f"{epoch}: {error}. The epoch is acknowledged; it is committed again at the next "
            "start",
            operator=str(operator),
            epoch=int(epoch),
            hook="handle_commit",
        ) from error
    finally:
        try:
            sink.release()
        except Exception:  # noqa: BLE001 (the boundary to user code)
            _log.exception("operator %r failed in release", str(operator))


def _sink(
    operator: OperatorId, graph: LogicalGraph, registry: Registry, permit: CommitPermit
) -> ArrowOperator:
    for node in graph.nodes:
        if node.operator == operator:
            made = registry.construct(node.spec).operator
            if isinstance(made, ArrowOperator):
                return made
    raise StateError(
        f"{permit.ref} was acknowledged with output of operator {operator!r} that is not yet "
        "committed, and the graph has no such sink: start the job once with the graph it had",
        code=ErrorCode.NOT_RESTORABLE,
        operator=str(operator),
    )
