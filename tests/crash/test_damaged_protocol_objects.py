"""Damaged, foreign, misplaced and newer protocol objects: a clear error and nothing changed.

Every object of the protocol is damaged in every way, and everything a driver or the
command line does is tried on it. What does not need the object works; what does names it,
says what to do, and leaves the store exactly as it was. Older epochs stay restorable.
"""

from collections.abc import Callable
from functools import cache

import pytest

from penstock.core.ids import Epoch, JobId, SavepointName
from penstock.errors import CorruptStateError, ErrorCode, PenstockError, StateError
from penstock.state.checkpoints import ParquetBackend
from penstock.state.proto import state_pb2 as pb
from penstock.state.protocol import codec, paths
from penstock.state.protocol.records import ClaimRecord
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.testing import assert_job_is_whole, assert_nothing_was_changed, stored_objects
from tests.builders.protocol import JOB, OTHER_JOB, a_ref
from tests.builders.small_driver import SmallDriver, a_driver, checkpoints_in

NEWEST, OLDER = a_ref(4, generation=2), a_ref(2)
NEWER = {ErrorCode.NEWER_PROTOCOL}
UNREADABLE = {
    ErrorCode.UNDECODABLE,
    ErrorCode.FOREIGN_OBJECT,
    ErrorCode.CHECKSUM_MISMATCH,
}

PLACES = {
    "first claim": paths.claim_path(JOB, 1),
    "newest claim": paths.claim_path(JOB, 2),
    "older record": paths.epoch_record_path(JOB, 3),
    "newest record": paths.epoch_record_path(JOB, 4),
    "older manifest": paths.manifest_path(a_ref(3)),
    "newest manifest": paths.manifest_path(NEWEST),
    "older marker": paths.marker_path(a_ref(3)),
    "newest marker": paths.marker_path(NEWEST),
    "newest metadata": f"{paths.checkpoint_folder(NEWEST)}/operator-counter-0.metadata",
    "retention record": paths.retention_path(JOB, 2),
}


@cache
def healthy() -> dict[str, bytes]:
    """Four epochs of two generations with two savepoints, and another job beside it."""
    store = MemoryStore()
    first = a_driver(store, epochs=3)
    for number, name in enumerate(["one", "two"], start=1):
        first.checkpoints.pin(SavepointName(name), Epochs(Epoch(number)))
    a_driver(store, epochs=1)
    other = a_driver(store, job=OTHER_JOB, epochs=4)
    other.checkpoints.pin(SavepointName("one"), Epochs(Epoch(1)))
    other.checkpoints.pin(SavepointName("two"), Epochs(Epoch(2)))
    return store.contents()


def newer_version(data: bytes) -> bytes:
    envelope = pb.Envelope.FromString(data)
    envelope.protocol_version = codec.PROTOCOL_VERSION + 1
    return envelope.SerializeToString(deterministic=True)


def other_kind(data: bytes) -> bytes:
    """A good object of this job, of another kind than the one whose place it takes."""
    kind = pb.Envelope.FromString(data).kind
    claim, marker = PLACES["first claim"], PLACES["older marker"]
    return healthy()[marker if kind == "claim" else claim]


def of_another_place(data: bytes) -> bytes:
    """A good object of the same kind, from where another job keeps its own."""
    (path,) = [path for path, found in healthy().items() if found == data]
    moved = path.replace(f"{JOB}/", f"{OTHER_JOB}/").replace(
        "generations/2", "generations/1"
    )
    return healthy()[moved]


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], set[ErrorCode]]] = {
    "empty": (lambda _: b"", UNREADABLE),
    "half": (lambda data: data[: len(data) // 2], UNREADABLE),
    "one byte short": (lambda data: data[:-1], UNREADABLE),
    "one byte long": (lambda data: data + b"\x00", UNREADABLE),
    "a flipped bit": (flipped, UNREADABLE),
    "garbage": (lambda _: b"\x0a\x7fnot a message", UNREADABLE),
    "another kind": (other_kind, UNREADABLE),
    "another place": (of_another_place, UNREADABLE),
    "a newer version": (newer_version, {*NEWER, ErrorCode.CHECKSUM_MISMATCH}),
}

EVERY_PLACE = pytest.mark.parametrize("place", PLACES)
EVERY_DAMAGE = pytest.mark.parametrize("damage", DAMAGES)


def damaged(place: str, damage: str) -> MemoryStore:
    path = PLACES[place]
    harm, _ = DAMAGES[damage]
    return MemoryStore(healthy() | {path: harm(healthy()[path])})


def read_newest_metadata(store: MemoryStore) -> object:
    manifest = checkpoints_in(store).manifest(NEWEST)
    backend = ParquetBackend(store)
    subtasks = (ref for entry in manifest.operators for ref in entry.subtasks)
    return [backend.read_operator_checkpoint_metadata(ref) for ref in subtasks]


def running_driver(store: MemoryStore) -> SmallDriver:
    """The driver of generation 2, which took over before the damage was done."""
    claim = codec.decode(
        ClaimRecord, healthy()[PLACES["newest claim"]], PLACES["newest claim"]
    )
    return SmallDriver(checkpoints_in(store), claimed=claim)


OPERATIONS: dict[str, Callable[[MemoryStore], object]] = {
    "take over": lambda store: checkpoints_in(store).take_over(),
    "restore": lambda store: checkpoints_in(store).take_over(restore=OLDER),
    "plan a restore": lambda store: checkpoints_in(store).plan_restore(Epochs(Epoch(2))),
    "list epochs": lambda store: checkpoints_in(store).epochs(),
    "list pins": lambda store: checkpoints_in(store).pins(),
    "pin": lambda store: checkpoints_in(store).pin(SavepointName("x"), Epochs()),
    "unpin": lambda store: checkpoints_in(store).unpin(SavepointName("one")),
    "branch": lambda store: checkpoints_in(store).branch(JobId("new"), Epochs(Epoch(3))),
    "collect": lambda store: running_driver(store).collect(),
    "sweep": lambda store: running_driver(store).sweep(),
    "read state": read_newest_metadata,
}


@EVERY_DAMAGE
@EVERY_PLACE
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_works_without_the_object_or_names_it_and_changes_nothing(
    operation: str, place: str, damage: str
) -> None:
    store = damaged(place, damage)
    before = stored_objects(store)
    error = refusal_of(operation, store)
    if error is not None:
        assert error.code in DAMAGES[damage][1]
        assert error.context["path"] == PLACES[place]
        assert PLACES[place] in error.message
        assert (
            "othing was changed" in error.message or "othing was deleted" in error.message
        )
        assert_nothing_was_changed(before, store)


def refusal_of(operation: str, store: MemoryStore) -> PenstockError | None:
    try:
        OPERATIONS[operation](store)
    except (CorruptStateError, StateError) as error:
        return error
    return None


NEEDS = {
    ("take over", "newest record"),
    ("take over", "newest manifest"),
    ("take over", "newest marker"),
    ("restore", "retention record"),
    ("plan a restore", "retention record"),
    ("list epochs", "newest record"),
    ("list epochs", "newest manifest"),
    ("list pins", "retention record"),
    ("pin", "retention record"),
    ("pin", "newest manifest"),
    ("branch", "older manifest"),
    ("collect", "older manifest"),
    ("collect", "newest metadata"),
    ("collect", "retention record"),
    ("sweep", "newest metadata"),
    ("read state", "newest metadata"),
}


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "another place"])
@pytest.mark.parametrize(("operation", "place"), sorted(NEEDS))
def test_what_needs_a_damaged_object_never_works_without_a_word(
    operation: str, place: str, damage: str
) -> None:
    with pytest.raises((CorruptStateError, StateError)):
        OPERATIONS[operation](damaged(place, damage))


@pytest.mark.parametrize("damage", [name for name in DAMAGES if name != "a newer version"])
@pytest.mark.parametrize(
    "place", [place for place in PLACES if place != "retention record"]
)
def test_an_older_epoch_stays_restorable(place: str, damage: str) -> None:
    store = damaged(place, damage)
    plan = checkpoints_in(store).plan_restore(Epochs(Epoch(2)))
    driver = a_driver(store, restore=plan.ref, epochs=2)
    assert driver.acknowledged == [a_ref(5, generation=3), a_ref(6, generation=3)]
    assert a_driver(store).next_epoch == 7


@EVERY_DAMAGE
def test_a_damaged_ledger_stops_restores_and_collections_but_not_the_job(
    damage: str,
) -> None:
    store = damaged("retention record", damage)
    driver = a_driver(store, epochs=2)
    for stopped in (driver.collect, driver.sweep, driver.checkpoints.pins):
        with pytest.raises((CorruptStateError, StateError)):
            stopped()
    store.put(PLACES["retention record"], healthy()[PLACES["retention record"]])
    driver.collect()
    assert_job_is_whole(driver.checkpoints)


@pytest.mark.parametrize("place", PLACES)
def test_an_object_brought_back_makes_the_job_whole_again(place: str) -> None:
    store = damaged(place, "garbage")
    store.put(PLACES[place], healthy()[PLACES[place]])
    driver = a_driver(store, epochs=1)
    driver.collect()
    assert_job_is_whole(driver.checkpoints)


@pytest.mark.parametrize("place", ["newest claim", "newest record", "newest manifest"])
def test_an_older_penstock_does_not_fence_a_newer_one(place: str) -> None:
    store = damaged(place, "a newer version")
    before = stored_objects(store)
    with pytest.raises(StateError, match="upgrade Penstock") as caught:
        checkpoints_in(store).take_over()
    assert caught.value.code is ErrorCode.NEWER_PROTOCOL
    assert_nothing_was_changed(before, store)


def test_a_folder_copied_under_another_jobs_name_is_refused() -> None:
    copied = {
        path.replace(f"{JOB}/", "copy/", 1): data
        for path, data in healthy().items()
        if path.startswith(f"{JOB}/")
    }
    store = MemoryStore(copied)
    with pytest.raises(CorruptStateError, match="moved or copied by hand") as caught:
        checkpoints_in(store, JobId("copy")).take_over()
    assert caught.value.code is ErrorCode.FOREIGN_OBJECT
    assert_nothing_was_changed(copied, store)
