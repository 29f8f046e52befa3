"""Other forms of the same changes, for readers outside: Debezium's records, upserts, plain rows.

    flat rows                     to_debezium                              to_upserts
    update-before  ada  3         {before: {ada 3}, after: {ada 4}, op: u} ada  4     deleted=false
    update-after   ada  4
    delete         bob  1         {before: {bob 1}, after: null, op: d}    bob  null  deleted=true

Records of Debezium, written as JSON lines, are what readers of Debezium JSON expect. Both forms
need settled changes: one per key and epoch.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import SchemaError
from penstock.graph.logical import MAIN
from penstock.operators.changelogs.settling import settle
from penstock.operators.changes import (
    DELETE,
    UPDATE_BEFORE,
    are_added,
    check_changelog,
)
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig, OperatorConfigT
from penstock.operators.stateless import EpochOperator

BEFORE, AFTER, OP = "before", "after", "op"
DELETED = "deleted"
"""The column of upserts that says that the row of the key is gone."""


@dataclass(frozen=True, slots=True)
class ToDebeziumConfig(OperatorConfig):
    """The config of operators that write changes as Debezium does: there is nothing to choose."""

    kind: ClassVar[str] = "to_debezium"


@dataclass(frozen=True, slots=True)
class ToUpsertsConfig(OperatorConfig):
    """The config of operators that write changes as upserts: there is nothing to choose."""

    kind: ClassVar[str] = "to_upserts"


@dataclass(frozen=True, slots=True)
class ToRowsConfig(OperatorConfig):
    """The config of operators that make rows of changes: there is nothing to choose."""

    kind: ClassVar[str] = "to_rows"


class _OfEpoch(Configured[OperatorConfigT], EpochOperator):
    """Works on the settled changes of an epoch: batches may cut an update in two."""

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        if len(rows.column(0).chunks) > 1:  # several producers' batches may alternate
            rows = settle(rows, check_changelog(self.config.kind, ctx.inputs[0]))
        for batch in rows.combine_chunks().to_batches():
            collector.collect(self.rewritten(batch, ctx))

    @abstractmethod
    def rewritten(self, rows: pa.RecordBatch, ctx: OperatorContext) -> pa.RecordBatch:
        """Return another form of settled changes, in which an update's two rows are side by side."""


class ToDebezium(_OfEpoch[ToDebeziumConfig]):
    """Rewrites the changes of a key as one record."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return `before`, `after` and `op`."""
        check_changelog("to_debezium", inputs[0])
        row = pa.struct([f for f in inputs[0].arrow if f.name != CHANGE_COLUMN])
        return StreamSchema(pa.schema([(BEFORE, row), (AFTER, row), (OP, pa.string())]))

    @override
    def rewritten(self, rows: pa.RecordBatch, ctx: OperatorContext) -> pa.RecordBatch:
        """Put the two rows of an update into one record, and any other into its own."""
        change: Any = rows.column(CHANGE_COLUMN)
        is_added = are_added(rows).to_numpy(zero_copy_only=False)
        is_before = pc.equal(change, pa.scalar(UPDATE_BEFORE)).to_numpy(
            zero_copy_only=False
        )
        # The row after an update-before is its update-after, and makes no record of its own.
        starts = np.flatnonzero(~np.append([False], is_before[:-1]))
        is_update = is_before[starts]
        added = is_added[starts]
        after = np.where(is_update, starts + 1, starts)
        schema = ctx.outputs[MAIN].arrow
        values = pa.StructArray.from_arrays(
            [rows.column(field.name) for field in schema.field(BEFORE).type],
            fields=list(schema.field(BEFORE).type),
        )
        none = pa.scalar(None, pa.int64())
        befores = pc.if_else(pa.array(added), none, pa.array(starts))
        afters = pc.if_else(pa.array(added | is_update), pa.array(after), none)
        codes: Any = np.where(added, 0, np.where(is_update, 1, 2)).astype(np.int8)
        ops = pa.DictionaryArray.from_arrays(codes, pa.array(["c", "u", "d"]))
        columns: list[Any] = [values.take(befores), values.take(afters)]
        columns.append(ops.dictionary_decode())
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class ToUpserts(_OfEpoch[ToUpsertsConfig]):
    """Emits the row that each changed key has, or that it has none."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the columns of the table and `deleted`; only the key of a deleted row is kept."""
        stream = inputs[0]
        key = check_changelog("to_upserts", stream)
        if stream.is_bag:
            raise SchemaError(
                "to_upserts needs a table with a key, and the rows of this changelog have none "
                "but all their columns, of which equal ones are counted: aggregate it by key, as "
                "key_by(…).aggregate(…) does, or write it with to_debezium() or as it is"
            )
        if DELETED in stream.arrow.names:
            raise SchemaError(
                f"the table has a column {DELETED!r}, which to_upserts adds: rename it",
                column=DELETED,
            )
        fields = [
            field if field.name in key else field.with_nullable(True)  # noqa: FBT003 (Arrow's signature)
            for field in stream.arrow
            if field.name != CHANGE_COLUMN
        ]
        schema = pa.schema([*fields, pa.field(DELETED, pa.bool_())])
        return StreamSchema(schema, stream.time_column)

    @override
    def rewritten(self, rows: pa.RecordBatch, ctx: OperatorContext) -> pa.RecordBatch:
        change: Any = rows.column(CHANGE_COLUMN)
        shown: Any = rows.filter(pc.not_equal(change, pa.scalar(UPDATE_BEFORE)))
        deleted = pc.equal(shown.column(CHANGE_COLUMN), pa.scalar(DELETE))
        is_gone = deleted.to_numpy(zero_copy_only=False)
        there = pa.array(np.arange(shown.num_rows), mask=is_gone)
        kept = {*(ctx.inputs[0].table_key or ()), ctx.inputs[0].time_column}
        schema = ctx.outputs[MAIN].arrow
        columns: list[Any] = [
            shown.column(field.name)
            if field.name in kept
            else shown.column(field.name).take(there)
            for field in schema
            if field.name != DELETED
        ]
        return pa.RecordBatch.from_arrays([*columns, deleted], schema=schema)


class ToRows(Configured[ToRowsConfig], ArrowOperator):
    """Passes changes on as append-only rows, each for itself."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        check_changelog("to_rows", inputs[0])
        return replace(inputs[0], table_key=None, is_bag=False)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)
