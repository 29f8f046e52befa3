"""Rows as tests write them: columns, dictionaries, batches or frames → record batches.

Timestamps may be written as text, and a column that is misspelt is an error, not a null.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.core.batch import to_batches
from penstock.core.suggestion import did_you_mean
from penstock.errors import SchemaError

GivenRows: TypeAlias = Any
"""Columns by name, a list of dictionaries, a record batch, an Arrow table or a Polars frame."""


def rows_to_batches(rows: GivenRows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows as non-empty batches of a schema.

    >>> schema = pa.schema({"user": pa.string(), "n": pa.int64()})
    >>> rows_to_batches({"user": ["a"], "n": [1]}, schema)[0].to_pylist()
    [{'user': 'a', 'n': 1}]
    >>> rows_to_batches([{"user": "a", "n": 1}], schema)[0].to_pylist()
    [{'user': 'a', 'n': 1}]
    """
    if isinstance(rows, Mapping):
        return to_batches(_from_columns(rows, schema), schema)
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return _from_list(rows, schema)
    return to_batches(rows, schema)


def _from_list(rows: Sequence[Any], schema: pa.Schema) -> list[pa.RecordBatch]:
    if all(isinstance(row, Mapping) for row in rows):
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        return to_batches(_from_columns(columns, schema), schema) if rows else []
    return [batch for part in rows for batch in rows_to_batches(part, schema)]


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    problems = [
        f"column {name!r} is not in the schema{did_you_mean(name, set(schema.names))}"
        for name in columns
        if name not in schema.names
    ]
    problems += [
        f"column {name!r} is missing" for name in schema.names if name not in columns
    ]
    arrays: list[Any] = []
    for field in schema:
        if field.name in columns:
            try:
                arrays.append(_to_array(columns[field.name], field.type))
            except (pa.ArrowException, TypeError, ValueError) as error:
                problems.append(f"column {field.name!r} is no {field.type}: {error}")
    lengths = {len(array) for array in arrays}
    if len(lengths) > 1:
        problems.append(f"columns have different lengths: {sorted(lengths)}")
    if problems:
        raise SchemaError(
            f"rows do not fit their schema ({', '.join(schema.names)}): "
            + "; ".join(problems)
        )
    return pa.Table.from_arrays(arrays, schema=schema)


def _to_array(values: Any, data_type: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values.cast(data_type)
    if isinstance(values, str | bytes | Mapping):
        raise TypeError(f"{values!r} is one value; give a list with one per row")
    listed = list(values)
    if pa.types.is_timestamp(data_type) and any(isinstance(v, str) for v in listed):
        texts: Any = pa.array(listed, pa.string())
        return texts.cast(data_type)
    return pa.array(listed, data_type)
