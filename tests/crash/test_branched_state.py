"""A branch shares its origin's files without copying any: neither can harm the other."""

import pytest

from penstock.core.ids import Epoch, JobId
from penstock.state.protocol.collection import CollectionDone
from penstock.state.protocol.retention import Epochs
from penstock.testing import assert_job_is_whole
from tests.builders.kept_epochs import load_epoch
from tests.builders.shop import SHOP, ShopEpoch, ShopModel, check_contents, shop_specs
from tests.builders.state_job import StateJob

KEYS = "abcdefgh"
History = dict[int, ShopModel]


def run_epoch(job: StateJob, history: History, offset: int = 0) -> None:
    """Change some keys of every table, delete others, and commit."""
    number = int(job.epoch)
    before = history[0 if job.base is None else int(job.base.ref.epoch)]
    epoch = ShopEpoch(job, before, 1)
    rows = [(key, number + offset, 10) for key in KEYS[number % 3 :: 2]]
    epoch.apply(
        [
            ("put", "totals", rows),
            ("delete", "totals", [KEYS[number % 8]]),
            ("insert_panes", rows[:2], None),
            ("insert_marks", number, rows[:1], None),
            ("count", number, f"of {number % 3}", number + offset),
            ("commit", 0, f"{number} and {offset}"),
        ]
    )
    permit = job.publish(job.checkpoint_subtasks())
    history[number] = epoch.finished(None)
    assert permit is not None
    job.commit(permit)


def check(job: StateJob, history: History) -> None:
    assert_job_is_whole(job.checkpoints)
    for one in job.checkpoints.epochs():
        number = int(one.record.ref.epoch)
        managers = load_epoch(job.checkpoints, SHOP, job.specs[SHOP], number)
        check_contents(managers, history[number], 1)


def compact_everything(job: StateJob, history: History) -> None:
    for index in range(job.parallelism):
        job.compact(SHOP, index)
    run_epoch(job, history)


def clean_up(job: StateJob) -> CollectionDone:
    done = job.checkpoints.collect(job.claim, keep_epochs=1)
    job.checkpoints.sweep(job.claim)
    assert isinstance(done, CollectionDone)
    return done


@pytest.mark.slow
def test_a_branch_and_its_origin_go_on_compact_and_collect_on_their_own() -> None:
    origin, history = StateJob(shop_specs(), parallelism=2), {0: ShopModel()}
    for _ in range(4):
        run_epoch(origin, history)
    origin.checkpoints.branch(JobId("branch"), Epochs(Epoch(3)))
    branch = StateJob(shop_specs(), store=origin.store, parallelism=3, job=JobId("branch"))
    forked: History = {3: history[3]}
    assert branch.epoch == 4
    ShopEpoch(branch, forked[3], 1).check()
    branch.start()
    for _ in range(3):
        run_epoch(branch, forked, offset=1_000)
        run_epoch(origin, history)
        compact_everything(origin, history)
        clean_up(origin)
        check(origin, history)
        check(branch, forked)
    needs_origin = True
    while needs_origin:
        assert branch.epoch < 20, "a branch outgrows its origin"
        compact_everything(branch, forked)
        needs_origin = clean_up(branch).needs_origin
        check(branch, forked)
    assert branch.checkpoints.release_origin(branch.claim)
    clean_up(origin)
    assert not any("/0000000003/" in info.path for info in origin.store.list("job"))
    check(origin, history)
    check(branch, forked)
    branch.start(parallelism=1)
    ShopEpoch(branch, forked[int(branch.epoch) - 1], 1).check()
