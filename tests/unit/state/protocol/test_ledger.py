from dataclasses import replace

import pytest

from penstock.core.ids import SavepointName
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.protocol import codec, paths
from penstock.state.protocol.records import PinKind, RetentionRecord
from penstock.state.protocol.retention import (
    Epochs,
    append_retention,
    pin_epoch,
    read_retention,
)
from penstock.state.storage.create import run_steps
from penstock.state.storage.memory import MemoryStore
from tests.builders.protocol import (
    JOB,
    OTHER_JOB,
    Sleeper,
    a_pin,
    a_retention,
    an_actor,
    creating,
)
from tests.builders.small_driver import a_driver


def a_change(state: RetentionRecord, name: str = "pin") -> RetentionRecord:
    return replace(state, pins=(*state.pins, a_pin(name, 1)))


def append(store: MemoryStore, state: RetentionRecord, who: str = "me") -> object:
    return run_steps(store, append_retention(an_actor(who), a_change(state, who)))


def newest(store: MemoryStore) -> RetentionRecord:
    return run_steps(store, read_retention(an_actor()))


def test_a_job_without_records_has_nothing_pinned_and_nothing_given_up() -> None:
    state = newest(MemoryStore())
    assert (state.sequence, state.pins, state.collecting) == (0, (), ())
    assert state.collected_before == 1


def test_a_change_is_appended_after_the_record_it_was_decided_from() -> None:
    store = MemoryStore()
    for expected in range(1, 10):
        record = append(store, newest(store), f"pin-{expected}")
        assert newest(store) == record
        assert newest(store).sequence == expected
    assert len(newest(store).pins) == 9


def test_of_two_changes_of_one_record_only_the_first_counts() -> None:
    store = MemoryStore()
    state = newest(store)
    first = append(store, state, "first")
    assert append(store, state, "second") is None
    assert newest(store) == first


def test_a_record_thinned_out_before_it_was_read_is_searched_again() -> None:
    store = MemoryStore()
    for _ in range(6):
        append(store, newest(store))
    reading = Sleeper(store, read_retention(an_actor()))
    reading.sleep_before(lambda request: type(request).__name__ == "Read")
    for _ in range(3):
        append(store, newest(store))
    store.delete(paths.retention_path(JOB, 6))
    assert reading.wake().sequence == 9


def test_a_hole_left_by_thinning_is_not_taken_for_the_next_number() -> None:
    store = MemoryStore()
    append(store, newest(store))
    old = newest(store)
    for _ in range(5):
        append(store, newest(store))
    store.delete(paths.retention_path(JOB, 2))  # what a sweep does below waypoint 5
    before = newest(store)
    assert append(store, old, "sleeper") is None
    assert newest(store) == before


def test_a_pin_that_slept_while_the_ledger_was_thinned_is_never_falsely_confirmed() -> None:
    store = MemoryStore()
    driver = a_driver(store, epochs=2, keep_epochs=1)
    driver.collect()
    steps = pin_epoch(
        an_actor(), SavepointName("mine"), PinKind.SAVEPOINT, Epochs(driver.next_epoch)
    )
    driver.run_epoch()
    sleeper = Sleeper(store, steps)
    sleeper.sleep_before(creating("retention"))
    for _ in range(6):
        driver.run_epoch()
        driver.collect()
    driver.sweep()
    assert store.read(paths.retention_path(JOB, 2)) is None
    with pytest.raises(StateError, match="no longer kept"):
        sleeper.wake()


@pytest.mark.parametrize("wrong", [a_retention(2), a_retention(1, job=OTHER_JOB)])
def test_a_record_in_anothers_place_is_refused(wrong: RetentionRecord) -> None:
    path = paths.retention_path(JOB, 1)
    store = MemoryStore({path: codec.encode(wrong)})
    with pytest.raises(CorruptStateError, match=f"{path}.*retention record") as caught:
        newest(store)
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT
