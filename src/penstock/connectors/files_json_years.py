"""Years in JSON lines: dates and timestamps are text there, which has four digits for a year.

What is outside could be written and not read back, so it is refused before it is written.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ErrorCode, UserError

_FIRST_SECOND = -62_167_219_200
"""0000-01-01."""
_END_SECOND = 253_402_300_800
"""10000-01-01."""
_FIRST_NANO_SECOND = -9_223_286_400
"""1677-09-22: the first whole day that nanoseconds reach."""
_DAY_SECONDS = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def check_years(name: str, column: "pa.ChunkedArray[Any]") -> None:
    """Raise `UserError` if a date or timestamp in a column has no text that can be read back."""
    for chunk in column.chunks:
        for times in _find_times(chunk):
            if not _have_text(times):
                raise UserError(
                    f"column {name!r} holds a value of type {times.type} that has no form in "
                    "JSON lines, where years are 0000 to 9999: change it before the sink, or "
                    "write Parquet",
                    code=ErrorCode.VALUE_OUT_OF_RANGE,
                    column=name,
                )


def _find_times(array: Any) -> Iterator[Any]:
    """Yield the dates and timestamps in an array, also those inside lists and structs."""
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield array
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _find_times(array.flatten())
    elif pa.types.is_struct(kind):
        for part in array.flatten():
            yield from _find_times(part)


def _have_text(times: Any) -> bool:
    found: Any = pc.min_max(times)
    ends: Any = pa.array([found["min"], found["max"]], times.type)
    if ends.null_count:
        return True
    start, end, day = _bounds_of(times.type)
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        return _are_within(ends, start, end)
    # The text is in local time, which has no meaning where local years have no bounds.
    return _are_within(ends, start - day, end + day) and _are_within(
        pc.local_timestamp(ends), start, end
    )


def _are_within(ends: Any, start: int, end: int) -> bool:
    return all(start <= scalar.value < end for scalar in ends)


def _bounds_of(kind: Any) -> tuple[int, int, int]:
    """Return the first value with a text, the first after it without one, and how long a day is."""
    if pa.types.is_date32(kind):
        return _FIRST_SECOND // _DAY_SECONDS, _END_SECOND // _DAY_SECONDS, 1
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    first = _FIRST_NANO_SECOND if unit == "ns" else _FIRST_SECOND
    per_second = _PER_SECOND[unit]
    return first * per_second, _END_SECOND * per_second, _DAY_SECONDS * per_second
