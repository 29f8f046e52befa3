"""Policies of a run: when epochs begin, which are kept, and when a failed job is tried again.

All are immutable values. `Trigger`, `Retention` and `RestartPolicy` are what a driver goes by;
the functions `trigger`, `retention` and `restarts` make them of what users write, and so do the
shorthands that the options of a run accept, such as `trigger="1m"`.

**Restarts.** The kind of a failure decides what the driver does:

| failure | what the driver does |
|---|---|
| torn epoch, storage, unknown outcome, a system outside | tries again, with growing waits |
| the user's code, bad input, damaged or unfit state, our bug | stops: it would fail again |
| fenced | stops for good: another driver owns the job |
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from penstock.core.clock import DurationLike, to_micros
from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    StorageError,
    UnknownOutcomeError,
    UserError,
)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When the next epoch of a job without a backlog begins: whatever comes first."""

    every_micros: int
    """How long after the last one has begun."""
    rows: int | None = None
    """Once more rows than these wait at one source."""
    size_bytes: int | None = None
    """Once more bytes than these wait at one source."""

    @property
    def has_size(self) -> bool:
        """Return whether sources are asked how much waits before the time has come."""
        return self.rows is not None or self.size_bytes is not None


def trigger(
    *,
    every: DurationLike,
    rows: int | None = None,
    bytes: int | None = None,  # noqa: A002 (the word that users know)
) -> Trigger:
    """Begin an epoch `every` so often, or earlier once many `rows` or `bytes` wait.

    `every` is the longest that a row waits for its epoch.

    >>> import penstock as pen
    >>> pen.trigger(every="1m", rows=100_000)
    Trigger(every_micros=60000000, rows=100000, size_bytes=None)
    """
    micros = to_micros(every, "trigger")
    if micros == 0:
        raise UserError(
            f"a trigger cannot begin an epoch every {every!r}: give a time, such as '10s'",
            code=ErrorCode.INVALID_NUMBER,
        )
    _check_positive("the rows of a trigger", rows)
    _check_positive("the bytes of a trigger", bytes)
    return Trigger(micros, rows, bytes)


TriggerLike: TypeAlias = Trigger | str | timedelta
"""What `pen.trigger` returns, or only its `every`."""


def to_trigger(value: TriggerLike) -> Trigger:
    """Return the trigger that an option means."""
    if isinstance(value, Trigger):
        return value
    if isinstance(value, str | timedelta):
        return trigger(every=value)
    raise UserError(
        f"{value!r} is not a valid trigger: write how long after one epoch the next begins, "
        "such as '1m', or pen.trigger(every='1m', rows=100_000)",
        code=ErrorCode.INVALID_CONFIG,
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """Which epochs stay restorable besides savepoints: the last ones, and all that are young."""

    epochs: int | None = None
    """How many of the newest are kept; None for the setting `keep_epochs`."""
    age_micros: int | None = None
    """How far back one can go at least; None for no further than `epochs`."""


def retention(epochs: int | None = None, *, age: DurationLike | None = None) -> Retention:
    """Keep the last `epochs`, and all that are needed to go back as far as `age`.

    An epoch is given up once neither asks for it. Savepoints stay besides.

    >>> import penstock as pen
    >>> pen.retention(100, age="7d")
    Retention(epochs=100, age_micros=604800000000)
    """
    _check_positive("the epochs of a retention", epochs)
    return Retention(epochs, None if age is None else to_micros(age, "age of epochs"))


RetentionLike: TypeAlias = Retention | int | str | timedelta
"""What `pen.retention` returns, or only a number of epochs, or only an age."""


def to_retention(value: RetentionLike) -> Retention:
    """Return the retention that an option means; a plain number counts epochs."""
    if isinstance(value, Retention):
        return value
    if isinstance(value, str | timedelta):
        return retention(age=value)
    return retention(value)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a failed job is tried again, and how long the driver waits before."""

    max_restarts: int = 10
    """The most restarts in a row: an epoch that succeeds resets the count."""
    first_delay_micros: int = 1_000_000
    max_delay_micros: int = 60_000_000


def restarts(
    in_a_row: int = 10,
    *,
    first_delay: DurationLike = "1s",
    longest_delay: DurationLike = "1m",
) -> RestartPolicy:
    """Try a job again that failed by something outside of it, with growing delays.

    An epoch that succeeds resets the count. Each delay is twice the one before, up to
    `longest_delay`. What would fail again, such as an exception in user code, is never retried.

    >>> import penstock as pen
    >>> pen.restarts(3, first_delay="5s").max_delay_micros
    60000000
    """
    if not _is_whole(in_a_row) or in_a_row < 0:
        raise UserError(
            f"a job cannot be restarted {in_a_row!r} times in a row: give a whole number, or 0 "
            "for never",
            code=ErrorCode.INVALID_NUMBER,
        )
    first = to_micros(first_delay, "first delay")
    longest = to_micros(longest_delay, "longest delay")
    if longest < first:
        raise UserError(
            f"the longest delay of restarts, {longest_delay!r}, is shorter than the first, "
            f"{first_delay!r}",
            code=ErrorCode.INVALID_NUMBER,
        )
    return RestartPolicy(in_a_row, first, longest)


RestartsLike: TypeAlias = RestartPolicy | int
"""What `pen.restarts` returns, or only how many in a row."""


def to_restarts(value: RestartsLike) -> RestartPolicy:
    """Return the policy that an option means."""
    return value if isinstance(value, RestartPolicy) else restarts(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_positive(what: str, value: int | None) -> None:
    if value is not None and not (_is_whole(value) and value >= 1):
        raise UserError(
            f"{value!r} cannot be {what}: give a whole number of at least 1",
            code=ErrorCode.INVALID_NUMBER,
        )


_LASTING = frozenset(
    {
        ErrorCode.ENGINE_GONE,
        ErrorCode.STORAGE_READ_ONLY,
        ErrorCode.STORAGE_PERMISSION,
        ErrorCode.STORAGE_UNSAFE,
    }
)
"""Errors of storage and engine that do not pass with time."""


def decide_restart(
    error: PenstockError, failures_in_a_row: int, policy: RestartPolicy
) -> int | None:
    """Return after how many microseconds to try again, or None to stop with the error.

    `failures_in_a_row` counts this one.
    """
    if not is_transient(error) or failures_in_a_row > policy.max_restarts:
        return None
    delay = policy.first_delay_micros << min(failures_in_a_row - 1, 30)
    return min(delay, policy.max_delay_micros)


def is_transient(error: PenstockError) -> bool:
    """Return whether trying again can help."""
    if error.code is ErrorCode.TORN_EPOCH:
        return True
    is_outside = isinstance(error, StorageError | UnknownOutcomeError | ExternalError)
    return is_outside and error.code not in _LASTING
