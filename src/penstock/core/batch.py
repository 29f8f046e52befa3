"""Record batches: rows converted to a declared schema, to Arrow IPC bytes, and to samples.

Pure. Arrow has several layouts for the same values (string, large string, string view;
dictionary or plain). Engines choose differently, so layouts are converted silently. Any
other difference from the declared schema is an error, and the error names all of them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.core.arrow_types import is_lossless
from penstock.errors import SchemaError, did_you_mean

RowsLike: TypeAlias = Any
"""A `pyarrow.RecordBatch`, a `pyarrow.Table`, or a Polars `DataFrame`."""

SAMPLE_ROWS = 5
_SAMPLE_CHARACTERS = 200


def to_batches(rows: RowsLike, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows as non-empty record batches of exactly this schema.

    A batch that already has the schema, the usual case, costs one comparison of schemas.
    """
    if isinstance(rows, pa.RecordBatch):
        if rows.schema is schema or rows.schema.equals(schema):
            return [rows] if rows.num_rows else []
        rows = pa.Table.from_batches([rows])
    elif not isinstance(rows, pa.Table):
        if not hasattr(rows, "to_arrow"):
            raise SchemaError(
                f"expected a pyarrow.RecordBatch, a pyarrow.Table or a polars.DataFrame, got "
                f"{type(rows).__name__}"
            )
        rows = rows.to_arrow()
    problems = find_differences(rows.schema, schema)
    if problems:
        raise SchemaError("; ".join(problems))
    ordered = rows.select(schema.names).cast(schema)
    return [batch for batch in ordered.combine_chunks().to_batches() if batch.num_rows]


def to_batch(
    rows: RowsLike, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return rows as one batch; a record batch is returned as it is.

    From tables and frames only `columns` are taken; None means all columns of the schema.
    """
    if isinstance(rows, pa.RecordBatch):
        return rows
    wanted = schema if columns is None else pa.schema([schema.field(n) for n in columns])
    if not isinstance(rows, pa.Table) and hasattr(rows, "to_arrow"):
        rows = rows.to_arrow()
    if columns is not None and isinstance(rows, pa.Table):
        rows = rows.select([name for name in rows.column_names if name in columns])
    batches = to_batches(rows, wanted)
    if len(batches) > 1:
        raise SchemaError(
            f"{sum(b.num_rows for b in batches)} rows do not fit into one record batch: give "
            "fewer at a time"
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], wanted)


def to_ipc(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return rows as one Arrow IPC stream, which begins with their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """Return the rows of a stream; they refer to `data` instead of copying it."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_all()


def find_differences(found: pa.Schema, expected: pa.Schema) -> list[str]:
    """Return why rows of one schema are not rows of the other; layouts do not count."""
    problems = [
        f"column {name!r} is missing{did_you_mean(name, set(found.names))}"
        for name in expected.names
        if name not in found.names
    ]
    for field in found:
        index = expected.get_field_index(field.name)
        if index < 0:
            problems.append(f"column {field.name!r} ({field.type}) is not in the schema")
        elif not is_lossless(field.type, expected.field(index).type):
            wanted = expected.field(index).type
            problems.append(f"column {field.name!r} is {field.type}, expected {wanted}")
    return problems


def describe_sample(batch: pa.RecordBatch) -> str:
    """Show the first rows of a batch, for an error message: a line each, cut when long."""
    lines = [
        text if len(text) <= _SAMPLE_CHARACTERS else text[:_SAMPLE_CHARACTERS] + "…"
        for text in _sample_lines(batch.slice(0, SAMPLE_ROWS))
    ]
    more = batch.num_rows - SAMPLE_ROWS
    if more > 0:
        lines.append(f"… and {more} more rows")
    return "\n".join(lines)


def _sample_lines(sample: pa.RecordBatch) -> list[str]:
    try:
        return [repr(row) for row in sample.to_pylist()]
    except (OverflowError, ValueError):
        # Arrow has dates that Python cannot represent: show columns as Arrow prints them.
        return [
            f"{name}: {' '.join(column.to_string().split())}"
            for name, column in zip(sample.schema.names, sample.columns, strict=True)
        ]
