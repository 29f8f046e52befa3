"""Restores of a job whose Delta sink was added later, and perhaps renamed: it has several lives.

epoch    1   2   3    4    5         6       7       restore of 2   8     restore of 7   9
step     -   -   out  out  renamed   table   table                  out                  table

Each life knows nothing of the others but what the table tells. Rows of abandoned epochs go, and come
back with their epochs, whichever program is restored.
"""

from pathlib import Path

import pytest

from penstock.connectors.delta.marks import Began, Lives, Mark
from penstock.errors import PenstockError
from tests.builders.delta_job import TableCalls
from tests.builders.delta_walk import KEEP, Steps

WARNING = "stay in the Delta table"


@pytest.fixture(params=[False, True], ids=["append", "merge"])
def steps(request: pytest.FixtureRequest, tmp_path: Path) -> Steps:
    """Return a job whose sink is added in epoch 3 as "out", and "table" from epoch 5 on."""
    made = Steps(tmp_path / "table", merges=bool(request.param))
    made.run(None, KEEP, epochs=2)
    made.run(None, KEEP, "out", epochs=2)
    made.run(None, KEEP, "table", epochs=2, renamed={"out": "table"})
    assert made.rows() == [2, 3, 4, 5]
    return made


def test_what_a_life_of_the_old_name_took_out_comes_back_under_the_new_one(
    steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    steps.run(2, KEEP, "out")
    assert steps.rows() == [2]
    steps.run(7, KEEP, "table")
    assert steps.rows() == [2, 3, 4, 5, 6]
    steps.run(8, KEEP, "out")
    assert steps.rows() == [2, 3]
    assert WARNING not in caplog.text


def test_a_sink_that_begins_anew_under_its_new_name_undoes_what_it_wrote_under_the_old_one(
    steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    steps.run(2, KEEP, "table")
    assert steps.rows() == [2]
    steps.run(7, KEEP, "table")
    assert steps.rows() == [2, 3, 4, 5, 6]
    assert WARNING not in caplog.text


def test_what_a_life_took_out_comes_back_to_one_that_shares_no_name_with_it(
    steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    # The life that begins in epoch 10 is told by what it undid, not by its name.
    steps.run(None, KEEP, "last", epochs=1, renamed={"table": "last"})
    assert steps.rows() == [2, 3, 4, 5, 6]
    steps.run(2, KEEP, "table", epochs=2)
    assert steps.rows() == [2, 3]
    steps.run(9, KEEP, "last")
    assert steps.rows() == [2, 3, 4, 5, 6, 7]
    steps.run(11, KEEP, "table")
    assert steps.rows() == [2, 3, 4]
    assert WARNING not in caplog.text


def test_a_late_commit_of_another_life_is_not_made(steps: Steps) -> None:
    calls = TableCalls()

    def restore_elsewhere(name: str) -> None:
        if name in ("commit", "merge"):
            calls.hook = None
            steps.run(2, KEEP, "out")

    calls.hook = restore_elsewhere
    with pytest.raises(PenstockError):
        steps.run(None, KEEP, "table", calls=calls)
    assert steps.rows() == [2]
    steps.run(None, KEEP, "out")
    assert steps.rows() == [2, 3]


def test_steps_of_one_table_that_share_a_name_undo_abandoned_epochs_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Both take what the second "out" wrote for their own: the first was called so, too.
    steps = Steps(tmp_path / "table")
    steps.run(epochs=2)
    steps.run(None, "table", epochs=1, renamed={"out": "table"})
    steps.run(None, "table", "out", epochs=3)
    both = sorted([*range(6), 3, 4, 5])
    assert steps.rows() == both
    steps.run(4, "table", "out", epochs=2)
    assert steps.rows() == sorted([*range(5), 3, 4])
    steps.run(7, "table", "out")
    assert steps.rows() == sorted([*both, 6, 6])
    steps.run(9, "table", "out")
    assert steps.rows() == sorted([*range(6), 3, 4, 5])
    assert WARNING not in caplog.text


def test_a_sink_that_begins_anew_need_not_know_what_was_before_its_first_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps = Steps(tmp_path / "table")
    steps.run(None, KEEP, epochs=2)
    steps.run(None, KEEP, "out", epochs=3)
    steps.clean_up(1)
    steps.run(2, KEEP, "out", epochs=2)
    assert steps.rows() == [2, 3]
    assert WARNING not in caplog.text


OUT, TABLE, LAST = (f"penstock:j:{step}:1" for step in ("out", "table", "last"))


@pytest.mark.parametrize(
    ("began", "abandoned", "marks"),
    [
        # The first life was renamed, and so was the one that begins anew.
        (Began(LAST, 9), [(3, 9)], [Mark(LAST, 8, began=Began(TABLE, 3))]),
        (
            Began(OUT, 9),
            [(3, 9)],
            [
                Mark(OUT, 4, began=Began(OUT, 3)),
                Mark(TABLE, 6, began=Began(OUT, 3)),
                Mark(TABLE, 7, began=Began(TABLE, 7)),
                Mark(LAST, 8, began=Began(TABLE, 7)),
            ],
        ),
        # No name is shared, and what was undone tells it.
        (
            Began(OUT, 3),
            [(9, 10)],
            [Mark(LAST, 9, began=Began(LAST, 9), undoes=(Began(OUT, 3),))],
        ),
    ],
)
def test_lives_are_told_by_names_and_by_what_they_undid(
    began: Began, abandoned: list[tuple[int, int]], marks: list[Mark]
) -> None:
    for given in (marks, marks[::-1]):
        lives = Lives(began.app, began, abandoned)
        lives.learn(given)
        assert all(lives.have(mark) for mark in marks)


def test_a_life_that_was_not_abandoned_is_that_of_another_sink() -> None:
    mark = Mark(OUT, 9, began=Began(OUT, 6), undoes=(Began(TABLE, 2),))
    lives = Lives(TABLE, Began(TABLE, 2), [(9, 10)])
    lives.learn([mark])
    assert not lives.have(mark)
