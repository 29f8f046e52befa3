import pytest

from penstock.errors import StorageError, UnknownOutcomeError
from penstock.state.checkpoints import run_steps
from penstock.state.protocol.steps import CREATE_ATTEMPTS, create_once
from penstock.state.storage.memory import MemoryStore
from penstock.testing import Fault, FaultMode, FaultyStore, Lands

MINE, THEIRS = b"mine", b"theirs"


def test_an_object_that_was_absent_is_ours() -> None:
    store = MemoryStore()
    assert run_steps(store, create_once("a", MINE)) is None
    assert store.read("a") == MINE


def test_an_object_of_somebody_else_is_returned_and_left_alone() -> None:
    store = MemoryStore({"a": THEIRS})
    assert run_steps(store, create_once("a", MINE)) == THEIRS
    assert store.read("a") == THEIRS


def test_our_own_bytes_prove_that_an_earlier_try_landed() -> None:
    assert run_steps(MemoryStore({"a": MINE}), create_once("a", MINE)) is None


@pytest.mark.parametrize(
    "fault",
    [
        Fault(FaultMode.FAIL_AFTER, operation="create"),
        Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.NOW),
        Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.NEVER),
        Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.LATER, late_calls=1),
        Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.LATER, late_calls=2),
    ],
    ids=lambda fault: f"{fault.mode}-{fault.lands.value}-{fault.late_calls}",
)
def test_a_lost_answer_is_settled_by_reading_back(fault: Fault) -> None:
    store = FaultyStore(MemoryStore(), fault)
    assert run_steps(store, create_once("a", MINE)) is None
    assert store.store.read("a") == MINE


def test_after_a_lost_answer_another_writer_may_turn_out_to_be_first() -> None:
    def overtake(_: object) -> None:
        store.store.create("a", THEIRS)

    lost = Fault(FaultMode.LOSE_RESPONSE, operation="create", lands=Lands.NEVER)
    overtaken = Fault(FaultMode.DELAY, operation="read", hook=overtake)
    store = FaultyStore(MemoryStore(), lost, overtaken)
    assert run_steps(store, create_once("a", MINE)) == THEIRS


def test_a_store_that_never_answers_is_reported_as_unknown_not_as_failed() -> None:
    lost = Fault(FaultMode.LOSE_RESPONSE, at=None, operation="create", lands=Lands.NEVER)
    store = FaultyStore(MemoryStore(), lost)
    with pytest.raises(UnknownOutcomeError, match="'a' was created"):
        run_steps(store, create_once("a", MINE))
    assert [call.operation for call in store.calls] == ["create", "read"] * CREATE_ATTEMPTS


def test_an_object_deleted_before_it_could_be_read_is_tried_again() -> None:
    store = MemoryStore({"a": THEIRS})
    vanishing = FaultyStore(
        store, Fault(FaultMode.DELAY, operation="read", hook=lambda _: store.delete("a"))
    )
    assert run_steps(vanishing, create_once("a", MINE)) is None
    assert store.read("a") == MINE


def test_a_create_that_was_refused_is_an_error_at_once() -> None:
    store = FaultyStore(MemoryStore(), Fault(FaultMode.FAIL_BEFORE))
    with pytest.raises(StorageError):
        run_steps(store, create_once("a", MINE))
    assert len(store.calls) == 1
