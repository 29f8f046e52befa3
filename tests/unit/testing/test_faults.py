"""Each fault does to the store, and tells the caller, what its mode promises."""

import doctest
import pickle
from collections.abc import Callable

import pytest

from penstock.errors import StorageError, UnknownOutcomeError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import Call, CrashError, Fault, FaultMode, FaultyStore, Lands, faults

WRITES: dict[str, Callable[[ObjectStore], object]] = {
    "put": lambda store: store.put("a", b"new"),
    "create": lambda store: store.create("b", b"new"),
    "delete": lambda store: store.delete("a"),
}
READS: dict[str, Callable[[ObjectStore], object]] = {
    "read": lambda store: store.read("a"),
    "read_range": lambda store: store.read_range("a", 0, 2),
    "list": lambda store: [*store.list("")],
    "size": lambda store: store.size("a"),
    "checksum": lambda store: store.checksum("a"),
}
OBJECTS = {"a": b"old"}


def after(write: str) -> dict[str, bytes]:
    store = MemoryStore(OBJECTS)
    WRITES[write](store)
    return store.contents()


def paths(store: ObjectStore) -> list[str]:
    return [info.path for info in store.list("")]


@pytest.mark.parametrize("write", WRITES)
def test_fail_before_changes_nothing_and_says_so(write: str) -> None:
    inner = MemoryStore(OBJECTS)
    store = FaultyStore(inner, Fault(FaultMode.FAIL_BEFORE))
    with pytest.raises(StorageError, match=f"could not {write} .* fail-before"):
        WRITES[write](store)
    assert inner.contents() == OBJECTS


@pytest.mark.parametrize("write", WRITES)
def test_fail_after_writes_and_leaves_the_caller_in_doubt(write: str) -> None:
    inner = MemoryStore(OBJECTS)
    store = FaultyStore(inner, Fault(FaultMode.FAIL_AFTER))
    with pytest.raises(UnknownOutcomeError):
        WRITES[write](store)
    assert inner.contents() == after(write)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("lands", Lands)
def test_a_lost_response_lands_now_later_or_never(write: str, lands: Lands) -> None:
    inner = MemoryStore(OBJECTS)
    store = FaultyStore(inner, Fault(FaultMode.LOSE_RESPONSE, lands=lands))
    with pytest.raises(UnknownOutcomeError, match="lose-response"):
        WRITES[write](store)
    assert inner.contents() == (after(write) if lands is Lands.NOW else OBJECTS)
    store.read("a")
    store.deliver_late()
    assert inner.contents() == (OBJECTS if lands is Lands.NEVER else after(write))
    store.deliver_late()
    assert inner.contents() == (OBJECTS if lands is Lands.NEVER else after(write))


def test_a_late_write_lands_by_itself_before_the_call_it_was_told() -> None:
    fault = Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER, late_calls=2)
    store = FaultyStore(MemoryStore(), fault)
    with pytest.raises(UnknownOutcomeError):
        store.create("a", b"late")
    assert store.read("a") is None
    assert store.read("a") == b"late"


def test_a_late_create_still_respects_what_came_first() -> None:
    store = FaultyStore(MemoryStore(), Fault(FaultMode.LOSE_RESPONSE, lands=Lands.LATER))
    with pytest.raises(UnknownOutcomeError):
        store.create("a", b"late")
    assert store.create("a", b"early")
    store.deliver_late()
    assert store.read("a") == b"early"


def test_late_writes_land_in_the_order_they_were_made() -> None:
    fault = Fault(FaultMode.LOSE_RESPONSE, at=None, operation="put", lands=Lands.LATER)
    store = FaultyStore(MemoryStore(), fault)
    for data in (b"1", b"2", b"3"):
        with pytest.raises(UnknownOutcomeError):
            store.put("a", data)
    store.deliver_late()
    assert store.read("a") == b"3"


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    "mode", [FaultMode.FAIL_BEFORE, FaultMode.FAIL_AFTER, FaultMode.LOSE_RESPONSE]
)
def test_a_failed_read_is_certain_to_have_changed_nothing(
    read: str, mode: FaultMode
) -> None:
    inner = MemoryStore(OBJECTS)
    store = FaultyStore(inner, Fault(mode, lands=Lands.LATER))
    with pytest.raises(StorageError):
        READS[read](store)
    store.deliver_late()
    assert inner.contents() == OBJECTS
    assert READS[read](store) == READS[read](inner)


def test_a_delay_lets_others_act_while_the_request_is_under_way() -> None:
    inner = MemoryStore()
    seen: list[Call] = []

    def other_driver(call: Call) -> None:
        seen.append(call)
        inner.create("claim", b"theirs")

    store = FaultyStore(
        inner, Fault(FaultMode.DELAY, operation="create", hook=other_driver)
    )
    assert store.create("claim", b"ours") is False
    assert inner.read("claim") == b"theirs"
    assert seen == [Call("create", "claim")]


def test_a_delayed_call_may_suffer_another_fault_too() -> None:
    seen: list[Call] = []
    store = FaultyStore(
        MemoryStore(),
        Fault(FaultMode.FAIL_BEFORE),
        Fault(FaultMode.DELAY, hook=seen.append),
    )
    with pytest.raises(StorageError):
        store.put("a", b"x")
    assert seen == [Call("put", "a")]


def test_a_stale_list_shows_the_objects_of_an_earlier_call() -> None:
    store = FaultyStore(
        MemoryStore({"a": b""}),
        Fault(FaultMode.STALE_LIST, at=1),
        Fault(FaultMode.STALE_LIST, at=2, as_of=1),
    )
    store.put("b", b"")
    store.put("c", b"")
    assert paths(store) == ["a"]
    assert paths(store) == ["a", "b"]
    assert paths(store) == ["a", "b", "c"]


def test_a_stale_list_does_not_touch_reads() -> None:
    store = FaultyStore(MemoryStore(), Fault(FaultMode.STALE_LIST, at=None))
    store.put("a", b"x")
    assert store.read("a") == b"x"
    assert paths(store) == []


def test_a_stale_read_shows_the_object_of_an_earlier_call() -> None:
    store = FaultyStore(MemoryStore(OBJECTS), Fault(FaultMode.STALE_READ, at=None))
    store.put("a", b"newer")
    store.put("b", b"")
    assert store.read("a") == b"old"
    assert store.size("a") == 3
    assert store.read("b") is None
    assert paths(store) == ["a", "b"]


def test_an_ignored_precondition_overwrites_and_claims_success() -> None:
    inner = MemoryStore(OBJECTS)
    store = FaultyStore(inner, Fault(FaultMode.IGNORE_PRECONDITION, at=2))
    assert store.create("a", b"first") is False
    assert store.create("a", b"second") is True
    assert inner.read("a") == b"second"
    assert store.create("a", b"third") is False


@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER])
def test_after_a_crash_nothing_works_any_more(mode: FaultMode) -> None:
    inner = MemoryStore(OBJECTS)
    store = FaultyStore(inner, Fault(mode, at=2))
    store.read("a")
    with pytest.raises(CrashError):
        store.put("a", b"new")
    assert inner.read("a") == (b"new" if mode is FaultMode.CRASH_AFTER else b"old")
    for call in (*WRITES.values(), *READS.values()):
        with pytest.raises(CrashError, match="after the crash"):
            call(store)
    assert len(store.calls) == 2
    assert inner.read("a") == (b"new" if mode is FaultMode.CRASH_AFTER else b"old")


def test_code_that_catches_every_exception_does_not_survive_a_crash() -> None:
    store = FaultyStore(MemoryStore(), Fault(FaultMode.CRASH_BEFORE))

    def stubborn() -> None:
        try:
            store.put("a", b"x")
        except Exception:  # noqa: BLE001 - the point of the test
            pytest.fail("a dead process catches nothing")

    with pytest.raises(CrashError):
        stubborn()


def test_a_request_of_a_dead_process_may_still_land() -> None:
    store = FaultyStore(
        MemoryStore(),
        Fault(FaultMode.LOSE_RESPONSE, at=1, lands=Lands.LATER),
        Fault(FaultMode.CRASH_BEFORE, at=2),
    )
    with pytest.raises(UnknownOutcomeError):
        store.create("a", b"late")
    with pytest.raises(CrashError):
        store.read("a")
    store.deliver_late()
    assert store.store.read("a") == b"late"


def test_calls_are_counted_among_those_that_match() -> None:
    store = FaultyStore(
        MemoryStore(),
        Fault(FaultMode.FAIL_BEFORE, at=2, operation="create", path="*/epochs/*"),
    )
    store.put("job/epochs/1", b"")
    store.create("job/claim", b"")
    store.create("job/epochs/2", b"")
    store.create("job/other", b"")
    fired_before = store.has_fired
    with pytest.raises(StorageError):
        store.create("job/epochs/3", b"")
    assert (fired_before, store.has_fired) == (False, True)
    assert store.create("job/epochs/3", b"")


def test_a_fault_without_a_number_strikes_every_time() -> None:
    store = FaultyStore(
        MemoryStore(), Fault(FaultMode.FAIL_BEFORE, at=None, operation="put")
    )
    for _ in range(3):
        with pytest.raises(StorageError):
            store.put("a", b"x")
    assert store.create("a", b"x")


def test_the_log_holds_every_call_in_order() -> None:
    store = FaultyStore(MemoryStore(), Fault(FaultMode.FAIL_BEFORE, at=2))
    store.create("a", b"x")
    with pytest.raises(StorageError):
        store.read("a")
    paths(store)
    store.delete("a")
    assert store.calls == [("create", "a"), ("read", "a"), ("list", ""), ("delete", "a")]


def test_pickled_faults_are_still_ahead() -> None:
    fault = Fault(FaultMode.FAIL_BEFORE, at=2)
    assert pickle.loads(pickle.dumps(fault)) == fault


def test_the_example_in_the_documentation_works() -> None:
    result = doctest.testmod(faults)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_condition_chooses_among_the_calls_that_match() -> None:
    store = FaultyStore(
        MemoryStore(),
        Fault(FaultMode.FAIL_BEFORE, None, "put", when=lambda call: call.path == "b"),
    )
    store.put("a", b"")
    with pytest.raises(StorageError):
        store.put("b", b"")
    assert store.read("a") == b""
    assert store.read("b") is None
