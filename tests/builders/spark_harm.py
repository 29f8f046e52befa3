"""Operators that hurt the worker or executor they run in, at one chosen point of a job's life.

Each strikes once: whoever creates its mark, a file, strikes; every later attempt finds it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import penstock as ps
from penstock.errors import StorageError
from tests.builders.marks import claim, wait_for_mark


class Harm(ps.ArrowOperator):
    """Passes rows on, and strikes in one epoch."""

    def __init__(self, marks: str | Path, *, epoch: int = 2) -> None:
        self.marks = str(marks)
        self.epoch = epoch

    def name(self) -> str:
        return "harm"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: ps.OperatorContext, collector: ps.ArrowCollector
    ) -> None:
        collector.collect(batch)
        if ctx.epoch >= self.epoch:
            self.strike(ctx)

    def strike(self, ctx: ps.OperatorContext) -> None:
        """Do the damage, if it was not done before."""
        raise NotImplementedError


class FailsOncePerSubtask(Harm):
    """The first attempt of every subtask fails of its infrastructure."""

    def strike(self, ctx: ps.OperatorContext) -> None:
        if claim(self.marks, f"failed-{ctx.task.subtask.index}"):
            raise StorageError("the network was away")


class DiesOnce(Harm):
    """The Python worker ends, and nothing in it can say good-bye."""

    def strike(self, ctx: ps.OperatorContext) -> None:
        if claim(self.marks, "died"):
            os.kill(os.getpid(), signal.SIGKILL)


class KillsItsExecutor(Harm):
    """The executor of the worker is killed, with all it holds."""

    def strike(self, ctx: ps.OperatorContext) -> None:
        if claim(self.marks, "killed"):
            os.kill(executor_of_this_worker(), signal.SIGKILL)


def holder_mark(epoch: int) -> str:
    """Return the mark of an executor that holds output of an epoch: this one."""
    return f"holder-{epoch}-{executor_of_this_worker()}"


class WaitsForItsDeath(Harm):
    """One subtask tells which executor it runs on, and waits there to be killed.

    One that holds output of the level before: there may be a third executor that does not.
    """

    def strike(self, ctx: ps.OperatorContext) -> None:
        if not (Path(self.marks) / holder_mark(ctx.epoch)).exists():
            return
        if claim(self.marks, "waiting"):
            claim(self.marks, f"victim-{executor_of_this_worker()}")
            wait_for_mark(self.marks, "killed")


class Hangs(Harm):
    """Every subtask waits until it is let go."""

    def strike(self, ctx: ps.OperatorContext) -> None:
        claim(self.marks, "hanging")
        wait_for_mark(self.marks, "let-go")


class Straggles(Harm):
    """One attempt of a subtask waits until another attempt has overtaken it."""

    def strike(self, ctx: ps.OperatorContext) -> None:
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

    def strike(self, ctx: ps.OperatorContext) -> None:
        if claim(self.marks, "armed"):
            sys.setprofile(_OutputWatch(self.marks))

    def output_schema(self, inputs: Sequence[ps.StreamSchema]) -> ps.StreamSchema:
        ballast = pa.field("ballast", pa.binary())
        return ps.StreamSchema(inputs[0].schema.append(ballast))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: ps.OperatorContext, collector: ps.ArrowCollector
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
