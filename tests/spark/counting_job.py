"""A job to be hurt on Spark, and the operators that hurt it at a chosen point of its life.

Every row gets its number within its key and goes to files once. A row that is lost, doubled or
counted on the wrong state changes the numbers of all later rows of its key, so a comparison
with a batch computation finds it.

Each harmful operator strikes once: the first attempt that creates its mark, a file, strikes,
and every later attempt finds the mark.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import pyarrow as pa

import penstock as pen
from penstock.core.ids import JobId
from penstock.errors import StorageError
from penstock.operators import (
    ArrowCollector,
    ArrowOperator,
    CheckpointBarrier,
    OperatorContext,
    keyed_table,
)
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.policies import RestartPolicy
from penstock.runtime.spark.running import run_on_spark
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import assert_job_is_whole
from tests.builders.spark_session import claim, wait_for_mark

COUNTS = pa.schema([("key", pa.int64()), ("count", pa.int64())])
KEYS = 20
SETTINGS = DriverSettings(
    budget=SourceBudget(rows=100),
    adapts_budget=False,
    target_epoch_micros=1,
    collect_every=2,
    keep_epochs=3,
    restarts=RestartPolicy(first_delay_micros=1_000),
)


class NumberRows(ArrowOperator):
    """Gives each row its number among the rows of its key, from 1."""

    def name(self) -> str:
        return "number-rows"

    def output_schema(self, inputs: Sequence[pen.StreamSchema]) -> pen.StreamSchema:
        numbered = inputs[0].arrow.append(pa.field("number", pa.int64()))
        return pen.StreamSchema(numbered)

    def tables(self) -> Any:
        return [keyed_table("counts", COUNTS, key_columns=["key"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        counts = ctx.get_keyed_state("counts")
        frame = pl.DataFrame(pl.from_arrow(batch))
        new = frame.group_by("key", maintain_order=True).agg(new=pl.len().cast(pl.Int64))
        known = pl.DataFrame(pl.from_arrow(counts.get(new.select("key")).rows))
        before = new.with_columns(before=known["count"].fill_null(0))
        counts.put(before.select("key", count=pl.col("before") + pl.col("new")))
        in_batch = pl.int_range(1, pl.len() + 1).over("key")
        collector.collect(
            frame.join(before, on="key", how="left", maintain_order="left").select(
                *frame.columns, number=pl.col("before") + in_batch
            )
        )


class SpreadNumberRows(NumberRows):
    """Makes sure that both subtasks run at the same time, so on different executors of one core."""

    def __init__(self, marks: str | Path) -> None:
        self.marks = str(marks)

    def handle_checkpoint(
        self,
        barrier: CheckpointBarrier,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        subtask = ctx.task.subtask
        claim(self.marks, holder_mark(barrier.epoch))
        claim(self.marks, f"met-{barrier.epoch}-{subtask.index}")
        for index in range(subtask.parallelism):
            wait_for_mark(self.marks, f"met-{barrier.epoch}-{index}")


@dataclass(frozen=True)
class CountingJob:
    """The job in a folder of its own: checkpoints, output, and marks of what befell it."""

    folder: Path
    rows: int = 800
    parallelism: int = 2
    harm: ArrowOperator | None = None
    """An operator that passes rows on and does damage, beside the counting one."""
    is_harm_last: bool = False
    """Whether the harm has a level of its own, behind the counting one."""
    counting: ArrowOperator = field(default_factory=NumberRows)

    @property
    def out(self) -> Path:
        """Where the output goes."""
        return self.folder / "out"

    @property
    def store(self) -> ObjectStore:
        """The checkpoints, opened anew."""
        return open_store(str(self.folder / "checkpoints"))

    @property
    def checkpoints(self) -> JobCheckpoints:
        """What the job has acknowledged."""
        return JobCheckpoints(self.store, JobId("counting"))

    def pipeline(self) -> pen.Pipeline:
        """Return the job as a user would write it."""
        pipeline = pen.Pipeline("counting", parallelism=self.parallelism)
        stream = pipeline.read(
            "numbers", pen.impulse(count=self.rows, splits=3, step="1ms")
        ).with_columns(key=pl.col("counter") % KEYS)
        if self.harm is not None and not self.is_harm_last:
            stream = stream.key_by("key").process("harm", self.harm)
        stream = stream.key_by("key").process("count", self.counting)
        if self.harm is not None and self.is_harm_last:
            stream = stream.key_by("counter").process("harm", self.harm)
        stream.write("out", pen.files(str(self.out), format="parquet"))
        return pipeline

    def run(
        self,
        *,
        session: Any = None,
        store: ObjectStore | None = None,
        settings: DriverSettings = SETTINGS,
        on_status: Callable[[pen.JobStatus], None] | None = None,
    ) -> pen.JobStatus:
        """Run it on Spark until it ends."""
        pipeline = self.pipeline()
        return run_on_spark(
            pipeline.graph(),
            pipeline.registry,
            RunOptions(
                checkpoint=self.store if store is None else store,
                session=session,
                settings=settings,
                on_status=on_status,
            ),
        )

    def check(self) -> None:
        """Check that the output is the batch computation's, once, and the checkpoints are whole."""
        found = pl.DataFrame(pl.from_arrow(pen.read_committed(str(self.out))))
        rows = pl.DataFrame({"counter": pl.int_range(self.rows, eager=True)})
        expected = rows.with_columns(key=pl.col("counter") % KEYS)
        read = found.select(pl.col("counter").cast(pl.Int64), pl.col("key").cast(pl.Int64))
        assert read.sort("counter").equals(expected)
        numbers = found.select(pl.col("key").cast(pl.Int64), "number")
        in_batch = pl.int_range(1, pl.len() + 1).over("key")
        counted = expected.select("key", number=in_batch)
        assert numbers.sort("key", "number").equals(counted.sort("key", "number"))
        listed = {file.path for file in pen.committed_files(str(self.out))}
        written = {str(path.relative_to(self.out)) for path in self.out.rglob("part-*")}
        assert written == listed
        assert_job_is_whole(self.checkpoints)


class Harm(ArrowOperator):
    """Passes rows on, and strikes in one epoch."""

    def __init__(self, marks: str | Path, *, epoch: int = 2) -> None:
        self.marks = str(marks)
        self.epoch = epoch

    def name(self) -> str:
        return "harm"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)
        if ctx.epoch >= self.epoch:
            self.strike(ctx)

    def strike(self, ctx: OperatorContext) -> None:
        """Do the damage, if it was not done before."""
        raise NotImplementedError


class FailsOncePerSubtask(Harm):
    """The first attempt of every subtask fails of its infrastructure."""

    def strike(self, ctx: OperatorContext) -> None:
        if claim(self.marks, f"failed-{ctx.task.subtask.index}"):
            raise StorageError("the network was away")


class DiesOnce(Harm):
    """The Python worker ends, and nothing in it can say good-bye."""

    def strike(self, ctx: OperatorContext) -> None:
        if claim(self.marks, "died"):
            os.kill(os.getpid(), signal.SIGKILL)


class KillsItsExecutor(Harm):
    """The executor of the worker is killed, with all it holds."""

    def strike(self, ctx: OperatorContext) -> None:
        if claim(self.marks, "killed"):
            os.kill(executor_of_this_worker(), signal.SIGKILL)


def holder_mark(epoch: int) -> str:
    """Return the mark of an executor that holds output of an epoch: this one."""
    return f"holder-{epoch}-{executor_of_this_worker()}"


class WaitsForItsDeath(Harm):
    """One subtask tells which executor it runs on, and waits there to be killed.

    One that holds output of the level before: there may be a third executor that does not.
    """

    def strike(self, ctx: OperatorContext) -> None:
        if not (Path(self.marks) / holder_mark(ctx.epoch)).exists():
            return
        if claim(self.marks, "waiting"):
            claim(self.marks, f"victim-{executor_of_this_worker()}")
            wait_for_mark(self.marks, "killed")


class TellsItsRelease(Harm):
    """Marks the workers that hold it, and those that have released it. It does no damage."""

    def on_start(self, ctx: OperatorContext) -> None:
        del ctx
        claim(self.marks, f"held-{os.getpid()}")

    def strike(self, ctx: OperatorContext) -> None:
        """Do nothing."""

    def release(self) -> None:
        claim(self.marks, f"released-{os.getpid()}")


class Hangs(TellsItsRelease):
    """Every subtask waits until it is let go."""

    def strike(self, ctx: OperatorContext) -> None:
        claim(self.marks, "hanging")
        wait_for_mark(self.marks, "let-go")


class Straggles(Harm):
    """One attempt of a subtask waits until another attempt has overtaken it."""

    def strike(self, ctx: OperatorContext) -> None:
        subtask = ctx.task.subtask.index
        if subtask != 0 or ctx.epoch != self.epoch:
            return
        if claim(self.marks, "straggling"):
            wait_for_mark(self.marks, "overtaken")
        else:
            claim(self.marks, "overtaken")


def executor_of_this_worker() -> int:
    """Return the process of the JVM above this Python worker; only ever an executor's."""
    daemon = os.getppid()
    state = Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()
    executor = int(state[1])
    command = Path(f"/proc/{executor}/cmdline").read_text()
    if "CoarseGrainedExecutorBackend" not in command:
        raise AssertionError(f"process {executor} is not an executor: {command[:200]}")
    return executor


class DiesHalfWay(Harm):
    """The worker ends when Spark has taken one batch of its output and asks for the next.

    Watched from the interpreter's profiling hook: no other code of ours runs at that moment.
    """

    def strike(self, ctx: OperatorContext) -> None:
        if claim(self.marks, "armed"):
            sys.setprofile(_OutputWatch(self.marks))

    def output_schema(self, inputs: Sequence[pen.StreamSchema]) -> pen.StreamSchema:
        ballast = pa.field("ballast", pa.binary())
        return pen.StreamSchema(inputs[0].arrow.append(ballast))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Make the output of one subtask so large that Spark gets it in two batches."""
        weight = (1 << 20) if ctx.epoch == self.epoch else 0
        ballast: Any = pa.array([b"\0" * weight] * batch.num_rows, pa.binary())
        schema = batch.schema.append(pa.field("ballast", pa.binary()))
        columns = [*batch.columns, ballast]
        collector.collect(pa.RecordBatch.from_arrays(columns, schema=schema))
        if ctx.epoch >= self.epoch:
            self.strike(ctx)


class _OutputWatch:
    """A profiling hook that counts how often the output's generator is entered."""

    def __init__(self, marks: str) -> None:
        self.marks = marks
        self.entered = 0

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call" and frame.f_code.co_name == "to_batches":
            self.entered += 1
            if self.entered == 2:
                claim(self.marks, "died half-way")
                os.kill(os.getpid(), signal.SIGKILL)
