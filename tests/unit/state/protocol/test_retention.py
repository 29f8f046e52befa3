from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import Epoch, SavepointName
from penstock.errors import StateError
from penstock.state.protocol.records import CheckpointRef, Pin, PinKind, RetentionRecord
from penstock.state.protocol.retention import (
    MAX_COLLECTED_AT_ONCE,
    Ancestor,
    KeepRule,
    decide_collection,
    decide_floor,
    decide_pin,
    decide_unpin,
    find_pin,
    is_kept,
    is_pinned,
)
from tests.builders.protocol import a_pin, a_ref, a_retention

PINNED = a_pin("old", 2)
STATE = a_retention(pins=[PINNED], collected_before=5, collecting=[a_ref(3)])


def changed(
    state: RetentionRecord,
    pins: tuple[Pin, ...],
    collected_before: int,
    collecting: tuple[CheckpointRef, ...],
) -> RetentionRecord:
    """Return the state with what a decision may change, and nothing else."""
    return replace(
        state,
        pins=pins,
        collected_before=Epoch(collected_before),
        collecting=collecting,
    )


def test_epochs_from_the_floor_on_and_pinned_ones_are_kept() -> None:
    assert [epoch for epoch in range(1, 8) if is_kept(STATE, a_ref(epoch))] == [2, 5, 6, 7]


def test_a_pin_keeps_one_attempt_at_an_epoch_and_not_another() -> None:
    assert is_pinned(STATE, a_ref(2))
    assert not is_pinned(STATE, a_ref(2, generation=2))


def test_pinning_a_kept_epoch_adds_the_pin_and_nothing_else() -> None:
    pin = a_pin("new", 6)
    assert decide_pin(STATE, pin) == changed(STATE, (PINNED, pin), 5, (a_ref(3),))


def test_pinning_the_same_again_changes_nothing() -> None:
    assert decide_pin(STATE, PINNED) == STATE


def test_a_pinned_epoch_below_the_floor_can_be_pinned_once_more() -> None:
    assert isinstance(decide_pin(STATE, a_pin("another", 2)), RetentionRecord)


def test_a_name_is_not_moved_to_another_epoch() -> None:
    with pytest.raises(StateError, match="already has a savepoint 'old', of epoch 2;"):
        decide_pin(STATE, a_pin("old", 6))


def test_a_savepoint_is_not_taken_for_the_pin_of_a_branch() -> None:
    branch = a_pin("old", 2, kind=PinKind.BRANCH)
    with pytest.raises(StateError, match="already has a savepoint 'old', of epoch 2;"):
        decide_pin(STATE, branch)


@pytest.mark.parametrize("epoch", [3, 4])
def test_an_epoch_given_up_cannot_be_pinned(epoch: int) -> None:
    with pytest.raises(StateError, match=f"epoch {epoch} of job .* no longer kept"):
        decide_pin(STATE, a_pin("late", epoch))


def test_removing_the_only_pin_below_the_floor_gives_the_epoch_up() -> None:
    expected = changed(STATE, (), 5, (a_ref(3), a_ref(2)))
    assert decide_unpin(STATE, SavepointName("old")) == expected


def test_removing_one_of_two_pins_gives_nothing_up() -> None:
    other = a_pin("other", 2)
    state = a_retention(pins=[PINNED, other], collected_before=5)
    assert decide_unpin(state, SavepointName("old")) == changed(state, (other,), 5, ())


def test_removing_the_pin_of_a_kept_epoch_gives_nothing_up() -> None:
    state = a_retention(pins=[a_pin("young", 6)], collected_before=5)
    assert decide_unpin(state, SavepointName("young")) == changed(state, (), 5, ())


def test_an_epoch_is_listed_as_given_up_only_once() -> None:
    state = a_retention(pins=[PINNED], collected_before=5, collecting=[PINNED.ref])
    assert decide_unpin(state, SavepointName("old")) == changed(state, (), 5, (PINNED.ref,))


def test_removing_an_unknown_pin_changes_nothing() -> None:
    assert decide_unpin(STATE, SavepointName("unknown")) == STATE
    assert find_pin(STATE, SavepointName("unknown")) is None
    assert find_pin(STATE, SavepointName("old")) == PINNED


def floor(
    state: RetentionRecord, epochs: list[int], keep: int, since: int | None = None
) -> int:
    """Return the floor for a chain of epochs, each created at the instant of its number."""
    chain = [Ancestor(a_ref(epoch), None, epoch) for epoch in epochs]
    return decide_floor(state, chain, KeepRule(keep, since))


def test_the_floor_rises_to_the_oldest_of_the_last_epochs() -> None:
    assert floor(STATE, [9, 8, 7, 6], 2) == 8
    assert floor(STATE, [9, 8, 7, 6], 4) == 6


def test_the_floor_stays_while_there_are_fewer_epochs_than_kept() -> None:
    assert floor(STATE, [9, 8], 3) == 5


def test_the_floor_stays_below_what_is_needed_to_go_back_to_an_instant() -> None:
    assert floor(STATE, [9, 8, 7, 6], 2, since=7) == 7
    assert floor(STATE, [9, 8, 6, 5], 1, since=7) == 6, "6 was the newest epoch at 7"


def test_the_floor_stays_while_no_epoch_is_as_old_as_the_instant() -> None:
    assert floor(STATE, [9, 8, 7], 1, since=6) == 5


@given(
    st.lists(st.integers(1, 30), min_size=1, unique=True),
    st.integers(1, 8),
    st.integers(-5, 40),
)
def test_a_clock_only_keeps_more_epochs_and_never_the_last_ones_less(
    epochs: list[int], keep: int, since: int
) -> None:
    state, chain = a_retention(), sorted(epochs, reverse=True)
    by_number = floor(state, chain, keep)
    by_both = floor(state, chain, keep, since=since)
    assert by_both <= by_number
    assert sum(epoch >= by_both for epoch in chain) >= min(keep, len(chain))


def test_what_a_restore_skipped_is_kept_with_its_neighbours() -> None:
    # 9 was built on 6: 7 and 8 are abandoned, and stay as long as 6 does.
    assert floor(STATE, [9, 6], 2) == 6


def test_a_parent_below_the_floor_does_not_count_among_the_last_epochs() -> None:
    assert floor(STATE, [9, 2], 2) == 5


def test_one_collection_gives_up_a_bounded_number_of_epochs() -> None:
    newest = 5 + 10 * MAX_COLLECTED_AT_ONCE
    assert floor(STATE, [newest], 1) == 5 + MAX_COLLECTED_AT_ONCE


@given(
    st.integers(1, 100),
    st.sets(st.integers(1, 400), min_size=1),
    st.integers(1, 20),
)
def test_the_floor_never_falls_and_never_passes_the_newest_epoch(
    before: int, epochs: set[int], keep: int
) -> None:
    newest = max(*epochs, before)
    state = a_retention(collected_before=before)
    found = floor(state, sorted({*epochs, newest}, reverse=True), keep)
    assert before <= found <= newest


def collect(state: RetentionRecord, to: int, below: list[int], *deleted: int) -> object:
    return decide_collection(
        state,
        floor=Epoch(to),
        below_floor=[a_ref(epoch) for epoch in below],
        deleted=frozenset(a_ref(epoch) for epoch in deleted),
    )


def test_a_collection_gives_up_what_is_below_the_floor_and_not_pinned() -> None:
    state = a_retention(pins=[a_pin("kept", 6)], collected_before=5)
    assert collect(state, 8, [5, 6, 7]) == changed(
        state, state.pins, 8, (a_ref(5), a_ref(7))
    )


def test_what_somebody_else_gave_up_stays_listed_until_it_is_deleted() -> None:
    assert collect(STATE, 6, [5]) == changed(STATE, STATE.pins, 6, (a_ref(3), a_ref(5)))
    assert collect(STATE, 6, [5], 3) == changed(STATE, STATE.pins, 6, (a_ref(5),))


def test_an_epoch_already_given_up_is_not_listed_twice() -> None:
    assert collect(STATE, 6, [3, 5]) == changed(STATE, STATE.pins, 6, (a_ref(3), a_ref(5)))


def test_a_collection_without_anything_to_do_changes_nothing() -> None:
    assert collect(STATE, 5, []) == STATE
