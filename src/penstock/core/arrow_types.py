"""Arrow types: which hold the same values, what Polars holds, and timestamps as microseconds.

Pure. Libraries differ in whether they return text as string, large_string, string_view or
dictionary. Two rules say which type is accepted for another:

| rule | for | accepts besides other layouts |
|---|---|---|
| `have_same_values` | stored rows, in both directions | nothing |
| `is_lossless` | rows on their way into a declared schema | null for any type, another time zone |

State files use only layouts whose rows can be picked one by one and joined without limits:
views become the large type, dictionaries become their values.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.watermark import MAX_MICROS, MIN_MICROS

Micros: TypeAlias = npt.NDArray[np.int64]
_Type: TypeAlias = Any
_Field: TypeAlias = Any

MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""For timestamps and durations. Nanoseconds are missing because they are finer."""


_TEXT: tuple[_Type, ...] = (pa.string(), pa.large_string(), pa.string_view())
_BYTES: tuple[_Type, ...] = (pa.binary(), pa.large_binary(), pa.binary_view())


def is_text(data_type: _Type) -> bool:
    """Tell whether values are text, in any layout but a dictionary."""
    return data_type in _TEXT


def is_bytes(data_type: _Type) -> bool:
    """Tell whether values are byte strings of any length, in any layout but a dictionary."""
    return data_type in _BYTES


def units_in(timestamps: Any) -> tuple[Micros, int | None]:
    """Return instants in their own unit, null as 0, and how many microseconds that unit has.

    The second value is None for nanoseconds. Nothing is multiplied, so nothing can overflow.
    """
    is_chunked = isinstance(timestamps, pa.ChunkedArray)
    raw = timestamps.cast(pa.int64()) if is_chunked else timestamps.view(pa.int64())
    values: Micros = (raw.fill_null(0) if raw.null_count else raw).to_numpy()
    return values, MICROS_PER_UNIT.get(timestamps.type.unit)


def to_micros(timestamps: Any) -> Micros | None:
    """Return instants in microseconds, finer ones rounded down and null as 1970.

    The result is None if an instant is further from 1970 than 2**63 microseconds, about
    292,000 years.
    """
    values, factor = units_in(timestamps)
    if factor is None:
        return values // 1_000
    first, last = -(-MIN_MICROS // factor), MAX_MICROS // factor
    if len(values) and not first <= int(values.min()) <= int(values.max()) <= last:
        return None
    return values * factor


def to_micros_within_reach(timestamps: Any, *, rounds_up: bool = False) -> Micros:
    """Return instants in microseconds, null as 1970; those too far away become the farthest."""
    values, factor = units_in(timestamps)
    if factor is None:
        return -(-values // 1_000) if rounds_up else values // 1_000
    limit = MAX_MICROS // factor
    return np.clip(values, -limit, limit) * factor


def is_lossless(found: _Type, expected: _Type) -> bool:
    """Tell whether values of one type may silently become the other, nested ones too."""
    types = pa.types
    if found.equals(expected) or types.is_null(found):
        return True
    if types.is_dictionary(found):
        return is_lossless(found.value_type, expected)
    if is_text(found) or is_bytes(found):
        return is_text(expected) if is_text(found) else is_bytes(expected)
    if types.is_list(found) or types.is_large_list(found):
        is_list = types.is_list(expected) or types.is_large_list(expected)
        return is_list and is_lossless(found.value_type, expected.value_type)
    if types.is_struct(found) and types.is_struct(expected):
        return [part.name for part in found] == [part.name for part in expected] and all(
            is_lossless(left.type, right.type)
            for left, right in zip(found, expected, strict=True)
        )
    are_timestamps = types.is_timestamp(found) and types.is_timestamp(expected)
    return bool(are_timestamps and found.unit == expected.unit)


_WHOLE_BITS = {16: 11, 32: 24, 64: 53}
"""How many bits of whole numbers floats of a width hold."""


def is_narrower(found: _Type, expected: _Type) -> bool:
    """Tell whether numbers of one type are all numbers of another one, which is wider.

    >>> is_narrower(pa.int32(), pa.int64()), is_narrower(pa.int64(), pa.float64())
    (True, False)
    """
    types = pa.types
    is_whole = types.is_integer(found)
    if types.is_floating(expected):
        bits = _WHOLE_BITS if is_whole else {}
        is_number = is_whole or types.is_floating(found)
        width = expected.bit_width
        return is_number and found.bit_width < bits.get(width, width)
    if not (is_whole and types.is_integer(expected)):
        return False
    keeps_sign = types.is_unsigned_integer(found) or types.is_signed_integer(expected)
    return bool(keeps_sign and found.bit_width < expected.bit_width)


def stored_type(data_type: _Type) -> _Type:
    """Return the type that values of `data_type` are stored as: the same values, plain layout."""
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return stored_type(data_type.value_type)
    if pa.types.is_string_view(data_type):
        return pa.large_string()
    if pa.types.is_binary_view(data_type):
        return pa.large_binary()
    return _rebuild(data_type, lambda part: part.with_type(stored_type(part.type)))


def without_views(data_type: _Type) -> _Type:
    """Return a type with plain text and bytes in the place of views, nested ones too."""
    if pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_binary_view(data_type):
        return pa.binary()
    return _rebuild(data_type, lambda part: part.with_type(without_views(part.type)))


def relay(array: Any, data_type: _Type) -> Any:
    """Return the values of `array` in the layout of `data_type`, which must hold the same values.

    Nested values are taken apart and put together again, because Arrow does not cast into
    nested dictionaries, nor out of nested dictionaries whose null slots hold invalid indices.
    """
    if array.type.equals(data_type):
        return array
    if pa.types.is_run_end_encoded(array.type):
        return relay(pc.call_function("run_end_decode", [array]), data_type)
    if pa.types.is_dictionary(array.type):
        values = relay(array.dictionary, stored_type(array.type.value_type))
        plain = pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()
        return relay(plain, data_type)
    for is_kind, build in _BUILDERS:
        if is_kind(data_type):
            return build(array, data_type)
    return array.cast(data_type)


def _relay_dictionary(array: Any, data_type: _Type) -> Any:
    encoded = array.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(data_type.index_type),
        encoded.dictionary.cast(data_type.value_type),
        ordered=data_type.ordered,
    )


def _relay_struct(array: Any, data_type: _Type) -> Any:
    fields = list(data_type)
    # Flattening makes the parts of a null struct null, so that the values below are not read.
    parts = zip(array.flatten(), fields, strict=True)
    relaid = [relay(part, field.type) for part, field in parts]
    return pa.StructArray.from_arrays(relaid, fields=fields, mask=array.is_null())


def _relay_fixed_size_list(array: Any, data_type: _Type) -> Any:
    size = data_type.list_size
    elements = array.values.slice(array.offset * size, len(array) * size)
    build: Any = pa.FixedSizeListArray.from_arrays
    relaid = relay(elements, data_type.value_type)
    return build(relaid, type=data_type, mask=array.is_null())


def _relay_list(array: Any, data_type: _Type) -> Any:
    offsets, elements = _taken_apart(array)
    is_large = pa.types.is_large_list(data_type)
    starts = pa.array(offsets, pa.int64() if is_large else pa.int32())
    build: Any = (pa.LargeListArray if is_large else pa.ListArray).from_arrays
    relaid = relay(elements, data_type.value_type)
    return build(starts, relaid, type=data_type, mask=array.is_null())


def _relay_map(array: Any, data_type: _Type) -> Any:
    entries = pa.struct([array.type.key_field, array.type.item_field])
    offsets, elements = _taken_apart(array.cast(pa.list_(entries)))
    keys = relay(elements.field(0), data_type.key_type)
    items = relay(elements.field(1), data_type.item_type)
    build: Any = pa.MapArray.from_arrays
    starts = pa.array(offsets, pa.int32())
    return build(starts, keys, items, type=data_type, mask=array.is_null())


def _taken_apart(array: Any) -> tuple[Any, Any]:
    """Return where each list starts, and all elements without those of null lists."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    return np.concatenate([[0], np.cumsum(lengths)]), array.flatten()


_BUILDERS: tuple[tuple[Callable[[_Type], bool], Callable[[Any, _Type], Any]], ...] = (
    (pa.types.is_dictionary, _relay_dictionary),
    (pa.types.is_struct, _relay_struct),
    (pa.types.is_fixed_size_list, _relay_fixed_size_list),
    (pa.types.is_list, _relay_list),
    (pa.types.is_large_list, _relay_list),
    (pa.types.is_map, _relay_map),
)


def have_same_values(one: _Type, other: _Type) -> bool:
    """Tell whether both types hold the same values, so that a cast cannot change any."""
    return bool(_value_type(one).equals(_value_type(other)))


def _value_type(data_type: _Type) -> _Type:
    """Return one type for all layouts of the same values; names inside lists do not count."""
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return _value_type(data_type.value_type)
    if is_text(data_type):
        return pa.large_string()
    if is_bytes(data_type):
        return pa.large_binary()
    if pa.types.is_list(data_type):
        return _value_type(pa.large_list(data_type.value_field))
    is_struct = pa.types.is_struct(data_type)
    return _rebuild(
        data_type,
        lambda part: pa.field(part.name if is_struct else "item", _value_type(part.type)),
    )


def _rebuild(data_type: _Type, change: Callable[[_Field], _Field]) -> _Type:
    """Return a nested type with each part changed, list views as lists; others as they are."""
    if pa.types.is_struct(data_type):
        return pa.struct([change(part) for part in data_type])
    if pa.types.is_map(data_type):
        key, item = change(data_type.key_field), change(data_type.item_field)
        return pa.map_(key.type, item, data_type.keys_sorted)
    if pa.types.is_list(data_type):
        return pa.list_(change(data_type.value_field))
    if pa.types.is_fixed_size_list(data_type):
        return pa.list_(change(data_type.value_field), data_type.list_size)
    if (
        pa.types.is_large_list(data_type)
        or pa.types.is_list_view(data_type)
        or pa.types.is_large_list_view(data_type)
    ):
        return pa.large_list(change(data_type.value_field))
    return data_type


def is_held_by_polars(kind: Any) -> bool:
    """Tell whether Polars has a form for a column of this type; lists and structs count as held.

    Polars panics on other types instead of raising an error, so this is checked first. Other
    types are decimals of more than 38 digits or with a negative scale, intervals, and
    timestamps whose time zone is an offset (`+05:30`) instead of a name.
    """
    if pa.types.is_decimal256(kind) or pa.types.is_interval(kind):
        return False
    if pa.types.is_decimal(kind):
        return bool(kind.scale >= 0)
    if pa.types.is_timestamp(kind):
        return kind.tz is None or not kind.tz.startswith(("+", "-"))
    return True


def is_known_zone(zone: str | None) -> bool:
    """Tell whether Python knows a time zone. Arrow takes any text for one."""
    if zone is None:
        return True
    try:
        pa.lib.string_to_tzinfo(zone)
    except (KeyError, ValueError):  # both of zoneinfo and of pytz, whichever is installed
        return False
    return True


def why_not_in_polars(kind: Any) -> str:
    """Return what to say of a type that Polars has no form for, and what to do about it."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        is_offset = kind.tz.startswith(("+", "-"))
        what = "an offset, and Polars knows zones by name only" if is_offset else "unknown"
        return (
            f"the time zone {kind.tz!r} of {kind} is {what}: cast the column to the same instants in 'UTC' before, with Arrow in "
            "map_batches or where it is written"
        )
    return f"Polars has no type {kind}: cast the column before, with Arrow in map_batches"
