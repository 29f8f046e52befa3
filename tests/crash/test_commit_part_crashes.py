"""Commits by parts that are cut off between any two of them: every row is committed once.

A driver dies or fails before or after some part. Another one, perhaps at another parallelism,
plans the same parts of the same commit data, and runs all of them again. A part may also run
twice, and a driver that sleeps inside a part may wake up when its successor has finished.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.memory import staged_tables
from penstock.core.batch import from_ipc, to_ipc
from penstock.core.ids import Epoch
from penstock.errors import FencedError, UserCodeError
from penstock.graph.logical import LogicalGraph
from penstock.operators.context import CommitContext, CommitPart
from penstock.operators.user_functions import process_spec
from penstock.runtime.in_process import Chaos
from penstock.testing import CrashError, assert_job_is_whole
from tests.builders import pipeline_operators
from tests.builders.pipeline_graphs import Shape, counting
from tests.builders.pipeline_job import PipelineJob
from tests.builders.pipeline_operators import BookSink
from tests.builders.profile import a_start, by_profile
from tests.crash.test_pipeline_deaths import (
    AtTime,
    die,
    fail_for_good,
    fail_for_now,
    only,
)

PARTS = 3


class BookPartSink(BookSink):
    """Writes each part of an epoch into the book; the hook is called around every part."""

    def plan_commit(
        self, epoch: Epoch, commit_data: Mapping[str, Mapping[int, bytes]], ctx: Any
    ) -> Sequence[CommitPart]:
        rows = pa.concat_tables(staged_tables(commit_data))
        cut = [
            rows.take(pa.array(range(part, rows.num_rows, PARTS), pa.int64()))
            for part in range(PARTS)
        ]
        return [CommitPart(to_ipc(part.to_batches(), rows.schema)) for part in cut]

    def handle_commit_part(self, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
        book = pipeline_operators._BOOKS[self._book]
        number = ctx.task.subtask.index
        entry = (str(ctx.task.operator), PARTS * int(epoch) + number)
        book.calls.append(entry)
        if book.hook is not None:
            book.hook("before", epoch)
        rows = tuple(from_ipc(part).to_pylist())
        if book.commits.setdefault(entry, rows) != rows:
            raise AssertionError(
                f"part {number} of {entry} came twice, with different rows"
            )
        if book.hook is not None:
            book.hook("after", epoch)

    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Find all parts there."""
        book = pipeline_operators._BOOKS[self._book]
        first = PARTS * int(epoch)
        for number in range(first, first + PARTS):
            assert (str(ctx.task.operator), number) in book.commits


def by_parts() -> Shape:
    """A pipeline whose sink commits by parts."""
    shape = counting()

    def build(book: str, parallelism: Sequence[int]) -> LogicalGraph:
        graph = shape.build(book, parallelism)
        spec = process_spec(BookPartSink(book))
        nodes = (
            replace(node, spec=spec) if str(node.operator) == "out" else node
            for node in graph.nodes
        )
        return replace(graph, nodes=tuple(nodes))

    return replace(shape, name="by-parts", build=build)


OTHERS = ((2, 3, 1), (1, 2, 2), (3, 1, 3))
"""The parallelisms of the driver that goes on."""


def part_runs(folder: Path) -> int:
    """Count the parts of an undisturbed run."""
    job = PipelineJob(by_parts(), folder)
    job.finish()
    return len(job.book.calls)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("act", [die, fail_for_now, fail_for_good])
def test_whatever_part_is_cut_off_every_row_is_committed_once(
    when: str, act: Callable[[], None], tmp_path: Path
) -> None:
    runs = part_runs(tmp_path / "whole")
    assert runs >= 4 * PARTS
    step = by_profile(default=4, ci=2, nightly=1)
    for number in range(1 + a_start(step), runs + 1, step):
        job = PipelineJob(by_parts(), tmp_path / str(number))
        job.book.hook = partial(only, when, AtTime(number, act))
        try:
            job.driver(parallelism=(2, 3, 2), seed=number).run()
            assert act is fail_for_now
        except CrashError:
            assert act is die
        except UserCodeError:
            assert act is fail_for_good
        job.book.hook = None
        assert_job_is_whole(job.checkpoints())
        job.finish(parallelism=OTHERS[number % len(OTHERS)])
        assert len(job.book.calls) > len(set(job.book.calls))


def test_a_job_dies_in_every_commit_again_and_again(tmp_path: Path) -> None:
    job = PipelineJob(by_parts(), tmp_path)
    deaths = 0
    while True:
        # A replay of an epoch is cut off too, before the last of its parts.
        job.book.hook = partial(only, "after", AtTime(2 + deaths % 4, die))
        try:
            job.driver(parallelism=OTHERS[deaths % len(OTHERS)], seed=deaths).run()
            break
        except CrashError:
            deaths += 1
    assert deaths > PARTS
    job.book.hook = None
    job.check()


def test_parts_that_run_twice_change_nothing(tmp_path: Path) -> None:
    job = PipelineJob(by_parts(), tmp_path)
    job.finish(chaos=Chaos(rate=0.5, seed=3))
    assert len(job.book.calls) > len(set(job.book.calls)) + PARTS


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_a_driver_that_sleeps_inside_a_part_wakes_up_behind_its_successor(
    number: int, tmp_path: Path
) -> None:
    job = PipelineJob(by_parts(), tmp_path)

    def be_replaced() -> None:
        job.book.hook = None
        job.finish(cache="other", parallelism=(1, 2, 2))

    job.book.hook = partial(only, "before", AtTime(number, be_replaced))
    with pytest.raises(FencedError):
        job.driver(cache="sleeper").run()
    job.check()
