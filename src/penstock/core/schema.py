"""Stream schemas: the columns of a stream, and which are its event time, its key, its changes.

Pure. Event times are microseconds since 1970-01-01 UTC; timestamps without a zone are taken
as UTC, and finer ones are rounded down.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from penstock.core.arrow_types import Micros, is_known_zone, is_text, to_micros
from penstock.core.hash_kernels import Hashes
from penstock.core.key_hash import Column, check_key_type, hash_keys
from penstock.core.spellings import absent, renamed
from penstock.errors import CorruptStateError, ErrorCode, SchemaError, did_you_mean

RESERVED_PREFIX = "_penstock"
RESERVED_NAMES = frozenset({"_key_hash", "_operation", "_expires_at"})
"""Names of columns that Penstock adds to state files."""

CHANGE_COLUMN = "change"
"""The column of a changelog that says what each row does to the table."""


class Settling(Enum):
    """How far the changes of a key within one epoch are brought into one form."""

    SETTLED = "settled"
    """At most one change per key, its kind exact, an update's two rows side by side."""
    TOGETHER = "together"
    """Rows count by their signs only; all rows of a key are in one subtask."""
    APART = "apart"
    """Rows count by their signs only; those of a key may be in several subtasks."""


_ROLES = b"penstock.stream"

Rows: TypeAlias = pa.RecordBatch | pa.Table


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """The columns of a stream and their roles. Valid by construction, and can be pickled."""

    arrow: pa.Schema
    """The names and types of the columns."""
    time_column: str | None = None
    """The timestamp column that holds each row's event time; None if rows have none."""
    key_columns: tuple[str, ...] = ()
    """The columns that make up the key, in the order they are hashed; () if not keyed."""
    table_key: tuple[str, ...] | None = None
    """The columns that tell apart the rows of the table whose changes a changelog holds.

    None for an append-only stream, where every row stands for itself; () for a table of one
    row. If no key is known, all columns but `change` are it: see `is_bag`.
    """
    settling: Settling = Settling.APART
    """What a changelog promises about the changes of one key within an epoch."""
    is_bag: bool = False
    """Whether it is a changelog without a known key: equal rows may be there several times."""

    def __post_init__(self) -> None:
        given: object = self.arrow
        if not isinstance(given, pa.Schema):
            raise SchemaError(
                f"{given!r:.80} is no pyarrow.Schema, which a StreamSchema is made of: write "
                "pa.schema([('user', pa.string()), …])",
                code=ErrorCode.INVALID_CONFIG,
            )
        problems = list(_problems(self))
        if problems:
            codes = {code for code, _ in problems}
            raise SchemaError(
                "the schema of a stream cannot be used:\n  "
                + "\n  ".join(text for _, text in problems),
                code=codes.pop() if len(codes) == 1 else ErrorCode.SCHEMA_MISMATCH,
            )

    if not TYPE_CHECKING:  # A checker would take any name for an attribute.

        def __getattr__(self, name):
            hints = {"schema": "its columns are `arrow`"}
            raise absent("StreamSchema", name, hints, dir(StreamSchema))

    def keyed_by(self, *key_columns: str) -> Self:
        """Return the same columns with another key."""
        return replace(self, key_columns=key_columns)

    @property
    def is_changelog(self) -> bool:
        """Whether rows are changes of a table, told by their column `change`."""
        return self.table_key is not None

    def loosened(self) -> Self:
        """Return the schema of some of its rows: of a changelog, signs are all that is exact."""
        if self.settling is not Settling.SETTLED:
            return self
        return replace(self, settling=Settling.TOGETHER)

    def with_columns(self, arrow: pa.Schema, time_column: str | None) -> Self:
        """Return other columns of the same rows; what they are about stays as it is."""
        key = self.table_key
        if self.is_bag:
            key = tuple(name for name in arrow.names if name != CHANGE_COLUMN)
        return replace(self, arrow=arrow, time_column=time_column, table_key=key)

    def keys_of(self, rows: Rows) -> list[Column]:
        """Return the key columns of some rows, in order."""
        return [_column(rows, name) for name in self.key_columns]

    def key_hashes_of(self, rows: Rows) -> Hashes:
        """Return the key hash of each row; zeros for a stream without a key."""
        return hash_keys(self.keys_of(rows), row_count=rows.num_rows)

    def event_times_of(self, rows: Rows) -> Micros:
        """Return the event time of each row in microseconds; a row without one is an error."""
        if self.time_column is None:
            raise SchemaError(
                "the stream has no event time: name its timestamp column as the time column"
            )
        name = self.time_column
        column = _column(rows, name)
        if not pa.types.is_timestamp(column.type):
            problem = (
                f"the event times in column {name!r} have the type {column.type}: they must be "
                "timestamps"
            )
        elif column.null_count:
            first = column.is_null().index(True).as_py()
            problem = (
                f"{column.null_count} of {len(column)} rows have no event time: column "
                f"{name!r} is null, first in row {first}. Fill it or filter such rows out before"
            )
        elif (micros := to_micros(column)) is None:
            problem = (
                f"column {name!r} holds an instant further from 1970 than 2**63 microseconds, "
                "about 292,000 years: filter such rows out before"
            )
        else:
            return micros
        raise SchemaError(problem, column=name)

    def to_bytes(self) -> bytes:
        """Return the schema in Arrow's IPC form, with the roles in its metadata."""
        roles: dict[str, Any] = {
            "time_column": self.time_column,
            "key_columns": self.key_columns,
        }
        if self.table_key is not None:
            roles["table_key"] = self.table_key
            roles["settling"] = self.settling.value
            roles["is_bag"] = self.is_bag
        metadata = {**(self.arrow.metadata or {}), _ROLES: json.dumps(roles).encode()}
        return self.arrow.with_metadata(metadata).serialize().to_pybytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the schema that `to_bytes` wrote."""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(data))
            metadata = dict(schema.metadata or {})
            roles = json.loads(metadata.pop(_ROLES))
            time_column, key_columns = roles["time_column"], tuple(roles["key_columns"])
            table_key = None if "table_key" not in roles else tuple(roles["table_key"])
            settling = Settling(roles.get("settling", Settling.APART.value))
            # Bytes that do not say so are of a time when all-column keys were those of bags.
            names = {name for name in schema.names if name != CHANGE_COLUMN}
            is_bag = roles.get("is_bag", table_key is not None and {*table_key} == names)
        except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
            raise CorruptStateError(
                f"{len(data)} bytes are not the schema of a stream ({error!r}): they were "
                "damaged or written by something else",
                code=ErrorCode.UNDECODABLE,
            ) from error
        bare = schema.with_metadata(metadata) if metadata else schema.remove_metadata()
        return cls(bare, time_column, key_columns, table_key, settling, is_bag)


if not TYPE_CHECKING:  # A checker knows the names of the fields.
    StreamSchema.__init__ = renamed(schema="arrow")(StreamSchema.__init__)

_Problem: TypeAlias = tuple[ErrorCode, str]


def _problems(stream: StreamSchema) -> Iterator[_Problem]:
    mismatch, names = ErrorCode.SCHEMA_MISMATCH, stream.arrow.names
    for name, count in Counter(names).items():
        if count > 1:
            yield mismatch, f"column {name!r} occurs more than once: rename one"
    for name in dict.fromkeys(names):
        if name.startswith(RESERVED_PREFIX) or name in RESERVED_NAMES:
            text = f"column name {name!r} is reserved for state files: rename it"
            yield ErrorCode.INVALID_NAME, text
        if "\0" in name:
            text = f"column name {name!r} holds a NUL, which Polars cannot take: rename it"
            yield ErrorCode.INVALID_NAME, text
    for field in stream.arrow:
        if field.type.num_fields and "\0" in str(field.type):
            text = (
                f"column {field.name!r} has the type {str(field.type)!r}, in which a name holds "
                "a NUL, which Polars cannot take: rename it"
            )
            yield ErrorCode.INVALID_NAME, text
    time = stream.time_column
    if time is not None and time not in names:
        yield mismatch, _unknown("time column", time, names)
    elif time is not None:
        found = _types_of(stream.arrow, time)
        wrong = {str(kind): kind for kind in found if not pa.types.is_timestamp(kind)}
        for _, kind in sorted(wrong.items()):
            text = (
                f"time column {time!r} has the type {kind}: it must be a timestamp"
                f"{how_to_time(time, kind)}"
            )
            yield mismatch, text
        times = [kind for kind in found if pa.types.is_timestamp(kind)]
        for zone in sorted({kind.tz for kind in times if not is_known_zone(kind.tz)}):
            text = (
                f"time column {time!r} has the time zone {zone!r}, which nobody knows: take "
                "'UTC', a name such as 'Asia/Tokyo', or an offset such as '+05:30'"
            )
            yield mismatch, text
    yield from _key_problems(stream)
    yield from _changelog_problems(stream)


def _changelog_problems(stream: StreamSchema) -> Iterator[_Problem]:
    mismatch, names = ErrorCode.SCHEMA_MISMATCH, stream.arrow.names
    columns = {name for name in names if name != CHANGE_COLUMN}
    if stream.is_bag and {*(stream.table_key or ())} != columns:
        text = (
            "is_bag says that rows have no key but all their columns: name all of them as the "
            f"table's key, or leave is_bag out; table_key is {stream.table_key}"
        )
        yield mismatch, text
    if stream.table_key is None:
        return
    for name in stream.table_key:
        if name not in names:
            yield mismatch, _unknown("column of the table's key", name, names)
    kinds = [str(kind) for kind in _types_of(stream.arrow, CHANGE_COLUMN)]
    if kinds != ["string"]:
        found = f"has the type {kinds[0]}" if kinds else "is missing"
        text = (
            f"a changelog says in the text column {CHANGE_COLUMN!r} what each row does to the "
            f"table, but it {found}: add it, or leave table_key out"
        )
        yield mismatch, text


def how_to_time(name: str, kind: Any) -> str:
    """Return how event time is computed from a column that is no timestamp, as advice."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        expression = (
            f"pl.col({name!r}).str.to_datetime('%+', time_zone='UTC'), with the format of its "
            "text ('%+' is ISO 8601 with a zone, '%FT%T%.f' without)"
        )
    elif types.is_integer(kind) or types.is_floating(kind):
        expression = f"pl.from_epoch({name!r}, time_unit='ms')"
    elif types.is_date(kind):
        expression = f"pl.col({name!r}).cast(pl.Datetime('us'))"
    else:
        return ". Compute one by an expression: event_time=… of read"
    return f". Compute it where rows are read: event_time={expression}"


def _key_problems(stream: StreamSchema) -> Iterator[_Problem]:
    mismatch, names = ErrorCode.SCHEMA_MISMATCH, stream.arrow.names
    for name, count in Counter(stream.key_columns).items():
        if count > 1:
            yield mismatch, f"key column {name!r} is named {count} times: name it once"
        if name not in names:
            yield mismatch, _unknown("key column", name, names)
        for kind in _types_of(stream.arrow, name):
            try:
                check_key_type(kind)
            except SchemaError as error:
                yield error.code, f"key column {name!r}: {error.message}"


def _unknown(role: str, name: str, names: list[str]) -> str:
    return f"{role} {name!r} is not a column{did_you_mean(name, set(names))}"


def _types_of(schema: pa.Schema, name: str) -> list[Any]:
    """Return the types of all columns of this name; a wrong schema may have several."""
    return [schema.field(index).type for index in schema.get_all_field_indices(name)]


def _column(rows: Rows, name: str) -> Any:
    if name not in rows.schema.names:
        raise SchemaError(
            f"a batch lacks the column {name!r} of its stream"
            f"{did_you_mean(name, set(rows.schema.names))}",
            column=name,
        )
    return rows.column(name)
