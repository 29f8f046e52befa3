"""FromDebezium: reads Debezium's records into rows and a mark of deletion; bad ones are set aside.

    {before, after, op}                       after's columns …, deleted
    op c, r or u    the row is `after`        deleted=false
    op d            the key, from `before`    deleted=true
    all null        a tombstone: nothing

An update from one key to another is both: the key of `before` is gone, and the row is `after`.
Only `after` and the keys are believed. What a row was before is told by the state of the operator
behind this one, so records without `before`, or that come twice, are no harm.

With `order_by` each row also has the order of its record, in front of the mark of deletion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.core.arrow_types import is_text, stored_type
from penstock.core.schema import StreamSchema
from penstock.core.spellings import OnBad
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.aggregates.aggregate import is_orderable
from penstock.operators.changelogs.envelopes import AFTER, BEFORE, DELETED, OP
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.expression_checks import (
    derive_input,
    derive_types,
    show_types,
    to_arrow_field,
)
from penstock.operators.expressions import read_expression, to_array
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.stateless import bad_rows_of, check_columns, divert
from penstock.state.tables.sorted_rows import Flags, equal_keys, take_rows

ORDER = "order"
"""The column with the order of a row's record, if the table has none of this name."""
PAYLOAD = "payload"
"""The column that holds the record where a connector also writes its schema."""


@dataclass(frozen=True, slots=True)
class FromDebeziumConfig(OperatorConfig):
    """The config of operators that read Debezium's records."""

    kind: ClassVar[str] = "from_debezium"

    key: tuple[str, ...]
    """The columns of `after` that are the table's key."""
    on_bad: OnBad = "fail"
    """Whether records that cannot be read fail the epoch, or go to the `BAD` output."""
    order_by: bytes = b""
    """What gives the order of a record, as `Expr.meta.serialize` returns it; empty for nothing."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"key": ", ".join(self.key)}


def from_debezium_spec(
    key: Sequence[str], on_bad: OnBad, order_by: pl.Expr | None = None
) -> OperatorSpec:
    """Read records into rows, their order if it is given, and a mark of deletion."""
    order = b"" if order_by is None else order_by.meta.serialize()
    return FromDebeziumConfig(tuple(key), on_bad, order).to_operator_spec()


def order_expression(order_by: str | pl.Expr, records: pa.Schema) -> pl.Expr:
    """Return what gives the order of records; a name may be one inside of others.

    >>> records = pa.schema(
    ...     [("op", pa.string()), ("source", pa.struct([("lsn", pa.int64())]))]
    ... )
    >>> order_expression("source.lsn", records).meta.output_name()
    'lsn'
    """
    if isinstance(order_by, pl.Expr):
        return order_by
    if order_by in records.names:
        return pl.col(order_by)
    path = order_by.split(".")
    if path[0] not in records.names and AFTER not in records.names:
        path = [PAYLOAD, *path]
    order = pl.col(path[0])
    for name in path[1:]:
        order = order.struct.field(name)
    return order


class FromDebezium(Configured[FromDebeziumConfig], ArrowOperator):
    """Rewrites records as rows of the table that they are about."""

    def __init__(self, config: FromDebeziumConfig) -> None:
        super().__init__(config)
        data = config.order_by
        self._order_by = read_expression(config.kind, data) if data else None

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the columns of `after`, event time and order if there are any, and `deleted`."""
        row, time = _row_type(inputs[0].arrow), inputs[0].time_column
        names = [field.name for field in row]
        check_columns(self.config.key, names, "from_debezium")
        fields = [field.with_nullable(True) for field in row]  # noqa: FBT003 (Arrow's signature)
        if time in names:
            raise SchemaError(
                f"the event time of the records is called {time!r}, and so is a column of their "
                "table, which may be something else: give the event time another name, as "
                f"event_time=pl.col({time!r}).alias('record_time')",
                column=time,
            )
        if time is not None:
            fields.append(inputs[0].arrow.field(time))
            names.append(time)
        if self._order_by is not None:
            order = _order_type(self._order_by, inputs[0].arrow)
            fields.append(pa.field(_free_name(ORDER, names), order))
            names.append(fields[-1].name)
        mark = pa.field(_free_name(DELETED, names), pa.bool_())
        return StreamSchema(pa.schema([*fields, mark]), time)

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the stream of records that cannot be read, if they do not fail the epoch."""
        return bad_rows_of(inputs[0]) if self.config.on_bad == "divert" else {}

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        before, after, op = _parts_of(batch)
        is_delete = _is(op, "d")
        is_upsert = _is(op, "c") | _is(op, "r") | _is(op, "u")
        has_after, has_before = _is_there(after), _is_there(before)
        keys = [_fields_of(side, self.config.key) for side in (before, after)]
        old_key, new_key = (np.logical_and.reduce([*map(_is_there, key)]) for key in keys)
        is_tombstone = ~_is_there(op) & ~has_after & ~has_before
        has_row = np.where(is_delete, has_before, has_after)
        has_key = np.where(is_delete, old_key, new_key)
        order = self._orders_of(batch, ctx)
        has_order = True if order is None else _is_there(order)
        is_good = (is_delete | is_upsert) & has_row & has_key & has_order
        is_bad = ~is_good & ~is_tombstone
        if is_bad.any():
            reasons = np.select(
                [~(is_delete | is_upsert), ~has_row, ~has_key],
                ["its op is none of c, r, u, d", "it has no row", "its key is null"],
                "its order is null",
            )[is_bad]
            self._set_aside(
                batch.filter(pa.array(is_bad)), reasons.tolist(), ctx, collector
            )
        every = np.arange(batch.num_rows)
        is_moved = (
            is_good & is_upsert & old_key & ~equal_keys(keys[0], every, keys[1], every)
        )
        places = np.repeat(every, is_good.astype(np.int64) + is_moved)
        # Of the two rows of a moved one the first says that the old key is gone.
        is_first = np.append(np.True_, places[1:] != places[:-1])[: len(places)]
        gone = is_delete[places] | (is_moved[places] & is_first)
        both: Any = pa.concat_arrays([before, after])
        source = both.take(pa.array(np.where(gone, places, places + batch.num_rows)))
        columns = self._columns(source, gone, ctx)
        time = ctx.outputs[MAIN].time_column
        of_record = [] if time is None else [batch.column(time)]
        of_record += [] if order is None else [order]
        columns += [take_rows(column, places) for column in of_record]
        columns.append(pa.array(gone))
        schema = ctx.outputs[MAIN].arrow
        collector.collect(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _columns(self, rows: Any, gone: Flags, ctx: OperatorContext) -> list[Any]:
        """Return the columns of the table; of a row that is gone only its key is known."""
        kept = pa.array(np.arange(len(gone)), mask=gone)
        found = dict(zip([f.name for f in rows.type], rows.flatten(), strict=True))
        return [
            found[name] if name in self.config.key else found[name].take(kept)
            for name in ctx.outputs[MAIN].arrow.names
            if name in found
        ]

    def _orders_of(self, batch: pa.RecordBatch, ctx: OperatorContext) -> Any:
        """Return the order of each record; None if they have none."""
        if self._order_by is None:
            return None
        read = derive_input([self._order_by], batch.schema)
        orders = read.frame(batch).select(self._order_by).to_series()
        return to_array(orders, ctx.outputs[MAIN].arrow.types[-2])

    def _set_aside(
        self,
        bad: pa.RecordBatch,
        reasons: Sequence[str],
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        if self.config.on_bad == "divert":
            divert(bad, reasons, ctx, collector)
            return
        raise UserError(
            f"{bad.num_rows} records are not Debezium's: {reasons[0]}, such as "
            f"{bad.slice(0, 1).to_pylist()[0]!s:.200}. Give on_bad='divert' and read "
            "side_output(pen.BAD) to go on without them",
            code=ErrorCode.UNREADABLE_INPUT,
        )


def _free_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name


def _order_type(order_by: pl.Expr, records: pa.Schema) -> Any:
    """Return the type of the order of records, or raise why it is none."""
    shown = f"order_by={order_by}"
    types = derive_types(shown, records, [order_by])
    problem = ""
    if len(types) != 1:
        problem = f"it gives {len(types)} columns, and must give one value per record"
    elif not order_by.meta.root_names():
        problem = "it reads no column, so all records would have the same"
    elif not is_orderable(types.dtypes()[0]):
        problem = (
            f"it gives {show_types(types)}, which has no order: it must give numbers, text, "
            "bytes, instants, durations or booleans"
        )
    if problem:
        raise SchemaError(f"{shown} does not tell which record is the last: {problem}")
    return to_arrow_field(shown, ORDER, types.dtypes()[0]).type


def _row_type(schema: pa.Schema) -> Any:
    """Return the type of the rows of a table, or raise why records do not tell."""
    fields = {field.name: field.type for field in schema}
    payload = fields.get(PAYLOAD)
    if AFTER not in fields and payload is not None and pa.types.is_struct(payload):
        fields = {field.name: field.type for field in payload}
    problems = [f"there is no {name!r}" for name in (AFTER, OP) if name not in fields]
    row, before, op = fields.get(AFTER), fields.get(BEFORE), fields.get(OP)
    if op is not None and not is_text(stored_type(op)):
        problems.append(f"{OP!r} is {op}, not text")
    if row is not None and not pa.types.is_struct(row):
        problems.append(f"{AFTER!r} is {row}, not a struct of the table's columns")
    elif row is not None and before is not None and not _is_part(before, row):
        problems.append(f"{BEFORE!r} is {before}, unlike {AFTER!r}, which is {row}")
    if problems:
        raise SchemaError(
            f"these are no records of Debezium: {'; '.join(problems)}. Records have the columns "
            f"{BEFORE}, {AFTER} and {OP}, at the top or inside of {PAYLOAD!r}; give their types "
            "as the schema of the source"
        )
    return row


def _is_part(before: Any, row: Any) -> bool:
    if pa.types.is_null(before):
        return True
    types = {field.name: field.type for field in row}
    return pa.types.is_struct(before) and all(
        types.get(field.name) == field.type for field in before
    )


def _parts_of(batch: pa.RecordBatch) -> tuple[Any, Any, Any]:
    """Return `before` and `after`, in one type, and `op`."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if AFTER not in columns:
        payload: Any = batch.column(PAYLOAD)
        names = [field.name for field in payload.type]
        columns = dict(zip(names, payload.flatten(), strict=True))
    after: Any = columns[AFTER]
    before: Any = columns.get(BEFORE)
    if before is None or pa.types.is_null(before.type):
        before = pa.nulls(batch.num_rows, after.type)
    elif not before.type.equals(after.type):
        parts = dict(zip([f.name for f in before.type], before.flatten(), strict=True))
        filled = [
            parts.get(field.name, pa.nulls(batch.num_rows, field.type))
            for field in after.type
        ]
        before = pa.StructArray.from_arrays(
            filled, fields=list(after.type), mask=before.is_null()
        )
    return before, after, columns[OP]


def _fields_of(rows: Any, names: Sequence[str]) -> list[Any]:
    """Return some columns of rows that are structs."""
    columns = dict(zip([field.name for field in rows.type], rows.flatten(), strict=True))
    return [columns[name] for name in names]


def _is_there(column: Any) -> Flags:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _is(column: Any, value: str) -> Flags:
    same = pc.equal(column, pa.scalar(value, column.type))
    return np.asarray(same.fill_null(False).to_numpy(zero_copy_only=False))  # noqa: FBT003 (Arrow's signature)
