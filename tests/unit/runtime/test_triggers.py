"""A trigger says when epochs begin; a stop, a backlog and the end of the data do not wait for it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import penstock as pen
from penstock.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.errors import StorageError
from penstock.operators.splits import SourceBudget, SourcePlan, SplitState
from penstock.runtime.driver.decide import JobPhase, JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, ManualPacer
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.policies import TriggerLike
from penstock.runtime.driver.progress import EpochProgress
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from tests.builders.driven_job import SECOND, DrivenJob, Ledger
from tests.builders.scripted import NumberedSource, link

MINUTE = 60 * SECOND
START = 1_000 * SECOND
Watch = Callable[[JobDriver, JobStatus], None]


def settings_of(trigger: TriggerLike | None, **options: object) -> DriverSettings:
    given = {"trigger": trigger, **options}
    chosen = RunOptions.of("run", given, checkpoint="memory:")  # type: ignore[arg-type] # as given
    return chosen.driver_settings()


def run(
    folder: Path, trigger: TriggerLike | None, source: object, watch: Watch
) -> tuple[JobStatus, list[EpochProgress]]:
    """Run a job by a clock that only waiting moves; return every epoch that was published."""
    pipeline = pen.Pipeline("paced")
    pipeline.read("in", source).write("out", pen.blackhole())  # type: ignore[arg-type] # of tests
    store, registry, clock = MemoryStore(), default_registry(), ManualClock(START)
    cache = FileCache(folder, limit_bytes=1 << 30)
    executor = InProcessExecutor(Worker(store, cache, registry, clock))
    environment = JobEnvironment(
        pipeline.graph(), store, cache, executor, registry, clock, settings_of(trigger)
    )
    epochs: list[EpochProgress] = []

    def note(status: JobStatus) -> None:
        last = status.last
        if last is not None and last.is_published and last not in epochs:
            epochs.append(last)
        watch(driver, status)

    driver = JobDriver(
        environment, pacer=ManualPacer(clock), listeners=[StatusFunction(note)]
    )
    return driver.run(), epochs


def after(epochs: int, mode: StopMode = StopMode.IMMEDIATE) -> Watch:
    def watch(driver: JobDriver, status: JobStatus) -> None:
        if status.epochs_published >= epochs and status.phase is JobPhase.WAITING:
            driver.request_stop(mode)

    return watch


def starts(epochs: list[EpochProgress]) -> list[float]:
    """Return when epochs began, in seconds after the job's start."""
    return [(epoch.processing_time_micros - START) / SECOND for epoch in epochs]


def test_without_a_trigger_a_slow_stream_makes_an_epoch_a_second(tmp_path: Path) -> None:
    _, epochs = run(tmp_path, None, pen.impulse(rate=50), after(4))
    assert starts(epochs) == [0, 1, 2, 3]
    assert [epoch.rows_read for epoch in epochs] == [0, 50, 50, 50]


def test_with_a_trigger_of_a_minute_a_slow_stream_makes_an_epoch_a_minute(
    tmp_path: Path,
) -> None:
    _, epochs = run(tmp_path, "1m", pen.impulse(rate=50), after(4))
    assert starts(epochs) == [0, 60, 120, 180]
    assert [epoch.rows_read for epoch in epochs] == [0, 3_000, 3_000, 3_000]


def test_an_epoch_begins_earlier_once_so_many_rows_wait(tmp_path: Path) -> None:
    trigger = pen.trigger(every="1m", rows=500)
    _, epochs = run(tmp_path, trigger, pen.impulse(rate=50), after(3))
    assert starts(epochs) == [0, 10.1, 20.2]
    assert all(epoch.rows_read > 500 for epoch in epochs[1:])


def test_an_epoch_begins_earlier_once_so_many_bytes_wait(tmp_path: Path) -> None:
    trigger = pen.trigger(every="1m", bytes=1_600)
    _, epochs = run(tmp_path, trigger, pen.impulse(rate=50), after(2))
    assert 0 < starts(epochs)[1] < 5


def test_an_epoch_begins_at_its_time_if_fewer_rows_wait(tmp_path: Path) -> None:
    trigger = pen.trigger(every="10s", rows=1_000_000)
    _, epochs = run(tmp_path, trigger, pen.impulse(rate=50), after(3))
    assert starts(epochs) == [0, 10, 20]


def test_a_backlog_and_the_end_of_the_data_do_not_wait_for_the_trigger(
    tmp_path: Path,
) -> None:
    rows = pen.impulse(count=3_000_000)
    status, epochs = run(tmp_path, "1h", rows, lambda *_: None)
    assert status.phase is JobPhase.FINISHED
    assert len(epochs) > 2
    assert set(starts(epochs)) <= {0.0, 1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6}


@pytest.mark.parametrize("mode", StopMode)
def test_a_stop_does_not_wait_for_the_trigger(tmp_path: Path, mode: StopMode) -> None:
    stopping = after(1, mode)
    status, epochs = run(tmp_path, "1h", pen.impulse(rate=50), stopping)
    assert status.phase is JobPhase.STOPPED
    assert starts(epochs)[0] == 0
    assert all(start <= 3_600 for start in starts(epochs))


def test_a_trigger_shorter_than_a_second_makes_epochs_as_often(tmp_path: Path) -> None:
    _, epochs = run(tmp_path, "200ms", pen.impulse(rate=50), after(3))
    assert starts(epochs) == [0, 0.2, 0.4]


def test_a_trigger_lets_an_epoch_with_a_backlog_take_one_to_ten_seconds() -> None:
    for trigger, target in [
        ("1m", 10 * SECOND),
        ("5s", 5 * SECOND),
        # An epoch takes some time whatever it reads. With less than that for all of it, budgets
        # would fall, and a job that is behind would stay behind.
        ("100ms", SECOND),
    ]:
        settings = settings_of(trigger)
        assert settings.target_epoch_micros == target
        assert settings.budget.wall_micros == target
    assert settings_of(None).target_epoch_micros == SECOND


def test_a_source_that_cannot_be_asked_for_a_while_is_asked_again() -> None:
    asked: list[int] = []

    class Shaky(NumberedSource):
        def plan_splits(
            self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
        ) -> SourcePlan:
            asked.append(budget.rows)
            if asked.count(7) == 1 and budget.rows == 7:
                raise StorageError("the listing failed")
            return super().plan_splits(known, budget, now_micros)

    job = DrivenJob(trigger=pen.trigger(every="1m", rows=7))
    edge = link("read", "write")
    job.read_and_write(lambda: Shaky({"s": []}, is_complete=False), Ledger().sink, edge)
    status = job.run(on_status=after_restart)
    assert status.restarts == 1
    assert 7 in asked


def after_restart(driver: JobDriver, status: JobStatus) -> None:
    if status.restarts and status.phase is JobPhase.WAITING:
        driver.request_stop(StopMode.IMMEDIATE)
