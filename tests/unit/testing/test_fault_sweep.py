"""A sweep meets every call with every fault, once, and hides no bug."""

import doctest
import sys
from collections import Counter

import pytest

from penstock.errors import StorageError, UnknownOutcomeError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.testing import (
    STORAGE_FAULTS,
    CrashError,
    Fault,
    FaultMode,
    FaultyStore,
    sweep,
)


def three_calls(store: ObjectStore) -> str:
    store.create("a", b"1")
    store.put("b", b"2")
    return f"{len([*store.list('')])} objects"


def test_every_call_meets_every_fault_it_can_suffer() -> None:
    trials = list(sweep(three_calls))
    met = Counter((trial.fault.mode, trial.fault.at) for trial in trials)
    for mode in {fault.mode for fault in STORAGE_FAULTS} - {FaultMode.STALE_LIST}:
        variants = sum(fault.mode is mode for fault in STORAGE_FAULTS)
        assert [met[mode, at] for at in (1, 2, 3, 4)] == [variants] * 3 + [0]
    assert met[FaultMode.STALE_LIST, 1] == 1
    assert met[FaultMode.STALE_LIST, 2] == 0


def test_a_trial_tells_how_the_run_ended() -> None:
    kinds = {
        FaultMode.FAIL_BEFORE: StorageError,
        FaultMode.FAIL_AFTER: UnknownOutcomeError,
        FaultMode.CRASH_AFTER: CrashError,
    }
    for mode, kind in kinds.items():
        first, *_ = sweep(three_calls, [Fault(mode)])
        assert isinstance(first.error, kind)
        assert first.result is None
        assert first.store.calls == [("create", "a")]
    (stale,) = sweep(three_calls, [Fault(FaultMode.STALE_LIST)])
    assert stale.error is None
    assert stale.result == "0 objects"


def test_every_trial_starts_afresh() -> None:
    made: list[MemoryStore] = []

    def make_store() -> MemoryStore:
        made.append(MemoryStore({"before": b""}))
        return made[-1]

    trials = list(sweep(three_calls, [Fault(FaultMode.CRASH_AFTER)], make_store=make_store))
    left = [sorted(info.path for info in trial.store.store.list("")) for trial in trials]
    assert left == [["a", "before"], ["a", "b", "before"], ["a", "b", "before"]]
    assert len(made) == 4, "the last run, which meets no fault, is not a trial"


def test_a_workflow_that_retries_is_swept_beyond_its_usual_calls() -> None:
    def stubborn(store: FaultyStore) -> None:
        while True:
            try:
                store.put("a", b"x")
            except StorageError:
                continue
            return

    trials = list(sweep(stubborn, [Fault(FaultMode.FAIL_BEFORE)]))
    assert [len(trial.store.calls) for trial in trials] == [2]


def test_a_bug_in_the_workflow_comes_out_of_the_sweep() -> None:
    def buggy(store: FaultyStore) -> None:
        store.put("a", b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(sweep(buggy, [Fault(FaultMode.CRASH_AFTER, operation="delete")]))


def test_the_example_in_the_documentation_works() -> None:
    result = doctest.testmod(sys.modules["penstock.testing.faults"])
    assert result.attempted > 0
    assert result.failed == 0
