"""Runs the parts of commits on a worker, and keeps the operators that do so for later epochs.

A part runs on an operator of its own, which was never started and has no tables. Operators
are kept, because connections to other systems are expensive to open, and released when one
fails, when another generation commits, and with the worker. An operator is taken out of the
worker while it runs a part, so two parts never share one.

An error of a part is a value, whatever its kind: Spark would try a task again at once and tell
no class in the end, and the driver decides by the class whether and when to try again. Only a
process that dies makes Spark run its part again.

**Threads.** Where a process runs several parts it uses daemon threads: one that hangs cannot
keep the process from ending. Parts of the same number meet the same operator in every epoch.
"""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from penstock.core.ids import JobId, OperatorId
from penstock.errors import InternalError
from penstock.operators.context import CommitContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Registry
from penstock.operators.user_functions import USER_ERRORS, to_failure
from penstock.operators.worker_output import speaking_for
from penstock.runtime.plan.executor import (
    CommitOrder,
    ErrorPart,
    PartReport,
    to_error_part,
)
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)

LANES = 16
"""How many parts one process runs side by side: most of their time they wait for answers."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an operator is kept: parts that run side by side have lanes of their own."""

    job: JobId
    operator: OperatorId
    generation: int
    lane: int


class Committers:
    """The operators of one process that run parts of commits."""

    def __init__(self, store: ObjectStore, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._kept: dict[_Place, ArrowOperator] = {}

    def run(self, order: CommitOrder, *, lane: int = 0) -> PartReport:
        """Run a part on the operator that is kept in a lane, or on a new one."""
        task, generation = order.task, int(order.generation)
        place = _Place(task.job, task.operator, generation, lane)
        self._release_others(place)
        committer = self._kept.pop(place, None)
        context = CommitContext(task, self._store, order.identity)
        try:
            if committer is None:
                committer = self._build(order)
            with speaking_for(str(task.operator)):
                committer.handle_commit_part(order.epoch, order.part.data, context)
        except USER_ERRORS as error:
            if committer is not None:
                _release(committer, str(task.operator))
            return PartReport(_describe(error, order))
        except BaseException:
            if committer is not None:
                _release(committer, str(task.operator))
            raise
        before = self._kept.setdefault(place, committer)
        if before is not committer:
            _release(committer, str(task.operator))
        return PartReport()

    def start(self, orders: Sequence[CommitOrder]) -> list[Future[PartReport]]:
        """Start all parts in threads of their own; cancel the futures of those not begun."""
        reports: list[Future[PartReport]] = [Future() for _ in orders]
        parts = list(zip(orders, reports, strict=True))
        for lane in range(min(LANES, len(orders))):
            threading.Thread(
                target=self._run_lane,
                args=(parts[lane::LANES],),
                name=f"penstock-commit-{lane}",
                daemon=True,
            ).start()
        return reports

    def release(self) -> None:
        """Release every operator that runs nothing."""
        self._release_all(list(self._kept))

    def _run_lane(self, parts: Sequence[tuple[CommitOrder, Future[PartReport]]]) -> None:
        for order, report in parts:
            if not report.set_running_or_notify_cancel():
                continue
            try:
                lane = order.task.subtask.index % LANES
                report.set_result(self.run(order, lane=lane))
            except BaseException as error:  # noqa: BLE001 (raised again by the future)
                report.set_exception(error)

    def _build(self, order: CommitOrder) -> ArrowOperator:
        made = self._registry.construct(order.spec).operator
        if not isinstance(made, ArrowOperator):
            raise InternalError(f"{order.spec.kind!r} is no sink and cannot commit")
        return made

    def _release_others(self, place: _Place) -> None:
        """Release what earlier generations of the job have left."""
        others = [
            other
            for other in list(self._kept)
            if other.job == place.job and other.generation != place.generation
        ]
        self._release_all(others)

    def _release_all(self, places: Sequence[_Place]) -> None:
        for place in places:
            kept = self._kept.pop(place, None)
            if kept is not None:
                _release(kept, str(place.operator))


def _describe(error: BaseException, order: CommitOrder) -> ErrorPart:
    operator, subtask = str(order.task.operator), order.task.subtask
    where = (
        f"in handle_commit_part (part {subtask.index} of {subtask.parallelism}, "
        f"epoch {order.epoch})"
    )
    failure = to_failure(
        error,
        f"operator {operator!r} raised {type(error).__name__} {where}: {error}. The epoch is "
        "acknowledged; it is committed again at the next start",
        note=f"Raised by operator {operator!r} {where}",
        operator=operator,
        part=subtask.index,
        epoch=int(order.epoch),
        hook="handle_commit_part",
    )
    return to_error_part(failure)


def _release(committer: ArrowOperator, operator: str) -> None:
    try:
        committer.release()
    except Exception:  # noqa: BLE001 (the boundary to user code)
        _log.exception("operator %r failed in release", operator)
