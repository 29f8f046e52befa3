"""A job from its first epoch to its end: stops, restarts, restores, and what the status says."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from penstock.core.ids import Epoch, SavepointName
from penstock.errors import (
    ErrorCode,
    ExternalError,
    FencedError,
    GraphError,
    StateError,
    StorageError,
    UserCodeError,
    UserError,
)
from penstock.graph.logical import Exchange, OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceFinishType
from penstock.runtime.driver.decide import JobPhase, JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.policies import RestartPolicy
from penstock.state.protocol.records import ProtocolRules
from penstock.state.protocol.retention import Epochs
from penstock.testing import Fault, FaultMode, FaultyStore, stored_objects
from tests.builders.driven_job import SECOND, DrivenJob, Ledger
from tests.builders.scripted import (
    PLAIN,
    Log,
    NumberedSource,
    Scripted,
    ScriptedSource,
    link,
    rows,
)

EDGE = link("read", "write", exchange=Exchange.REBALANCE)
OnStatus = Callable[[JobDriver, JobStatus], None]


def a_job(
    ledger: Ledger | None = None,
    *,
    log: Log | None = None,
    count: int = 6,
    **settings: object,
) -> DrivenJob:
    """Return a job that reads `count` rows, two an epoch, and ends."""
    job = DrivenJob(**settings)  # type: ignore[arg-type] # settings of the driver
    book = ledger or Ledger()
    job.read_and_write(
        lambda: NumberedSource({"s": range(count)}, log=log), book.sink, EDGE
    )
    return job


def stop_after(epochs: int, mode: StopMode) -> OnStatus:
    def watch(driver: JobDriver, status: JobStatus) -> None:
        if status.epochs_published >= epochs:
            driver.request_stop(mode)

    return watch


def test_a_job_runs_to_the_end_of_its_data() -> None:
    ledger = Ledger()
    job = a_job(ledger)
    status = job.run()
    assert ledger.numbers == [0, 1, 2, 3, 4, 5]
    assert status.phase is JobPhase.FINISHED
    assert status.error is None
    assert status.rows_read == 6
    assert (status.generation, status.epoch) == (1, 4)
    assert job.phases == [JobPhase.STARTING, JobPhase.RUNNING, JobPhase.FINISHED]
    by_name = {found.operator: found for found in status.operators}
    assert by_name["read"].rows_emitted == {"main": 6}
    assert by_name["write"].rows_taken == 6
    assert by_name["read"].state_files > 0


def test_a_finished_job_started_again_says_so_and_publishes_nothing() -> None:
    ledger = Ledger()
    job = a_job(ledger)
    job.run()
    before = job.checkpoints.newest()
    status = job.run()
    assert status.phase is JobPhase.FINISHED
    assert (status.epochs_run, status.epoch) == (0, 4)
    assert job.checkpoints.newest() == before
    assert len(ledger.numbers) == 6


@pytest.mark.parametrize("mode", [StopMode.GRACEFUL, StopMode.CHECKPOINT])
def test_a_stop_runs_one_more_epoch_without_reading_on_and_a_start_goes_on(
    mode: StopMode,
) -> None:
    ledger = Ledger()
    job = a_job(ledger)
    status = job.run(on_status=stop_after(1, mode))
    assert status.phase is JobPhase.STOPPED
    assert (status.epochs_run, status.epochs_published) == (2, 1)
    assert ledger.numbers == [0, 1]
    assert job.run().phase is JobPhase.FINISHED
    assert ledger.numbers == [0, 1, 2, 3, 4, 5]


def test_an_immediate_stop_runs_nothing_more() -> None:
    job = a_job()
    status = job.run(on_status=stop_after(1, StopMode.IMMEDIATE))
    assert status.phase is JobPhase.STOPPED
    assert status.epochs_run == 1


def test_only_a_graceful_stop_closes_operators() -> None:
    for mode in StopMode:
        log = Log()
        job = DrivenJob()
        job.read_and_write(
            lambda log=log: ScriptedSource(log=log),  # type: ignore[misc] # bound per mode
            lambda log=log: Scripted("write", log, is_sink=True),  # type: ignore[misc]
            EDGE,
        )
        job.run(on_status=stop_after(1, mode))
        closes = mode is StopMode.GRACEFUL
        assert ("on_close" in log.of("read")) is closes
        assert ("on_close Stop" in log.of("write")) is closes
        assert "release" in log.of("write")


@pytest.mark.parametrize(
    ("finish", "published"),
    [(SourceFinishType.GRACEFUL, 1), (SourceFinishType.IMMEDIATE, 0)],
)
def test_a_source_may_stop_the_job(finish: SourceFinishType, published: int) -> None:
    def run(ctx: SourceContext, collector: SourceCollector) -> SourceFinishType:
        collector.collect(rows(1))
        ctx.advance("all", ctx.budget.rows_read)
        return finish

    job = DrivenJob()
    job.read_and_write(lambda: ScriptedSource(run=run), Ledger().sink, EDGE)
    status = job.run()
    assert status.phase is JobPhase.STOPPED
    assert status.epochs_published == published


def test_a_later_request_to_stop_at_once_wins() -> None:
    job = a_job()

    def watch(driver: JobDriver, status: JobStatus) -> None:
        if status.epochs_published == 1:
            driver.request_stop(StopMode.IMMEDIATE)
            driver.request_stop(StopMode.GRACEFUL)

    assert job.run(on_status=watch).epochs_run == 1


class Flaky:
    """Raises a number of times, then no more."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error = error
        self.left = times

    def __call__(self, *_: object) -> None:
        if self.left:
            self.left -= 1
            raise self.error


def flaky_job(error: Exception, times: int, max_restarts: int = 3) -> DrivenJob:
    policy = RestartPolicy(max_restarts=max_restarts, first_delay_micros=SECOND)
    job = DrivenJob(restarts=policy)
    flaky = Flaky(error, times)
    job.read_and_write(
        lambda: NumberedSource({"s": range(4)}),
        lambda: Ledger().sink(handle_checkpoint=flaky),
        EDGE,
    )
    return job


def test_a_failure_that_may_pass_is_tried_again_later_and_later() -> None:
    job = flaky_job(ExternalError("the service is down"), 3)
    start = job.clock.micros
    status = job.run()
    assert status.phase is JobPhase.FINISHED
    assert status.restarts == 3
    waits = [micros - start for micros in job.pacer.waits if micros is not None]
    assert waits == [1 * SECOND, 3 * SECOND, 7 * SECOND]
    assert status.generation == 4
    assert JobPhase.RESTARTING in job.phases
    restarting = [s for s in job.statuses if s.phase is JobPhase.RESTARTING]
    assert all("the service is down" in str(s.error) for s in restarting)
    assert status.error is None


def test_a_success_starts_the_count_of_failures_anew() -> None:
    job = DrivenJob(restarts=RestartPolicy(max_restarts=1))
    moods = iter([True, False, True, False, True, False, *[False] * 10])

    def moody(*_: object) -> None:
        if next(moods):
            raise StorageError("no answer")

    job.read_and_write(
        lambda: NumberedSource({"s": range(6)}),
        lambda: Ledger().sink(handle_checkpoint=moody),
        EDGE,
    )
    status = job.run()
    assert status.phase is JobPhase.FINISHED
    assert status.restarts == 3


def test_a_driver_gives_up_after_so_many_restarts_in_a_row() -> None:
    job = flaky_job(ExternalError("the service is down"), 100, max_restarts=2)
    with pytest.raises(ExternalError, match="the service is down"):
        job.run()
    last = job.statuses[-1]
    assert last.phase is JobPhase.FAILED
    assert "the service is down" in str(last.error)
    assert last.restarts == 2


def test_an_error_of_user_code_fails_the_job_at_once_and_publishes_nothing() -> None:
    job = flaky_job(ValueError("bad row"), 1)
    with pytest.raises(UserCodeError, match="operator 'write' raised ValueError"):
        job.run()
    assert job.statuses[-1].phase is JobPhase.FAILED
    assert job.checkpoints.newest() is None
    assert job.pacer.waits == []
    assert job.run().phase is JobPhase.FINISHED


def test_a_request_to_stop_ends_the_wait_for_a_restart() -> None:
    job = flaky_job(ExternalError("down"), 100)

    def watch(driver: JobDriver, status: JobStatus) -> None:
        if status.restarts == 1:
            driver.request_stop(StopMode.CHECKPOINT)

    assert job.run(on_status=watch).phase is JobPhase.STOPPED


def test_storage_that_fails_while_an_epoch_is_written_is_met_with_a_new_claim() -> None:
    ledger = Ledger()
    job = a_job(ledger)
    store = FaultyStore(job.store, Fault(FaultMode.FAIL_BEFORE, at=3, operation="create"))
    status = job.run(store=store)
    assert store.has_fired
    assert status.phase is JobPhase.FINISHED
    assert status.restarts == 1
    assert sorted(set(ledger.numbers)) == [0, 1, 2, 3, 4, 5]


def test_a_driver_that_was_replaced_stops_for_good() -> None:
    job = a_job()

    def usurp(driver: JobDriver, status: JobStatus) -> None:
        if status.epochs_published == 1 and status.phase is JobPhase.RUNNING:
            job.session()

    with pytest.raises(FencedError, match="a newer driver has claimed the job"):
        job.run(on_status=usurp)
    assert job.statuses[-1].phase is JobPhase.FENCED


def test_an_older_epoch_can_be_restored_and_is_gone_on_from() -> None:
    ledger = Ledger()
    job = a_job(ledger)
    job.run()
    ledger.numbers.clear()
    status = job.run(restore=Epochs(Epoch(1)))
    assert status.phase is JobPhase.FINISHED
    assert ledger.numbers == [2, 3, 4, 5]
    assert status.epoch is not None
    assert status.epoch > 4


def test_a_savepoint_can_be_restored_whatever_was_collected_since() -> None:
    ledger = Ledger()
    rules = ProtocolRules(waypoint_stride=4, adoption_window=2)
    job = a_job(ledger, count=20, keep_epochs=2, collect_every=1, rules=rules)
    job.run(on_status=stop_after(1, StopMode.IMMEDIATE))
    job.checkpoints.pin(SavepointName("first"), Epochs(Epoch(1)))
    job.run()
    ledger.numbers.clear()
    job.run(restore=Epochs(savepoint=SavepointName("first")))
    assert ledger.numbers == list(range(2, 20))


def a_finished_flaky_job() -> tuple[Ledger, Flaky, DrivenJob]:
    """Return a job that has ended, its empty ledger, and what makes its sink fail."""
    ledger, flaky = Ledger(), Flaky(StorageError("no answer"), 0)
    job = DrivenJob()
    job.read_and_write(
        lambda: NumberedSource({"s": range(8)}),
        lambda: ledger.sink(handle_checkpoint=flaky),
        EDGE,
    )
    job.run()
    ledger.numbers.clear()
    return ledger, flaky, job


def test_a_restore_is_honoured_once_although_a_failure_restarts_the_session() -> None:
    ledger, flaky, job = a_finished_flaky_job()

    def fail_later(driver: JobDriver, status: JobStatus) -> None:
        if status.epochs_published == 2 and not status.restarts and not flaky.left:
            flaky.left = 1

    status = job.run(restore=Epochs(Epoch(1)), on_status=fail_later)
    assert status.restarts == 1
    assert ledger.numbers.count(2) == 1
    assert sorted(set(ledger.numbers)) == [2, 3, 4, 5, 6, 7]


def test_a_restore_of_a_finished_job_is_not_forgotten_by_a_failure() -> None:
    ledger, flaky, job = a_finished_flaky_job()
    flaky.left = 1
    status = job.run(restore=Epochs(Epoch(1)))
    assert (status.phase, status.restarts) == (JobPhase.FINISHED, 1)
    assert sorted(set(ledger.numbers)) == [2, 3, 4, 5, 6, 7]


def test_a_restore_of_a_finished_job_is_not_forgotten_by_the_next_driver() -> None:
    ledger = Ledger()
    job = a_job(ledger)
    job.run()
    ledger.numbers.clear()
    job.run(
        restore=Epochs(Epoch(1)),
        on_status=lambda driver, _: driver.request_stop(StopMode.IMMEDIATE),
    )
    assert ledger.numbers == []
    assert job.run().phase is JobPhase.FINISHED
    assert ledger.numbers == [2, 3, 4, 5]


def test_going_back_to_an_end_of_the_job_is_refused_unless_it_is_there() -> None:
    job = a_job(Ledger())
    end = job.run().epoch
    assert end is not None
    assert job.run(restore=Epochs(Epoch(end))).phase is JobPhase.FINISHED
    job.run(restore=Epochs(Epoch(1)))
    claims = [info.path for info in job.store.list("") if info.path.endswith("/claim")]
    with pytest.raises(StateError, match=f"had ended with epoch {end}"):
        job.run(restore=Epochs(Epoch(end)))
    after = [info.path for info in job.store.list("") if info.path.endswith("/claim")]
    assert after == claims


def test_without_data_a_driver_sleeps_until_the_next_poll_or_tick() -> None:
    job = DrivenJob(target_epoch_micros=SECOND)
    job.read_and_write(
        lambda: ScriptedSource(poll=timedelta(seconds=7)),
        lambda: Scripted("write", is_sink=True, tick=timedelta(seconds=4)),
        EDGE,
    )

    def watch(driver: JobDriver, status: JobStatus) -> None:
        if len(job.pacer.waits) >= 4:
            driver.request_stop(StopMode.IMMEDIATE)

    job.run(on_status=watch)
    waits = [micros // SECOND for micros in job.pacer.waits if micros is not None]
    # From 10 s on: ticks at 12, 16, 20 and 24; a poll seven seconds after each epoch.
    assert waits == [12, 16, 20, 24]


def test_waiting_is_shown_with_the_time_it_ends() -> None:
    job = DrivenJob()
    job.read_and_write(
        lambda: ScriptedSource(poll=timedelta(seconds=7)), Ledger().sink, EDGE
    )

    def watch(driver: JobDriver, status: JobStatus) -> None:
        if status.phase is JobPhase.WAITING:
            driver.request_stop(StopMode.IMMEDIATE)

    job.run(on_status=watch)
    waiting = next(s for s in job.statuses if s.phase is JobPhase.WAITING)
    assert waiting.next_wake_up_micros is not None
    assert waiting.next_wake_up_micros > 10 * SECOND


def test_a_graph_that_cannot_run_is_told_before_anything_is_written() -> None:
    job = a_job()
    job.add("lost", lambda: Scripted("lost"), PLAIN)
    job.join(link("nobody", "lost"))
    with pytest.raises(GraphError, match="nobody"):
        job.run()
    assert stored_objects(job.store) == {}
    assert job.statuses[-1].phase is JobPhase.FAILED


def test_an_unknown_kind_is_told_before_anything_is_written() -> None:
    job = a_job()
    job.nodes[0] = replace(job.nodes[0], spec=OperatorSpec("givne"))
    with pytest.raises(UserError, match="did you mean 'given'"):
        job.run()
    assert stored_objects(job.store) == {}


@pytest.mark.parametrize("hook", ["release", "on_start"])
def test_what_goes_wrong_while_a_job_is_let_go_of_hides_nothing(hook: str) -> None:
    """An error in `release` is logged: the job has ended as it has ended."""
    job = DrivenJob()
    job.read_and_write(
        lambda: NumberedSource({"s": range(4)}),
        lambda: Ledger().sink(**{hook: Flaky(ValueError("cannot close"), 100)}),
        EDGE,
    )
    if hook == "release":
        assert job.run().phase is JobPhase.FINISHED
    else:
        with pytest.raises(UserCodeError) as raised:
            job.run()
        assert raised.value.code is ErrorCode.USER_CODE_RAISED


@pytest.mark.parametrize(
    ("keep_hours", "kept"),
    [(None, [8]), (0, [8]), (2, [8, 7, 6]), (100, list(range(8, 0, -1)))],
)
def test_epochs_that_are_young_enough_are_kept_besides_the_last_ones(
    keep_hours: int | None, kept: list[int]
) -> None:
    hour = 3_600 * SECOND
    job = DrivenJob(
        keep_epochs=1,
        keep_micros=None if keep_hours is None else keep_hours * hour,
        collect_every=1,
    )

    def an_hour_passes(status: JobStatus) -> None:
        if status.phase is JobPhase.RUNNING and status.last is not None:
            job.clock.advance(hour // 2)  # at the begin and at the end of each epoch

    job.read_and_write(lambda: NumberedSource({"s": range(14)}), Ledger().sink, EDGE)
    job.run(on_status=lambda _, status: an_hour_passes(status))
    found = [int(status.record.ref.epoch) for status in job.checkpoints.epochs()]
    assert found == kept
