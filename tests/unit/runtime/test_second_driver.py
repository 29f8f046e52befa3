"""A second driver is warned before it takes a job over whose driver may still run."""

import logging
from typing import Any

import pytest

import penstock as pen
from penstock.core.ids import JobId
from penstock.errors import FencedError, UserCodeError
from penstock.runtime.driver.decide import JobPhase, StopMode
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, Fault, FaultMode, FaultyStore, ScriptedSource
from tests.builders.driven_job import DrivenJob, Ledger
from tests.builders.scripted import NumberedSource, link


def a_job(store: Any = None, **hooks: Any) -> DrivenJob:
    job = DrivenJob(store)
    job.read_and_write(
        lambda: NumberedSource({"s": range(8)}),
        lambda: Ledger().sink(**hooks),
        link("read", "write"),
    )
    return job


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "another driver" in r.getMessage()]


class ClaimsAtWarning(logging.Handler):
    """Notes how many claims there are when the warning comes."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self.store = store
        self.claims: list[int] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "another driver" in record.getMessage():
            paths = self.store.contents()
            self.claims.append(sum(path.endswith("/claim") for path in paths))


def test_a_second_driver_is_warned_before_it_takes_over_a_live_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    job = a_job(store)
    live = job.session()
    live.run_epoch()
    job.clock.micros += 3_000_000
    handler = ClaimsAtWarning(store)
    logging.getLogger("penstock").addHandler(handler)
    try:
        assert job.run().phase is JobPhase.FINISHED
    finally:
        logging.getLogger("penstock").removeHandler(handler)
    assert handler.claims == [1]
    [text] = warnings_in(caplog)
    assert (
        "another driver of job 'job' (generation 1, claimed 1970-01-01 00:00:10 UTC)"
        in text
    )
    assert "its last sign is 3 s old" in text
    assert "It has died, or it still runs" in text
    with pytest.raises(FencedError):
        live.run_epoch()


def test_who_goes_on_after_an_end_is_not_warned(caplog: pytest.LogCaptureFixture) -> None:
    job = a_job()

    def stop(driver: Any, status: Any) -> None:
        if status.epochs_published:
            driver.request_stop(StopMode.CHECKPOINT)

    assert job.run(on_status=stop).phase is JobPhase.STOPPED
    assert job.run().phase is JobPhase.FINISHED
    assert job.run().phase is JobPhase.FINISHED
    assert warnings_in(caplog) == []


def test_who_goes_on_after_a_failure_is_not_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no")

    failing = a_job(handle_checkpoint=fail)
    with pytest.raises(UserCodeError):
        failing.run()
    a_job(failing.store).run()
    assert warnings_in(caplog) == []


def test_a_driver_that_starts_again_by_itself_is_not_warned_of_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job()
    for path in ("*/manifest.pb", "*/epochs/*", "*/claim"):
        store = FaultyStore(MemoryStore(), Fault(FaultMode.FAIL_BEFORE, path=path))
        assert job.run(store=store).phase is JobPhase.FINISHED
    assert warnings_in(caplog) == []


def test_the_first_driver_of_a_branch_is_not_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job()
    job.run()
    job.checkpoints.branch(JobId("branch"), Epochs())
    branch = a_job(job.store)
    branch.job = JobId("branch")
    branch.run()
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("mode", [FaultMode.FAIL_BEFORE, FaultMode.LOSE_RESPONSE])
def test_an_end_that_cannot_be_noted_fails_nothing(
    mode: FaultMode, caplog: pytest.LogCaptureFixture
) -> None:
    job = a_job()
    store = FaultyStore(job.store, Fault(mode, at=None, path="*/left"))
    driver = job.driver(store, lambda each, status: each.request_stop(StopMode.CHECKPOINT))
    assert driver.run().phase is JobPhase.STOPPED
    assert job.run().phase is JobPhase.FINISHED
    assert len(warnings_in(caplog)) == 1


def test_a_check_tells_of_it_and_a_finished_job_has_no_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def pipeline() -> pen.Pipeline:
        made = pen.Pipeline("job")
        rows = made.read("rows", ScriptedSource([[{"n": 1}], CUT, [{"n": 2}], CUT]))
        rows.write("out", pen.blackhole())
        return made

    store = MemoryStore()
    pipeline().run_in_process(store)
    assert "another driver" not in str(pipeline().check(store))
    left = next(path for path in store.contents() if path.endswith("/left"))
    store.delete(left)
    assert "note: another driver of job 'job'" in str(pipeline().check(store))
    pipeline().run_in_process(store)
    assert warnings_in(caplog) == []
