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


def claim(folder: str | Path, name: str) -> bool:
    """Tell whether this call was the first to make a mark."""
    try:
        handle = os.open(Path(folder) / name, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.close(handle)
    return True


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
