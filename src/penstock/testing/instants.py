"""Instants as tests write them: text, `datetime`s, microseconds or watermarks → microseconds."""

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from penstock.core.signals import EventTime, Idle, Watermark
from penstock.errors import ErrorCode, UserError

InstantLike: TypeAlias = str | datetime | int | EventTime
"""Such as "2026-01-01T00:00:10", which is UTC unless it says otherwise."""

WatermarkLike: TypeAlias = InstantLike | Idle | None
"""An instant, `IDLE`, or None for an input that has not spoken."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_instant(instant: InstantLike) -> int:
    """Return an instant in microseconds since 1970-01-01 UTC.

    >>> to_instant("1970-01-01T00:00:10")
    10000000
    """
    if isinstance(instant, EventTime):
        return instant.micros
    if isinstance(instant, int) and not isinstance(instant, bool):
        return EventTime(instant).micros
    given = _read(instant) if isinstance(instant, str) else instant
    if not isinstance(given, datetime):
        raise _refusal(instant)
    aware = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def to_watermark(watermark: WatermarkLike) -> Watermark | None:
    """Return a watermark as operators get it.

    >>> to_watermark("1970-01-01T00:00:10")
    EventTime(micros=10000000)
    """
    if watermark is None or isinstance(watermark, Idle):
        return watermark
    return EventTime(to_instant(watermark))


def _read(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise _refusal(text) from error


def _refusal(instant: object) -> UserError:
    return UserError(
        f"{instant!r} is not an instant: write '2026-01-01T00:00:10', a datetime, or whole "
        "microseconds since 1970-01-01 UTC",
        code=ErrorCode.INVALID_NUMBER,
        value=repr(instant),
    )
