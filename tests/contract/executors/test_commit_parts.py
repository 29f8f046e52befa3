"""What every executor owes a commit by parts: all of them run, errors as values, an end."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import ExternalError, PenstockError, StorageError, UserCodeError
from penstock.operators.context import CommitContext, CommitPart
from penstock.operators.user_functions import process_spec
from penstock.runtime.driver.decide import JobPhase, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import ManualPacer
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.executor import CommitOrder, Executor, from_error_part
from tests.builders.commit_parts import (
    AS_A_JOB,
    PartSink,
    notes_in,
    rows_in,
    staged_rows,
)
from tests.builders.pipeline_graphs import JOB, START_MICROS, some_rows
from tests.builders.pipeline_operators import ROWS
from tests.contract.executors.conftest import MakeExecutor, MakeInProcess, MakeOnSpark
from tests.contract.executors.epoch_runner import a_runner

ROW = pa.table({"number": [7]})
SIZES = pytest.mark.parametrize("size", [0, AS_A_JOB], ids=["small", "as-a-job"])


def orders_of(
    sink: PartSink, parts: int = 3, *, epoch: int = 1, generation: int = 1
) -> list[CommitOrder]:
    spec = process_spec(sink)
    return [
        CommitOrder(
            TaskInfo(JobId("job"), OperatorId("out"), Subtask(number, parts)),
            spec,
            Generation(generation),
            Epoch(epoch),
            "identity",
            CommitPart(staged_rows(ROW), sink.size_bytes),
        )
        for number in range(parts)
    ]


@pytest.fixture
def executor(executor_under_test: MakeExecutor) -> Executor:
    clock = ManualClock(START_MICROS)
    return executor_under_test(executor_under_test.new_store(), clock)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "parts"
    made.mkdir()
    return made


@SIZES
def test_every_part_runs_and_knows_which_it_is(
    executor: Executor, folder: Path, size: int
) -> None:
    reports = executor.commit(orders_of(PartSink(folder, size_bytes=size)))
    assert [report.error for report in reports] == [None, None, None]
    notes = notes_in(folder)
    assert [(note["part"], note["parts"], note["epoch"]) for note in notes] == [
        (0, 3, 1),
        (1, 3, 1),
        (2, 3, 1),
    ]
    assert {(note["operator"], note["identity"]) for note in notes} == {("out", "identity")}
    assert len({note["attempt"] for note in notes}) == 3
    assert rows_in(folder) == [{"number": 7}] * 3
    executor.close()


@SIZES
@pytest.mark.parametrize(
    ("harm", "kind"),
    [("storage", StorageError), ("external", ExternalError), ("code", UserCodeError)],
)
def test_an_error_of_a_part_is_a_value_of_its_class_and_the_others_run(
    executor: Executor, folder: Path, size: int, harm: str, kind: type[PenstockError]
) -> None:
    sink = PartSink(folder, size_bytes=size, harm=harm)
    first, second, third = executor.commit(orders_of(sink))
    assert first.error is None
    assert third.error is None
    assert second.error is not None
    error = from_error_part(second.error)
    assert type(error) is kind
    assert error.context["operator"] == "out"
    assert error.context["part"] == "1"
    assert len(rows_in(folder)) == 2
    assert all(report.error is None for report in executor.commit(orders_of(sink)))
    assert len(rows_in(folder)) == 3
    executor.close()


@SIZES
def test_operators_are_kept_for_later_epochs_and_released_when_all_ends(
    executor_under_test: MakeExecutor, executor: Executor, folder: Path, size: int
) -> None:
    sink = PartSink(folder, size_bytes=size)
    for epoch in (1, 2, 3):
        executor.commit(orders_of(sink, epoch=epoch))
    by_epoch = {
        epoch: {n["instance"] for n in notes_in(folder) if n["epoch"] == epoch}
        for epoch in (1, 2, 3)
    }
    is_here = size == 0 or isinstance(executor_under_test, MakeInProcess)
    if is_here:
        assert by_epoch[1] == by_epoch[2] == by_epoch[3]
    else:  # a process has one, and two processes were there for all epochs
        assert len(set().union(*by_epoch.values())) <= 4
    assert not [*folder.glob("released-*")]
    executor.close()
    if is_here:
        released = {path.name for path in folder.glob("released-*")}
        assert released == {f"released-{name}" for name in by_epoch[1]}


def test_parts_that_run_side_by_side_never_share_an_operator(
    executor_under_test: MakeExecutor, executor: Executor, folder: Path
) -> None:
    if isinstance(executor, InProcessExecutor):
        executor = InProcessExecutor(executor.worker, commits_in_threads=True)
    sink = Meeting(folder)
    for epoch in (1, 2):
        reports = executor.commit(
            [*orders_of(sink, 2, epoch=epoch), *orders_of(sink, 2, epoch=epoch)]
        )
        assert all(report.error is None for report in reports), reports
    executor.close()


class Meeting(PartSink):
    """Every part waits until all four of its epoch are under way, and none shares its operator."""

    is_busy = False

    def handle_commit_part(self, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
        assert not self.is_busy, "two parts use one operator"
        self.is_busy = True
        Path(self.folder, f"here-{epoch}-{ctx.attempt}").touch()
        here = Path(self.folder)
        wait_until(lambda: len([*here.glob(f"here-{epoch}-*")]) >= 4, seconds=20)
        self.is_busy = False


def test_the_operator_of_a_failed_part_is_released_and_so_are_those_of_a_past_generation(
    executor: Executor, folder: Path
) -> None:
    sink = PartSink(folder, harm="external")
    executor.commit(orders_of(sink))
    (failed,) = {note["instance"] for note in notes_in(folder) if note["part"] == 1}
    assert (folder / f"released-{failed}").exists()
    executor.commit(orders_of(sink, epoch=2, generation=2))
    old = {note["instance"] for note in notes_in(folder) if note["epoch"] == 1}
    new = {note["instance"] for note in notes_in(folder) if note["epoch"] == 2}
    assert not old & new
    assert all((folder / f"released-{name}").exists() for name in old)
    executor.close()


@SIZES
def test_a_part_that_hangs_is_left_when_all_is_cancelled(
    executor_under_test: MakeExecutor, executor: Executor, folder: Path, size: int
) -> None:
    if isinstance(executor, InProcessExecutor):
        executor = InProcessExecutor(executor.worker, commits_in_threads=True)
    sink = PartSink(folder, size_bytes=size, harm="hangs")
    with ThreadPoolExecutor(1) as others:
        committing = others.submit(executor.commit, orders_of(sink))
        wait_until((folder / "struck").exists)
        executor.cancel()
        with pytest.raises(ExternalError, match="a commit of job 'job' was cancelled"):
            committing.result(timeout=60)
    with pytest.raises(ExternalError, match="cancelled"):
        executor.commit(orders_of(sink, parts=40, epoch=2))
    assert {note["epoch"] for note in notes_in(folder)} == {1}
    if isinstance(executor_under_test, MakeOnSpark):
        executor.close()


@SIZES
def test_a_stop_at_once_ends_a_job_whose_commit_hangs(
    executor_under_test: MakeExecutor, folder: Path, size: int
) -> None:
    pipeline = Pipeline(JOB, parallelism=2)
    read = pipeline.read("read", list_source(some_rows(40), ROWS, splits=2))
    read.write("out", PartSink(folder, size_bytes=size, harm="hangs"))
    runner = a_runner(pipeline.graph(), executor_under_test, folder)
    if isinstance(runner.executor, InProcessExecutor):
        worker = runner.executor.worker
        runner.executor = InProcessExecutor(worker, commits_in_threads=True)
    driver = JobDriver(runner.environment, pacer=ManualPacer(runner.clock))
    with ThreadPoolExecutor(1) as others:
        running = others.submit(driver.run)
        wait_until((folder / "struck").exists)
        driver.request_stop(StopMode.IMMEDIATE)
        assert running.result(timeout=60).phase is JobPhase.STOPPED
    # Its successor finishes what was left open.
    after = a_runner(pipeline.graph(), executor_under_test, folder, runner.store)
    assert JobDriver(after.environment, pacer=ManualPacer(after.clock)).run().phase is (
        JobPhase.FINISHED
    )
    assert len(rows_in(folder)) == 40


@SIZES
def test_a_whole_job_commits_every_row_by_parts(
    executor_under_test: MakeExecutor, folder: Path, size: int
) -> None:
    rows = some_rows(40, users=5)
    pipeline = Pipeline(JOB, parallelism=2)
    read = pipeline.read("read", list_source(rows, ROWS, splits=2, batch_rows=7))
    read.write("out", PartSink(folder, size_bytes=size, harm="external"))
    runner = a_runner(pipeline.graph(), executor_under_test, folder)
    driver = JobDriver(runner.environment, pacer=ManualPacer(runner.clock))
    status = driver.run()
    assert (status.phase, status.restarts) == (JobPhase.FINISHED, 1)
    numbers = sorted(row["number"] for row in rows_in(folder))
    assert numbers == sorted(row["number"] for row in rows)
    # Every epoch that has parts was ended behind the last of them.
    epochs = {note["epoch"] for note in notes_in(folder)}
    assert {path.name for path in folder.glob("whole-*")} == {f"whole-{e}" for e in epochs}


def wait_until(is_so: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
