"""Rows of an older version, handed to its migration in the columns its class declares.

Pure. A class that was edited after state was written with it would be given other columns
than it says, or values cast to other ones: that is refused, not guessed.
"""

from typing import Any

import pyarrow as pa

from penstock.errors import ErrorCode, SchemaError
from penstock.state.tables.arrow_layout import have_same_values, relay


def as_declared(
    rows: pa.RecordBatch, state_type: Any, *, table: str, path: str
) -> pa.RecordBatch:
    """Return stored rows as `state_type` declares them; only order and layout may differ."""
    schema: pa.Schema | None = getattr(state_type, "SCHEMA", None)
    if schema is None or rows.schema.equals(schema):
        return rows
    found = {field.name: field.type for field in rows.schema}
    fits = set(found) == set(schema.names) and all(
        have_same_values(found[field.name], field.type) for field in schema
    )
    if not fits:
        raise SchemaError(
            f"{state_type.__name__}.SCHEMA of table {table!r} says ({_listed(schema)}), but "
            f"{path}, written with that version, holds ({_listed(rows.schema)}). Nothing was "
            "changed; a version that state was written with stays as it is: restore the class "
            "and put the change into a new version",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=table,
            path=path,
        )
    columns = [relay(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
