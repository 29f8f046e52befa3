"""Outputs are compared by what they mean, and a changelog that contradicts itself is caught."""

from typing import Any

import pytest

from tests.golden_cases.golden_case import BrokenChangelogError, fold_changes, to_multiset

A = {"id": 1, "n": 10}
B = {"id": 1, "n": 20}


def change(op: str, before: Any, after: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after}


def test_instants_are_equal_however_they_are_written() -> None:
    plain, zoned = {"at": "2023-09-18T14:00:00"}, {"at": "2023-09-18T16:00:00.000+02:00"}
    assert to_multiset([plain], ["at"]) == to_multiset([zoned], ["at"])
    assert to_multiset([plain]) != to_multiset([zoned])


def test_a_row_that_is_there_twice_is_not_there_once() -> None:
    assert to_multiset([A, B, A]) == to_multiset([A, A, B])
    assert to_multiset([A, A]) != to_multiset([A])


def test_a_changelog_is_folded_by_its_key() -> None:
    other = {"id": 2, "n": 1}
    changes = [
        change("c", None, A),
        change("c", None, other),
        change("u", A, B),
        change("d", other, None),
    ]
    assert fold_changes(changes, ["id"]) == [B]


@pytest.mark.parametrize(
    "changes",
    [
        [change("c", None, A), change("c", None, B)],
        [change("u", A, B)],
        [change("c", None, A), change("d", B, None)],
        [change("u", None, A)],
        [change("d", None, None)],
    ],
    ids=["created-twice", "changed-unseen", "other-before", "wrong-op", "nothing"],
)
def test_a_changelog_that_contradicts_itself_is_refused(
    changes: list[dict[str, Any]],
) -> None:
    with pytest.raises(BrokenChangelogError):
        fold_changes(changes, ["id"])
