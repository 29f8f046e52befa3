"""Commits to a Delta table that come late, after their epoch was abandoned: none of them counts.

    driver 1    epochs 1 to 4, is about to commit 4                                 commits 4
    driver 2                                           cannot commit 4,
                                                       restores 2, commits 5

Epoch 5 has no rows, and there is nothing to undo for it. The row of epoch 4 comes again with 6.
"""

from pathlib import Path

import pytest
from deltalake import DeltaTable

import penstock as pen
from penstock.errors import StateError
from tests.builders.delta_job import TableCalls
from tests.builders.delta_walk import Steps


def fails_once() -> TableCalls:
    """Return calls of which the first that would commit fails for good."""
    calls = TableCalls()

    def fail(name: str) -> None:
        if name in ("commit", "merge"):
            calls.hook = None
            raise StateError("the table cannot be written, by design of the test")

    calls.hook = fail
    return calls


@pytest.mark.parametrize("merges", [False, True], ids=["append", "merge"])
@pytest.mark.parametrize(
    ("quiet", "restore"), [({2}, 2), ({0, 1}, 1)], ids=["has records", "has none"]
)
def test_a_restored_epoch_without_rows_keeps_late_commits_of_abandoned_ones_out(
    tmp_path: Path, quiet: set[int], restore: int, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges, quiet=quiet)
    late = max(quiet) + 1
    steps.run(epochs=late)
    calls = TableCalls()

    def restore_elsewhere(name: str) -> None:
        if name in ("commit", "merge"):
            calls.hook = None
            steps.run(restore, calls=fails_once())

    calls.hook = restore_elsewhere
    with pytest.raises(pen.PenstockError):
        steps.run(epochs=2, calls=calls)
    loud = [n for n in range(late + 1) if n not in quiet]
    assert steps.rows() == loud[:-1]
    steps.run()
    assert steps.rows() == loud


@pytest.mark.parametrize("merges", [False, True], ids=["append", "merge"])
def test_a_restored_epoch_without_rows_makes_one_version_and_the_next_ones_none(
    tmp_path: Path, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges, quiet={2, 3, 4, 5})
    steps.run(epochs=4)
    before = steps.table().version()
    steps.run(3, epochs=3)
    table = DeltaTable(str(steps.folder))
    assert table.version() == before + 1
    assert steps.rows() == [0, 1]
    # What it recorded is undone like any epoch, if it is abandoned in turn.
    steps.run(1, epochs=2)
    assert steps.rows() == [0, 1]
