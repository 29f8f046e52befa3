"""The wire: encodes the records between the tasks of two supersteps as four plain columns.

    route    the task of the next level that gets the record
    kind     DATA: one Arrow record batch · BARRIER: the end of a producer's rows on one edge
             REPORT: a task's control record, on its way to the driver
    header   where it goes, which attempt of which task made it, and its number
    payload  the batch, the barrier, or the report

Nothing here is durable: both ends run the same version, in the same epoch. So the header is
a fixed struct, followed by the layout for rows, instead of a message with a schema, and a
report is msgpack.

**Narrowing.** Whole numbers and instants travel in as few bytes as they need. Ids, counts and
the times of one batch lie close together, yet take eight bytes each. Between two tasks every
byte is copied some six times, through two processes and a file, so writing them as small
numbers above a base costs less than moving them. The *layout* of a batch holds for every column
its width in bytes, and the base to add. Other columns, and batches of a few rows, travel as
they are.

**Dictionary columns.** Each batch carries only the values it uses. A slice keeps the dictionary
of the whole, so ten pieces of a batch would carry it ten times.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import NoneType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import Token
from penstock.core.watermark import IDLE, EventTime, Idle, Watermark
from penstock.errors import ErrorCode, InternalError, UserError

AS_IT_IS = b""
"""The layout of a batch in which nothing is narrowed."""

_COLUMN = struct.Struct("<bq")
_WIDTHS: dict[int, pa.DataType] = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}
_LEAST_ROWS = 256
"""With fewer rows, finding the width costs more than moving the bytes."""


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
    columns: list[Any] = batch.columns
    for index, (width, base) in enumerate(_COLUMN.iter_unpack(layout)):
        if width:
            numbers: Any = columns[index].cast(pa.int64())
            numbers = pc.add(numbers, base) if base else numbers
            columns[index] = numbers.view(schema.field(index).type)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _narrow_column(column: Any) -> tuple[Any, int, int]:
    """Return a column as it travels, the bytes of one value (0 if unchanged), and the base."""
    kind = column.type
    if kind != pa.int64() and not (pa.types.is_temporal(kind) and kind.bit_width == 64):
        return column, 0, 0
    numbers = column.view(pa.int64())
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    width = 8 if low is None else _width_of(high - low)
    if width == 8:
        return column, 0, 0
    # A base of 0 saves the subtraction here and the addition at the other end.
    base = 0 if low >= 0 and _width_of(high) == width else low
    moved = pc.subtract(numbers, base) if base else numbers
    return moved.cast(_WIDTHS[width], safe=False), width, base


def _width_of(highest: int) -> int:
    return next((width for width in _WIDTHS if highest < 1 << (8 * width)), 8)


def has_dictionaries(fields: Iterable[Any]) -> bool:
    """Return whether any column of a schema, at any depth, is dictionary-encoded."""
    return any(
        pa.types.is_dictionary(kind)
        or has_dictionaries(map(kind.field, range(kind.num_fields)))
        for kind in (field.type for field in fields)
    )


def trim_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch without the dictionary values that its rows do not use.

    A dictionary that is smaller than its indices is kept.
    Dictionaries inside of lists and structs are kept: their indices are not those of rows.
    """
    if not any(pa.types.is_dictionary(field.type) for field in batch.schema):
        return batch
    columns = [_trimmed(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _trimmed(column: Any) -> Any:
    if not pa.types.is_dictionary(column.type):
        return column
    if column.dictionary.nbytes <= column.indices.nbytes:
        return column
    # Sorting keeps the order of the values, which has a meaning in an ordered dictionary.
    used = pc.unique(column.indices).drop_null().sort()
    if len(used) == len(column.dictionary):
        return column
    indices = pc.index_in(column.indices, value_set=used).cast(column.type.index_type)
    values = column.dictionary.take(used)
    return pa.DictionaryArray.from_arrays(indices, values, ordered=column.type.ordered)


_HEADER = struct.Struct("<iiiii16sq")
_BARRIER = struct.Struct("<q?bq?q")
_WATERMARKS = (NoneType, Idle, EventTime)
"""The kinds of watermark of a barrier, in the order of their numbers."""

TARGET_PAYLOAD_BYTES = 384 << 10
"""Batches for one destination are joined, and cut, to about this size before they are narrowed.

It is less than half a region of Java's default collector, which handles larger objects
separately.
"""
MAX_ROW_BYTES = 256 << 20
"""A single row larger than this is refused: engines move rows whole."""


class RecordKind(IntEnum):
    """What a record is."""

    DATA = 0
    BARRIER = 1
    REPORT = 2


class Record(NamedTuple):
    """One row of an exchange."""

    route: int
    kind: int
    header: bytes
    payload: Any
    """Anything with the buffer protocol."""


class Header(NamedTuple):
    """Where a record goes and where it came from. `edge` is -1 for a report."""

    edge: int
    level: int
    """The level that consumes it; one past the last is the driver."""
    task: int
    producer_level: int
    producer_task: int
    token: Token
    sequence: int
    layout: bytes = b""
    """How the columns of a DATA record travel; see `narrow`."""


@dataclass(frozen=True, slots=True)
class BarrierPayload:
    """The last record of one producer on one edge to one consumer."""

    record_count: int
    """How many DATA records came before it."""
    is_aborted: bool
    """The producer failed: its rows are not complete."""
    watermark: Watermark | None


def encode_header(header: Header) -> bytes:
    """Pack a header."""
    fixed = _HEADER.pack(*header[:5], bytes.fromhex(header.token), header.sequence)
    return fixed + header.layout


def decode_header(data: bytes) -> Header:
    """Unpack a header."""
    *places, token, sequence = _HEADER.unpack_from(data)
    layout = data[_HEADER.size :]
    return Header._make((*places, Token(token.hex()), sequence, layout))


def encode_barrier(barrier: BarrierPayload) -> bytes:
    """Pack a barrier."""
    watermark = barrier.watermark
    micros, reached = 0, None
    if isinstance(watermark, EventTime):
        micros, reached = watermark.micros, watermark.reached_micros
    kind = _WATERMARKS.index(type(watermark))
    end = reached is not None, reached or 0
    return _BARRIER.pack(barrier.record_count, barrier.is_aborted, kind, micros, *end)


def decode_barrier(data: bytes) -> BarrierPayload:
    """Unpack a barrier."""
    count, is_aborted, kind, micros, has_reached, reached = _BARRIER.unpack(data)
    time = EventTime(micros, reached if has_reached else None)
    return BarrierPayload(count, is_aborted, (None, IDLE, time)[kind])


def encode_batch(batch: pa.RecordBatch, compression: Any = None) -> Any:
    """Return a batch as an Arrow IPC message; its schema is known from edge and layout."""
    if compression is None and not has_dictionaries(batch.schema):
        return batch.serialize()
    # Dictionaries are messages of their own, and only a stream can be compressed.
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def decode_batch(payload: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch that `encode_batch` was given."""
    buffer = pa.py_buffer(payload)
    try:
        message = pa.ipc.read_message(buffer)
        if message.type == "record batch":
            return pa.ipc.read_record_batch(message, schema)
        return pa.ipc.open_stream(buffer).read_next_batch()
    except (pa.ArrowException, OSError, EOFError, StopIteration) as error:
        raise InternalError(
            f"{buffer.size} bytes from an exchange are not a batch of its schema: {error}"
        ) from error


def cut(
    batch: pa.RecordBatch,
    target_bytes: int = TARGET_PAYLOAD_BYTES,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> list[pa.RecordBatch]:
    """Cut a batch into pieces of about `target_bytes`; one huge row is refused."""
    batch = trim_dictionaries(batch)
    size = batch.nbytes
    if size <= 2 * target_bytes:
        return [batch]
    pieces = min(-(-size // target_bytes), batch.num_rows)
    rows = -(-batch.num_rows // pieces)
    parts = [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
    if len(parts) > 1 and not _share_most(parts, size):
        return [piece for part in parts for piece in cut(part, target_bytes, max_row_bytes)]
    if size > max_row_bytes:
        what = "a single row" if batch.num_rows == 1 else "a dictionary inside of rows"
        raise UserError(
            f"{what} has {size:,} bytes, more than the {max_row_bytes:,} that can be moved "
            "between tasks: store the large value elsewhere and send its address",
            code=ErrorCode.INVALID_NUMBER,
        )
    return [batch]


def _share_most(parts: Sequence[pa.RecordBatch], size: int) -> bool:
    """Return whether cutting is useless, because each part keeps most of the whole.

    That happens with a dictionary inside a list.
    """
    return sum(trim_dictionaries(part).nbytes for part in parts[:2]) > 3 * size // 2
