"""Figures as people read them: instants, durations, sizes and counts as short text.

Pure. For displays and messages only: nothing reads these texts again, and none is stored. What
programs want to read is in the values that these texts are made of, in microseconds and bytes.

>>> show_instant(0), show_instant(None)
('1970-01-01 00:00:00.0', 'none yet')
>>> show_count(1, "row"), show_count(1_500, "row")
('1 row', '1,500 rows')
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from penstock.core.clock import DURATION_UNITS
from penstock.core.watermark import MAX_MICROS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def show_instant(micros: int | None) -> str:
    """Return an instant as text, to the tenth of a second.

    Event time has two special values: none at all, and the end of all data. Values that no
    calendar has are shown as the number that they are.

    >>> show_instant(1_700_000_000_250_000)
    '2023-11-14 22:13:20.2'
    """
    if micros is None:
        return "none yet"
    if micros >= MAX_MICROS:
        return "end of data"
    try:
        instant = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros:,} us"
    return instant.strftime("%Y-%m-%d %H:%M:%S.") + str(instant.microsecond // 100_000)


def show_bytes(size_bytes: int) -> str:
    """Return a size with a unit that keeps it short.

    >>> show_bytes(512), show_bytes(3_500_000)
    ('512 B', '3.3 MiB')
    """
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size_bytes} B"


def show_seconds(micros: int) -> str:
    """Return a duration: with hundredths below ten seconds, else as minutes and seconds.

    >>> show_seconds(1_234_000), show_seconds(75_000_000)
    ('1.23 s', '1:15')
    """
    return f"{micros / 1_000_000:.2f} s" if micros < 10_000_000 else show_elapsed(micros)


def show_elapsed(micros: int) -> str:
    """Return a duration that is still growing, as minutes and seconds.

    >>> show_elapsed(5_999_999), show_elapsed(3_600_000_000)
    ('0:05', '60:00')

    Seconds are not rounded up: a display that counts would skip one.
    """
    minutes, seconds = divmod(micros // 1_000_000, 60)
    return f"{minutes}:{seconds:02}"


def show_duration(micros: int) -> str:
    """Return a duration precisely, in the largest unit that it is a multiple of.

    >>> show_duration(86_400_000_000), show_duration(90_000_000), show_duration(0)
    ('1d', '90s', '0s')
    """
    units = reversed(DURATION_UNITS.items()) if micros else [("s", 1)]
    return next(f"{micros // size}{unit}" for unit, size in units if micros % size == 0)


def show_count(count: int, noun: str) -> str:
    """Return how many there are of something whose plural ends with s.

    >>> show_count(0, "file")
    '0 files'
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_fields(title: str, fields: Mapping[str, str]) -> str:
    """Return a title and named values below it, one per line, the values in one column.

    Values without text are left out, and further lines of a value are indented as its first.

    >>> print(show_fields("job shop", {"rows": "5 read", "error": "", "state": "2 B"}))
    job shop
      rows   5 read
      state  2 B
    """
    shown = {name: text for name, text in fields.items() if text}
    width = max(map(len, shown), default=0) + 2
    lines = [title]
    for name, text in shown.items():
        first, *rest = text.splitlines()
        lines.append(f"  {name:<{width}}{first}")
        lines += [f"  {'':<{width}}{line}" for line in rest]
    return "\n".join(lines)
