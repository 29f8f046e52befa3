"""Restores of a job that merges into a Delta table, back and forth: the table is that of the epoch.

Every epoch inserts a key of its own and changes one that all share. So a table from which the
changes of one epoch are missing, or in which those of an abandoned one are left, is told at once.

    epoch    1   2   3   4   5   restore of 2   6             restore of 5   7
    did      k0  k1  k2  k3  k4                 undoes 3-5,                  undoes 6,
                                                k2                           k5
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import penstock as pen
from penstock.core.ids import Epoch
from penstock.errors import PenstockError
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.local_disk import LocalStore
from penstock.testing import CUT, CrashError, FaultMode, LocalJob, ScriptedSource
from tests.builders.delta_job import TableCalls, sink_on
from tests.builders.profile import by_profile

ROUNDS = 40
LAST = 5
"""The last epoch before the first restore."""


class Walk:
    """A job that merges, and what its table must hold after each of its epochs."""

    def __init__(self, folder: Path, *, quiet: Collection[int] = ()) -> None:
        """Run the first epochs; rounds that are `quiet` are read and change nothing."""
        self.folder, self._quiet = folder, quiet
        self._calls = TableCalls()
        store = LocalStore(folder, durable=False)
        spec, registry = sink_on(folder, lambda: store, lambda: self._calls)
        steps: list[Any] = []
        for n in range(ROUNDS):
            rows = [{"k": "shared", "n": n}, {"k": f"k{n}", "n": n}]
            steps += [[{**row, "counts": n not in quiet} for row in rows], CUT]
        pipeline = pen.Pipeline("walk", registry=registry)
        read = pipeline.read("rows", ScriptedSource({"0": steps})).filter("counts")
        read.drop("counts").from_upserts("table", key="k").write("out", spec)
        self._job = LocalJob(pipeline, registry=registry)
        self._changes: dict[int, int] = {0: 0}
        """By epoch, how many changes it and those that it descends from have read."""
        self._restored: int | None = None
        self.run(epochs=LAST)

    @property
    def last_epoch(self) -> int:
        """The newest epoch of the job, abandoned or not."""
        found = self._job.checkpoints.epochs()
        return max((int(epoch.record.ref.epoch) for epoch in found), default=0)

    def run(
        self,
        restore: int | None = None,
        *,
        epochs: int = 1,
        calls: TableCalls | None = None,
    ) -> None:
        """Run some epochs, each with a change."""
        self._calls = calls or TableCalls()
        before = self.last_epoch
        origin = before if restore is None else restore
        which = None if restore is None else Epochs(Epoch(restore))
        if which is not None and restore == self._restored:
            # A program does not restore the same epoch twice: by hand it is done.
            checkpoints = self._job.checkpoints
            checkpoints.take_over(
                restore=checkpoints.plan_restore(which).ref, is_by_hand=True
            )
            which = None
        self._restored = self._restored if restore is None else restore
        try:
            self._job.run(epochs=epochs, restore=which)
        finally:
            for epoch in range(before + 1, self.last_epoch + 1):
                self._changes[epoch] = self._changes[origin] + epoch - before

    def check(self) -> None:
        """Check that the table is that of the newest epoch."""
        self.check_whole(self._changes[self.last_epoch])

    def check_whole(self, count: int | None = None) -> None:
        """Check that the table is that of so many changes, or of some number of them."""
        found: list[Any] = DeltaTable(str(self.folder)).to_pyarrow_table().to_pylist()
        table = {row["k"]: row["n"] for row in found}
        assert len(table) == len(found)
        count = table["shared"] + 1 if count is None else count
        loud = [n for n in range(count) if n not in self._quiet]
        assert table == {f"k{n}": n for n in loud} | {"shared": loud[-1]}


WALKS = {
    "the last abandoned epoch": [2, LAST],
    "one within the abandoned ones": [2, 4],
    "further back": [2, 1],
    "back and forth": [2, LAST, 2, LAST, LAST + 2],
    "one restore after the other": [4, LAST, 3, LAST + 1, 1, LAST + 3, LAST + 4],
    "the first epoch after a restore": [2, LAST + 1, LAST, LAST + 2],
}


@pytest.mark.parametrize("restores", WALKS.values(), ids=WALKS)
def test_after_any_restores_the_table_is_that_of_the_newest_epoch(
    tmp_path: Path, restores: Sequence[int], caplog: pytest.LogCaptureFixture
) -> None:
    walk = Walk(tmp_path / "table")
    for restore in restores:
        walk.run(restore)
        walk.check()
    assert "stay in the Delta table" not in caplog.text


@pytest.mark.parametrize("restore", [None, 1, 2, 3, LAST - 1, LAST])
def test_a_driver_that_dies_between_the_undoing_and_the_merge_loses_nothing(
    tmp_path: Path, restore: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    walk, calls = Walk(tmp_path / "table"), TableCalls()

    def die_before_the_merge(name: str) -> None:
        if name == "merge":
            raise CrashError(name)

    calls.hook = die_before_the_merge
    with pytest.raises(CrashError):
        walk.run(2, calls=calls)
    assert "commit" in calls.names
    # Abandoned epochs are undone, and the first after them is not merged.
    walk.check_whole(2)
    walk.run(restore)
    walk.check()
    walk.run(LAST)
    walk.check()
    assert "stay in the Delta table" not in caplog.text


def test_an_epoch_that_undoes_others_and_merges_nothing_is_undone_like_any(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    walk = Walk(tmp_path / "table", quiet={2})
    for restore in (2, LAST, 2, 4):
        walk.run(restore)
        walk.check()
    assert "stay in the Delta table" not in caplog.text


@pytest.mark.slow
def test_a_restore_that_is_undone_by_another_may_die_at_any_call(tmp_path: Path) -> None:
    for at in range(1, 9, by_profile(default=3, ci=2, nightly=1)):
        for mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.FAIL_AFTER):
            walk = Walk(tmp_path / f"{at}-{mode}")
            walk.run(2)
            with suppress(CrashError, PenstockError):
                walk.run(LAST, calls=TableCalls(mode, at))
            walk.check_whole()
            walk.run()
            walk.check_whole()
            for restore in (LAST, LAST + 1):
                walk.run(restore)
                walk.check()
