"""Restores across the rename of a step that writes to a Delta table: no row twice, none left over.

epoch    1    2    3    4    5         6       7       restore of 2    8
step     out  out  out  out  renamed   table   table                   out
"""

from pathlib import Path

import pytest

import penstock as pen
from penstock.connectors.delta.log import TableLog
from penstock.connectors.delta.marks import Began, Lives, Mark
from penstock.errors import PenstockError
from penstock.state.storage.local_disk import LocalStore
from penstock.testing import CUT, LocalJob, ScriptedSource
from tests.builders.delta_job import TableCalls
from tests.builders.delta_walk import Steps

RENAMED = {"out": "table"}


@pytest.fixture(params=[False, True], ids=["append", "merge"])
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> Steps:
    """Return a job of four epochs before its sink is renamed, and two after."""
    made = Steps(tmp_path / "table", merges=bool(request.param))
    made.run(epochs=4)
    made.run(None, "table", epochs=2, renamed=RENAMED)
    assert made.rows() == list(range(6))
    return made


@pytest.mark.parametrize("restore", [2, 4])
def test_a_restore_under_the_old_name_undoes_what_was_written_under_the_new_one(
    steps: Steps, restore: int, caplog: pytest.LogCaptureFixture
) -> None:
    steps.run(restore, epochs=3)
    assert steps.rows() == list(range(restore + 3))
    assert "stay in the Delta table" not in caplog.text


def test_a_restore_under_the_new_name_undoes_what_a_restore_wrote_under_the_old_one(
    steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    steps.run(2)
    assert steps.rows() == [0, 1, 2]
    steps.run(7, "table", epochs=2)
    assert steps.rows() == list(range(8))
    # And the advice that a start gives: back by the old name, then on by the new one.
    steps.run(3, epochs=1)
    steps.run(None, "table", epochs=1, renamed=RENAMED)
    assert steps.rows() == list(range(5))
    assert "stay in the Delta table" not in caplog.text


def test_a_late_commit_under_the_new_name_is_not_made_after_a_restore_under_the_old_one(
    steps: Steps,
) -> None:
    calls = TableCalls()

    def restore_elsewhere(name: str) -> None:
        # Another driver takes the job over while this one is about to commit epoch 8.
        if name in ("commit", "merge"):
            calls.hook = None
            steps.run(2)

    calls.hook = restore_elsewhere
    with pytest.raises(PenstockError):
        steps.run(None, "table", calls=calls)
    assert steps.rows() == [0, 1, 2]
    steps.run()
    assert steps.rows() == [0, 1, 2, 3]


def test_steps_of_one_job_that_write_to_one_table_are_undone_each_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(tmp_path / "table")
    steps.run(None, "out", "other", epochs=4)
    steps.run(None, "table", "other", epochs=2, renamed=RENAMED)
    # A step that gets the old name is another one.
    steps.run(None, "table", "other", "out", epochs=2)
    twice = sorted([*range(8)] * 2)
    assert steps.rows() == sorted([*twice, 6, 7])
    steps.run(8, "table", "other", "out")
    assert steps.rows() == sorted([*twice, 6, 7])
    steps.run(2, "out", "other", epochs=2)
    assert steps.rows() == sorted([*range(4)] * 2)
    steps.run(8, "table", "other", "out")
    assert steps.rows() == sorted([*twice, 6, 7])
    assert "stay in the Delta table" not in caplog.text


OLD, NEW = "penstock:j:out:1", "penstock:j:table:1"


@pytest.mark.parametrize(
    ("mark", "app", "began", "is_own"),
    [
        (Mark(NEW, 7, began=Began(OLD, 1)), OLD, Began(OLD, 1), True),
        (Mark(OLD, 7, began=Began(OLD, 1)), NEW, Began(OLD, 1), True),
        # A step that got the old name after the rename, in epoch 3.
        (Mark(OLD, 7, began=Began(OLD, 3)), NEW, Began(OLD, 1), False),
        (Mark(OLD, 7, began=Began(OLD, 1)), OLD, Began(OLD, 3), False),
        # It began in an abandoned epoch, was perhaps renamed, and begins anew.
        (Mark(OLD, 7, began=Began(OLD, 6)), OLD, Began(OLD, 9), True),
        (Mark(NEW, 7, began=Began(OLD, 6)), OLD, Began(OLD, 9), True),
        (Mark(NEW, 7, began=Began(NEW, 6)), OLD, Began(OLD, 9), False),
        # Older programs did not write it.
        (Mark(OLD, 7), OLD, Began(OLD, 1), True),
        (Mark(NEW, 7), OLD, Began(OLD, 1), False),
        (Mark(OLD, 7, began=Began(OLD, 1)), OLD, None, True),
    ],
)
def test_versions_of_a_sink_are_told_by_its_beginning(
    mark: Mark, app: str, began: Began | None, *, is_own: bool
) -> None:
    lives = Lives(app, began, [(5, 9)])
    lives.learn([mark])
    assert lives.have(mark) is is_own


@pytest.mark.parametrize("first", ["0", "1"])
def test_all_epochs_tell_the_same_beginning_whichever_subtask_has_rows(
    tmp_path: Path, first: str
) -> None:
    folder = tmp_path / "table"
    script = [step for n in range(4) for step in ([{"n": n}], CUT)]
    other = "1" if first == "0" else "0"
    scripts = {first: [[{"n": 9}], *[CUT] * 4], other: [CUT, *script]}
    pipeline = pen.Pipeline("two", parallelism=2)
    pipeline.read("rows", ScriptedSource(scripts)).write("out", pen.delta(folder))
    LocalJob(pipeline).run(parallelism=2)
    log = TableLog(LocalStore(folder, durable=False))
    marks = [version.info.penstock for version in log.read_after(0, 100)]
    assert len(marks) > 3
    assert {mark and mark.began and mark.began.epoch for mark in marks} == {1}


def test_a_sink_that_begins_anew_by_each_of_several_restores_undoes_all_its_lives() -> None:
    # It began in epoch 3; a restore of epoch 1 has it begin anew in 6; one of epoch 4 brings
    # the first life back in 8; one of epoch 7 brings the second back in 9.
    mark, again = Mark(OLD, 8, began=Began(OLD, 3)), Began(OLD, 6)
    for abandoned, is_own in (([(2, 6), (8, 9)], True), ([(8, 9)], False)):
        lives = Lives(OLD, again, abandoned)
        lives.learn([mark])
        assert lives.have(mark) is is_own
