"""`restore=` that stays in a program goes back once, not at every start."""

from typing import Any

import pytest

import penstock as pen
from penstock.core.ids import Epoch, SavepointName
from penstock.errors import StateError
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, LocalJob, ScriptedSource

ROUNDS = 6


def a_pipeline() -> pen.Pipeline:
    pipeline = pen.Pipeline("job")
    script = [step for n in range(ROUNDS) for step in ([{"n": n}], CUT)]
    pipeline.read("rows", ScriptedSource(script)).write("out", pen.blackhole())
    return pipeline


def a_job(epochs: int = 3) -> LocalJob:
    job = LocalJob(a_pipeline())
    job.run(epochs=epochs)
    return job


def to(epoch: int | str) -> Epochs:
    if isinstance(epoch, str):
        return Epochs(savepoint=SavepointName(epoch))
    return Epochs(Epoch(epoch))


def parents(job: LocalJob) -> dict[int, int | None]:
    return {
        int(status.record.ref.epoch): None
        if status.record.parent is None
        else int(status.record.parent.epoch)
        for status in job.checkpoints.epochs()
    }


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "not done again" in r.getMessage()]


@pytest.mark.parametrize("epoch", [1, "first"])
def test_a_restore_that_stays_in_a_program_does_not_go_back_at_every_start(
    epoch: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    job = a_job()
    job.checkpoints.pin(SavepointName("first"), to(1))
    job.run(epochs=1, restore=to(epoch))
    assert told(caplog) == []
    before = parents(job)
    assert sum(parent == 1 for parent in before.values()) == 2

    job.run(epochs=1, restore=to(epoch))
    job.run(restore=to(epoch))

    after = parents(job)
    assert sum(parent == 1 for parent in after.values()) == 2
    assert max(after) > max(before)
    first, second = told(caplog)
    named = "1" if epoch == 1 else "'first'"
    done = f"restore={named} is not done again: job 'job' was restored to epoch 1 before"
    assert f"{done}, and goes on from epoch {max(before)}. " in first
    assert f"{done}, and goes on from epoch {max(before) + 1}. " in second


def test_an_epoch_that_is_not_kept_any_more_does_not_stop_such_a_program() -> None:
    job = a_job()
    job.run(epochs=1, restore=to(1))
    claim = job.checkpoints.newest_claim()
    assert claim is not None
    job.checkpoints.collect(claim, keep_epochs=1)
    with pytest.raises(StateError):
        job.checkpoints.plan_restore(to(1))
    assert job.run(restore=to(1)).phase is pen.JobPhase.FINISHED


def test_another_epoch_is_restored_and_then_the_first_again() -> None:
    job = a_job()
    job.run(epochs=1, restore=to(2))
    job.run(epochs=1, restore=to(1))
    job.run(epochs=1, restore=to(2))
    found = list(parents(job).values())
    assert found.count(1) == 2
    assert found.count(2) == 3


def test_a_savepoint_that_was_moved_is_restored_anew() -> None:
    job = a_job()
    name = SavepointName("good")
    job.checkpoints.pin(name, to(1))
    job.run(epochs=1, restore=to("good"))
    job.checkpoints.unpin(name)
    job.checkpoints.pin(name, to(2))
    job.run(epochs=1, restore=to("good"))
    assert list(parents(job).values()).count(2) == 2


def test_a_restore_that_died_after_its_claim_is_done_at_the_next_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job()
    ref = job.checkpoints.plan_restore(to(1)).ref
    job.checkpoints.take_over(restore=ref)
    job.run(epochs=1, restore=to(1))
    assert list(parents(job).values()).count(1) == 2
    assert told(caplog) == []


def test_a_finished_job_stays_finished_and_unclaimed() -> None:
    job = a_job()
    job.run(restore=to(1))
    before = job.checkpoints.newest_claim()
    assert job.run(restore=to(1)).phase is pen.JobPhase.FINISHED
    assert job.checkpoints.newest_claim() == before


def test_a_check_says_that_the_restore_is_done() -> None:
    store: Any = MemoryStore()
    a_pipeline().run_in_process(store)
    assert a_pipeline().check(store, restore=1).epoch == 1
    a_pipeline().run_in_process(store, restore=1)
    check = a_pipeline().check(store, restore=1)
    assert check.epoch == JobCheckpoints(store, check_job(store)).last_epoch()
    assert "note: restore=1 is not done again" in str(check)


def check_job(store: MemoryStore) -> Any:
    return next(iter(store.contents())).split("/")[0]


def test_the_last_restore_is_passed_on_from_claim_to_claim() -> None:
    job = a_job()
    job.run(epochs=1, restore=to(1))
    for _ in range(3):
        taken = job.checkpoints.take_over()
        assert taken.claim.restore is None  # type: ignore[union-attr]  # nobody else claims
        assert job.checkpoints.last_restore() == job.checkpoints.epochs()[-1].record.ref
