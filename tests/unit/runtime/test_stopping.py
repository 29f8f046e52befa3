"""Signals and requests stop a job, after a checkpoint or at once, and all it held is released."""

import logging
import signal
import threading
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.core.clock import SystemClock
from penstock.errors import ExternalError
from penstock.graph.logical import Exchange
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext
from penstock.runtime.driver.decide import JobPhase, JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import ClockPacer
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.signals import STOP_SIGNALS, StopSignals
from penstock.state.storage.memory import MemoryStore
from tests.builders.driven_job import DrivenJob, Ledger
from tests.builders.scripted import NumberedSource, link

EDGE = link("read", "write", exchange=Exchange.REBALANCE)


class Interrupted:
    """A step that sends this process signals from within an epoch."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = list(numbers)
        self.calls = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        while self.numbers:
            signal.raise_signal(self.numbers.pop(0))
        return batch


SENT: dict[str, Interrupted] = {}


def send(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Call the step by its place: a pipeline gets a pickled copy of what it is given."""
    return SENT["step"](batch)


def a_job(step: Interrupted, *, count: int = 10**12) -> pen.Pipeline:
    SENT["step"] = step
    pipeline = pen.Pipeline("endless")
    numbers = pipeline.read("numbers", pen.impulse(count=count))
    numbers.map_batches(send).write("out", pen.blackhole())
    return pipeline


@pytest.fixture(autouse=True)
def handlers(usual_signals: None) -> Any:
    """Each test must leave the handlers as it found them."""
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_stops_a_job_in_process_after_a_checkpoint(
    tmp_path: Path, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    status = a_job(Interrupted(number)).run_in_process(str(tmp_path))
    assert status.phase is pen.JobPhase.STOPPED
    # The epoch that was under way counts.
    assert status.rows_read > 0
    assert status.epochs_published >= 1
    assert f"{number.name}: job 'endless' stops after a checkpoint" in caplog.text
    again = a_job(Interrupted(number)).run_in_process(str(tmp_path))
    assert (again.epoch or 0) > (status.epoch or 0)


def test_a_second_signal_ends_the_epoch_that_runs(tmp_path: Path) -> None:
    step = Interrupted(signal.SIGINT, signal.SIGTERM)
    status = a_job(step).run_in_process(str(tmp_path))
    assert status.phase is pen.JobPhase.STOPPED
    assert (status.epoch, status.rows_read, step.calls) == (None, 0, 1)
    assert a_job(Interrupted(signal.SIGINT)).run_in_process(str(tmp_path)).rows_read > 0


class Stopped(Interrupted):
    """A step that stops its job from within an epoch, which then fails."""

    drivers: ClassVar[list[JobDriver]] = []

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.drivers[-1].request_stop(StopMode.CHECKPOINT)
        raise ExternalError("the other system is away")


def test_a_job_whose_last_epoch_fails_stops_and_does_not_say_that_it_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = a_job(Stopped())
    options = RunOptions(checkpoint=MemoryStore(), on_driver=Stopped.drivers.append)
    status = run_in_process(pipeline.graph(), pipeline.registry, options)
    assert (status.phase, status.error) == (JobPhase.STOPPED, "the other system is away")
    assert "the job stops without it: what it has not published comes again" in caplog.text
    assert "trying again" not in caplog.text


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        status = a_job(Interrupted(signal.SIGHUP), count=10).run_in_process(str(tmp_path))
        assert status.phase is pen.JobPhase.FINISHED
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_job_in_another_thread_leaves_signals_alone(tmp_path: Path) -> None:
    found: list[Any] = []

    class Looks(Interrupted):
        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            found.extend(signal.getsignal(number) for number in STOP_SIGNALS)
            return batch

    pipeline = a_job(Looks(), count=5)
    thread = threading.Thread(target=pipeline.run_in_process, args=[str(tmp_path)])
    thread.start()
    thread.join()
    assert found == [signal.getsignal(number) for number in STOP_SIGNALS]


def test_signals_that_came_before_are_made_up_for() -> None:
    done: list[str] = []
    signals = StopSignals("j", raises_at=9)
    has_acted = threading.Event()
    with signals.listening():
        signals.direct(lambda: None, has_acted.set)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert has_acted.wait(30)
        with signals.redirected():
            signals.direct(lambda: done.append("first"), lambda: done.append("again"))
        assert signals.has_come
    assert done == ["first", "again"]


def test_a_signal_where_nothing_is_left_to_stop_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals("j", raises_at=1).listening():
        signal.raise_signal(signal.SIGTERM)


class Remembers(ArrowOperator):
    """Notes which of its hooks were called at the end."""

    def name(self) -> str:
        return "remembers"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(SENT["step"](batch))

    def on_close(self, final: Any, ctx: OperatorContext, collector: ArrowCollector) -> None:
        CALLED.append("on_close")

    def release(self) -> None:
        CALLED.append("release")


CALLED: list[str] = []


@pytest.mark.parametrize("presses", [1, 2])
def test_a_stop_by_signal_releases_operators_and_does_not_close_them(
    tmp_path: Path, presses: int
) -> None:
    CALLED.clear()
    SENT["step"] = Interrupted(*[signal.SIGINT] * presses)
    pipeline = pen.Pipeline("released")
    numbers = pipeline.read("numbers", pen.impulse(count=10**12))
    numbers.process("remembers", Remembers()).write("out", pen.blackhole())
    assert pipeline.run_in_process(str(tmp_path)).phase is pen.JobPhase.STOPPED
    assert CALLED == ["release"]


def test_an_exception_in_on_status_is_logged_once_and_never_fails_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(status: pen.JobStatus) -> None:
        raise ValueError("no such dashboard")

    with caplog.at_level(logging.ERROR):
        status = a_job(Interrupted(), count=10).run_in_process(
            str(tmp_path), on_status=fails
        )
    assert status.phase is pen.JobPhase.FINISHED
    (record,) = [found for found in caplog.records if "on_status" in found.message]
    assert record.exc_info is not None


@pytest.mark.parametrize("mode", StopMode)
def test_instances_of_sources_that_only_planned_are_released_after_every_stop(
    mode: StopMode,
) -> None:
    planned: set[int] = set()
    released: set[int] = set()

    class Connected(NumberedSource):
        def plan_splits(self, *arguments: Any) -> Any:
            planned.add(id(self))
            return super().plan_splits(*arguments)

        def release(self) -> None:
            released.add(id(self))

    job, alive = DrivenJob(), []

    def connect() -> Connected:
        alive.append(Connected({"s": range(6)}))
        return alive[-1]

    job.read_and_write(connect, Ledger().sink, EDGE)

    def stop(driver: JobDriver, status: JobStatus) -> None:
        if status.epochs_published:
            driver.request_stop(mode)

    job.run(on_status=stop)
    assert planned
    assert planned <= released


def test_a_job_that_is_stopped_before_it_starts_claims_nothing() -> None:
    job = DrivenJob()
    job.read_and_write(lambda: NumberedSource({"s": range(6)}), Ledger().sink, EDGE)
    driver = job.driver()
    driver.request_stop(StopMode.CHECKPOINT)
    status = driver.run()
    assert (status.phase, status.generation) == (JobPhase.STOPPED, None)
    assert job.checkpoints.newest() is None


def test_a_signal_that_another_thread_receives_ends_a_wait_without_a_limit() -> None:
    pacer = ClockPacer(SystemClock())

    def receive() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: pacer.interrupt())
    try:
        receiver = threading.Timer(0.2, receive)
        receiver.start()
        pacer.wait_until(None)
        receiver.join()
    finally:
        signal.signal(signal.SIGTERM, before)
