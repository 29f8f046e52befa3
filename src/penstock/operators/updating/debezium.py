"""to_debezium: a changelog in the form of Debezium's records {before, after, op}.

Key columns move into `before` and `after`; `op` becomes c, u or d. Written as JSON lines the
records are what readers of Debezium JSON expect.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.updating.changelog import (
    AFTER,
    BEFORE,
    DELETE,
    INSERT,
    OP,
    UPDATE,
    keys_of_changelog,
)

_DEBEZIUM_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}


def to_debezium_spec() -> OperatorSpec:
    """Turn changes into Debezium's records."""
    return OperatorSpec("to_debezium")


class ToDebezium(ArrowOperator):
    """Rewrites changes row by row."""

    def name(self) -> str:
        """Return the kind."""
        return "to_debezium"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return `before`, `after` and `op`, keys first in both structs."""
        schema = inputs[0].schema
        keys = [schema.field(name) for name in keys_of_changelog(inputs[0])]
        row = pa.struct([*keys, *schema.field(BEFORE).type])
        return StreamSchema(pa.schema([(BEFORE, row), (AFTER, row), (OP, pa.string())]))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Put the keys into both structs, null where there is none, and shorten `op`."""
        (output,) = ctx.outputs.values()
        row: Any = output.schema.field(BEFORE).type
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
        collector.collect(pa.RecordBatch.from_arrays(columns, schema=output.schema))


def _with_keys(keys: Sequence[Any], values: Any, row: Any) -> Any:
    parts = [*keys, *values.flatten()]
    return pa.StructArray.from_arrays(parts, fields=list(row), mask=values.is_null())


@dataclass(frozen=True, slots=True)
class ToDebeziumConfig:
    """The config of kind "to_debezium": none."""


class ToDebeziumConstructor(OperatorConstructor[ToDebeziumConfig]):
    """Builds them."""

    config_type = ToDebeziumConfig

    def with_config(
        self, config: ToDebeziumConfig, registry: Registry
    ) -> ConstructedOperator:
        """Build one."""
        del config, registry
        return ConstructedOperator(ToDebezium())
