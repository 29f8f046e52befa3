"""Which Arrow types Polars can hold: for others it stops the process's thread, so ask first. Pure."""

from typing import Any

import pyarrow as pa


def is_held_by_polars(kind: Any) -> bool:
    """Tell whether Polars has a form for a column of this type; lists and structs count as held.

    It has neither decimals of more than 38 digits or with a negative scale, nor time zones
    that are an offset (`+05:30`) instead of a name.
    """
    if pa.types.is_decimal256(kind):
        return False
    if pa.types.is_decimal(kind):
        return bool(kind.scale >= 0)
    if pa.types.is_timestamp(kind):
        return kind.tz is None or not kind.tz.startswith(("+", "-"))
    return True
