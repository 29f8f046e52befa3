"""One golden case as a job that is run in parts: stopped, killed, restored, rescaled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

import penstock as ps
from penstock.core.settings import CompactionSettings
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import EpochProgress
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.plan.executor import Executor
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.files.cache import FileCache
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import CrashError, Fault, FaultyStore, assert_job_is_whole
from tests.builders.golden_case import GoldenCase

EAGER_COMPACTION = CompactionSettings(min_files=2, min_expiring_files=2, max_runs=3)
"""Whenever two files can be merged; epochs wait for it."""
PARTS = 5
"""Into so many epochs at least is an input cut that must be stopped and killed half-way."""


class GoldenPlace(Protocol):
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
        self, driver_store: ObjectStore, store: ObjectStore, registry: ps.Registry
    ) -> Executor:
        """Return an executor in a new process, or as good as that."""
        ...


@dataclass(frozen=True, slots=True)
class GoldenRun:
    """What one driver did."""

    status: ps.JobStatus
    epochs: Sequence[EpochProgress]

    @property
    def compactions(self) -> int:
        return sum(epoch.compactions for epoch in self.epochs)

    @property
    def epochs_with_rows(self) -> int:
        return sum(epoch.rows_read > 0 for epoch in self.epochs)


class GoldenJob:
    """A case, its checkpoints and its output; each run is a driver of its own."""

    def __init__(
        self, case: GoldenCase, data: Path, place: GoldenPlace, folder: Path
    ) -> None:
        self.case = case
        self.data = data
        self.place = place
        self.row_count = case.row_count(data)
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
    ) -> GoldenRun:
        """Run the job to its end, or until it is stopped after an epoch, or dies.

        Whoever is stopped closes with one more epoch, which reads nothing.
        """
        pipeline = self.case.pipeline(self.data, self._output, parallelism=parallelism)
        store = FaultyStore(self._store, *faults)
        environment = JobEnvironment(
            pipeline.graph(),
            store,
            self._cache,
            self.place.executor(store, self._store, pipeline.registry),
            pipeline.registry,
            settings=_settings(rows, compacts=compacts),
        )
        epochs: dict[int, EpochProgress] = {}

        def watch(status: ps.JobStatus) -> None:
            if status.last is not None:
                epochs[status.last.epoch] = status.last
            if stop_after is not None and status.epoch == stop_after:
                driver.request_stop(ps.StopMode.CHECKPOINT)

        driver = JobDriver(environment, on_status=watch)
        return GoldenRun(driver.run(), tuple(epochs.values()))

    def die(self, fault: Fault, *, parallelism: int) -> None:
        """Let a driver die of a fault."""
        with pytest.raises(CrashError):
            self.run(fault, parallelism=parallelism, rows=self.rows_per_epoch)

    def check(self, last: GoldenRun) -> None:
        """The job is over, its output is the expected one, and what is kept is whole."""
        assert last.status.phase is ps.JobPhase.FINISHED, last
        self.case.check(self.data, self._output)
        job = self.case.pipeline(self.data, self._output, parallelism=1).graph().job
        assert_job_is_whole(JobCheckpoints(self._store, job))


def _settings(rows: int | None, *, compacts: bool) -> DriverSettings:
    if rows is None:
        return DriverSettings()
    return DriverSettings(
        budget=SourceBudget(rows=rows),
        adapts_budget=False,
        compaction=EAGER_COMPACTION if compacts else CompactionSettings(),
    )


def run_uninterrupted(job: GoldenJob) -> None:
    job.check(job.run(parallelism=1))


def run_in_small_epochs(job: GoldenJob) -> None:
    run = job.run(parallelism=2, rows=job.rows_per_epoch, compacts=True)
    # Sources of text count rows by their size, so one more may be in an epoch.
    assert run.epochs_with_rows >= job.row_count // (job.rows_per_epoch + 1), run.epochs
    assert run.compactions > 0, run.epochs
    job.check(run)


def run_stopped_and_rescaled(job: GoldenJob) -> None:
    stopped = job.run(parallelism=2, rows=job.rows_per_epoch, stop_after=3)
    assert stopped.status.phase is ps.JobPhase.STOPPED, stopped
    assert stopped.epochs_with_rows == 3, stopped
    rest = job.run(parallelism=3, rows=job.rows_once_restored)
    assert rest.epochs_with_rows > 0, rest
    job.check(rest)


def run_killed_and_restored(job: GoldenJob) -> None:
    for fault in job.place.deaths:
        job.die(fault, parallelism=2)
    rest = job.run(parallelism=2, rows=job.rows_once_restored)
    assert rest.epochs_with_rows > 0, rest
    job.check(rest)


MODES: dict[str, Callable[[GoldenJob], None]] = {
    "uninterrupted": run_uninterrupted,
    "in-small-epochs": run_in_small_epochs,
    "stopped-and-rescaled": run_stopped_and_rescaled,
    "killed-and-restored": run_killed_and_restored,
}
"""Every way of running a case that the README of the data demands."""
