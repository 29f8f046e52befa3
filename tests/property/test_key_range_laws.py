from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.ids import FULL_RANGE, HASH_SPACE, KeyRange, owner_of, range_of

hashes = st.one_of(
    st.integers(0, HASH_SPACE - 1),
    st.integers(0, 63).map(lambda bit: 1 << bit),
    st.integers(1, 64).map(lambda bit: (1 << bit) - 1),
)
parallelisms = st.one_of(st.integers(1, 64), st.integers(1, 1_000_000))


@given(hashes, parallelisms)
@example(HASH_SPACE - 1, 1_000_000)
@example(0, 1)
def test_the_owner_of_a_hash_is_the_only_one_whose_range_holds_it(
    key_hash: int, parallelism: int
) -> None:
    owner = owner_of(key_hash, parallelism)

    assert key_hash in range_of(owner, parallelism)
    for neighbour in (owner - 1, owner + 1):
        if 0 <= neighbour < parallelism:
            assert key_hash not in range_of(neighbour, parallelism)


@given(st.data(), parallelisms)
def test_the_first_and_last_hash_of_a_range_belong_to_it_and_those_beside_do_not(
    data: st.DataObject, parallelism: int
) -> None:
    index = data.draw(st.integers(0, parallelism - 1))
    key_range = range_of(index, parallelism)

    assert owner_of(key_range.start, parallelism) == index
    assert owner_of(key_range.end - 1, parallelism) == index
    assert key_range.start == 0 or owner_of(key_range.start - 1, parallelism) == index - 1
    assert key_range.end == HASH_SPACE or owner_of(key_range.end, parallelism) == index + 1


@given(st.integers(1, 300))
def test_ranges_follow_each_other_without_gap_from_end_to_end(parallelism: int) -> None:
    ranges = [range_of(index, parallelism) for index in range(parallelism)]

    assert ranges[0].start == 0
    assert ranges[-1].end == HASH_SPACE
    assert [one.end for one in ranges[:-1]] == [one.start for one in ranges[1:]]


@st.composite
def key_ranges(draw: st.DrawFn) -> KeyRange:
    start, end = sorted(
        draw(st.lists(st.integers(0, 40), min_size=2, max_size=2, unique=True))
    )
    return KeyRange(start, end)


@given(key_ranges(), key_ranges())
def test_range_algebra_agrees_with_sets(left: KeyRange, right: KeyRange) -> None:
    one, two = set(range(left.start, left.end)), set(range(right.start, right.end))
    both = left.intersection(right)

    assert left.overlaps(right) == bool(one & two)
    assert left.covers(right) == (two <= one)
    assert (set() if both is None else set(range(both.start, both.end))) == one & two
    assert FULL_RANGE.covers(left)
