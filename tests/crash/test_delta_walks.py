"""Any walk of a job and its Delta table: after each move the table is that of the newest epoch.

A job goes on, its sink is added and renamed, epochs are restored by the program that fits to them or
by one whose sink begins anew, a driver that was thought dead commits late, the table goes back to older
versions and forth again, is compacted and vacuumed, and its log is cleaned up. Where rows can be neither taken out nor put back, the
job must say so: it warns, or refuses the epoch and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.ids import Epoch
from penstock.errors import ErrorCode, PenstockError, StateError
from penstock.state.protocol.retention import Epochs
from tests.builders.delta_job import TableCalls
from tests.builders.delta_walk import KEEP, ROUNDS, Steps
from tests.builders.profile import by_profile

NAMES = ("out", "table", "last")
EXAMPLES = by_profile(default=6, ci=15, nightly=500)


@dataclass(frozen=True)
class Known:
    """What the test knows of an epoch."""

    read: int
    """How many rows the source had read."""
    rows: tuple[int, ...] = ()
    """The rows that the table must hold."""
    step: str | None = None
    """The name that the sink has in its state."""
    version: int | None = None
    """The version of the table after its commit."""


class Walk:
    """A job, its table, and what both must be like."""

    def __init__(self, folder: Path, *, merges: bool) -> None:
        self.steps = Steps(folder, merges=merges)
        self.epochs = {0: Known(0)}
        self.newest = 0
        self.is_log_whole = True

    @property
    def now(self) -> Known:
        """What is known of the epoch from which the job goes on."""
        return self.epochs[self.newest]

    def run(
        self,
        step: str | None,
        *,
        restore: int | None = None,
        renamed: dict[str, str] | None = None,
        calls: TableCalls | None = None,
    ) -> None:
        """Run an epoch, and take down what it must have led to, before it has."""
        names = [KEEP] if step is None else [KEEP, step]
        job = self.steps.job(*names, calls=calls, renamed=renamed or {})
        base = self.now if restore is None else self.epochs[restore]
        if restore is not None:
            checkpoints = job.checkpoints
            ref = checkpoints.plan_restore(Epochs(Epoch(restore))).ref
            # A program does not restore the same epoch twice: by hand it is done.
            checkpoints.take_over(restore=ref, is_by_hand=True)
        epoch = self.last_epoch + 1
        if renamed:
            self.epochs[epoch] = Known(base.read, base.rows, step)
            epoch += 1
        rows = base.rows if step is None else (*base.rows, base.read)
        self.epochs[epoch] = Known(base.read + 1, rows, step)
        self.newest = epoch
        job.run(epochs=1)
        assert self.last_epoch >= epoch

    @property
    def last_epoch(self) -> int:
        """The newest epoch of the job, abandoned or not."""
        found = self.steps.job(KEEP).checkpoints.epochs()
        return max((int(epoch.record.ref.epoch) for epoch in found), default=0)

    def has_table(self) -> bool:
        return (self.steps.folder / "_delta_log").exists()

    def rows(self) -> list[int]:
        return self.steps.rows() if self.has_table() else []

    def check(self) -> None:
        """Check that the table is that of the newest epoch, and note its version."""
        assert self.rows() == list(self.now.rows)
        if self.has_table():
            known, version = self.now, self.steps.table().version()
            self.epochs[self.newest] = Known(known.read, known.rows, known.step, version)


def move(walk: Walk, data: st.DataObject, moves: Sequence[str]) -> None:
    """Draw a move, and make it."""
    kind = data.draw(st.sampled_from(moves))
    step = walk.now.step
    if kind == "go on":
        walk.run(step)
    elif kind == "name":
        new = data.draw(st.sampled_from([n for n in NAMES if n != step]))
        walk.run(new, renamed=None if step is None else {step: new})
    elif kind == "vacuum" and walk.has_table():
        walk.steps.vacuum()
    elif kind == "clean up" and walk.has_table():
        newest = walk.steps.table().version()
        walk.is_log_whole = False
        walk.steps.clean_up(data.draw(st.integers(max(newest - 3, 0), newest)))
    else:
        epoch = data.draw(st.sampled_from([e for e in walk.epochs if e > 0]))
        # Under a name that the sink never had it writes beside what is there.
        later = sorted({k.step for e, k in walk.epochs.items() if e > epoch and k.step})
        stored = walk.epochs[epoch].step
        drawn = data.draw(st.sampled_from(later)) if later else None
        name = drawn if stored is None else stored
        if kind == "restore late":
            restore_while_another_commits(walk, name, epoch)
            return
        is_held = kind == "restore both" and move_table(walk, data, epoch)
        try:
            walk.run(name, restore=epoch)
        except StateError:
            assert not is_held or not walk.is_log_whole, (
                "the table has all rows of the epoch"
            )
            raise


def move_table(walk: Walk, data: st.DataObject, epoch: int) -> bool:
    """Let the table go back and forth; return whether it certainly holds an epoch at last."""
    versions = [
        known.version for known in walk.epochs.values() if known.version is not None
    ]
    # From its newest epoch a job goes on with the table as it is: it was changed on purpose.
    if not versions or epoch == walk.last_epoch:
        return False
    for kind in data.draw(st.lists(st.sampled_from(["compact", "go", "go"]), max_size=3)):
        if kind == "compact":
            walk.steps.table().optimize.compact()
        else:
            go_back(walk, data, data.draw(st.sampled_from(versions)))
    wanted = walk.epochs[epoch]
    if wanted.version is None or not data.draw(st.booleans()):
        return False
    # Of two versions within a millisecond a time tells the newer one.
    return go_back(walk, data, wanted.version) and walk.rows() == list(wanted.rows)


def go_back(walk: Walk, data: st.DataObject, version: int) -> bool:
    """Let the table be as of a version; return whether that can still be read."""
    try:
        walk.steps.go_back(version, by_time=data.draw(st.booleans()))
    except Exception:  # noqa: BLE001 (the client's; files or entries of it are gone)
        return False
    return True


def restore_while_another_commits(walk: Walk, name: str | None, epoch: int) -> None:
    """Restore an epoch by another driver when the first one is about to commit."""
    calls = TableCalls()
    refused: list[StateError] = []
    overtaken: list[int] = []

    def restore(called: str) -> None:
        if called in ("commit", "merge"):
            calls.hook = None
            # What is kept out of the table for good is not restored by any later move.
            overtaken.append(walk.newest)
            try:
                walk.run(name, restore=epoch)
            except StateError as error:
                refused.append(error)

    calls.hook = restore
    try:
        walk.run(walk.now.step, calls=calls)
    except PenstockError:
        assert calls.hook is None
    for each in overtaken:
        del walk.epochs[each]
    if refused:
        raise refused[0]


PLAIN = ("go on", "name", "restore", "restore", "restore late")


@pytest.mark.slow
@pytest.mark.parametrize("merges", [False, True], ids=["append", "merge"])
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_after_any_restores_and_renames_the_table_is_that_of_the_newest_epoch(
    caplog: pytest.LogCaptureFixture, data: st.DataObject, *, merges: bool
) -> None:
    caplog.clear()
    with TemporaryDirectory() as folder:
        walk = Walk(Path(folder) / "table", merges=merges)
        walk.run(data.draw(st.sampled_from([None, "out"])))
        for _ in range(data.draw(st.integers(2, 10))):
            if walk.now.read < ROUNDS - 2:
                move(walk, data, PLAIN)
                walk.check()
    assert "stay in the Delta table" not in caplog.text


HARD = (*PLAIN, "restore both", "vacuum", "clean up")


@pytest.mark.slow
@pytest.mark.parametrize("merges", [False, True], ids=["append", "merge"])
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_is_done_to_the_table_no_row_is_lost_or_doubled_silently(
    caplog: pytest.LogCaptureFixture, data: st.DataObject, *, merges: bool
) -> None:
    caplog.clear()
    with TemporaryDirectory() as folder:
        walk = Walk(Path(folder) / "table", merges=merges)
        walk.run(data.draw(st.sampled_from([None, "out"])))
        walk.check()
        for _ in range(data.draw(st.integers(2, 10))):
            if not is_gone_on_from(walk, data, HARD, caplog):
                return


def is_gone_on_from(
    walk: Walk, data: st.DataObject, moves: Sequence[str], caplog: pytest.LogCaptureFixture
) -> bool:
    """Make a move, and check the table, unless the job says that it cannot be right."""
    if walk.now.read >= ROUNDS - 2:
        return False
    try:
        move(walk, data, moves)
    except StateError as error:
        if error.code is not ErrorCode.NOT_RESTORABLE:
            raise
        return False
    if "stay in the Delta table" in caplog.text:
        return False
    walk.check()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("merges", [False, True], ids=["append", "merge"])
@settings(
    max_examples=by_profile(default=3, ci=8, nightly=300),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_wherever_the_table_went_the_rows_of_an_epoch_are_there_once_or_missed(
    caplog: pytest.LogCaptureFixture, data: st.DataObject, *, merges: bool
) -> None:
    caplog.clear()
    with TemporaryDirectory() as folder:
        walk = Walk(Path(folder) / "table", merges=merges)
        for _ in range(4):
            walk.run("out")
            walk.check()
        for _ in range(data.draw(st.integers(1, 4))):
            if not is_gone_on_from(walk, data, ("go on", *["restore both"] * 3), caplog):
                return
