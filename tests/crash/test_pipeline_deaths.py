"""Drivers that die or fail at the instants that matter: nothing is lost or repeated.

Between supersteps, between publication and commit, inside a sink's commit, in compaction and
in collection.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from penstock.errors import ExternalError, UserCodeError
from penstock.testing import (
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    assert_job_is_whole,
    stored_objects,
)
from tests.builders.pipeline_graphs import SHAPES, Shape, counting, windows
from tests.builders.pipeline_job import PipelineJob

SHAPE_NAMES = [shape.name for shape in SHAPES]


@dataclass
class AtTime:
    """Does something at the n-th time it is called, and notes how often that was."""

    number: int
    act: Callable[[], None]
    calls: int = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == self.number:
            self.act()


def die() -> None:
    raise CrashError("between two steps")


def fail_for_now() -> None:
    raise ExternalError("the sink's system is away")


def fail_for_good() -> None:
    raise ValueError("the sink's code is wrong")


def only(when: str, act: Callable[[], None], at: str, epoch: int) -> None:
    """As a book's hook: act before or after the effect."""
    if at == when:
        act()


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_dying_between_supersteps_leaves_nothing_behind(
    shape: Shape, tmp_path: Path
) -> None:
    job = PipelineJob(shape, tmp_path)
    deaths = 0
    while True:
        # Each driver comes a few supersteps further: through all levels of all epochs.
        before = stored_objects(job.inner).keys()
        hook = AtTime(1 + deaths % 5, die)
        try:
            job.driver(between_supersteps=hook, seed=deaths).run()
            break
        except CrashError:
            deaths += 1
        if deaths % 5 == 1:
            # It died in its first epoch: there is a claim, and files nobody refers to.
            new = stored_objects(job.inner).keys() - before
            assert not [path for path in new if "/epochs/" in path]
        if deaths > 40:
            job.driver(seed=deaths).run()
            break
    assert deaths > 3
    job.check()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("act", [die, fail_for_now, fail_for_good])
def test_a_commit_that_is_cut_off_is_repeated_and_changes_nothing(
    when: str, act: Callable[[], None], tmp_path: Path
) -> None:
    job = PipelineJob(windows(16), tmp_path)
    strike = AtTime(3, act)
    job.book.hook = partial(only, when, strike)
    try:
        job.driver().run()
        assert act is fail_for_now
    except CrashError:
        assert act is die
    except UserCodeError:
        assert act is fail_for_good
    job.book.hook = None
    job.finish(parallelism=(1, 2, 2))
    repeated = len(job.book.calls) - len(set(job.book.calls))
    assert repeated > 0


def test_every_commit_of_a_job_may_be_repeated_by_every_later_driver(
    tmp_path: Path,
) -> None:
    # Drivers die right after each commit's effect, so that each one is replayed.
    job = PipelineJob(counting(), tmp_path)
    deaths = 0
    while True:
        die_once = AtTime(2, die)  # the first call is the replay
        job.book.hook = partial(only, "after", die_once)
        try:
            job.driver(seed=deaths).run()
            break
        except CrashError:
            deaths += 1
    assert deaths > 2
    job.book.hook = None
    job.check()
    assert len(job.book.calls) >= len(set(job.book.calls)) + deaths - 1


SLOTS = "*/checkpoints/*"
INSTANTS = {
    "claimed": Fault(FaultMode.CRASH_AFTER, operation="create", path="*/claim"),
    "a-state-file-written": Fault(
        FaultMode.CRASH_AFTER, at=5, operation="create", path=f"{SLOTS}.parquet"
    ),
    "manifest-written": Fault(
        FaultMode.CRASH_AFTER, at=3, operation="create", path="*/manifest.pb"
    ),
    "acknowledged": Fault(
        FaultMode.CRASH_AFTER, at=3, operation="create", path="*/epochs/*"
    ),
    "committed-but-not-marked": Fault(
        FaultMode.CRASH_BEFORE, at=3, operation="create", path="*/committed"
    ),
    "marked-as-committed": Fault(
        FaultMode.CRASH_AFTER, at=3, operation="create", path="*/committed"
    ),
    "compacting": Fault(
        FaultMode.CRASH_AFTER, at=2, operation="create", path="*-compacted-*"
    ),
    "compacted": Fault(FaultMode.CRASH_BEFORE, operation="create", path="*/retention/*"),
    "collecting": Fault(
        FaultMode.CRASH_AFTER, at=2, operation="create", path="*/retention/*"
    ),
    "a-file-deleted": Fault(
        FaultMode.CRASH_AFTER, at=2, operation="delete", path="*.parquet"
    ),
    "a-manifest-deleted": Fault(
        FaultMode.CRASH_AFTER, operation="delete", path="*/manifest.pb"
    ),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_driver_dies_when(instant: str, tmp_path: Path) -> None:
    job = PipelineJob(counting(), tmp_path)
    store = FaultyStore(job.inner, INSTANTS[instant])
    with pytest.raises(CrashError):
        job.driver(store).run()
    assert_job_is_whole(job.checkpoints())
    job.finish(parallelism=(3, 2, 2))


def test_an_acknowledged_epoch_is_committed_by_the_next_driver(tmp_path: Path) -> None:
    job = PipelineJob(counting(), tmp_path)
    store = FaultyStore(
        job.inner, Fault(FaultMode.CRASH_AFTER, operation="create", path="*/epochs/*")
    )
    with pytest.raises(CrashError):
        job.driver(store).run()
    assert job.book.calls == []
    job.run_epochs(0)
    assert job.book.calls == [("out", 1)]
    job.finish()


def test_an_epoch_without_a_record_is_run_again(tmp_path: Path) -> None:
    job = PipelineJob(counting(), tmp_path)
    store = FaultyStore(
        job.inner, Fault(FaultMode.CRASH_BEFORE, operation="create", path="*/epochs/*")
    )
    with pytest.raises(CrashError):
        job.driver(store).run()
    job.run_epochs(0)
    assert job.book.calls == []
    job.finish()
