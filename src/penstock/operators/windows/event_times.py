"""Event times of rows, and which rows have none that a window could hold. Pure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import SchemaError
from penstock.operators.windows.assignment import (
    END_MICROS,
    FIRST_MICROS,
    Flags,
    Micros,
)

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The event time of each row of a batch."""

    micros: Micros
    """Undefined where it is bad."""
    bad: Flags | None
    """Where it is null or outside of the years 1 to 9999; None if it is so nowhere."""
    first_micros: int
    """The earliest one that is not bad."""


def read_event_times(column: Any) -> EventTimes:
    """Return the event times in a timestamp column of any unit, rounded down to microseconds."""
    raw = column
    is_null: Flags | None = None
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        raw = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(column.type))
    values: Micros = raw.view(pa.int64()).to_numpy(zero_copy_only=True)
    # In the column's own unit, so that nothing is multiplied that could overflow.
    unit = column.type.unit
    per_unit = _PER_UNIT.get(unit)
    if per_unit is None:
        values, per_unit = values // 1_000, 1
    earliest, end = FIRST_MICROS // per_unit, END_MICROS // per_unit
    if not len(values):
        return EventTimes(values, None, END_MICROS)
    first, last = int(values.min()), int(values.max())
    bad = is_null
    if first < earliest or last >= end:
        outside = (values < earliest) | (values >= end)
        bad = outside if is_null is None else is_null | outside
        values = np.where(outside, 0, values)
    micros = values if per_unit == 1 else values * per_unit
    if bad is None:
        return EventTimes(micros, None, first * per_unit)
    good = micros[~bad]
    return EventTimes(micros, bad, int(good.min()) if len(good) else END_MICROS)


def refuse_bad_times(times: EventTimes, column: Any, name: str) -> SchemaError:
    """Return the error for rows that no window can hold."""
    bad = times.bad
    if bad is None:
        bad = np.zeros(len(column), np.bool_)
    first = int(np.argmax(bad))
    found = column[first]
    shown = "null" if not found.is_valid else str(found.cast(pa.string()))
    return SchemaError(
        f"{int(bad.sum())} of {len(column)} rows have an event time that no window can hold: "
        f"column {name!r} is null or outside of the years 1 to 9999, first in row {first}, "
        f"where it is {shown}. Filter such rows out before, or give the window "
        "bad_times='divert' and read its side output BAD",
        column=name,
    )
