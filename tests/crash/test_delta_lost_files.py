"""Restores of a job whose Delta table has lost files, or had them rewritten: nothing is lost silently.

epoch    1   2   3   4   5   restore of 2   6              vacuum         restore of 5   7
did      0   1   2   3   4                  takes out      removes files                 cannot
                                            2-4, writes 2  of 3-5 for good               bring them
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import ErrorCode, StateError
from tests.builders.delta_walk import Steps


def with_lost_files(tmp_path: Path, *, merges: bool) -> Steps:
    """Return a job of six epochs whose first restore took out files that are gone by now."""
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=5)
    steps.run(2)
    shutil.copytree(steps.folder, tmp_path / "copy")
    steps.vacuum()
    assert steps.rows() == [0, 1, 2]
    return steps


@pytest.fixture(params=[False, True], ids=["append", "merge"])
def merges(request: pytest.FixtureRequest) -> bool:
    """Whether the job merges."""
    return bool(request.param)


def refuse(steps: Steps, restore: int | None = 5) -> str:
    """Check that the next epoch is not committed, and changes nothing; return why."""
    version = steps.table().version()
    with pytest.raises(StateError, match="cannot be put back") as caught:
        steps.run(restore)
    assert caught.value.code is ErrorCode.NOT_RESTORABLE
    assert steps.table().version() == version
    return caught.value.message


def test_a_restore_that_could_not_bring_rows_back_is_refused_before_it_takes_any_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, merges: bool
) -> None:
    steps = with_lost_files(tmp_path, merges=merges)
    message = refuse(steps)
    assert (
        "rows of epoch(s) 5 are" if merges else "rows of epoch(s) 3, 4, 5 are"
    ) in message
    assert "restore epoch 2 or an earlier one" in message
    assert "restore epoch 6, which the table holds" in message
    refuse(steps, None)
    assert steps.rows() == [0, 1, 2]
    assert "stay in the Delta table" not in caplog.text


@pytest.mark.parametrize("restore", [1, 2, 6])
def test_after_the_refusal_the_epochs_that_it_names_can_be_restored(
    tmp_path: Path, restore: int, caplog: pytest.LogCaptureFixture, *, merges: bool
) -> None:
    steps = with_lost_files(tmp_path, merges=merges)
    refuse(steps)
    steps.run(restore, epochs=6)
    assert steps.rows() == list(range({1: 7, 2: 8, 6: 9}[restore]))
    # Merges of which a replaced file is gone stay, and are merged again.
    assert ("stay in the Delta table" in caplog.text) == (merges and restore < 6)


def test_after_the_refusal_files_that_are_brought_back_let_the_job_go_on(
    tmp_path: Path, *, merges: bool
) -> None:
    steps = with_lost_files(tmp_path, merges=merges)
    refuse(steps)
    shutil.copytree(
        tmp_path / "copy",
        steps.folder,
        ignore=shutil.ignore_patterns("_delta_log"),
        dirs_exist_ok=True,
    )
    steps.run(epochs=2)
    assert steps.rows() == list(range(8))


def test_a_merge_does_not_go_on_without_changes_that_a_compaction_keeps_from_coming_back(
    tmp_path: Path,
) -> None:
    # The file that the restore of 2 brought back is rewritten, so what it replaced must stay out.
    steps = Steps(tmp_path / "table", merges=True)
    steps.run(epochs=5)
    steps.run(2, epochs=3)
    write_deltalake(str(steps.folder), pa.table({"k": ["other"], "n": [-1]}), mode="append")
    steps.table().optimize.compact()
    for restore in (5, 4):
        assert "restore epoch 2 or an earlier one" in refuse(steps, restore)
    steps.run(2, epochs=4)
    assert steps.rows() == [-1, *range(6)]
    # Or the table goes back to the version that had them: that of epoch 5.
    steps.table().restore(5)
    steps.run(5, epochs=2)
    assert steps.rows() == list(range(7))


# ---- what other writers did with the rows of abandoned epochs


WARNING = "stay in the Delta table"


def go_back(table: DeltaTable) -> None:
    """Bring the table back to epoch 2, whose version has its number."""
    table.restore(2)


def compact_and_go_back(table: DeltaTable) -> None:
    table.optimize.compact()
    go_back(DeltaTable(table.table_uri))


def delete(table: DeltaTable) -> None:
    table.delete("n >= 2")


def compact_and_delete(table: DeltaTable) -> None:
    """Delete the abandoned rows of a file that has others, too."""
    table.optimize.compact()
    delete(DeltaTable(table.table_uri))


def update(table: DeltaTable) -> None:
    table.update({"k": "'new'"}, predicate="n = 3")


@pytest.mark.parametrize(
    ("act", "merges"),
    [(go_back, False), (compact_and_go_back, False), (delete, False), (go_back, True)],
)
def test_rows_of_abandoned_epochs_that_are_gone_already_are_not_warned_of(
    tmp_path: Path,
    act: Callable[[DeltaTable], None],
    caplog: pytest.LogCaptureFixture,
    *,
    merges: bool,
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=4)
    act(steps.table())
    steps.run(2, epochs=3)
    assert steps.rows() == list(range(5))
    assert WARNING not in caplog.text


@pytest.mark.parametrize("act", [compact_and_delete, update])
def test_rows_that_other_writers_have_rewritten_may_stay_as_the_warning_says(
    tmp_path: Path, act: Callable[[DeltaTable], None], caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(tmp_path / "table")
    steps.run(epochs=4)
    act(steps.table())
    steps.run(2, epochs=3)
    assert sorted(set(steps.rows())) == list(range(5))
    assert "rows of the abandoned epochs 3 to 4 may stay in" in caplog.text
    assert "were rewritten by other writers since" in caplog.text


def test_merges_are_not_undone_if_other_writers_have_deleted_what_they_wrote(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # What the last merge had replaced would bring back rows that were deleted on purpose.
    steps = Steps(tmp_path / "table", merges=True)
    steps.run(epochs=5)
    steps.table().delete()
    steps.run(4)
    assert steps.rows() == [4]
    assert "were taken out by other writers since" in caplog.text


def test_a_table_that_went_back_and_on_again_is_undone_from_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=5)
    steps.table().restore(4)
    steps.run(2, epochs=4)
    assert steps.rows() == list(range(6))
    assert WARNING not in caplog.text


# ---- tables that went back, and jobs that do not stay there


@pytest.mark.parametrize("by_time", [False, True], ids=["by version", "by time"])
def test_epochs_that_the_table_went_back_behind_are_not_gone_on_from_without_their_rows(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    by_time: bool,
    merges: bool,
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=4)
    steps.go_back(2, by_time=by_time)
    steps.run(2)
    assert steps.rows() == [0, 1, 2]
    message = refuse(steps, 4)
    assert "epoch(s) 3, 4 are" in message or "epoch(s) 4 are" in message
    assert "a RESTORE of the table took them out" in message
    assert "restore epoch 5, which the table holds" in message
    # What the message says to do works.
    assert "go back to version 4 of the table (RESTORE)" in message
    steps.table().restore(4)
    steps.run()
    assert steps.rows() == [0, 1, 2, 3, 4, 5]
    assert WARNING not in caplog.text


@pytest.mark.parametrize("restore", [1, 2, 5])
def test_a_table_that_went_back_is_gone_on_from_by_any_epoch_that_it_holds(
    tmp_path: Path, restore: int, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=4)
    steps.table().restore(2)
    steps.run(2)
    assert "restore epoch 2 or an earlier one" in refuse(steps, 4)
    steps.run(restore, epochs=3)
    assert steps.rows() == list(range({1: 4, 2: 5, 5: 6}[restore]))


def test_rows_that_were_taken_away_on_purpose_stay_away_after_later_restores(
    tmp_path: Path, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=4)
    steps.table().restore(2)
    steps.run(epochs=3)
    assert steps.rows() == [0, 1, 4, 5, 6]
    steps.run(6, epochs=2)
    assert steps.rows() == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize("restore", [5, 3])
def test_rows_that_came_back_after_a_table_went_back_too_far_are_there_once(
    tmp_path: Path, restore: int, caplog: pytest.LogCaptureFixture, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=6)
    steps.go_back(2)
    steps.go_back(5, by_time=True)
    steps.run(restore)
    assert steps.rows() == list(range(restore + 1))
    assert WARNING not in caplog.text


def test_an_epoch_that_was_compacted_before_the_table_went_back_behind_it_is_missed(
    tmp_path: Path,
) -> None:
    steps = Steps(tmp_path / "table")
    steps.run(epochs=6)
    steps.table().optimize.compact()
    steps.go_back(4, by_time=True)
    message = refuse(steps)
    assert "rows of epoch(s) 5 are" in message
    assert "a RESTORE of the table took them out" in message
    steps.run(4)
    assert steps.rows() == list(range(5))


def test_an_epoch_is_there_if_the_table_went_back_to_its_compaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(tmp_path / "table")
    steps.run(epochs=5)
    steps.table().optimize.compact()
    steps.run()
    steps.go_back(5, by_time=True)
    steps.go_back(6, by_time=True)
    steps.run(5)
    assert steps.rows() == list(range(6))
    assert WARNING not in caplog.text


# ---- tables whose log was cleaned up


@pytest.mark.parametrize("is_vacuumed", [False, True], ids=["whole", "vacuumed"])
def test_files_of_abandoned_epochs_are_neither_put_back_nor_missed_if_the_log_was_cleaned_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_vacuumed: bool
) -> None:
    steps = Steps(tmp_path / "table")
    steps.run(epochs=4)
    steps.run(2)
    steps.clean_up(5)
    if is_vacuumed:
        steps.vacuum()
    steps.run(1, epochs=2)
    # The version of epoch 2 is unknown: its row stays, and comes again.
    assert steps.rows() == [0, 1, 1, 2]
    assert WARNING in caplog.text
    assert "does not reach back far enough" in caplog.text


def test_merges_of_which_some_are_unknown_are_not_undone_in_part(tmp_path: Path) -> None:
    # What is left of the log took changes out, and whose they were it does not tell.
    steps = Steps(tmp_path / "table", merges=True)
    steps.run(epochs=4)
    steps.run(2)
    steps.clean_up(5)
    message = refuse(steps, 1)
    assert "does not reach back far enough" in message
    assert "or an earlier one" not in message
    steps.run(5, epochs=2)
    assert steps.rows() == [0, 1, 2, 3, 4]


def test_a_log_that_was_cleaned_up_before_the_abandoned_epochs_tells_all_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, merges: bool
) -> None:
    steps = Steps(tmp_path / "table", merges=merges)
    steps.run(epochs=4)
    steps.run(2)
    # The first version of epoch 5 is that after the one of epoch 4.
    steps.clean_up(5)
    steps.run(4)
    assert steps.rows() == [0, 1, 2, 3, 4]
    assert WARNING not in caplog.text
