"""A job that was started: watched, stopped and waited for, from any thread."""

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.errors import StateError, UserCodeError, UserError
from penstock.operators import (
    ArrowCollector,
    ArrowOperator,
    EndOfData,
    OperatorContext,
    Stop,
)
from penstock.runtime.driver.options import RunOptions
from penstock.state.storage.memory import MemoryStore

LIMIT_SECONDS = 60
"""No wait of these tests should come near it."""


def numbers(*, count: int | None = None, rate: float | None = 1_000) -> pen.Pipeline:
    pipeline = pen.Pipeline("numbers")
    read = pipeline.read("numbers", pen.impulse(count=count, rate=rate))
    read.write("out", pen.blackhole())
    return pipeline


_FAILS = threading.Event()
"""Set it, and the jobs of `failing` fail."""


def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
    if _FAILS.is_set():
        raise ValueError("no such number")
    return batch


def failing() -> pen.Pipeline:
    _FAILS.clear()
    pipeline = pen.Pipeline("failing")
    read = pipeline.read("numbers", pen.impulse(rate=1_000))
    read.map_batches(fail).write("out", pen.blackhole())
    return pipeline


@contextmanager
def running(pipeline: pen.Pipeline, **options: object) -> Iterator[pen.RunningJob]:
    job = pipeline.start_in_process("memory:", **options)  # type: ignore[arg-type] # as given
    try:
        yield job
    finally:
        job.stop(pen.StopMode.IMMEDIATE)


def start_and_publish(pipeline: pen.Pipeline, store: MemoryStore) -> pen.RunningJob:
    """Start a job, and return it when it has published an epoch."""
    published = threading.Event()

    def note(status: pen.JobStatus) -> None:
        if status.epochs_published:
            published.set()

    job = pipeline.start_in_process(store, on_status=note)
    assert published.wait(LIMIT_SECONDS)
    return job


def test_a_started_job_runs_beside_its_starter_until_its_data_ends() -> None:
    job = numbers(count=10, rate=None).start_in_process(MemoryStore())
    assert job.name == "numbers"
    status = job.wait(LIMIT_SECONDS)
    assert (status.phase, status.rows_read) == (pen.JobPhase.FINISHED, 10)
    assert job.status == status
    assert not job.is_running
    assert job.wait(0) == status, "waiting again changes nothing"


@pytest.mark.parametrize("mode", [*pen.StopMode, "graceful", "checkpoint", "immediate"])
def test_every_mode_of_a_stop_ends_a_running_job_and_a_start_goes_on(
    mode: pen.StopMode | str,
) -> None:
    store, pipeline = MemoryStore(), numbers()
    job = start_and_publish(pipeline, store)
    assert job.is_running
    job.stop(mode)
    assert job.wait(LIMIT_SECONDS).phase is pen.JobPhase.STOPPED
    with pipeline.start_in_process(store) as again:
        assert again.status.generation == 2


def test_a_wait_ends_after_its_timeout_and_the_job_goes_on() -> None:
    with running(numbers()) as job:
        for timeout in (0, 0.01, "10ms"):
            with pytest.raises(TimeoutError, match="'numbers' has not ended within"):
                job.wait(timeout)
        assert job.is_running


@pytest.mark.parametrize("timeout", [-1, "soon", True, [1], float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: object) -> None:
    with running(numbers()) as job, pytest.raises(UserError, match="not a valid timeout"):
        job.wait(timeout)  # type: ignore[arg-type]


def test_a_stop_that_is_no_mode_is_refused_and_changes_nothing() -> None:
    with running(numbers()) as job:
        with pytest.raises(
            UserError, match="use 'graceful' or 'checkpoint' or 'immediate'"
        ):
            job.stop("soon")
        assert job.is_running


def test_wait_raises_what_the_job_failed_of_in_every_thread_that_waits() -> None:
    with running(failing()) as job:
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                job.wait(LIMIT_SECONDS)
            except UserCodeError as error:
                caught.append(error)

        waiting = [threading.Thread(target=wait) for _ in range(3)]
        for thread in waiting:
            thread.start()
        _FAILS.set()
        for thread in waiting:
            thread.join(LIMIT_SECONDS)
        assert [str(error) for error in caught] == [str(caught[0])] * 3
        assert "no such number" in str(caught[0])
        assert job.status.phase is pen.JobPhase.FAILED
        assert "no such number" in (job.status.error or "")


def test_a_failure_that_nobody_waits_for_is_logged() -> None:
    logged, said = threading.Event(), list[str]()

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            logged.set()

    log = logging.getLogger("penstock.runtime.driver.running_job")
    log.addHandler(noting := Noting())
    try:
        with running(failing()):
            _FAILS.set()
            assert logged.wait(LIMIT_SECONDS)
    finally:
        log.removeHandler(noting)
    assert said[0].startswith("job 'failing' failed, and nobody waits for it: ")


def test_a_start_that_is_refused_raises_and_leaves_nothing_running() -> None:
    store = MemoryStore()
    first = pen.Pipeline("changed")
    first.read("numbers", pen.impulse(rate=1_000)).write("out", pen.blackhole())
    with start_and_publish(first, store):
        pass
    second = pen.Pipeline("changed")
    second.read("others", pen.impulse(count=5)).write("out", pen.blackhole())
    with pytest.raises(StateError, match="does not fit"):
        second.start_in_process(store)
    assert not [t for t in threading.enumerate() if t.name == "penstock-changed"]


def test_a_mistake_in_the_pipeline_or_its_options_is_raised_by_the_start() -> None:
    with pytest.raises(UserError, match="start_in_process has no option 'tigger'"):
        numbers().start_in_process("memory:", tigger="1m")  # type: ignore[call-arg]
    with pytest.raises(UserError, match="start has no option 'tigger'"):
        numbers().start("memory:", tigger="1m")  # type: ignore[call-arg]
    with pytest.raises(UserError, match="cannot keep its checkpoints in memory on Spark"):
        numbers().start("memory:")


def test_a_finished_job_that_is_started_again_has_ended_at_once() -> None:
    store, pipeline = MemoryStore(), numbers(count=3, rate=None)
    pipeline.run_in_process(store)
    job = pipeline.start_in_process(store)
    assert job.wait(LIMIT_SECONDS).phase is pen.JobPhase.FINISHED


def test_a_job_is_stopped_from_the_function_that_is_told_its_status() -> None:
    begun = threading.Event()
    jobs: list[pen.RunningJob] = []

    def stop(status: pen.JobStatus) -> None:
        if status.epochs_published and begun.wait(LIMIT_SECONDS):
            jobs[0].stop(pen.StopMode.IMMEDIATE)

    jobs.append(numbers().start_in_process("memory:", on_status=stop))
    begun.set()
    assert jobs[0].wait(LIMIT_SECONDS).phase is pen.JobPhase.STOPPED


def test_a_job_does_not_wait_for_itself() -> None:
    found: list[str] = []
    jobs: list[pen.RunningJob] = []
    begun = threading.Event()

    def wait(status: pen.JobStatus) -> None:
        if status.epochs_published and begun.wait(LIMIT_SECONDS) and not found:
            try:
                jobs[0].wait()
            except UserError as error:
                found.append(str(error))
            jobs[0].stop()

    jobs.append(numbers().start_in_process("memory:", on_status=wait))
    begun.set()
    jobs[0].wait(LIMIT_SECONDS)
    assert found == ["job 'numbers' cannot wait for itself: wait for it in another thread"]


def test_leaving_the_block_stops_the_job_after_a_checkpoint() -> None:
    with numbers().start_in_process("memory:") as job:
        assert job.is_running
    assert job.status.phase is pen.JobPhase.STOPPED


def test_an_exception_in_the_block_is_told_how_the_job_ended() -> None:
    def leave(job: pen.RunningJob) -> None:
        with job:
            _FAILS.set()
            with pytest.raises(UserCodeError):
                job.wait(LIMIT_SECONDS)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        leave(failing().start_in_process("memory:"))
    assert "no such number" in caught.value.__notes__[0]


def test_a_job_is_not_started_twice() -> None:
    with running(numbers()) as job:
        with pytest.raises(UserError, match="'numbers' was started already"):
            job.start()
        assert job.is_running


def test_a_job_shows_itself_in_a_line() -> None:
    job = numbers(count=10, rate=None).start_in_process("memory:")
    job.wait(LIMIT_SECONDS)
    assert repr(job) == "<RunningJob 'numbers': finished, epoch 2, 10 rows read>"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_job_that_nobody_waited_for_does_not_hang_the_end_of_the_program(
    blocks: bool,
) -> None:
    program = f"""
import threading, penstock as pen
begun = threading.Event()
def note(status):
    if status.epochs_run and status.phase == "running":
        begun.set()
def pass_on(batch):
    import threading
    while {blocks}:
        threading.Event().wait(60)
    return batch
pipeline = pen.Pipeline("left")
read = pipeline.read("numbers", pen.impulse(rate=1_000))
read.map_batches(pass_on).write("out", pen.blackhole())
job = pipeline.start_in_process("memory:", on_status=note)
assert begun.wait()
print("the end", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the end\n"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_job_that_the_main_thread_waits_for(
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    job = start_and_publish(numbers(), MemoryStore())

    def send_when_somebody_waits() -> None:
        while signal.getsignal(number) is before:
            threading.Event().wait(0.01)
        signal.raise_signal(number)

    threading.Thread(target=send_when_somebody_waits).start()
    assert job.wait(LIMIT_SECONDS).phase is pen.JobPhase.STOPPED
    assert signal.getsignal(number) is before


class HeldUntilItWaits(pen.RunningJob):
    """A job that goes on after its first epoch only when somebody waits for its end."""

    def __init__(self, pipeline: pen.Pipeline) -> None:
        self._go = threading.Event()
        run = partial(run_in_process, pipeline.graph(), pipeline.registry)
        options = RunOptions(checkpoint=MemoryStore(), on_status=self._hold)
        super().__init__(pipeline.name, run, options)

    def _hold(self, status: pen.JobStatus) -> None:
        if status.epochs_run:
            self._go.wait(LIMIT_SECONDS)

    @override
    def wait(self, timeout: Any = None) -> pen.JobStatus:
        self._go.set()
        return super().wait(timeout)


_CLOSED = threading.Event()


class NotesClose(ArrowOperator):
    @override
    def name(self) -> str:
        return "notes_close"

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)

    @override
    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        _CLOSED.set()


def test_leaving_the_block_keeps_the_mode_of_a_stop_that_was_asked_for_inside() -> None:
    _CLOSED.clear()
    pipeline = pen.Pipeline("closing")
    read = pipeline.read("numbers", pen.impulse(rate=1_000))
    read.process("notes", NotesClose()).write("out", pen.blackhole())
    with HeldUntilItWaits(pipeline).start() as job:
        job.stop(pen.StopMode.GRACEFUL)
    assert job.status.phase is pen.JobPhase.STOPPED
    assert _CLOSED.is_set()


def test_signals_count_over_all_waits_of_a_program_that_waits_for_a_while_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = threading.Event()

    def hold(status: pen.JobStatus) -> None:
        if status.epochs_run:
            held.wait(LIMIT_SECONDS)

    before = signal.getsignal(signal.SIGINT)
    job = numbers().start_in_process(MemoryStore(), on_status=hold)

    def send_when_somebody_waits() -> None:
        while signal.getsignal(signal.SIGINT) is before:
            threading.Event().wait(0.01)
        signal.raise_signal(signal.SIGINT)

    try:
        for _ in range(2):
            sender = threading.Thread(target=send_when_somebody_waits)
            sender.start()
            with pytest.raises(TimeoutError):
                job.wait("1s")
            sender.join()
    finally:
        held.set()
    assert job.wait(LIMIT_SECONDS).phase is pen.JobPhase.STOPPED
    said = [record.getMessage() for record in caplog.records]
    assert "SIGINT: job 'numbers' stops at once" in said


def test_a_failure_is_not_logged_as_unseen_while_another_thread_still_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(failing()) as job:
        waits = threading.Event()

        def wait() -> None:
            waits.set()
            with pytest.raises(UserCodeError):
                job.wait(LIMIT_SECONDS)

        other = threading.Thread(target=wait)
        other.start()
        assert waits.wait(LIMIT_SECONDS)
        with pytest.raises(TimeoutError):
            job.wait("100ms")
        _FAILS.set()
        other.join(LIMIT_SECONDS)
    assert not any("nobody waits" in record.getMessage() for record in caplog.records)
