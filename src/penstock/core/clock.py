"""Wall time, random tokens and durations: the only reader of the wall clock and of randomness.

Instants are whole microseconds since 1970-01-01 UTC, negative before it. A token is drawn
once per task attempt or driver. Durations such as "250ms", "10s" and "1h30m" become
microseconds.
"""

import re
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Protocol, TypeAlias

from penstock.core.ids import Token
from penstock.core.spellings import renamed
from penstock.core.watermark import MAX_MICROS
from penstock.errors import ErrorCode, UserError


class Clock(Protocol):
    """A source of the current time."""

    def now_micros(self) -> int:
        """Return microseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_micros(self) -> int:
        """Return microseconds since 1970-01-01 UTC by the machine's clock."""
        return time.time_ns() // 1_000


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only by `advance`: for tests and replays."""

    micros: int = 0

    def now_micros(self) -> int:
        """Return the instant it was last set to."""
        return self.micros

    @renamed(micros="duration")
    def advance(self, duration: "DurationLike") -> None:
        """Move forward. Moving back is refused: earlier decisions rely on the time they saw."""
        if isinstance(duration, int) and duration < 0:
            raise ValueError("a clock only moves forward")
        self.micros += to_micros(duration)


def new_token() -> Token:
    """Draw 128 random bits that no other attempt will ever share."""
    return Token(secrets.token_hex(16))


DurationLike: TypeAlias = str | timedelta | int
"""A text such as "1h30m", a `timedelta`, or a whole number of microseconds."""

DURATION_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d)", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def to_micros(
    duration: DurationLike, what: str = "duration", *, is_signed: bool = False
) -> int:
    """Return a duration in microseconds; `what` names it in the error if it is not valid.

    >>> to_micros("1m30s")
    90000000
    >>> to_micros("-15m", is_signed=True)
    -900000000
    """
    is_negative = is_signed and isinstance(duration, str) and duration.startswith("-")
    micros = _read(duration[1:] if is_negative and isinstance(duration, str) else duration)
    if is_negative and micros is not None:
        micros = -micros
    if micros is None:
        problem = (
            "write numbers with units, such as '250ms', '10s', '5m' or '1h30m' (units: "
            f"{', '.join(DURATION_UNITS)}), or give a timedelta or a whole number of "
            "microseconds"
        )
    elif micros.denominator != 1:
        problem = "it is finer than a microsecond"
    elif (micros < 0 and not is_signed) or abs(micros) > MAX_MICROS:
        problem = "it must not be negative, nor longer than 2**63 microseconds"
    else:
        return int(micros)
    raise UserError(
        f"{duration!r} is not a valid {what}: {problem}",
        code=ErrorCode.INVALID_NUMBER,
        value=repr(duration),
    )


def _read(duration: object) -> Fraction | None:
    """Return the microseconds, or None if this is no duration; callers may be untyped."""
    if isinstance(duration, timedelta):
        return Fraction(duration // timedelta(microseconds=1))
    if isinstance(duration, int) and not isinstance(duration, bool):
        return Fraction(duration)
    if isinstance(duration, str) and _WHOLE.fullmatch(duration):
        parts = _PART.findall(duration)
        return sum((Fraction(n) * DURATION_UNITS[unit] for n, unit in parts), Fraction(0))
    return None
