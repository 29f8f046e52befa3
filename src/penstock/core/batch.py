"""Record batches: rows converted to a declared schema, to Arrow IPC bytes, and to Python.

Pure. Arrow has several layouts for the same values (string, large string, string view;
dictionary or plain). Engines choose differently, so layouts are converted silently. Any
other difference from the declared schema is an error, and the error names all of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.arrow_types import is_lossless
from penstock.core.rows import RowsLike, is_column, is_pandas, to_column, to_table
from penstock.errors import SchemaError, did_you_mean

SAMPLE_ROWS = 5
_SAMPLE_CHARACTERS = 200
_MOST_HINTS = 5
"""For how many missing columns to look for the name that was meant, among perhaps thousands."""


def to_batches(rows: RowsLike, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows as non-empty record batches of exactly this schema.

    A batch that already has the schema, the usual case, costs one comparison of schemas.
    """
    is_batch = isinstance(rows, pa.RecordBatch)
    if is_batch and (rows.schema is schema or rows.schema.equals(schema)):
        return [rows] if rows.num_rows else []
    table = to_table(rows, schema)
    problems = find_differences(table.schema, schema)
    if problems:
        raise SchemaError("; ".join(problems))
    ordered = table.select(schema.names).cast(schema)
    return [batch for batch in ordered.combine_chunks().to_batches() if batch.num_rows]


def to_batch(
    rows: RowsLike, schema: pa.Schema, columns: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Return rows as one batch; a record batch is returned as it is.

    Of `columns` are taken those only, and if it is one column, its values alone will do; None
    means all columns of the schema.
    """
    if isinstance(rows, pa.RecordBatch):
        return rows
    wanted = schema
    if columns is not None:
        wanted = pa.schema([schema.field(name) for name in columns])
        rows = _selected(rows, wanted)
    batches = to_batches(rows, wanted)
    if len(batches) > 1:
        raise SchemaError(
            f"{sum(b.num_rows for b in batches)} rows do not fit into one record batch: give "
            "fewer at a time"
        )
    return batches[0] if batches else empty_batch(wanted)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows. Arrow's own ways do not know all types of dictionaries."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def _selected(rows: RowsLike, wanted: pa.Schema) -> RowsLike:
    """Return rows without their other columns."""
    if len(wanted) == 1 and is_column(rows):
        field = wanted.field(0)
        try:
            return pa.table({field.name: to_column(rows, field.type)})
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaError(
                f"column {field.name!r} is no {field.type}: {error}"
            ) from error
    names = set(wanted.names)
    if isinstance(rows, Mapping):
        return {name: values for name, values in rows.items() if name in names}
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        return [_selected(row, wanted) for row in rows]
    if is_pandas(rows):
        return rows[[name for name in rows.columns if name in names]]
    table = to_table(rows, wanted)
    return table.select([name for name in table.column_names if name in names])


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
    # `names` is a new list at every call, and both schemas may have thousands of columns.
    names, wanted = set(found.names), {field.name: field.type for field in expected}
    missing = [name for name in wanted if name not in names]
    problems = []
    if len(names) < len(found):
        repeated = [name for name, count in Counter(found.names).items() if count > 1]
        problems += [f"column {name!r} occurs more than once" for name in repeated]
    problems += [
        f"column {name!r} is missing{did_you_mean(name, names)}"
        for name in missing[:_MOST_HINTS]
    ]
    problems += [f"column {name!r} is missing" for name in missing[_MOST_HINTS:]]
    for field in found:
        kind = wanted.get(field.name)
        if kind is None:
            problems.append(f"column {field.name!r} ({field.type}) is not in the schema")
        elif not is_lossless(field.type, kind):
            problems.append(f"column {field.name!r} is {field.type}, expected {kind}")
    return problems


def to_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as dictionaries.

    Arrow has times that Python cannot represent, such as those after the year 9999: they are
    returned as the whole numbers that Arrow stores.
    """
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except (OverflowError, ValueError):
        values = [[_to_python(value) for value in column] for column in rows.columns]
        names = rows.schema.names
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return found


def _to_python(value: Any) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        if isinstance(value, pa.StructScalar):
            return {name: _to_python(part) for name, part in value.items()}
        if isinstance(value, pa.ListScalar):  # that of large and other lists, too
            return [_to_python(part) for part in value.values or ()]
        return value.value


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
