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
from concurrent import futures
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

from penstock.runtime.driver.signals import wait_attentively
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.executor import (
    CommitOrder,
    CompactionOrder,
    CompactionResult,
    PartReport,
    TaskReport,
    cancelled_error,
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

    def repeats_part(self) -> bool:
        """Decide whether a part of a commit runs twice, as after a lost answer."""
        return self.rate > 0 and self._random.random() < self.rate

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


def wait_for_parts(
    orders: Sequence[CommitOrder],
    reports: Sequence[Future[PartReport]],
    cancelled: Future[None],
) -> Sequence[PartReport]:
    """Wait for parts of a commit that run in threads; leave them behind if it is cancelled."""

    def has_come(seconds: float) -> bool:
        late: list[Future[Any]] = [report for report in reports if not report.done()]
        futures.wait([*late[:1], cancelled], seconds if late else 0, FIRST_COMPLETED)
        return cancelled.done() or all(report.done() for report in reports)

    wait_attentively(has_come)
    if not all(report.done() for report in reports):
        for report in reports:
            report.cancel()
        raise cancelled_error(orders[0].task.job, "a commit")
    return [report.result() for report in reports]


class InProcessExecutor:
    """Runs supersteps here. Tasks are dealt to its workers; by default there is one."""

    def __init__(
        self,
        worker: Worker,
        *,
        seed: int = 0,
        chaos: Chaos = NO_CHAOS,
        between_supersteps: Callable[[int], None] | None = None,
        commits_in_threads: bool = False,
    ) -> None:
        """Run on a worker; in threads, parts of a commit run side by side and can be given up."""
        self.worker = worker
        self.chaos = chaos
        self._random = random.Random(seed)  # noqa: S311 (an order, not a secret)
        self._between_supersteps = between_supersteps
        self._commits_in_threads = commits_in_threads
        self._compacted: list[CompactionResult] = []
        self._cancelled: Future[None] = Future()
        """Done when no task and no part of a commit is to be begun."""

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

    def commit(self, orders: Sequence[CommitOrder]) -> Sequence[PartReport]:
        """Run parts one by one; the seed decides which of them run twice."""
        committers = self.worker.committers
        if self._commits_in_threads and not self._cancelled.done():
            return wait_for_parts(orders, committers.start(orders), self._cancelled)
        reports = []
        for order in orders:
            if self._cancelled.done():
                raise cancelled_error(order.task.job, "a commit")
            if self.chaos.repeats_part():
                committers.run(order)
            reports.append(committers.run(order))
        return reports

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
        with suppress(InvalidStateError):
            self._cancelled.set_result(None)

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
        if self._cancelled.done():
            raise cancelled_error(job.graph.job)
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
