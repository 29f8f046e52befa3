import pytest

from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    ExternalError,
    FencedError,
    GraphError,
    InternalError,
    PenstockError,
    SchemaError,
    StateError,
    StorageError,
    UnknownOutcomeError,
    UserCodeError,
    UserError,
)
from penstock.runtime.driver.policies import RestartPolicy, decide_restart, is_transient

POLICY = RestartPolicy(max_restarts=8, first_delay_micros=10, max_delay_micros=300)


@pytest.mark.parametrize("kind", [StorageError, UnknownOutcomeError, ExternalError])
def test_what_may_pass_is_tried_again(kind: type[PenstockError]) -> None:
    assert is_transient(kind("no answer"))


@pytest.mark.parametrize(
    "kind",
    [
        UserError,
        UserCodeError,
        SchemaError,
        GraphError,
        StateError,
        CorruptStateError,
        FencedError,
        InternalError,
    ],
)
def test_what_would_be_the_same_again_is_not(kind: type[PenstockError]) -> None:
    assert decide_restart(kind("no"), 1, POLICY) is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.STORAGE_FAILED, True),
        (ErrorCode.STORAGE_FULL, True),
        (ErrorCode.TORN_EPOCH, True),
        (ErrorCode.STORAGE_READ_ONLY, False),
        (ErrorCode.STORAGE_PERMISSION, False),
        (ErrorCode.STORAGE_UNSAFE, False),
    ],
)
def test_storage_errors_pass_unless_waiting_cannot_cure_them(
    code: ErrorCode, expected: bool
) -> None:
    assert is_transient(StorageError("oh", code=code)) is expected


def test_delays_double_up_to_the_longest_and_then_it_gives_up() -> None:
    error = StorageError("no answer")
    decisions = [decide_restart(error, count, POLICY) for count in range(1, 10)]
    delays = [10, 20, 40, 80, 160, 300, 300, 300]
    assert decisions == [*delays, None]


def test_a_policy_without_restarts_gives_up_at_once() -> None:
    policy = RestartPolicy(max_restarts=0)
    assert decide_restart(StorageError("x"), 1, policy) is None


def test_very_many_failures_do_not_overflow() -> None:
    policy = RestartPolicy(max_restarts=10**9)
    decision = decide_restart(StorageError("x"), 10**6, policy)
    assert decision == policy.max_delay_micros
