"""Every way of running a job that must not change its result: stopped, killed, restored, rescaled.

A case is a pipeline that can be built anew, and a check of what it has written. Each of `MODES`
runs it from its start to its end; where that happens is a place, in this process or on Spark:

    MODES["killed-and-restored"](CheckedJob(case, InThisProcess(folder), folder))
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

import penstock as pen
from penstock.core.clock import ManualClock, SystemClock, new_token
from penstock.core.settings import CompactionSettings
from penstock.operators import Registry
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, ManualPacer
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.driver.progress import EpochProgress
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.executor import Executor
from penstock.runtime.task.task import Worker
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import CrashError, Fault, FaultMode, FaultyStore, assert_job_is_whole

EAGER_COMPACTION = CompactionSettings(min_files=2, min_expiring_files=2, max_runs=3)
"""Whenever two files can be merged; epochs wait for it."""
PARTS = 5
"""Into so many epochs at least is an input cut that must be stopped and killed half-way."""


class CheckedCase(Protocol):
    """A pipeline whose output somebody else has computed."""

    @property
    def row_count(self) -> int:
        """How many rows the largest input has."""
        ...

    def pipeline(self, output: str, *, parallelism: int) -> pen.Pipeline:
        """Build the job anew, writing exactly once to a folder."""
        ...

    def check(self, output: str) -> None:
        """Compare what was committed to the folder with what is expected."""
        ...


class Place(Protocol):
    """Where jobs run, and what is right for them there."""

    most_rows: int
    """How many rows an epoch has where epochs are cut."""
    deaths: Sequence[Fault]
    """What the driver dies of, once each and in this order, the job going on in between."""

    def new_store(self) -> ObjectStore:
        """Return a store for checkpoints that driver and workers share."""
        ...

    def new_output(self) -> str:
        """Return the URL of an empty folder for a sink."""
        ...

    def executor(
        self, driver_store: ObjectStore, store: ObjectStore, registry: Registry
    ) -> Executor:
        """Return an executor in a new process, or as good as that."""
        ...


class InThisProcess:
    """Tasks run right here and use the driver's store, faults included."""

    deaths: Sequence[Fault] = (
        # Some subtasks have written what they keep of epoch 2, others have not.
        Fault(FaultMode.CRASH_BEFORE, 2, "create", "*/0000000002/operator-*"),
        Fault(FaultMode.CRASH_BEFORE, 1, "create", "*/0000000003/manifest.pb"),
        # Epoch 3 is acknowledged, and its rows are not yet out.
        Fault(FaultMode.CRASH_AFTER, 1, "create", "*/epochs/0000000003.record"),
    )

    def __init__(self, folder: Path, *, most_rows: int) -> None:
        self._folder = folder
        self.most_rows = most_rows

    def new_store(self) -> ObjectStore:
        return MemoryStore()

    def new_output(self) -> str:
        return f"memory:output-{new_token()}"

    def executor(
        self, driver_store: ObjectStore, store: ObjectStore, registry: Registry
    ) -> Executor:
        del store
        cache = FileCache(self._folder / "worker-cache", limit_bytes=1 << 30)
        return InProcessExecutor(Worker(driver_store, cache, registry), seed=5)


@dataclass(frozen=True, slots=True)
class DriverRun:
    """What one driver did."""

    status: pen.JobStatus
    epochs: Sequence[EpochProgress]

    @property
    def compactions(self) -> int:
        return sum(epoch.compactions for epoch in self.epochs)

    @property
    def epochs_with_rows(self) -> int:
        return sum(epoch.rows_read > 0 for epoch in self.epochs)


class CheckedJob:
    """A case, its checkpoints and its output; each run is a driver of its own."""

    def __init__(
        self,
        case: CheckedCase,
        place: Place,
        folder: Path,
        *,
        clock: ManualClock | None = None,
    ) -> None:
        """Prepare a job; all its drivers have the `clock`, by default that of this machine."""
        self.case = case
        self.place = place
        self._clock = clock
        self.row_count = case.row_count
        self.rows_per_epoch = min(place.most_rows, self.row_count // PARTS)
        self.rows_once_restored = 5 * self.rows_per_epoch
        self._cache = FileCache(folder / "driver-cache", limit_bytes=1 << 30)
        self._store = place.new_store()
        self._output = place.new_output()

    def run(
        self,
        *faults: Fault,
        parallelism: int,
        rows: int | None = None,
        stop_after: int | None = None,
        compacts: bool = False,
    ) -> DriverRun:
        """Run the job to its end, or until it is stopped after an epoch, or dies.

        Whoever is stopped closes with one more epoch, which reads nothing.
        """
        pipeline = self.case.pipeline(self._output, parallelism=parallelism)
        store = FaultyStore(self._store, *faults)
        environment = JobEnvironment(
            pipeline.graph(),
            store,
            self._cache,
            self.place.executor(store, self._store, pipeline.registry),
            pipeline.registry,
            self._clock or SystemClock(),
            settings=_settings(rows, compacts=compacts),
        )
        epochs: dict[int, EpochProgress] = {}

        def watch(status: pen.JobStatus) -> None:
            if status.last is not None:
                epochs[status.last.epoch] = status.last
            if stop_after is not None and status.epoch == stop_after:
                driver.request_stop(pen.StopMode.CHECKPOINT)

        pacer = None if self._clock is None else ManualPacer(self._clock)
        driver = JobDriver(environment, pacer=pacer, listeners=[StatusFunction(watch)])
        return DriverRun(driver.run(), tuple(epochs.values()))

    def die(self, fault: Fault, *, parallelism: int) -> None:
        """Let a driver die of a fault."""
        with pytest.raises(CrashError):
            self.run(fault, parallelism=parallelism, rows=self.rows_per_epoch)

    def check(self, last: DriverRun) -> None:
        """The job is over, its output is the expected one, and what is kept is whole."""
        assert last.status.phase is pen.JobPhase.FINISHED, last
        self.case.check(self._output)
        job = self.case.pipeline(self._output, parallelism=1).graph().job
        assert_job_is_whole(JobCheckpoints(self._store, job))


def _settings(rows: int | None, *, compacts: bool) -> DriverSettings:
    if rows is None:
        return DriverSettings()
    return DriverSettings(
        budget=SourceBudget(rows=rows),
        adapts_budget=False,
        compaction=EAGER_COMPACTION if compacts else CompactionSettings(),
    )


def run_uninterrupted(job: CheckedJob) -> None:
    job.check(job.run(parallelism=1))


def run_in_small_epochs(job: CheckedJob) -> None:
    run = job.run(parallelism=2, rows=job.rows_per_epoch, compacts=True)
    # Sources of text count rows by their size, so one more may be in an epoch.
    assert run.epochs_with_rows >= job.row_count // (job.rows_per_epoch + 1), run.epochs
    assert run.compactions > 0, run.epochs
    job.check(run)


def run_stopped_and_rescaled(job: CheckedJob) -> None:
    stopped = job.run(parallelism=2, rows=job.rows_per_epoch, stop_after=3)
    assert stopped.status.phase is pen.JobPhase.STOPPED, stopped
    assert stopped.epochs_with_rows == 3, stopped
    rest = job.run(parallelism=3, rows=job.rows_once_restored)
    assert rest.epochs_with_rows > 0, rest
    job.check(rest)


def run_killed_and_restored(job: CheckedJob) -> None:
    for fault in job.place.deaths:
        job.die(fault, parallelism=2)
    rest = job.run(parallelism=2, rows=job.rows_once_restored)
    assert rest.epochs_with_rows > 0, rest
    job.check(rest)


MODES: dict[str, Callable[[CheckedJob], None]] = {
    "uninterrupted": run_uninterrupted,
    "in-small-epochs": run_in_small_epochs,
    "stopped-and-rescaled": run_stopped_and_rescaled,
    "killed-and-restored": run_killed_and_restored,
}
"""Every way of running a case that the README of the golden cases demands."""
