import pytest

from penstock.core.ids import FULL_RANGE, HASH_SPACE, KeyRange, owner_of, range_of
from penstock.errors import ErrorCode, UserError


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 0), (5, 5), (6, 5), (-1, 5), (0, HASH_SPACE + 1), (HASH_SPACE, HASH_SPACE)],
)
def test_an_empty_or_impossible_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(UserError, match="is not a key range") as caught:
        KeyRange(start, end)

    assert caught.value.code is ErrorCode.INVALID_NUMBER


def test_a_range_holds_its_start_and_not_its_end() -> None:
    key_range = KeyRange(5, 8)

    assert [one for one in range(10) if one in key_range] == [5, 6, 7]


def test_ranges_that_only_touch_do_not_overlap() -> None:
    assert not KeyRange(0, 5).overlaps(KeyRange(5, 9))
    assert KeyRange(0, 5).intersection(KeyRange(5, 9)) is None


def test_the_intersection_is_what_both_hold() -> None:
    assert KeyRange(0, 6).intersection(KeyRange(4, 9)) == KeyRange(4, 6)


def test_a_range_covers_itself_and_its_parts_only() -> None:
    assert KeyRange(2, 6).covers(KeyRange(2, 6))
    assert KeyRange(2, 6).covers(KeyRange(3, 5))
    assert not KeyRange(2, 6).covers(KeyRange(3, 7))


def test_one_subtask_owns_everything() -> None:
    assert range_of(0, 1) == FULL_RANGE
    assert owner_of(HASH_SPACE - 1, 1) == 0


def test_shares_differ_by_one_hash_at_most() -> None:
    sizes = {one.end - one.start for one in (range_of(index, 7) for index in range(7))}

    assert max(sizes) - min(sizes) == 1


def test_a_subtask_that_does_not_exist_has_no_range() -> None:
    with pytest.raises(UserError, match="is not a key range"):
        range_of(3, 3)
