"""InProcessExecutor: all tasks in this process, one after the other, over an in-memory exchange.

For tests, the harness and crash matrices. It shuffles the records of different producers by
seed, because no engine promises an order between them, and it can be told to misbehave like
one: see `Chaos`.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from penstock.runtime.chaos import NO_CHAOS, Chaos
from penstock.runtime.epoch_plan import EpochPlan
from penstock.runtime.executor import CompactionOrder, CompactionResult
from penstock.runtime.reports import TaskReport, decode_report
from penstock.runtime.superstep import CompiledJob, run_task
from penstock.runtime.wire import Record
from penstock.runtime.worker import Worker
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.tables.operator_tables import compact_subtask


class InProcessExecutor:
    """Runs supersteps here. Has one worker unless more are given; tasks are dealt to them."""

    def __init__(
        self,
        worker: Worker,
        *,
        seed: int = 0,
        chaos: Chaos = NO_CHAOS,
        between_supersteps: Callable[[int], None] | None = None,
    ) -> None:
        self.worker = worker
        self.chaos = chaos
        self._random = random.Random(seed)  # noqa: S311 (an order, not a secret)
        self._between_supersteps = between_supersteps
        self._compacted: list[CompactionResult] = []

    def run_epoch(
        self, job: CompiledJob, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        """Run level by level; each task gets what the exchange holds for it."""
        if parent is not None:
            self.worker.manifests.put(parent.ref, parent)
        arriving: dict[int, list[list[Record]]] = {}
        for superstep in job.plan.supersteps:
            level = superstep.level
            leaving: dict[int, list[list[Record]]] = {}

            def run(
                task: int, level: int = level, arriving: object = arriving
            ) -> list[Record]:
                records = self._shuffled(arriving.get(task, []))  # type: ignore[attr-defined] # bound per level
                return list(
                    run_task(job, epoch, records, self.worker, level=level, task=task)
                )

            for output in self.chaos.run_level(level, range(superstep.task_count), run):
                for route, records in _by_route(output):
                    leaving.setdefault(route, []).append(records)
            if self._between_supersteps is not None:
                self._between_supersteps(level)
            arriving = leaving
        return [
            decode_report(record.payload)
            for outputs in arriving.values()
            for records in outputs
            for record in records
        ]

    def compact(self, orders: Sequence[CompactionOrder]) -> None:
        """Compact at once: in one process there is nobody else to do it."""
        for order in orders:
            config = order.config(self.worker.store, self.worker.cache)
            done = compact_subtask(order.specs, config, order.metadata)
            if done:
                self._compacted.append(CompactionResult(order.operator, done))

    @property
    def is_compacting(self) -> bool:
        """Tell whether something was compacted and not taken yet."""
        return bool(self._compacted)

    def compacted(self, *, wait: bool = False) -> Sequence[CompactionResult]:
        """Return what `compact` made since the last call."""
        del wait
        done, self._compacted = self._compacted, []
        return done

    def forget_compactions(self) -> None:
        """Drop what was compacted."""
        self._compacted = []

    def close(self) -> None:
        """Release all chains."""
        self.worker.forget()

    def _shuffled(self, outputs: list[list[Record]]) -> Iterator[Record]:
        """Mix the outputs of different producers; each keeps its own order."""
        queues = [list(reversed(records)) for records in outputs if records]
        while queues:
            queue = self._random.choice(queues)
            yield queue.pop()
            if not queue:
                queues.remove(queue)


def _by_route(records: Sequence[Record]) -> Iterator[tuple[int, list[Record]]]:
    routes: dict[int, list[Record]] = {}
    for record in records:
        routes.setdefault(record.route, []).append(record)
    return iter(routes.items())
