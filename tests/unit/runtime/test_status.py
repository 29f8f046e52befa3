"""The status of a job: immutable values that tell what happened so far."""

import dataclasses

import pyarrow as pa
import pytest

from penstock.core.watermark import MAX_EVENT_TIME
from penstock.graph.logical import Exchange, WatermarkSpec
from penstock.operators.context import OperatorContext
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.in_process import Chaos, InProcessExecutor, Mischief
from penstock.state.tables.specs import global_table
from tests.builders.driven_job import DrivenJob
from tests.builders.scripted import PLAIN, NumberedSource, Scripted, link


def count(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
    ctx.count("seen", batch.num_rows)
    table = ctx.get_global_keyed_state("counts")
    table.insert("rows", (table.get("rows") or 0) + batch.num_rows)


def a_job() -> DrivenJob:
    job = DrivenJob()
    job.add(
        "read",
        lambda: NumberedSource({"s": range(6)}),
        watermark=WatermarkSpec(delay_micros=1),
    )
    job.add(
        "write",
        lambda: Scripted(
            is_sink=True, tables=[global_table("counts", str, int)], process_batch=count
        ),
        PLAIN,
        parallelism=2,
    )
    job.join(link("read", "write", exchange=Exchange.REBALANCE))
    return job


def test_rows_counters_and_epochs_add_up_over_subtasks_and_epochs() -> None:
    job = a_job()
    status = job.run()
    read, write = status.operators
    assert (read.operator, read.kind, read.parallelism) == ("read", "given", 1)
    assert (write.rows_taken, write.counters, write.parallelism) == (6, {"seen": 6}, 2)
    assert write.watermark_micros == MAX_EVENT_TIME.micros
    assert write.state_files > 0
    assert write.state_bytes > 0
    assert status.epochs_run == status.epochs_published == 4
    assert status.rows_read == 6
    assert status.last is not None
    assert (status.last.epoch, status.last.rows_read) == (4, 0)


def test_every_epoch_is_told_as_it_was() -> None:
    job = a_job()
    job.run()
    told = {status.last.epoch: status.last for status in job.statuses if status.last}
    assert [told[epoch].rows_read for epoch in (1, 2, 3, 4)] == [2, 2, 2, 0]
    assert all(progress.is_published for progress in told.values())
    assert all(told[epoch].bytes_written > 0 for epoch in (1, 2, 3))
    moments = [told[epoch].processing_time_micros for epoch in sorted(told)]
    assert moments == sorted(set(moments))


def test_watermarks_are_shown_as_they_move() -> None:
    job = a_job()
    job.run()
    shown = []
    for status in job.statuses:
        if status.operators and status.operators[1].watermark_micros not in shown:
            shown.append(status.operators[1].watermark_micros)
    assert shown == [0, 2, 4, MAX_EVENT_TIME.micros]


def test_a_status_cannot_be_changed() -> None:
    status = a_job().run()
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.phase = JobPhase.RUNNING  # type: ignore[misc] # that is the point


def test_torn_epochs_are_counted_and_run_again() -> None:
    job = a_job()
    driver = job.driver()
    executor = driver._environment.executor
    assert isinstance(executor, InProcessExecutor)
    executor.chaos = Chaos(0.3, seed=5, kinds=(Mischief.LOSE, Mischief.RECOMPUTE))
    status: JobStatus = driver.run()
    assert status.phase is JobPhase.FINISHED
    assert status.torn_epochs > 0
    assert status.operators[1].rows_taken == 6
