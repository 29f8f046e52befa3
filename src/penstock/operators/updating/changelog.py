"""Changelogs: streams of changes of a table, a row per change.

    key columns …, op ("insert" | "update" | "delete"), before {…} or null, after {…} or null

`before` and `after` hold the values of the row of that key; folding a changelog by key gives
the table. Pure.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError

OP, BEFORE, AFTER = "op", "before", "after"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
_OPS = (INSERT, UPDATE, DELETE)


def changelog_schema(
    keys: Sequence["pa.Field[Any]"], values: Sequence["pa.Field[Any]"]
) -> StreamSchema:
    """Return the stream of changes of a table with such keys and values; it has no key."""
    taken = [field.name for field in keys if field.name in (OP, BEFORE, AFTER)]
    if taken:
        raise SchemaError(
            f"a key column is called {', '.join(map(repr, taken))}, as a column of the changelog "
            "is: rename it before key_by",
            columns=tuple(taken),
        )
    row = pa.struct(list(values))
    changes = [pa.field(OP, pa.string()), pa.field(BEFORE, row), pa.field(AFTER, row)]
    return StreamSchema(pa.schema([*keys, *changes]))


def to_changes(
    schema: pa.Schema,
    keys: pa.RecordBatch,
    before: "pa.StructArray",
    after: "pa.StructArray",
) -> pa.RecordBatch:
    """Return a change per key; where there is no `before` it is an insert, no `after` a delete."""
    is_new = before.is_null().to_numpy(zero_copy_only=False)
    is_gone = after.is_null().to_numpy(zero_copy_only=False)
    codes: Any = np.where(is_new, 0, np.where(is_gone, 2, 1)).astype(np.int8)
    ops = pa.DictionaryArray.from_arrays(codes, pa.array(_OPS)).dictionary_decode()
    columns: list[Any] = [*keys.columns, ops, before, after]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def keys_of_changelog(stream: StreamSchema) -> tuple[str, ...]:
    """Return the key columns of a changelog, or say why a stream is none."""
    schema = stream.schema
    missing = [name for name in (OP, BEFORE, AFTER) if name not in schema.names]
    problems = [f"it has no column {name!r}" for name in missing]
    if not missing:
        before, after = schema.field(BEFORE).type, schema.field(AFTER).type
        if not pa.types.is_struct(before) or not before.equals(after):
            problems.append(
                f"{BEFORE!r} is {before} and {AFTER!r} is {after}: not one struct"
            )
        elif clashes := {field.name for field in before} & set(schema.names):
            problems.append(f"{sorted(clashes)} are both beside and inside of {BEFORE!r}")
    if problems:
        raise SchemaError(
            f"the stream is not a changelog: {'; '.join(problems)}. Changelogs come from "
            "key_by(…).aggregate(…)"
        )
    return tuple(name for name in schema.names if name not in (OP, BEFORE, AFTER))
