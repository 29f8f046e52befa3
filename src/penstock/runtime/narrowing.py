"""Narrowing: whole numbers and instants travel in as few bytes as they need.

Ids, counts and the times of one batch lie close together, yet take eight bytes each. Between
two tasks every byte is copied some six times, through two processes and a file, so writing
them as small numbers above a base costs less than moving them. The *layout* of a batch says
for every column how it travels: its width in bytes, and the base to add. Other columns, and
batches of a few rows, travel as they are.
"""

import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

AS_IT_IS = b""
"""The layout of a batch in which nothing is narrowed."""

_COLUMN = struct.Struct("<bq")
_WIDTHS: dict[int, pa.DataType] = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}
_LEAST_ROWS = 256
"""Below this, looking costs more than moving."""


def narrow(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, bytes]:
    """Return a batch as it travels, and its layout."""
    if batch.num_rows < _LEAST_ROWS:
        return batch, AS_IT_IS
    narrowed = [_narrow_column(column) for column in batch.columns]
    if not any(width for _, width, _ in narrowed):
        return batch, AS_IT_IS
    layout = b"".join(_COLUMN.pack(width, base) for _, width, base in narrowed)
    columns = [column for column, _, _ in narrowed]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names), layout


def narrowed_schema(schema: pa.Schema, layout: bytes) -> pa.Schema:
    """Return the schema of a batch as it travels."""
    if layout == AS_IT_IS:
        return schema
    widths = [width for width, _ in _COLUMN.iter_unpack(layout)]
    return pa.schema(
        [
            pa.field(field.name, _WIDTHS.get(width, field.type))
            for field, width in zip(schema, widths, strict=True)
        ]
    )


def widen(batch: pa.RecordBatch, schema: pa.Schema, layout: bytes) -> pa.RecordBatch:
    """Return the batch that was narrowed."""
    if layout == AS_IT_IS:
        return batch
    columns = [
        _widen_column(column, field.type, width, base)
        for column, field, (width, base) in zip(
            batch.columns, schema, _COLUMN.iter_unpack(layout), strict=True
        )
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _narrow_column(column: Any) -> tuple[Any, int, int]:
    """Return a column as it travels, the bytes of one value, or 0 as it is, and the base."""
    if not _is_eight_byte_number(column.type):
        return column, 0, 0
    numbers = column.view(pa.int64())
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    width = 8 if low is None else _width_of(high - low)
    if width == 8:
        return column, 0, 0
    # Without a base there is nothing to subtract here, and nothing to add there.
    base = 0 if low >= 0 and _width_of(high) == width else low
    moved = pc.subtract(numbers, base) if base else numbers
    return moved.cast(_WIDTHS[width], safe=False), width, base


def _widen_column(column: Any, kind: pa.DataType, width: int, base: int) -> Any:
    if width == 0:
        return column
    numbers = column.cast(pa.int64())
    return (pc.add(numbers, base) if base else numbers).view(kind)


def _width_of(highest: int) -> int:
    return next((width for width in _WIDTHS if highest < 1 << (8 * width)), 8)


def _is_eight_byte_number(kind: Any) -> bool:
    return bool(
        pa.types.is_int64(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time64(kind)
        or pa.types.is_date64(kind)
    )
