"""Records of changes: Debezium's, and upserts, whose key names a row and whose tombstone deletes it.

Of Debezium, decoding gives what `from_debezium` takes, and encoding writes what `to_debezium`
gives:

    before: the table's columns   after: the table's columns   op: text

A connector that also writes its schema puts the record inside of `payload`. Both forms are
read, also side by side in one topic. A tombstone gives no row: the record of the deletion
precedes it.

Of upserts, decoding gives what `from_upserts(…, deleted="deleted")` takes, and encoding writes
what `to_upserts` gives:

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

from penstock.connectors.formats.drift import read_keys
from penstock.connectors.formats.json_records import JsonRecords
from penstock.connectors.formats.record_format import (
    BadRecord,
    Bytes,
    Decoded,
    Places,
    RecordFormat,
)
from penstock.errors import ErrorCode, UserError
from penstock.operators.changelogs.debezium import PAYLOAD
from penstock.operators.changelogs.envelopes import AFTER, BEFORE, DELETED, OP


class DebeziumRecords(RecordFormat):
    """JSON of Debezium, with or without its schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = to_record_schema(schema)
        # What must not be null is looked at when it is known which form a record has.
        open_ = pa.schema([field.with_nullable(True) for field in self.schema])  # noqa: FBT003 (Arrow's signature)
        self._bare = JsonRecords(open_)
        payload = pa.field(PAYLOAD, pa.struct([*open_]))
        self._wrapped = JsonRecords(pa.schema([*open_, payload]))

    @override
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        # A key may be written with escapes, too.
        pattern = rf'"{PAYLOAD}"|\\u00'
        mentions = pc.any(pc.match_substring_regex(values, pattern)).as_py()
        if not mentions:
            return self._set_apart(values, self._bare.decode(values))
        decoded = self._wrapped.decode(values)
        unwrapped = Decoded(self._unwrap(decoded.rows), decoded.taken, decoded.bad)
        return self._set_apart(values, unwrapped)

    @override
    def encode(self, rows: pa.Table) -> Bytes:
        return self._bare.encode(rows)

    @override
    def check_writable(self) -> None:
        self._bare.check_writable()

    def _set_apart(self, values: Bytes, decoded: Decoded) -> Decoded:
        """Return what is a change; others are bad, or tombstones inside of a `payload`."""
        must_be = [f.name for f in self.schema if f.name == OP or not f.nullable]
        is_change = np.ones(decoded.rows.num_rows, dtype=np.bool_)
        for name in must_be:
            column = decoded.rows.column(name)
            if column.null_count:
                is_change &= column.is_valid().to_numpy()
        if is_change.all():
            return Decoded(decoded.rows.cast(self.schema), decoded.taken, decoded.bad)
        taken = np.arange(len(values)) if decoded.taken is None else decoded.taken
        others = taken[~is_change].tolist()
        bad = [
            BadRecord(place, _NO_CHANGE.format(" or no ".join(f"`{n}`" for n in must_be)))
            for place in others
            if not _is_tombstone(values[place].as_py())
        ]
        rows = decoded.rows.filter(pa.array(is_change)).cast(self.schema)
        every = sorted([*decoded.bad, *bad], key=lambda one: one.index)
        return Decoded(rows, taken[is_change], tuple(every))

    def _unwrap(self, rows: pa.Table) -> pa.Table:
        """Return the payload of records that have one, and others as they are."""
        payload: Any = rows.column(PAYLOAD).combine_chunks()
        has_payload = payload.is_valid()
        columns = [
            pc.if_else(has_payload, inner, rows.column(field.name).combine_chunks())
            for field, inner in zip(self.schema, payload.flatten(), strict=True)
        ]
        return pa.Table.from_arrays(columns, names=self.schema.names)


_NO_CHANGE = (
    "it has no {}, so it is no change as Debezium writes it. If the connector writes rows alone "
    "(ExtractNewRecordState), read them with format='json' or 'upsert'"
)


def _is_tombstone(value: bytes) -> bool:
    """Tell whether a record holds nothing; some connectors write a tombstone that sends a schema."""
    found = read_keys(value) or {}
    return PAYLOAD in found and found[PAYLOAD] is None and OP not in found


def to_record_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of records, of a table's columns; records' own stay as they are.

    >>> to_record_schema(pa.schema([("id", pa.int64())])).names
    ['before', 'after', 'op']
    """
    if AFTER in schema.names and OP in schema.names:
        return schema
    row = pa.struct([field.with_nullable(True) for field in schema])  # noqa: FBT003 (Arrow's signature)
    return pa.schema([(BEFORE, row), (AFTER, row), (OP, pa.string())])


class UpsertRecords(RecordFormat):
    """Rows by key, of a format for keys and one for values.

    The rows have the columns of the key, the other columns of the value, and `deleted`, in the
    order of `schema`.
    """

    def __init__(self, schema: pa.Schema, key: RecordFormat, value: RecordFormat) -> None:
        self._key, self._value = key, value
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
        key_of, value_of = _row_of(key, count), _row_of(value, count)
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


def _row_of(decoded: Decoded, count: int) -> Places:
    """Return for each record its row; -1 for one that gave none."""
    if decoded.taken is None:
        return np.arange(count)
    rows = np.full(count, -1, dtype=np.int64)
    rows[decoded.taken] = np.arange(len(decoded.taken))
    return rows


def _have_nulls(key: Decoded, row_of: Places) -> Any:
    """Return for each record whether one of its key's columns is null."""
    has = np.zeros(key.rows.num_rows + 1, dtype=np.bool_)
    for column in key.rows.columns:
        if column.null_count:
            has[:-1] |= column.is_null().to_numpy()
    return has[row_of]
