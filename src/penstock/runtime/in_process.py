"""InProcessExecutor: runs all tasks in this process, one by one, over an in-memory exchange.

It serves runs without Spark, harnesses and tests of crashes. It shuffles the records of
different producers by seed, because no engine promises an order between them. By seed, `Chaos`
makes it fail as engines do:

| mischief | what an engine does |
|---|---|
| repeat | a task ran twice (speculation) and both outputs were kept |
| retry | a task ran twice and only the second output was kept |
| lose | some records of a task's output are gone |
| duplicate | some records arrive twice |
| recompute | consumers of one task read two different attempts of it |
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from penstock.errors import ErrorCode, ExternalError
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.executor import (
    CompactionOrder,
    CompactionResult,
    TaskReport,
    decode_report,
)
from penstock.runtime.plan.physical import PhysicalPlan
from penstock.runtime.task.task import Worker, run_task
from penstock.runtime.task.wire import Record
from penstock.state.protocol.records import CheckpointManifest

RunTask: TypeAlias = Callable[[int], list[Record]]
Exchanged: TypeAlias = dict[int, list[list[Record]]]
"""The records for each task of the next level, apart by the task that made them."""


class Mischief(StrEnum):
    """What goes wrong with one task."""

    REPEAT = "repeat"
    RETRY = "retry"
    LOSE = "lose"
    DUPLICATE = "duplicate"
    RECOMPUTE = "recompute"


@dataclass
class Chaos:
    """Decides by seed which tasks go wrong and how; with a rate of 0 none does."""

    rate: float = 0.0
    seed: int = 0
    kinds: tuple[Mischief, ...] = tuple(Mischief)
    done: list[tuple[int, int, Mischief]] = field(default_factory=list)
    """All that went wrong so far: level, task, mischief."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 (an order, not a secret)

    def run_level(
        self, level: int, tasks: Iterable[int], run: RunTask
    ) -> Iterator[list[Record]]:
        """Run the tasks of a level and yield the outputs that the exchange keeps."""
        for task in tasks:
            if self.rate == 0 or self._random.random() >= self.rate:
                yield run(task)
                continue
            mischief = self._random.choice(self.kinds)
            self.done.append((level, task, mischief))
            yield from self._misbehave(mischief, task, run)

    def _misbehave(
        self, mischief: Mischief, task: int, run: RunTask
    ) -> Iterator[list[Record]]:
        first = run(task)
        match mischief:
            case Mischief.REPEAT:
                yield first
                yield run(task)
            case Mischief.RETRY:
                yield run(task)
            case Mischief.LOSE:
                yield [record for record in first if self._random.random() < 0.7]
            case Mischief.DUPLICATE:
                yield [
                    record
                    for record in first
                    for _ in range(1 + (self._random.random() < 0.3))
                ]
            case Mischief.RECOMPUTE:
                yield from self._recompute(first, run(task))

    def _recompute(
        self, first: list[Record], second: list[Record]
    ) -> Iterator[list[Record]]:
        """Let each consumer read one of the two attempts."""
        routes = sorted({record.route for record in (*first, *second)})
        reads_second = {route for route in routes if self._random.random() < 0.5}
        yield [record for record in first if record.route not in reads_second]
        yield [record for record in second if record.route in reads_second]


NO_CHAOS = Chaos()


class InProcessExecutor:
    """Runs supersteps here. Tasks are dealt to its workers; by default there is one."""

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
        self._is_cancelled = False

    def run_epoch(
        self, job: PhysicalPlan, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        """Run level by level; each task gets what the exchange holds for it."""
        if parent is not None:
            self.worker.manifests.put(parent.ref, parent)
        arriving: Exchanged = {}
        for superstep in job.supersteps:
            level = superstep.level
            leaving: Exchanged = {}
            run = partial(self._run_task, job, epoch, arriving, level)
            for output in self.chaos.run_level(level, range(superstep.task_count), run):
                by_route: dict[int, list[Record]] = {}
                for record in output:
                    by_route.setdefault(record.route, []).append(record)
                for route, records in by_route.items():
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
        """Compact at once, in this process."""
        for order in orders:
            done = order.run(self.worker.store, self.worker.cache)
            if done.tables:
                self._compacted.append(done)

    @property
    def is_compacting(self) -> bool:
        """Return whether something was compacted and not taken yet."""
        return bool(self._compacted)

    def compacted(self, *, wait: bool = False) -> Sequence[CompactionResult]:
        """Return what `compact` made since the last call."""
        del wait
        done, self._compacted = self._compacted, []
        return done

    def forget_compactions(self) -> None:
        """Drop what was compacted."""
        self._compacted = []

    def cancel(self) -> None:
        """Begin no other task; the one under way runs to its end."""
        self._is_cancelled = True

    def recover(self) -> None:
        """Do nothing: this process is the engine."""

    def close(self) -> None:
        """Release all chains."""
        self.worker.forget()

    def _run_task(
        self,
        job: PhysicalPlan,
        epoch: EpochPlan,
        arriving: Exchanged,
        level: int,
        task: int,
    ) -> list[Record]:
        if self._is_cancelled:
            raise ExternalError(
                f"an epoch of job {job.graph.job!r} was cancelled: nothing of it was published",
                code=ErrorCode.ENGINE_FAILED,
                job=str(job.graph.job),
            )
        records = self._shuffled(arriving.get(task, []))
        return list(run_task(job, epoch, records, self.worker, level=level, task=task))

    def _shuffled(self, outputs: list[list[Record]]) -> Iterator[Record]:
        """Mix the outputs of different producers; each keeps its own order."""
        queues = [list(reversed(records)) for records in outputs if records]
        while queues:
            queue = self._random.choice(queues)
            yield queue.pop()
            if not queue:
                queues.remove(queue)
