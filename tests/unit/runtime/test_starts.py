"""A start is checked against the epoch it will go on from, before the job is claimed."""

import logging
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.core.ids import Epoch, JobId
from penstock.errors import (
    ExternalError,
    PenstockError,
    StateError,
    UserCodeError,
    UserError,
)
from penstock.graph.logical import Exchange
from penstock.runtime.driver.decide import JobPhase, StopMode
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import LocalJob, assert_nothing_was_changed, stored_objects
from tests.builders.driven_job import DrivenJob
from tests.builders.files_job import some_rows, write_file
from tests.builders.scripted import BY_USER, PLAIN, NumberedSource, link
from tests.unit.runtime.test_commits import Target
from tests.unit.runtime.test_driver import a_job, stop_after
from tests.unit.runtime.test_fitness import (
    GLOBAL,
    KEYED,
    a_stopped_job,
    count,
    counting,
    with_another_kind_of_table,
)


def reading(folder: Path, *, discover: bool = False) -> pen.Pipeline:
    pipeline = pen.Pipeline("reading")
    rows = pipeline.read("rows", pen.files(f"{folder}/*.jsonl", discover=discover))
    rows.write("out", pen.blackhole())
    return pipeline


def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("mon", "tue"):
        write_file(tmp_path / name / "p.jsonl", some_rows(0, 30))
    return tmp_path / "mon", tmp_path / "tue"


def test_a_finished_job_started_with_another_files_root_is_refused_like_an_unfinished_one(
    tmp_path: Path,
) -> None:
    monday, tuesday = two_folders(tmp_path)
    store = MemoryStore()
    assert LocalJob(reading(monday), store=store).run().phase is JobPhase.FINISHED
    before = stored_objects(store)
    with pytest.raises(UserError, match=r"begun to read the files .*/mon/.* now names"):
        LocalJob(reading(tuesday), store=store).run()
    assert_nothing_was_changed(before, store)
    assert LocalJob(reading(monday), store=store).run().phase is JobPhase.FINISHED


def test_another_files_root_is_refused_before_the_job_is_claimed(tmp_path: Path) -> None:
    monday, tuesday = two_folders(tmp_path)
    store = MemoryStore()
    LocalJob(reading(monday, discover=True), store=store).run(epochs=1)
    before = stored_objects(store)
    with pytest.raises(UserError, match="now names"):
        LocalJob(reading(tuesday, discover=True), store=store).run()
    assert_nothing_was_changed(before, store)


def a_job_whose_table_changed() -> DrivenJob:
    """Return a job whose epoch 1 has a global table and whose newest epoch a keyed one."""
    job = a_stopped_job()
    job.settings = DrivenJob(allow_dropped_state=True).settings
    job.add("count", counting(process_batch=lambda *_: None), BY_USER)
    job.session().run_epoch()
    with_another_kind_of_table(job)
    job.session().run_epoch()
    return job


def ask_to_restore(job: DrivenJob, epoch: int) -> None:
    """Die right after the claim of a restore."""
    ref = job.checkpoints.plan_restore(Epochs(Epoch(epoch))).ref
    job.checkpoints.take_over(restore=ref)


def test_a_start_is_checked_against_the_epoch_that_a_pending_restore_goes_to() -> None:
    job = a_job_whose_table_changed()
    ask_to_restore(job, 1)
    before = stored_objects(job.store)
    with pytest.raises(StateError, match=r"does not fit job epoch 1 .*\n.*'counts'"):
        job.run()
    assert_nothing_was_changed(before, job.store)


def test_a_pipeline_that_fits_the_pending_restore_starts_though_the_newest_epoch_differs() -> (
    None
):
    job = a_job_whose_table_changed()
    job.add("count", counting(GLOBAL, process_batch=count), BY_USER)
    with pytest.raises(StateError):
        job.run()
    ask_to_restore(job, 1)
    assert job.run().phase is JobPhase.FINISHED


def test_a_branch_is_checked_against_the_epoch_it_begins_with() -> None:
    job = a_stopped_job()
    job.checkpoints.branch(JobId("branch"), Epochs())
    other = DrivenJob(job.store)
    other.job = JobId("branch")
    other.add("read", lambda: NumberedSource({"s": range(20)}))
    other.add("count", counting(KEYED, process_batch=lambda *_: None), BY_USER)
    other.join(link("read", "count", exchange=Exchange.BY_KEY))
    before = stored_objects(job.store)
    with pytest.raises(StateError, match="does not fit job epoch 1"):
        other.run()
    assert_nothing_was_changed(before, job.store)


class AlwaysFails(Target):
    """Commits epochs up to a number; every later commit fails."""

    def __init__(self, error: Exception, up_to: int = 1) -> None:
        super().__init__()
        self.error = error
        self.up_to = up_to

    def commit(self, epoch: int, data: Any, ctx: Any) -> None:
        if epoch == self.up_to + 1:
            self.calls.append(int(epoch))
            raise self.error
        super().commit(epoch, data, ctx)


def a_job_that_cannot_commit(target: Target) -> DrivenJob:
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(8)}, per_epoch=4))
    job.add("write", target.sink, PLAIN)
    job.join(link("read", "write"))
    with pytest.raises(PenstockError):
        job.run()
    return job


@pytest.mark.parametrize("error", [ValueError("no"), ExternalError("gone for good")])
def test_a_sink_commit_that_always_fails_does_not_block_a_restore(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    target = AlwaysFails(error)
    job = a_job_that_cannot_commit(target)
    assert job.run(restore=Epochs(Epoch(1))).phase is JobPhase.FINISHED
    [warning] = [r for r in caplog.records if "could not be committed" in r.getMessage()]
    assert warning.levelno == logging.WARNING
    assert "epoch 2 of job job could not be committed" in warning.getMessage()
    assert str(error) in warning.getMessage()
    assert sorted(target.committed) == [1, 3, 4]


def test_a_commit_that_fails_for_a_while_is_made_before_the_restore() -> None:
    target = AlwaysFails(ExternalError("down"))
    job = a_job_that_cannot_commit(target)
    target.up_to, target.failures = -1, [ExternalError("down")]
    job.run(restore=Epochs(Epoch(1)))
    assert 2 in target.committed


def test_a_pending_restore_passes_over_a_commit_that_fails_too() -> None:
    target = AlwaysFails(ValueError("no"))
    job = a_job_that_cannot_commit(target)
    ask_to_restore(job, 1)
    assert job.run().phase is JobPhase.FINISHED


def test_without_a_restore_a_commit_that_fails_is_an_error() -> None:
    job = a_job_that_cannot_commit(AlwaysFails(ValueError("no")))
    with pytest.raises(UserCodeError, match="handle_commit of epoch 2"):
        job.run()


def test_a_start_that_fails_behind_its_claim_says_that_its_driver_has_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job_that_cannot_commit(AlwaysFails(ValueError("no")))
    for _ in range(2):
        with pytest.raises(UserCodeError, match="handle_commit of epoch 2"):
            job.run()
        assert job.checkpoints.running() is None
    assert not any("another driver" in r.getMessage() for r in caplog.records)


def test_a_job_that_runs_for_a_few_epochs_each_time_gives_old_epochs_up_too() -> None:
    job = a_job(count=100, keep_epochs=3)
    for runs in range(1, 11):
        job.run(on_status=stop_after(3, StopMode.IMMEDIATE))
        assert job.checkpoints.last_epoch() == 3 * runs
    kept = [int(status.record.ref.epoch) for status in job.checkpoints.epochs()]
    assert kept == [30, 29, 28, 27, 26]
