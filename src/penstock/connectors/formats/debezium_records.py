"""Debezium's records of changes, in JSON, with or without their schema.

Decoding gives what `from_debezium` takes, and encoding writes what `to_debezium` gives:

    before: the table's columns   after: the table's columns   op: text

A connector that also writes its schema puts the record inside of `payload`. Both forms are
read, also side by side in one topic. A tombstone gives no row: the record of the deletion
precedes it.

Rules of schema drift are for the columns of the table, so for what is inside of `before` and
`after`; records have more keys beside these two, which nobody declares. `on_missing` looks at
`after` alone: of some databases, `before` has no more than the columns of the key. Without rules
Arrow reads records whole; with rules the two rows are cut out of each record and read apart.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.connectors.formats.drift import DriftRules, read_keys
from penstock.connectors.formats.json_records import JsonRecords
from penstock.connectors.formats.record_format import (
    BadRecord,
    Bytes,
    Decoded,
    RecordFormat,
)
from penstock.connectors.formats.values import join_lines, strip_registry_headers
from penstock.operators.changelogs.debezium import PAYLOAD
from penstock.operators.changelogs.envelopes import AFTER, BEFORE, OP

_NO_CHANGE = (
    "it has no {}, so it is no change as Debezium writes it. If the connector writes rows alone "
    "(ExtractNewRecordState), read them with format='json' or 'upsert'"
)
_ABSENT = msgspec.Raw(b"null")
_EMPTY = pa.struct([])
_PLAIN = json.JSONDecoder()
_WHITE = re.compile(r"[ \t\r\n]*")


class _Parts(msgspec.Struct):
    """What is cut out of a record, as it is written there."""

    before: msgspec.Raw = _ABSENT
    after: msgspec.Raw = _ABSENT
    payload: msgspec.Raw = _ABSENT


_take_apart = msgspec.json.Decoder(_Parts).decode


class DebeziumRecords(RecordFormat):
    """JSON of Debezium, with or without its schema."""

    def __init__(self, schema: pa.Schema, rules: DriftRules | None = None) -> None:
        self.schema = to_record_schema(schema)
        # What must not be null is looked at when it is known which form a record has.
        fields = [field.with_nullable(True) for field in self.schema]  # noqa: FBT003 (Arrow's signature)
        self._whole = JsonRecords(pa.schema(fields))
        self._rows: dict[str, JsonRecords] = {}
        """The rows of the table that are read apart, by rules."""
        if rules is not None and rules != DriftRules():
            self._rows = _rows_by_rules(pa.schema(fields), rules)
        # Nothing of the rows is read here but whether they are objects, and there once.
        self._others = pa.schema(
            [f.with_type(_EMPTY) if f.name in self._rows else f for f in fields]
        )
        self._bare = JsonRecords(self._others)
        payload = pa.field(PAYLOAD, pa.struct([*self._others]))
        self._wrapped = JsonRecords(pa.schema([*self._others, payload]))

    @override
    def decode(self, values: Bytes, keys: Bytes | None = None) -> Decoded:
        decoded = self._decode_others(values)
        if self._rows:
            decoded = self._add_rows(values, decoded)
        return self._set_apart(values, decoded)

    @override
    def encode(self, rows: pa.Table) -> Bytes:
        return self._whole.encode(rows)

    @override
    def check_writable(self) -> None:
        self._whole.check_writable()

    def _decode_others(self, values: Bytes) -> Decoded:
        # A key may be written with escapes, too.
        pattern = rf'"{PAYLOAD}"|\\u00'
        if not pc.any(pc.match_substring_regex(values, pattern)).as_py():
            return self._bare.decode(values)
        decoded = self._wrapped.decode(values)
        return Decoded(self._unwrap(decoded.rows), decoded.taken, decoded.bad)

    def _unwrap(self, rows: pa.Table) -> pa.Table:
        """Return the payload of records that have one, and others as they are."""
        payload: Any = rows.column(PAYLOAD).combine_chunks()
        has_payload = payload.is_valid()
        columns = {
            field.name: pc.if_else(
                has_payload, inner, rows.column(field.name).combine_chunks()
            )
            for field, inner in zip(self._others, payload.flatten(), strict=True)
            if field.name not in self._rows
        }
        return pa.table(columns)

    def _add_rows(self, values: Bytes, others: Decoded) -> Decoded:
        """Add the rows that are read apart; a record is bad if one of them is."""
        count = others.rows.num_rows
        cut, bad = _cut_out(others.take(values), tuple(self._rows))
        columns = {
            name: others.rows.column(name).combine_chunks()
            for name in others.rows.schema.names
            if name not in self._rows
        }
        for name, format_ in self._rows.items():
            found = format_.decode(cut[name])
            for one in found.bad:
                fails = one.fails or (one.index in bad and bad[one.index].fails)
                reason = f"its `{name}`: {one.reason}"
                bad[one.index] = BadRecord(one.index, reason, fails)
            at = found.rows_of(count)
            is_null = at < 0
            places: Any = pa.array(at, mask=is_null)
            taken = found.rows.take(places)
            columns[name] = pa.StructArray.from_arrays(
                [column.combine_chunks() for column in taken.columns],
                fields=[*format_.schema],
                mask=pa.array(is_null),
            )
        names = self.schema.names
        rows = pa.Table.from_arrays([columns[name] for name in names], names)
        is_good = np.ones(count, dtype=np.bool_)
        is_good[list(bad)] = False
        return _only(Decoded(rows, others.taken, others.bad), is_good, [*bad.values()])

    def _set_apart(self, values: Bytes, decoded: Decoded) -> Decoded:
        """Return what is a change; others are bad, or tombstones inside of a `payload`."""
        must_be = [f.name for f in self.schema if f.name == OP or not f.nullable]
        is_change = np.ones(decoded.rows.num_rows, dtype=np.bool_)
        for name in must_be:
            column = decoded.rows.column(name)
            if column.null_count:
                is_change &= column.is_valid().to_numpy()
        records = decoded.take(values)
        reason = _NO_CHANGE.format(" or no ".join(f"`{name}`" for name in must_be))
        bad = [
            BadRecord(index, reason)
            for index in np.flatnonzero(~is_change).tolist()
            if not _is_tombstone(records[index].as_py())
        ]
        changes = _only(decoded, is_change, bad)
        return Decoded(changes.rows.cast(self.schema), changes.taken, changes.bad)


def _rows_by_rules(fields: pa.Schema, rules: DriftRules) -> dict[str, JsonRecords]:
    """Return the formats of what is inside of `before` and `after`."""
    lenient = DriftRules(rules.on_new, "null", rules.on_wider)
    return {
        field.name: JsonRecords(
            pa.schema([*field.type]), rules if field.name == AFTER else lenient
        )
        for field in fields
        if field.name in (BEFORE, AFTER) and pa.types.is_struct(field.type)
    }


def _cut_out(
    records: Bytes, names: Sequence[str]
) -> tuple[dict[str, Bytes], dict[int, BadRecord]]:
    """Return parts of records by name, null where a record has none; and what is bad."""
    cut: dict[str, list[bytes | None]] = {name: [] for name in names}
    bad: dict[int, BadRecord] = {}
    lines = strip_registry_headers(join_lines(records))
    for index, record in enumerate(lines.to_list()):
        try:
            parts = _to_parts(record)
        except (ValueError, IndexError, RecursionError) as error:
            parts, bad[index] = _Parts(), BadRecord(index, str(error))
        for name in names:
            part = getattr(parts, name)
            cut[name].append(None if part == _ABSENT else bytes(part))
    return {name: pa.array(found, pa.binary()) for name, found in cut.items()}, bad


def _to_parts(record: bytes) -> _Parts:
    try:
        parts = _take_apart(record)
        return parts if parts.payload == _ABSENT else _take_apart(parts.payload)
    except msgspec.DecodeError:
        # It may hold NaN, which other parsers of JSON take.
        members = _find_members(record.decode())
        if members.get(PAYLOAD, "null") != "null":
            members = _find_members(members[PAYLOAD])
        named = {name: members[name] for name in (BEFORE, AFTER) if name in members}
        return _Parts(**{name: msgspec.Raw(text.encode()) for name, text in named.items()})


def _find_members(text: str) -> dict[str, str]:
    """Return the members of an object, as they are written, by Python's own parser."""
    members: dict[str, str] = {}
    at = _behind_white(text, _behind_white(text, 0) + 1)
    while text[at] != "}":
        name, at = _PLAIN.raw_decode(text, at)
        start = _behind_white(text, _behind_white(text, at) + 1)
        _, end = _PLAIN.raw_decode(text, start)
        members[name] = text[start:end]
        at = _behind_white(text, end)
        if text[at] == ",":
            at = _behind_white(text, at + 1)
    return members


def _behind_white(text: str, at: int) -> int:
    found = _WHITE.match(text, at)
    return at if found is None else found.end()


def _only(
    decoded: Decoded, is_good: npt.NDArray[np.bool_], bad: Sequence[BadRecord]
) -> Decoded:
    """Return some of the rows; `bad` are others, with the places of their rows."""
    if is_good.all():
        return decoded
    taken = decoded.taken
    if taken is None:
        taken = np.arange(decoded.rows.num_rows)
    told = [BadRecord(int(taken[one.index]), one.reason, one.fails) for one in bad]
    every = sorted([*decoded.bad, *told], key=lambda one: one.index)
    rows = decoded.rows.filter(pa.array(is_good))
    return Decoded(rows, taken[is_good], tuple(every))


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
        rows = {name for name in (BEFORE, AFTER) if name in schema.names}
        return pa.schema([_open(f) if f.name in rows else f for f in schema])
    row = _to_open(pa.struct([*schema]))
    return pa.schema([(BEFORE, row), (AFTER, row), (OP, pa.string())])


def _open(field: Any) -> Any:
    """Return a column whose parts may be null: where a row is absent, they are."""
    return field.with_type(_to_open(field.type))


def _to_open(kind: Any) -> Any:
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct([field.with_nullable(True) for field in kind])  # noqa: FBT003 (Arrow's signature)
