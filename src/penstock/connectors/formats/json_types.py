"""Maps Arrow types to the forms that their values have in JSON, for reading and for writing.

| Arrow type                | JSON                                                            |
|---------------------------|-----------------------------------------------------------------|
| booleans, numbers         | as they are; NaN and infinities, which JSON lacks, as null      |
| text, dictionary of text  | string                                                          |
| timestamp                 | string `2026-01-01 12:00:00.5`, with a zone `…T12:00:00+00:00`  |
| date, time                | strings `2026-01-01`, `12:00:00`                                |
| duration                  | whole number of its unit                                        |
| decimal                   | string with all its digits: `"1.20"`                            |
| binary                    | string, base64                                                  |
| list, struct              | array, object                                                   |
| null                      | null; every column is there in every line                       |

Pure. Inside lists and structs the sink writes booleans, numbers, text, bytes, timestamps, dates,
times and decimals; the source reads all of the table there.

Arrow parses the lines. A type that it cannot parse from JSON is parsed as a *carrier*, text or
a number, and then converted; in lists and structs this holds for the types inside.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_types import is_held_by_polars, is_text, relay

_TIME_OF_DAY = "%H:%M:%S%.f"

_NESTABLE = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_decimal,
    pa.types.is_null,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def is_writable(kind: Any) -> bool:
    """Tell whether the sink writes columns of a type."""
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type))
    return pa.types.is_duration(kind) or _is_binary(kind) or _is_nestable(kind)


def writer_of(kind: Any) -> Any:
    """Return the type to convert a column to, so that Polars writes the form of its values."""
    return _change_leaves(kind, _writer)


def carrier_of(kind: Any) -> Any:
    """Return the type to parse a column as before it is converted into its own."""
    return _change_leaves(kind, _carrier)


def from_carriers(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, converted from their carriers; raise for a wrong value."""
    columns = []
    for field in schema:
        column: Any = table.column(field.name)
        if not column.type.equals(field.type):
            parts = [relay(_convert(c, field.type), field.type) for c in column.chunks]
            column = pa.chunked_array(parts, field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema.names)


def tell_times(texts: Any) -> Any:
    """Return the type that an array of a sample suggests, in which times are still text.

    Text is a timestamp if all of it is: in UTC if all of it has a zone, and without a zone if
    none has. If some has, it stays text, because then it is not known which instants are meant.
    Only times with more than six digits behind the second get nanoseconds.
    """
    kind = texts.type
    if pa.types.is_list(kind):
        return pa.list_(tell_times(texts.flatten()))
    if pa.types.is_struct(kind):
        parts = zip(kind, texts.flatten(), strict=True)
        return pa.struct([(part.name, tell_times(values)) for part, values in parts])
    if not pa.types.is_string(kind) or texts.null_count == len(texts):
        return kind
    for unit in ("us", "ns"):
        for told in (pa.timestamp(unit, "UTC"), pa.timestamp(unit)):
            try:
                texts.cast(told)
            except pa.ArrowInvalid:
                continue
            return told
    return kind


def to_text_times(kind: Any) -> Any:
    """Return a type with text in the place of timestamps, also in lists and structs."""
    is_time = pa.types.is_timestamp
    return _change_leaves(kind, lambda leaf: pa.string() if is_time(leaf) else leaf)


def _change_leaves(kind: Any, change: Callable[[Any], Any]) -> Any:
    """Return a type changed by `change`; in lists and structs the inner types are changed."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_change_leaves(kind.value_type, change))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _change_leaves(part.type, change)) for part in kind])
    return change(kind)


def _writer(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_duration(kind):
        return pa.int64()
    return pa.date32() if pa.types.is_date64(kind) else kind


def _carrier(kind: Any) -> pa.DataType:
    types = pa.types
    if types.is_float16(kind):
        return pa.float32()
    if types.is_duration(kind):
        return pa.int64()
    if types.is_dictionary(kind) and is_text(kind.value_type):
        return pa.string()
    as_text = types.is_date(kind) or types.is_time(kind) or _is_binary(kind)
    return pa.string() if as_text else kind


def _convert(array: Any, kind: Any) -> Any:
    """Convert an array from its carrier into values of a type, in lists of the usual layout."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        starts = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        elements = _convert(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(starts, elements, mask=array.is_null())
    if pa.types.is_struct(kind):
        # Flattening makes the parts of a null struct null, so that none of them is refused.
        parts = zip(array.flatten(), kind, strict=True)
        converted = [_convert(values, part.type) for values, part in parts]
        return pa.StructArray.from_arrays(
            converted, names=[part.name for part in kind], mask=array.is_null()
        )
    if array.type.equals(kind) or pa.types.is_dictionary(kind):
        return array
    if pa.types.is_time(kind):
        return _parse(array, kind, lambda text: text.to_time(_TIME_OF_DAY))
    if _is_binary(kind):
        return _parse(array, kind, lambda text: text.decode("base64"))
    return array.cast(kind)


def _parse(array: Any, kind: pa.DataType, parse: Callable[[Any], pl.Series]) -> Any:
    try:
        values: Any = parse(pl.Series(array, dtype=pl.String).str).to_arrow()
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"a text is no {kind}: {error}") from error
    if pa.types.is_fixed_size_binary(kind):
        values = values.cast(pa.binary())
    return values.cast(kind)


def _is_nestable(kind: Any) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_nestable(kind.value_type)
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_nestable(part.type) for part in kind)
    return any(is_kind(kind) for is_kind in _NESTABLE) and is_held_by_polars(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )
