"""A task hands on what it has made after each batch and signal, not only at its end."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.ids import Epoch, Generation, OperatorId, Token
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import StorageError
from penstock.graph.logical import Exchange
from penstock.operators.context import OperatorContext
from penstock.operators.nodes import EpochTerms
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.executor import TaskReport, decode_report
from penstock.runtime.task.exchange import JOINED_ROWS, Attempt, Mailbox, outlets_of
from penstock.runtime.task.task import run_task
from penstock.runtime.task.wire import Record, RecordKind, decode_barrier, decode_header
from tests.builders.driven_job import JOB, DrivenJob
from tests.builders.scripted import PLAIN, SCHEMA, NumberedSource, Scripted, link

BY_TURNS = Exchange.REBALANCE
BATCHES = 4


class MiddleTask:
    """The task of level 1 in read ═ op ═ write, and one that also relays read ═ write."""

    def __init__(self, *, relays: bool = False, **hooks: Any) -> None:
        job = DrivenJob()
        job.add("read", lambda: NumberedSource({"s": range(4)}))
        job.add("op", lambda: Scripted(**hooks), PLAIN)
        job.add("write", lambda: Scripted(is_sink=True), *[PLAIN] * (1 + relays))
        job.join(
            link("read", "op", exchange=BY_TURNS), link("op", "write", exchange=BY_TURNS)
        )
        if relays:
            job.join(link("read", "write", index=1, exchange=BY_TURNS))
        environment = job.environment()
        assert isinstance(environment.executor, InProcessExecutor)
        self.worker = environment.executor.worker
        self.job = environment.job
        self.taken = 0
        """How many records the task has taken of its input."""

    def run(self) -> Iterator[Record]:
        """Run the task on four batches of level 0, large enough to be handed over singly."""
        plan = self.job
        mailbox = Mailbox(plan, Attempt(0, 0, Token("a" * 32)))
        outlets = outlets_of(plan, plan.chains[0], mailbox, subtask=0, epoch=1)
        # What is relayed comes first.
        for outlet in reversed(outlets[OperatorId("read")]["main"]):
            for _ in range(BATCHES):
                outlet.take(many_rows())
            outlet.finish(None)
        terms = EpochTerms(CheckpointBarrier(Epoch(1), Epoch(1), 1), 1)
        epoch = EpochPlan(JOB, Generation(1), terms, run=1)
        records = list(mailbox.drain())
        self.given = len(records)
        return run_task(
            self.job, epoch, self._counted(records), self.worker, level=1, task=0
        )

    def _counted(self, records: list[Record]) -> Iterator[Record]:
        for record in records:
            self.taken += 1
            yield record


def many_rows() -> pa.RecordBatch:
    numbers = pa.array(np.arange(JOINED_ROWS))
    users = pa.array(["u"] * JOINED_ROWS)
    return pa.RecordBatch.from_arrays(
        [users, numbers, numbers.cast(pa.timestamp("us", "UTC"))], schema=SCHEMA
    )


def report_in(records: list[Record]) -> TaskReport:
    own = [r for r in records if r.kind == RecordKind.REPORT]
    return decode_report(own[-1].payload)


def test_rows_leave_while_the_input_still_comes() -> None:
    task = MiddleTask()
    first = next(task.run())
    assert first.kind == RecordKind.DATA
    assert task.taken < task.given / 2


def test_relayed_records_leave_while_the_input_still_comes() -> None:
    task = MiddleTask(relays=True)
    seen: dict[int, int] = {}
    for record in task.run():
        seen.setdefault(decode_header(record.header).producer_level, task.taken)
    assert seen[0] <= task.given / 2


def test_what_is_emitted_on_a_signal_leaves_before_the_next_signal() -> None:
    called: list[str] = []

    def emit(watermark: object, ctx: OperatorContext, collector: object) -> None:
        called.append("handle_watermark")
        collector.collect(many_rows())  # type: ignore[attr-defined]  # an ArrowCollector

    def note(*_: object) -> None:
        called.append("handle_checkpoint")

    task = MiddleTask(
        generates_watermarks=True,
        process_batch=lambda *_: None,
        handle_watermark=emit,
        handle_checkpoint=note,
    )
    next(task.run())
    assert called == ["handle_watermark"]


def test_a_failure_half_way_aborts_behind_the_rows_that_have_left() -> None:
    batches: list[int] = []

    def fail_at_last(batch: pa.RecordBatch, ctx: object, collector: object) -> None:
        batches.append(batch.num_rows)
        if len(batches) == BATCHES:
            raise ValueError("no")
        collector.collect(batch)  # type: ignore[attr-defined]  # an ArrowCollector

    records = list(MiddleTask(process_batch=fail_at_last).run())
    data = [record for record in records if record.kind == RecordKind.DATA]
    (barrier,) = [r for r in records if r.kind == RecordKind.BARRIER]
    ended = decode_barrier(barrier.payload)
    assert data
    assert (ended.is_aborted, ended.record_count) == (True, len(data))
    assert report_in(records).error is not None
    assert records.index(barrier) > records.index(data[-1])


def test_an_attempt_after_a_failure_of_storage_has_another_token() -> None:
    failures = [StorageError("no answer")]

    def fail_once(*_: object) -> None:
        if failures:
            raise failures.pop()

    task = MiddleTask(handle_checkpoint=fail_once)
    left: list[Record] = []
    with pytest.raises(StorageError, match="no answer"):
        left.extend(task.run())
    again = list(task.run())
    assert report_in(again).is_whole
    tokens = [{decode_header(r.header).token for r in sent} for sent in (left, again)]
    assert tokens[0]
    assert tokens[0].isdisjoint(tokens[1])


def test_a_task_whose_consumer_is_gone_closes_its_chain() -> None:
    released: list[object] = []
    task = MiddleTask(release=lambda: released.append(True))
    running = task.run()
    next(running)
    running.close()  # type: ignore[attr-defined]  # a generator
    assert released
    assert not task.worker.chains
