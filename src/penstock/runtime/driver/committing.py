"""Commits acknowledged epochs: makes visible what their sinks have staged.

    plan_commit of every sink → all parts, as one job of tasks → handle_commit of every sink

The commit data comes from the epoch's metadata objects, so any later driver can repeat a
commit, with any parallelism: a sink plans the same parts of the same data. A commit is carried
out only with a permit. Parts of all sinks run side by side, so an epoch pays for one job; when
each of them has succeeded, the sinks end their commits on the driver.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

from penstock.core.ids import OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, PenstockError, StateError
from penstock.graph.logical import Node
from penstock.operators.context import CommitContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.user_functions import USER_ERRORS, ask, to_failure
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.policies import is_transient
from penstock.runtime.driver.publish import AllMetadata
from penstock.runtime.plan.executor import CommitOrder, PartReport, from_error_part
from penstock.state.protocol.publication import CommitPermit
from penstock.state.protocol.records import OperatorEntry

CommitData: TypeAlias = Mapping[str, Mapping[int, bytes]]
"""By table and subtask."""
T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """What one sink has to commit of one epoch."""

    permit: CommitPermit
    task: TaskInfo
    data: CommitData


class CommittingSinks:
    """The driver's own instances of the sinks, which commit acknowledged epochs.

    A sink is built for its first commit and kept until `release`. One that failed is dropped:
    the next commit builds another.
    """

    def __init__(self, environment: JobEnvironment) -> None:
        self._environment = environment
        self._kept: dict[OperatorId, ArrowOperator] = {}

    @cached_property
    def _identity(self) -> str:
        return self._environment.open_checkpoints().identity() or ""

    def commit(self, permit: CommitPermit, metadata: AllMetadata | None = None) -> None:
        """Commit what every operator staged in an epoch.

        `metadata` is that of the epoch, if the caller has just written it; else it is read.
        Raises a failure when nothing of the commit is under way any more: the epoch stays
        open, and the next start commits all sinks of it again.
        """
        found = (self._find(permit, entry, metadata) for entry in permit.manifest.operators)
        self._commit_all([commit for commit in found if commit.data])

    def release(self) -> None:
        """Release every sink."""
        for operator in list(self._kept):
            self._drop(operator)

    def _find(
        self, permit: CommitPermit, entry: OperatorEntry, metadata: AllMetadata | None
    ) -> SinkCommit:
        if metadata is None:
            parts = self._environment.read_metadata(entry)
        else:
            parts = metadata.get(entry.operator, {})
        data: dict[str, dict[int, bytes]] = {}
        for index, part in sorted(parts.items()):
            for table, staged in part.commit_data.items():
                data.setdefault(table, {})[index] = staged
        subtask = Subtask(0, max(1, len(entry.subtasks)))
        return SinkCommit(permit, TaskInfo(permit.ref.job, entry.operator, subtask), data)

    def _commit_all(self, commits: Sequence[SinkCommit]) -> None:
        """Commit several sinks: their parts together, then each of them whole."""
        orders = [order for commit in commits for order in self._plan(commit)]
        if orders:
            raise_failed(self._environment.executor.commit(orders))
        for commit in commits:
            sink, epoch = self._sink(commit), commit.permit.ref.epoch
            context = self._context(commit)
            self._call(
                commit,
                "handle_commit",
                lambda: sink.handle_commit(epoch, commit.data, context),  # noqa: B023 (called at once)
            )

    def _plan(self, commit: SinkCommit) -> Iterator[CommitOrder]:
        """Yield an order for every part of a sink's commit."""
        sink, task, ref = self._sink(commit), commit.task, commit.permit.ref
        context = self._context(commit)
        parts = self._call(
            commit,
            "plan_commit",
            lambda: tuple(sink.plan_commit(ref.epoch, commit.data, context)),
        )
        for number, part in enumerate(parts):
            yield CommitOrder(
                TaskInfo(task.job, task.operator, Subtask(number, len(parts))),
                self._node(commit).spec,
                commit.permit.generation,
                ref.epoch,
                self._identity,
                part,
            )

    def _context(self, commit: SinkCommit) -> CommitContext:
        return CommitContext(commit.task, self._environment.store, self._identity)

    def _call(self, commit: SinkCommit, hook: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except USER_ERRORS as error:
            operator, epoch = commit.task.operator, commit.permit.ref.epoch
            self._drop(operator)
            failure = to_failure(
                error,
                f"operator {operator!r} raised {type(error).__name__} in {hook} of epoch "
                f"{epoch}: {error}. The epoch is acknowledged; it is committed again at the "
                "next start",
                operator=str(operator),
                epoch=int(epoch),
                hook=hook,
            )
            raise failure from failure.__cause__

    def _sink(self, commit: SinkCommit) -> ArrowOperator:
        operator = commit.task.operator
        if operator not in self._kept:
            spec = self._node(commit).spec
            made = self._environment.registry.construct(spec).operator
            if not isinstance(made, ArrowOperator):
                raise _missing(commit)
            self._kept[operator] = made
        return self._kept[operator]

    def _node(self, commit: SinkCommit) -> Node:
        operator = commit.task.operator
        name = self._environment.settings.renamed.get(operator, operator)
        for node in self._environment.graph.nodes:
            if node.operator == name:
                return node
        raise _missing(commit)

    def _drop(self, operator: OperatorId) -> None:
        try:
            self._kept.pop(operator).release()
        except Exception:  # noqa: BLE001 (the boundary to user code)
            _log.exception("operator %r failed in release", str(operator))


def find_repeating(environment: JobEnvironment) -> Iterator[tuple[OperatorId, str]]:
    """Yield every sink that may deliver a row twice, with its reason."""
    for node in environment.graph.nodes:
        made = environment.registry.construct(node.spec).operator
        if isinstance(made, ArrowOperator):
            reason = ask(node.operator, "why_at_least_once", made.why_at_least_once)
            if reason is not None:
                yield node.operator, reason


def _missing(commit: SinkCommit) -> StateError:
    operator = commit.task.operator
    return StateError(
        f"{commit.permit.ref} was acknowledged with output of operator {operator!r} that is "
        "not yet committed, and the graph has no such sink: start the job once with the graph "
        "it had",
        code=ErrorCode.NOT_RESTORABLE,
        operator=str(operator),
    )


def raise_failed(reports: Sequence[PartReport]) -> None:
    """Raise the failure of a part: rather one that stays, so that nobody retries in vain."""
    failures: list[PenstockError] = [
        from_error_part(report.error) for report in reports if report.error is not None
    ]
    failures.sort(key=is_transient)
    if not failures:
        return
    first, *others = failures
    for text in dict.fromkeys(other.message for other in others):
        first.add_note(f"Also failed: {text}")
    raise first
