from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.protocol.steps import find_newest, may_thin, waypoint_after
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from penstock.testing import FaultyStore
from tests.builders.protocol import Sleeper, asking


def named(number: int) -> str:
    return f"n/{number:05d}"


def a_sequence(*, first: int, newest: int) -> MemoryStore:
    return MemoryStore({named(number): b"" for number in range(first, newest + 1)})


def thin(store: MemoryStore, *, first: int, newest: int, stride: int) -> None:
    for number in range(first, newest + 1):
        if may_thin(number, first=first, newest=newest, stride=stride):
            store.delete(named(number))


def newest_in(
    store: MemoryStore, *, first: int, stride: int, seen: int | None = None
) -> object:
    return run_steps(store, find_newest(named, first=first, stride=stride, seen=seen))


def test_an_empty_sequence_has_no_newest_number() -> None:
    assert newest_in(MemoryStore(), first=1, stride=4) is None


@given(
    first=st.integers(1, 50),
    length=st.integers(1, 200),
    stride=st.integers(1, 20),
    thinned=st.booleans(),
    back=st.one_of(st.none(), st.integers(0, 199)),
)
def test_the_newest_number_is_found_thinned_or_not_from_wherever_the_search_starts(
    first: int, length: int, stride: int, thinned: bool, back: int | None
) -> None:
    newest = first + length - 1
    store = a_sequence(first=first, newest=newest)
    if thinned:
        thin(store, first=first, newest=newest, stride=stride)
    seen = None if back is None else max(first, newest - back)
    assert newest_in(store, first=first, stride=stride, seen=seen) == newest


@pytest.mark.parametrize("length", [1, 1_000, 100_000])
def test_finding_the_newest_takes_a_handful_of_requests_and_no_listing(length: int) -> None:
    store = FaultyStore(a_sequence(first=1, newest=length))
    assert run_steps(store, find_newest(named, first=1, stride=1024)) == length
    assert {call.operation for call in store.calls} == {"size"}
    assert len(store.calls) <= 40


def test_numbers_appended_and_thinned_during_the_search_are_seen() -> None:
    store = a_sequence(first=1, newest=6)
    search = Sleeper(store, find_newest(named, first=1, stride=4))
    search.sleep_before(asking(named(6)))  # it has found the last block: 5, 6, …
    for number in range(7, 15):
        store.create(named(number), b"")
    thin(store, first=1, newest=14, stride=4)
    assert search.wake() == 14


@given(st.integers(1, 30), st.integers(0, 100), st.integers(1, 12))
def test_a_number_is_never_thinned_before_the_waypoint_after_it_exists(
    first: int, offset: int, stride: int
) -> None:
    number = first + offset
    later = waypoint_after(number, first=first, stride=stride)
    assert number < later <= number + stride
    assert (later - first) % stride == 0
    assert not any(
        may_thin(number, first=first, newest=newest, stride=stride)
        for newest in range(number, later)
    )


def kept_after_thinning(newest: int) -> list[int]:
    may: Callable[[int], bool] = lambda number: may_thin(  # noqa: E731
        number, first=1, newest=newest, stride=4
    )
    return [number for number in range(1, newest + 1) if not may(number)]


def test_waypoints_and_the_last_block_are_kept() -> None:
    assert kept_after_thinning(11) == [1, 5, 9, 10, 11]
    assert kept_after_thinning(13) == [1, 5, 9, 13]
