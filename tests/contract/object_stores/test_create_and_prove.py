"""Creating an object and proving that it is ours: every fault, on every store."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from penstock.errors import StorageError, UnknownOutcomeError
from penstock.state.protocol.steps import CREATE_ATTEMPTS
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import (
    STORAGE_FAULTS,
    Call,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    Lands,
)
from tests.builders.profile import by_profile

MINE, THEIRS = b"mine", b"theirs, and longer"
LOST = [
    Fault(FaultMode.FAIL_AFTER, operation="create"),
    Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.NOW),
    Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.NEVER),
    Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.LATER, late_calls=1),
    Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.LATER, late_calls=2),
    Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.LATER),
]


def named(fault: Fault) -> str:
    return f"{fault.mode}-{fault.lands.value}-{fault.late_calls}"


def test_an_object_that_was_absent_is_ours(store: ObjectStore) -> None:
    assert create_own(store, "a", MINE) is None
    assert store.read("a") == MINE


def test_an_object_of_another_writer_is_returned_and_left_alone(store: ObjectStore) -> None:
    store.create("a", THEIRS)
    assert create_own(store, "a", MINE) == THEIRS
    assert store.read("a") == THEIRS


def test_our_own_bytes_prove_that_an_earlier_try_landed(store: ObjectStore) -> None:
    store.create("a", MINE)
    assert create_own(store, "a", MINE) is None


@pytest.mark.parametrize("fault", LOST, ids=named)
def test_a_lost_answer_is_settled_by_reading_back(store: ObjectStore, fault: Fault) -> None:
    faulty = FaultyStore(store, fault)
    assert create_own(faulty, "a", MINE) is None
    faulty.deliver_late()
    assert store.read("a") == MINE


@pytest.mark.parametrize("fault", LOST, ids=named)
def test_a_lost_answer_never_takes_the_place_of_another_writers_object(
    store: ObjectStore, fault: Fault
) -> None:
    store.create("a", THEIRS)
    faulty = FaultyStore(store, fault)
    assert create_own(faulty, "a", MINE) == THEIRS
    faulty.deliver_late()
    assert store.read("a") == THEIRS


@pytest.mark.parametrize("there", [None, MINE, THEIRS], ids=["absent", "ours", "foreign"])
@pytest.mark.parametrize("fault", STORAGE_FAULTS, ids=named)
@pytest.mark.parametrize("at", [1, 2])
def test_after_any_fault_the_answer_and_a_repetition_tell_the_truth(
    store: ObjectStore, fault: Fault, at: int, there: bytes | None
) -> None:
    if there is not None:
        store.create("a", there)
    struck = Fault(fault.mode, at, lands=fault.lands, late_calls=fault.late_calls)
    faulty = FaultyStore(store, struck)
    expected = THEIRS if there == THEIRS else None
    try:
        answer = create_own(faulty, "a", MINE)
    except (StorageError, UnknownOutcomeError, CrashError):
        assert faulty.has_fired
    else:
        assert answer == expected
        assert store.read("a") == (there or MINE)
    faulty.deliver_late()
    assert store.read("a") in {there, there or MINE}
    assert create_own(store, "a", MINE) == expected
    assert store.read("a") == (there or MINE)


def test_after_a_lost_answer_another_writer_may_turn_out_to_be_first(
    store: ObjectStore,
) -> None:
    def overtake(_: Call) -> None:
        store.create("a", THEIRS)

    lost = Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.NEVER)
    overtaken = Fault(FaultMode.DELAY, operation="read", hook=overtake)
    assert create_own(FaultyStore(store, lost, overtaken), "a", MINE) == THEIRS


def test_a_store_that_never_answers_is_reported_as_unknown_not_as_failed(
    store: ObjectStore,
) -> None:
    lost = Fault(FaultMode.LOSE_RESPONSE, at=None, operation="create", lands=Lands.NEVER)
    faulty = FaultyStore(store, lost)
    with pytest.raises(UnknownOutcomeError, match="'a' was created"):
        create_own(faulty, "a", MINE)
    assert [call.operation for call in faulty.calls] == ["create", "read"] * CREATE_ATTEMPTS


def test_an_object_deleted_before_it_could_be_read_is_tried_again(
    store: ObjectStore,
) -> None:
    store.create("a", THEIRS)
    vanishing = Fault(FaultMode.DELAY, operation="read", hook=lambda _: store.delete("a"))
    assert create_own(FaultyStore(store, vanishing), "a", MINE) is None
    assert store.read("a") == MINE


def test_a_create_that_was_refused_is_an_error_at_once(store: ObjectStore) -> None:
    faulty = FaultyStore(store, Fault(FaultMode.FAIL_BEFORE))
    with pytest.raises(StorageError):
        create_own(faulty, "a", MINE)
    assert len(faulty.calls) == 1


def at_once(*calls: Callable[[], bytes | None]) -> list[bytes | None]:
    """Make the calls in as many threads, all started at the same moment."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], bytes | None]) -> bytes | None:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


def test_of_two_writers_at_once_one_is_first_and_the_other_is_given_its_bytes(
    store: ObjectStore,
) -> None:
    for number in range(5):
        path = f"a/{number}"
        first, second = at_once(
            lambda path=path: create_own(store, path, MINE),  # type: ignore[misc]
            lambda path=path: create_own(store, path, THEIRS),  # type: ignore[misc]
        )
        found = store.read(path)
        assert (first, second) == ((None, MINE) if found == MINE else (THEIRS, None))


@pytest.mark.slow
def test_of_many_creates_at_once_exactly_one_writes(store: ObjectStore) -> None:
    written = [b"%d" % number * 100 for number in range(16)]
    with ThreadPoolExecutor(len(written)) as threads:
        for number in range(by_profile(10, 20, 1_000)):
            path, start = f"a/{number}", Barrier(len(written))

            def create(data: bytes, path: str = path, start: Barrier = start) -> bool:
                start.wait()
                return store.create(path, data)

            answers = list(threads.map(create, written))
            winners = [data for data, won in zip(written, answers, strict=True) if won]
            assert winners == [store.read(path)]


def test_two_tries_of_one_writer_at_once_both_find_the_object_to_be_theirs(
    store: ObjectStore,
) -> None:
    assert at_once(
        lambda: create_own(store, "a", MINE), lambda: create_own(store, "a", MINE)
    ) == [None, None]
    assert store.read("a") == MINE
