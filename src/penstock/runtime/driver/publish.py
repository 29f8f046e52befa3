"""Publishing an epoch: from the tasks' reports to an acknowledged, committed checkpoint.

    nothing changed? → done, no number is used
    swap compactions in → write changed metadata → manifest → epoch record → fence
    acknowledged → every sink commits what the epoch holds for it

What sinks commit comes from the epoch's metadata objects, so a commit can be repeated by any
later driver. It runs on the driver only, and only with a permit.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

from penstock.core.ids import OperatorId, Subtask, TaskInfo
from penstock.core.watermark import InputWatermark, merge_subtasks
from penstock.errors import ErrorCode, StateError
from penstock.operators.context import CommitContext
from penstock.operators.nodes import OperatorReport
from penstock.operators.operator import ArrowOperator
from penstock.operators.user_functions import to_failure
from penstock.runtime.driver.compactions import JobState, PendingCompactions
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.plan.epoch_plan import EpochPlan, known_inputs, label_inputs
from penstock.runtime.plan.reports import Reports
from penstock.state.checkpoints import JobCheckpoints, Metadata
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

Watermarks: TypeAlias = dict[OperatorId, tuple[InputWatermark, ...]]
AllMetadata: TypeAlias = dict[OperatorId, dict[int, Metadata]]
"""By operator and subtask."""

_log = logging.getLogger(__name__)


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

        `state` moves on only if the epoch is acknowledged.
        """
        graph = self.environment.graph
        watermarks = {
            node.operator: merge_subtasks(
                [reports[node.operator, i].inputs for i in range(node.parallelism)]
            )
            for node in graph.nodes
        }
        if watermarks == known_inputs(graph, state.manifest) and not any(
            _has_news(report, state.metadata.get(operator, {}).get(index))
            for (operator, index), report in reports.items()
        ):
            return None
        epoch = plan.terms.barrier.epoch
        metadata = self._next_metadata(state, reports)
        changed = {task for task, report in reports.items() if report.checkpoint.changed}
        changed |= self.compactions.swap(metadata, epoch)
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
        if isinstance(outcome, Published | CommitRequired):
            state.manifest, state.metadata = manifest, metadata
            state.next_epoch = epoch.next()
        return outcome

    def _next_metadata(self, state: JobState, reports: Reports) -> AllMetadata:
        """Return the metadata of all subtasks with tables: new if changed, else the parent's."""
        metadata: AllMetadata = {}
        for node in self.environment.graph.nodes:
            if not self.environment.tables[node.operator]:
                continue
            parts = metadata[node.operator] = {}
            for index in range(node.parallelism):
                done = reports[node.operator, index].checkpoint
                known = state.metadata.get(node.operator, {})
                parts[index] = done.metadata if done.changed else known[index]
        return metadata

    def _write(
        self,
        ref: CheckpointRef,
        state: JobState,
        metadata: AllMetadata,
        changed: set[tuple[OperatorId, int]],
    ) -> dict[OperatorId, tuple[ObjectRef, ...]]:
        """Write what changed; return all objects: an unchanged subtask keeps its parent's.

        The writes are made side by side, because on an object store each takes its time.
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
    """Tell whether anything of a subtask would be lost if the epoch were forgotten.

    Metadata differs from the parent's also when it only lists empty tables, or does not hold
    what the parent had to commit: neither is worth an epoch.
    """
    if report.has_fired or report.splits:
        return True
    done = report.checkpoint
    if not done.changed:
        return False
    tables = dict(done.metadata.table_checkpoint_metadata)
    before = {} if known is None else dict(known.table_checkpoint_metadata)
    return bool(done.metadata.commit_data) or tables != before


class CommittingSinks:
    """The driver's own instances of the sinks, which commit acknowledged epochs.

    A sink is built for its first commit and kept until `release`. One that failed is dropped:
    the next commit builds another.
    """

    def __init__(self, environment: JobEnvironment, checkpoints: JobCheckpoints) -> None:
        self._environment = environment
        self._checkpoints = checkpoints
        self._kept: dict[OperatorId, ArrowOperator] = {}

    @cached_property
    def _identity(self) -> str:
        return self._checkpoints.identity() or ""

    def commit(
        self,
        permit: CommitPermit,
        metadata: Mapping[OperatorId, Mapping[int, Metadata]] | None = None,
    ) -> None:
        """Call `handle_commit` of every operator that staged something.

        `metadata` is that of the epoch, if the caller has just written it; else it is read.
        Raises at the first failure: the epoch stays open, and the next start commits all
        sinks of it again.
        """
        backend = self._environment.backend
        for entry in permit.manifest.operators:
            if metadata is None:
                parts = [
                    backend.read_operator_checkpoint_metadata(ref) for ref in entry.subtasks
                ]
            else:
                found = metadata.get(entry.operator, {})
                parts = [part for _, part in sorted(found.items())]
            data: dict[str, dict[int, bytes]] = {}
            for index, part in enumerate(parts):
                for table, staged in part.commit_data.items():
                    data.setdefault(table, {})[index] = staged
            if data:
                subtask = Subtask(0, max(1, entry.parallelism))
                self._commit(
                    permit, TaskInfo(permit.ref.job, entry.operator, subtask), data
                )

    def release(self) -> None:
        """Release every sink."""
        for operator in list(self._kept):
            self._drop(operator)

    def _commit(
        self,
        permit: CommitPermit,
        task: TaskInfo,
        data: Mapping[str, Mapping[int, bytes]],
    ) -> None:
        operator, epoch = task.operator, permit.ref.epoch
        sink = self._sink(operator, permit)
        try:
            context = CommitContext(task, self._environment.store, self._identity)
            sink.handle_commit(epoch, data, context)
        except Exception as error:  # noqa: BLE001 (the boundary to user code)
            self._drop(operator)
            failure = to_failure(
                error,
                f"operator {operator!r} raised {type(error).__name__} in handle_commit of epoch "
                f"{epoch}: {error}. The epoch is acknowledged; it is committed again at the "
                "next start",
                operator=str(operator),
                epoch=int(epoch),
                hook="handle_commit",
            )
            raise failure from failure.__cause__

    def _sink(self, operator: OperatorId, permit: CommitPermit) -> ArrowOperator:
        if operator in self._kept:
            return self._kept[operator]
        for node in self._environment.graph.nodes:
            if node.operator == operator:
                made = self._environment.registry.construct(node.spec).operator
                if isinstance(made, ArrowOperator):
                    self._kept[operator] = made
                    return made
        raise StateError(
            f"{permit.ref} was acknowledged with output of operator {operator!r} that is not "
            "yet committed, and the graph has no such sink: start the job once with the graph "
            "it had",
            code=ErrorCode.NOT_RESTORABLE,
            operator=str(operator),
        )

    def _drop(self, operator: OperatorId) -> None:
        try:
            self._kept.pop(operator).release()
        except Exception:  # noqa: BLE001 (the boundary to user code)
            _log.exception("operator %r failed in release", str(operator))
