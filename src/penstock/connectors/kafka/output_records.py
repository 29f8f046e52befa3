"""Rows into Kafka's records: a key, a value, and where asked headers, timestamp and partition.

Pure. Rows of an append-only stream become one record each. Of a changelog, which is settled where
a sink sees it, the row that replaces another becomes a record with its value, a deletion one
without a value (a tombstone), and the row as it was before an update is left out: so a reader
that keeps the last record of each key, as compaction does, has the table.

    insert, update-after   key, value
    delete                 key, null
    update-before          -

A key of one column is its text, or its bytes as they are. One of several columns is a JSON
object, as is that of a changelog, which the format "upsert" reads, and any with
`key_format="json"`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.formats.record_format import RecordFormat
from penstock.core.arrow_types import is_bytes, is_text, to_micros_within_reach
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.operators.changes import DELETE, UPDATE_BEFORE
from penstock.operators.expression_checks import derive_input, derive_types
from penstock.operators.expressions import read_expression

KEY, VALUE, HEADERS, TIMESTAMP, PARTITION = (
    "key",
    "value",
    "headers",
    "timestamp",
    "partition",
)
BYTES = pa.large_binary()
HEADER_TYPE = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))

KeyFormat: TypeAlias = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Which columns of the rows, or which expression, make which part of a record."""

    key: tuple[str, ...] = ()
    """Empty for records without a key, and for changelogs, whose key is that of their table."""
    key_expression: bytes | None = None
    """The result of `Expr.meta.serialize`, instead of columns."""
    key_format: KeyFormat | None = None
    """None for text where rows have a key of one column, else JSON."""
    value: tuple[str, ...] | None = None
    """None for all columns that are not headers or partition."""
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None

    def key_of(self, stream: StreamSchema) -> tuple[str, ...]:
        """Return the columns of the key."""
        if self.key or stream.table_key is None:
            return self.key
        return stream.table_key

    def value_of(self, stream: StreamSchema) -> tuple[str, ...]:
        """Return the columns that the value is made of."""
        if self.value is not None:
            return self.value
        apart = {self.headers, self.partition}
        if stream.is_changelog:
            apart.add(CHANGE_COLUMN)
        return tuple(name for name in stream.arrow.names if name not in apart)

    def find_problems(self, stream: StreamSchema) -> list[str]:
        """Return everything about these columns that cannot work with such rows."""
        named = {
            "key": self.key,
            "value": self.value or (),
            "headers": (self.headers,) if self.headers else (),
            "timestamp": (self.timestamp,) if self.timestamp else (),
            "partition": (self.partition,) if self.partition else (),
        }
        problems = [
            f"{option}= names {name!r}, which is no column{did_you_mean(name, stream.arrow.names)}"
            for option, names in named.items()
            for name in names
            if name not in stream.arrow.names
        ]
        if not problems:
            problems = [*self._find_type_problems(stream.arrow)]
        if self.key and self.key_expression is not None:
            problems.append("key= is both columns and an expression: give one")
        if stream.is_changelog:
            problems += self._find_change_problems(stream)
        has_key = bool(self.key_of(stream)) or self.key_expression is not None
        if self.key_format is not None and not has_key:
            problems.append("key_format= is given, and the records have no key: give key=")
        if not self.value_of(stream):
            problems.append("the value has no column: name one at least")
        return problems

    def _find_type_problems(self, schema: pa.Schema) -> Sequence[str]:
        problems = []
        if self.headers is not None and not _is_headers(schema.field(self.headers).type):
            problems.append(
                f"headers= names {self.headers!r} of type {schema.field(self.headers).type}: "
                "it must be a list of structs of a name and bytes or text, or a map of them"
            )
        if self.timestamp is not None:
            kind = schema.field(self.timestamp).type
            if not pa.types.is_timestamp(kind):
                problems.append(
                    f"timestamp= names {self.timestamp!r} of type {kind}: it must be a timestamp"
                )
        if self.partition is not None:
            kind = schema.field(self.partition).type
            if not pa.types.is_integer(kind):
                problems.append(
                    f"partition= names {self.partition!r} of type {kind}: it must be a whole "
                    "number"
                )
        if self.key_format == "text" and len(self.key) > 1:
            problems.append(
                f'key_format="text" is for keys of one column, and there are {len(self.key)}'
            )
        if self.key_format != "json" and len(self.key) == 1:
            kind = schema.field(self.key[0]).type
            if pa.types.is_nested(kind):
                problems.append(
                    f"key= names {self.key[0]!r} of type {kind}, which has no text: use "
                    'key_format="json"'
                )
        return problems

    def _find_change_problems(self, stream: StreamSchema) -> Sequence[str]:
        if stream.is_bag or not stream.table_key:
            problem = (
                "the rows are changes of a table whose key is not known, so no record could "
                "replace another: write to_rows() or to_debezium() of them"
            )
            return [problem]
        if self.key_expression is not None or (
            self.key and set(self.key) != set(stream.table_key)
        ):
            problem = (
                "the rows are changes of a table, so the key of a record must be that of the "
                f"table, {', '.join(stream.table_key)}: leave key= out, or write to_rows() or "
                "to_debezium() of them"
            )
            return [problem]
        return []


class RecordEncoder:
    """Turns batches of one stream into records. Built once per subtask."""

    def __init__(
        self,
        columns: RecordColumns,
        stream: StreamSchema,
        values: RecordFormat,
        keys: RecordFormat | None,
    ) -> None:
        self._columns = columns
        self._is_changelog = stream.is_changelog
        self._key_columns = list(columns.key_of(stream))
        self._value_columns = list(columns.value_of(stream))
        self._values, self._json_keys = values, keys
        self._expression: tuple[pl.Expr, Any] | None = None
        if columns.key_expression is not None:
            expression = read_expression("key", columns.key_expression)
            types = derive_types(f"key={expression}", stream.arrow, [expression])
            if len(types) != 1:
                raise UserError(
                    f"key={expression} gives {len(types)} columns: one is needed",
                    code=ErrorCode.INVALID_CONFIG,
                )
            self._expression = expression, derive_input([expression], stream.arrow)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of some rows, in their order: key, value and what was asked for."""
        is_gone = None
        if self._is_changelog:
            change: Any = batch.column(CHANGE_COLUMN)
            batch = batch.filter(pc.not_equal(change, pa.scalar(UPDATE_BEFORE)))
            is_gone = pc.equal(batch.column(CHANGE_COLUMN), pa.scalar(DELETE))
        rows = pa.Table.from_batches([batch.select(self._value_columns)])
        values: Any = self._values.encode(rows).cast(BYTES)
        given = self._values.encode_keys(rows)
        keys = self._keys(batch) if given is None else given.cast(BYTES)
        if is_gone is not None:
            values = pc.if_else(is_gone, pa.scalar(None, BYTES), values)
            if keys.null_count:
                raise UserError(
                    "a changed row has a null key, and Kafka tells rows of a table apart by their "
                    'keys: leave such rows out before the sink, or use key_format="json"',
                    code=ErrorCode.VALUE_OUT_OF_RANGE,
                )
        parts: dict[str, Any] = {KEY: keys, VALUE: values}
        columns = self._columns
        if columns.headers is not None:
            parts[HEADERS] = _to_headers(batch.column(columns.headers))
        if columns.timestamp is not None:
            parts[TIMESTAMP] = _to_millis(batch.column(columns.timestamp))
        if columns.partition is not None:
            parts[PARTITION] = _to_partitions(batch.column(columns.partition))
        return pa.RecordBatch.from_arrays(list(parts.values()), names=list(parts))

    def _keys(self, batch: pa.RecordBatch) -> Any:
        columns = self._key_columns
        if self._expression is not None:
            expression, read = self._expression
            computed = read.frame(batch).select(expression.alias(KEY)).get_column(KEY)
            if len(computed) != batch.num_rows:
                computed = computed.new_from_index(0, batch.num_rows)
            batch = pa.RecordBatch.from_arrays([computed.to_arrow()], names=[KEY])
            columns = [KEY]
        if not columns:
            return pa.nulls(batch.num_rows, BYTES)
        given = self._columns.key_format
        is_plain = len(columns) == 1 and not self._is_changelog
        is_json = given == "json" or (given is None and not is_plain)
        if is_json and self._json_keys is not None:
            table = pa.Table.from_batches([batch.select(columns)])
            return self._json_keys.encode(table).cast(BYTES)
        return _to_text(batch.column(columns[0]))


def record_sizes(records: pa.RecordBatch) -> "np.typing.NDArray[np.int64]":
    """Return about how many bytes each record takes in a topic, what frames it included."""
    total = np.full(records.num_rows, 32, np.int64)
    for name in (KEY, VALUE):
        column: Any = records.column(name)
        lengths: Any = pc.binary_length(column)
        total += pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    if HEADERS in records.schema.names:
        headers: Any = records.column(HEADERS)
        pairs = headers.flatten()
        sizes = pc.add(
            pc.binary_length(pairs.field(0)),
            pc.fill_null(pc.binary_length(pairs.field(1)), 0),
        )
        counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(
            zero_copy_only=False
        )
        owners = np.repeat(np.arange(records.num_rows), counts)
        np.add.at(total, owners, sizes.to_numpy(zero_copy_only=False) + 10)
    return total


def _to_text(column: Any) -> Any:
    if is_bytes(column.type):
        return column.cast(BYTES)
    if not is_text(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.large_string()).cast(BYTES)


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        pair: Sequence[Any] = (kind.key_type, kind.item_type)
    elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(
        kind.value_type
    ):
        pair = [field.type for field in kind.value_type]
    else:
        return False
    return len(pair) == 2 and is_text(pair[0]) and (is_text(pair[1]) or is_bytes(pair[1]))


def _to_headers(column: Any) -> Any:
    """Return lists of names and bytes; the names of the struct's fields do not matter."""
    if pa.types.is_map(column.type):
        names, values, offsets = column.keys, column.items, column.offsets
    else:
        lists = column.cast(pa.list_(column.type.value_type))
        names, values = (lists.values.field(place) for place in (0, 1))
        offsets = lists.offsets
        column = lists
    _check_names(column, names)
    if is_text(values.type):
        values = values.cast(pa.string())
    pairs = pa.StructArray.from_arrays(
        [names.cast(pa.string()), values.cast(pa.binary())],
        fields=list(HEADER_TYPE.value_type),
    )
    mask = column.is_null() if column.null_count else None
    starts = pa.array(offsets.to_numpy().copy())  # Arrow takes no slice beside a mask
    return pa.ListArray.from_arrays(starts, pairs, type=HEADER_TYPE, mask=mask)


def _check_names(headers: Any, names: Any) -> None:
    """Refuse headers without a name, and names that the client library would cut."""
    pairs: Any = headers.flatten() if pa.types.is_list(headers.type) else None
    has_null = pairs is not None and (pairs.null_count or pairs.field(0).null_count)
    has_cut = pc.any(pc.match_substring(names.cast(pa.string()), "\0")).as_py()
    if has_null or has_cut:
        problem = "has a null as" if has_null else "has the character NUL in"
        raise UserError(
            f"headers= {problem} a header's name, which Kafka's client does not take: leave such "
            "headers out before the sink",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
        )


def _to_millis(column: Any) -> Any:
    millis, absent = to_micros_within_reach(column) // 1_000, np.asarray(column.is_null())
    first = millis[~absent].min(initial=1)
    if first <= 0:
        when = f"{-int(first)} ms before 1970" if first < 0 else "at the beginning of 1970"
        raise UserError(
            f"timestamp= gives an instant {when}, which Kafka has no timestamp for: make it null, "
            "for the time at which it is written, or change it before the sink",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
        )
    return pa.array(millis, mask=absent)


def _to_partitions(column: Any) -> Any:
    try:
        numbers = column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise UserError(
            f"partition= gives a number that no partition has: {error}",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
        ) from error
    least: Any = pc.min(numbers)
    if least.is_valid and least.as_py() < 0:
        raise UserError(
            f"partition= gives {least.as_py()}: partitions count from 0, and null leaves the "
            "choice to the partitioner",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
        )
    return numbers
