"""Restarts: what follows from a failure, by what kind of failure it is. Pure.

| failure | what follows |
|---|---|
| torn epoch, storage, unknown outcome, a system outside | try again, later and later |
| the user's code, bad input, damaged or unfit state, our bug | stop: again would be the same |
| fenced | stop for good: another driver owns the job |
"""

from dataclasses import dataclass
from typing import TypeAlias

from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    StorageError,
    UnknownOutcomeError,
)

_LASTING = frozenset(
    {
        ErrorCode.STORAGE_READ_ONLY,
        ErrorCode.STORAGE_PERMISSION,
        ErrorCode.STORAGE_UNSAFE,
    }
)
"""Storage errors that waiting does not cure."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and how patiently, a failed job is tried again."""

    max_restarts: int = 10
    """In a row: an epoch that succeeds starts the count anew."""
    first_delay_micros: int = 1_000_000
    max_delay_micros: int = 60_000_000


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Try again from the last acknowledged epoch after a while."""

    delay_micros: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop with the error."""


RestartDecision: TypeAlias = RestartAfter | GiveUp


def decide_restart(
    error: PenstockError, failures_in_a_row: int, policy: RestartPolicy
) -> RestartDecision:
    """Say what follows from a failure; `failures_in_a_row` counts this one."""
    if not is_transient(error) or failures_in_a_row > policy.max_restarts:
        return GiveUp()
    delay = policy.first_delay_micros << min(failures_in_a_row - 1, 30)
    return RestartAfter(min(delay, policy.max_delay_micros))


def is_transient(error: PenstockError) -> bool:
    """Tell whether trying again can help."""
    if error.code is ErrorCode.TORN_EPOCH:
        return True
    is_outside = isinstance(error, StorageError | UnknownOutcomeError | ExternalError)
    return is_outside and error.code not in _LASTING
