"""Changelogs: the rows that say how a table changes, and their conversion to Debezium's form.

    key columns …, op ("insert" | "update" | "delete"), before {…} or null, after {…} or null

`before` and `after` hold the values of the row of that key; folding a changelog by key gives
the table. `to_debezium` turns the rows into records {before, after, op}: key columns move
into `before` and `after`, and `op` becomes c, u or d. Written as JSON lines these records are
what readers of Debezium JSON expect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import MAIN, Node, OperatorSpec
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig

OP, BEFORE, AFTER = "op", "before", "after"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
_OPS = (INSERT, UPDATE, DELETE)


def changelog_schema(
    keys: Sequence["pa.Field[Any]"], values: Sequence["pa.Field[Any]"]
) -> StreamSchema:
    """Return the schema of the changes of a table with such keys and values; it has no key."""
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
    """Return a change per key: an insert if `before` is null, a delete if `after` is null.

    Only those columns of `keys` are taken that the schema has.
    """
    is_new = before.is_null().to_numpy(zero_copy_only=False)
    is_gone = after.is_null().to_numpy(zero_copy_only=False)
    codes: Any = np.where(is_new, 0, np.where(is_gone, 2, 1)).astype(np.int8)
    ops = pa.DictionaryArray.from_arrays(codes, pa.array(_OPS)).dictionary_decode()
    shown = [keys.column(name) for name in schema.names if name in keys.schema.names]
    columns: list[Any] = [*shown, ops, before, after]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def keys_of_changelog(stream: StreamSchema) -> tuple[str, ...]:
    """Return the key columns of a changelog, or raise why a stream is none."""
    schema = stream.arrow
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


_PASSES_CHANGES_ON = (
    *("select", "with_columns", "union", "watermark", "to_debezium"),
    *("udf", "async_udf", "native_udf", "call_udf"),
)
"""Kinds of operators behind which each row may still be a change of the same table."""


def changelog_keys_behind(
    node: Node, inputs: Sequence[tuple[str, ...] | None]
) -> tuple[str, ...] | None:
    """Return the key columns of the table whose changes an operator emits; None for plain rows.

    `inputs` are those of the operator's inputs. An operator that computes columns of rows passes
    changes on as long as all columns of a change are there, be they computed anew. Rows that user
    code returns are plain ones, and so are those of a selection without one of these columns:
    then every row stands for itself.
    """
    kind = node.spec.kind
    if kind == "updating_aggregate":
        return keys_of_changelog(node.outputs[MAIN])
    keys = next((keys for keys in inputs if keys is not None), None)
    if keys is None or kind not in _PASSES_CHANGES_ON:
        return None
    if kind == "to_debezium":
        return ()  # the key columns are inside of `before` and `after`
    is_whole = {*keys, OP, BEFORE, AFTER}.issubset(node.outputs[MAIN].arrow.names)
    return keys if is_whole else None


_HARMS = {
    "filter": "a result that the predicate stops to hold for would never be deleted. Filter "
    "the rows before aggregate, give its aggregates where=, or filter the table that the changes "
    "lead to",
    "rename": "op, before, after and the key columns are known by their names. Rename the columns "
    "before aggregate, whose keywords name its results",
    "rebalance": "changes of one key would overtake each other. Leave it out: changes are spread "
    "by key",
    "join": "a change that takes a row back would be joined like a row. Join the rows that the "
    "aggregate reads",
    "aggregate": "how many changes there are depends on how rows fall into epochs. Aggregate the "
    "rows that the first aggregate reads",
}
"""What a step would do to a changelog, and what to do instead."""


def check_plain_rows(step: str, keys: tuple[str, ...] | None) -> None:
    """Refuse a step that would be wrong for changes, given what `changelog_keys_behind` says."""
    if keys is not None:
        raise UserError(
            f"{step} cannot follow a changelog: {_HARMS[step]}. A select without before and "
            "after makes plain rows of changes, each for itself",
            code=ErrorCode.INVALID_CONFIG,
        )


def check_keys(stream: StreamSchema, keys: tuple[str, ...] | None) -> None:
    """Refuse columns beside the changes that are no key of their table, if that is known."""
    more = [] if keys is None else [n for n in keys_of_changelog(stream) if n not in keys]
    if more:
        raise UserError(
            f"to_debezium would take {more} for keys, but the key of the table is "
            f"{list(keys or ())}: leave them out, or add them to the rows before aggregate",
            code=ErrorCode.INVALID_CONFIG,
        )


_DEBEZIUM_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}


@dataclass(frozen=True, slots=True)
class ToDebeziumConfig(OperatorConfig):
    """The config of operators that write changes as Debezium does: there is nothing to choose."""

    kind: ClassVar[str] = "to_debezium"


def to_debezium_spec() -> OperatorSpec:
    """Turn changes into Debezium's records."""
    return ToDebeziumConfig().to_operator_spec()


class ToDebezium(Configured[ToDebeziumConfig], ArrowOperator):
    """Rewrites changes row by row."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return `before`, `after` and `op`, keys first in both structs."""
        schema = inputs[0].arrow
        keys = [schema.field(name) for name in keys_of_changelog(inputs[0])]
        row = pa.struct([*keys, *schema.field(BEFORE).type])
        return StreamSchema(pa.schema([(BEFORE, row), (AFTER, row), (OP, pa.string())]))

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Put the keys into both structs, unless a struct is null, and shorten `op`."""
        schema = ctx.outputs[MAIN].arrow
        row: Any = schema.field(BEFORE).type
        keys = [batch.column(name) for name in keys_of_changelog(ctx.inputs[0])]
        ops: Any = batch.column(OP)
        if not pa.types.is_dictionary(ops.type):
            ops = ops.dictionary_encode()
        short = pa.array([_DEBEZIUM_OPS.get(op, op) for op in ops.dictionary.to_pylist()])
        columns: list[Any] = [
            _with_keys(keys, batch.column(BEFORE), row),
            _with_keys(keys, batch.column(AFTER), row),
            pa.DictionaryArray.from_arrays(ops.indices, short).dictionary_decode(),
        ]
        collector.collect(pa.RecordBatch.from_arrays(columns, schema=schema))


def _with_keys(keys: Sequence[Any], values: Any, row: Any) -> Any:
    parts = [*keys, *values.flatten()]
    return pa.StructArray.from_arrays(parts, fields=list(row), mask=values.is_null())
