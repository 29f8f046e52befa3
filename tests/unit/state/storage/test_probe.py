"""The probe refuses every store that breaks a promise, says which, and cleans up."""

from collections.abc import Iterator
from threading import Barrier

import pytest

from penstock.core.clock import new_token
from penstock.errors import ErrorCode, StorageError
from penstock.state.storage.create import RACERS, RACES, probe_store
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectInfo
from penstock.testing import CrashError, Fault, FaultMode, FaultyStore, sweep


class OverwritingStore(MemoryStore):
    """Says that it did not write, and did."""

    def create(self, path: str, data: bytes) -> bool:
        existed = self.size(path) is not None
        self.put(path, data)
        return not existed


class UndeletingStore(MemoryStore):
    """Accepts a delete and forgets it."""

    def delete(self, path: str) -> None:
        pass


class WrongSizeStore(MemoryStore):
    """Counts wrong."""

    def size(self, path: str) -> int | None:
        size_bytes = super().size(path)
        return None if size_bytes is None else size_bytes + 1


class RefusingCreateStore(MemoryStore):
    """Claims that everything exists."""

    def create(self, path: str, data: bytes) -> bool:
        return False


class LookingStore(MemoryStore):
    """Looks whether there is an object, then writes it: two steps, between which others come."""

    def __init__(self) -> None:
        super().__init__()
        self.all_have_looked = Barrier(RACERS)

    def create(self, path: str, data: bytes) -> bool:
        is_absent = self.size(path) is None
        if b"racer" in data:
            self.all_have_looked.wait()
        if is_absent:
            self.put(path, data)
        return is_absent


class SilentlyReplacingStore(LookingStore):
    """The same, and tells one caller only that it wrote: not the last."""

    def create(self, path: str, data: bytes) -> bool:
        answer = super().create(path, data)
        if b"racer" not in data:
            return answer
        is_last = self.all_have_looked.wait() == 0
        if is_last:
            self.put(path, b"of the last")
        return is_last


class EchoStore(MemoryStore):
    """Has an object of every name."""

    def read(self, path: str) -> bytes | None:
        return b"hello"


class RetryingStore(MemoryStore):
    """Repeats each create once, as a client does whose first answer was lost."""

    def create(self, path: str, data: bytes) -> bool:
        super().create(path, data)
        return super().create(path, data)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        raise AssertionError("a listing proves nothing")


def refusal(store: MemoryStore | FaultyStore) -> StorageError:
    with pytest.raises(StorageError) as caught:
        probe_store(store, "job", new_token())
    return caught.value


@pytest.mark.parametrize(
    ("store", "behaviour"),
    [
        (OverwritingStore(), "wrote over an existing object"),
        (UndeletingStore(), "still saw an object just deleted"),
        (WrongSizeStore(), "told a wrong size"),
        (RefusingCreateStore(), "would not create an object"),
        (EchoStore(), "was never written"),
        (LookingStore(), "at the same time 8 claimed to have written"),
        (SilentlyReplacingStore(), "one succeeded, and other bytes are there"),
        (
            FaultyStore(MemoryStore(), Fault(FaultMode.IGNORE_PRECONDITION, at=None)),
            "claimed to have written over",
        ),
        (
            FaultyStore(MemoryStore(), Fault(FaultMode.STALE_READ, at=2)),
            "did not see an object just created",
        ),
        (
            FaultyStore(MemoryStore(), Fault(FaultMode.STALE_READ, at=5, as_of=6)),
            "did not see an object just replaced",
        ),
        (
            FaultyStore(MemoryStore(), Fault(FaultMode.STALE_READ, at=6, as_of=8)),
            "still saw an object just deleted",
        ),
        (
            FaultyStore(MemoryStore(), Fault(FaultMode.LOSE_RESPONSE, operation="create")),
            "no certain answer",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_store_that_breaks_a_promise_is_refused_by_name(
    store: MemoryStore | FaultyStore, behaviour: str
) -> None:
    error = refusal(store)
    assert error.code is ErrorCode.STORAGE_UNSAFE
    assert behaviour in error.message
    assert store.url in error.message
    assert "Use a store with" in error.message


def test_a_store_that_refuses_keeps_its_own_reason() -> None:
    error = refusal(
        FaultyStore(MemoryStore(), Fault(FaultMode.FAIL_BEFORE, operation="put"))
    )
    assert error.code is ErrorCode.STORAGE_FAILED
    assert any("probed" in note for note in error.__notes__)


def test_a_client_that_repeats_requests_passes() -> None:
    store = RetryingStore()
    probe_store(store, "job", new_token())
    assert store.contents() == {}


def test_probes_do_not_meet_each_other() -> None:
    store = FaultyStore(MemoryStore())
    probe_store(store, "job", new_token())
    first = {call.path for call in store.calls}
    probe_store(store, "job", new_token())
    assert len(first) == 1 + RACES
    assert len({call.path for call in store.calls}) == 2 * len(first)


def test_of_creates_at_once_those_that_a_client_repeated_may_all_find_their_object() -> (
    None
):
    # RetryingStore answers False to all of them, the one that wrote included.
    probe_store(RetryingStore(), "job", new_token())
    assert RACERS > 1


def test_a_fault_at_any_request_is_an_error_and_leaves_nothing_behind() -> None:
    in_order, tidying = 10, 1 + RACES
    requests = in_order + RACES * (RACERS + 1) + tidying
    trials = list(sweep(lambda store: probe_store(store, "job", new_token())))
    assert len(trials) == 7 * requests
    for trial in trials:
        left = [info.path for info in trial.store.store.list("")]
        if isinstance(trial.error, CrashError):
            assert set(left) <= {call.path for call in trial.store.calls}
            continue
        is_tidying = trial.fault.at is not None and trial.fault.at > requests - tidying
        # The last requests only tidy up. A delete that failed leaves an object behind.
        assert left == [] or is_tidying
        assert (trial.error is None) == is_tidying
