"""Upserts: records whose key names a row, and whose tombstone deletes it.

Decoding gives what `from_upserts(…, deleted="deleted")` takes, and encoding writes what
`to_upserts` gives:

    key {"user": 7}   value {"user": 7, "name": "ada"}     7   ada    deleted=false
    key {"user": 7}   value null                           7   null   deleted=true

The key's columns are read from the key alone, and are written into the value, too, for readers
that look only there. A record without a key names no row, and is bad.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.connectors.formats.record_format import (
    BadRecord,
    Bytes,
    Decoded,
    Places,
    RecordFormat,
)
from penstock.errors import ErrorCode, UserError
from penstock.operators.changelogs.envelopes import DELETED


class UpsertRecords(RecordFormat):
    """Rows by key, of a format for keys and one for values.

    The rows have the columns of the key, the other columns of the value, and `deleted`, in the
    order of `schema`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        key: RecordFormat,
        value: RecordFormat,
        required: Sequence[str] = (),
    ) -> None:
        """Make it of two formats; `required` columns have values in rows that are not deleted."""
        self._key, self._value = key, value
        self._required = tuple(required)
        self.schema = schema

    @property
    @override
    def reads_keys(self) -> bool:
        return True

    @override
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        if keys is None:
            raise UserError(
                "upserts are read by the keys of records, and these have none: read them from "
                "a system whose records have keys, such as Kafka",
                code=ErrorCode.INVALID_CONFIG,
            )
        key, value = self._key.decode(keys), self._value.decode(values)
        count = len(values)
        key_of, value_of = key.rows_of(count), value.rows_of(count)
        is_gone = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
        bad = {
            one.index: replace(one, reason=f"its value: {one.reason}") for one in value.bad
        }
        for one in key.bad:
            fails = one.fails or (one.index in bad and bad[one.index].fails)
            bad[one.index] = replace(one, reason=f"its key: {one.reason}", fails=fails)
        for index in np.flatnonzero((key_of < 0) | _have_nulls(key, key_of)):
            keyless = BadRecord(int(index), "it has no key, so it names no row")
            bad.setdefault(int(index), keyless)
        for name in self._required:
            lacks = ~is_gone & _have_nulls(value, value_of, [name])
            reason = (
                f"its value: column {name!r} is null, and the schema does not allow that"
            )
            for index in np.flatnonzero(lacks):
                bad.setdefault(int(index), BadRecord(int(index), reason))
        is_good = np.ones(count, dtype=np.bool_)
        is_good[list(bad)] = False
        taken = np.flatnonzero(is_good)
        gone = is_gone[taken]
        from_key: Any = pa.array(key_of[taken])
        from_value: Any = pa.array(value_of[taken], mask=gone)
        columns: list[Any] = []
        for field in self.schema:
            if field.name == DELETED:
                columns.append(pa.array(gone))
            elif field.name in self._key.schema.names:
                columns.append(key.rows.column(field.name).take(from_key))
            else:
                columns.append(value.rows.column(field.name).take(from_value))
        rows = pa.Table.from_arrays(columns, schema=self.schema)
        return Decoded(
            rows,
            None if len(taken) == count else taken,
            tuple(bad[index] for index in sorted(bad)),
        )

    @override
    def encode(self, rows: pa.Table) -> Bytes:
        there: Any = pc.invert(rows.column(DELETED).combine_chunks())
        values = self._value.encode(rows.select(self._value.schema.names))
        return pc.if_else(there, values, pa.scalar(None, values.type))

    @override
    def check_writable(self) -> None:
        self._value.check_writable()
        self._key.check_writable()

    @override
    def encode_keys(self, rows: pa.Table) -> Bytes | None:
        return self._key.encode(rows.select(self._key.schema.names))


def upsert_schema(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return the rows of a table's columns: those outside of the key may be null."""
    fields = [
        field if field.name in key else field.with_nullable(True)  # noqa: FBT003 (Arrow's signature)
        for field in schema
        if field.name != DELETED
    ]
    return pa.schema([*fields, pa.field(DELETED, pa.bool_())])


def _have_nulls(
    decoded: Decoded, row_of: Places, names: Sequence[str] | None = None
) -> Any:
    """Return for each record whether one of its columns is null, or one of those that are named."""
    has = np.zeros(decoded.rows.num_rows + 1, dtype=np.bool_)
    for name in decoded.rows.column_names if names is None else names:
        column = decoded.rows.column(name)
        if column.null_count:
            has[:-1] |= column.is_null().to_numpy()
    return has[row_of]
