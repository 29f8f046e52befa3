"""The operator that adds a column computed by a synchronous function. Stateless."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.graph.logical import BAD, MAIN
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.operator import ArrowOperator
from penstock.operators.udfs.results import Evaluation, ResultArray
from penstock.operators.udfs.specs import ResultSpec

Evaluate = Callable[[str, pa.RecordBatch], Evaluation]
"""Calls the function on a batch; the first argument names the operator in messages."""


class UdfOperator(ArrowOperator):
    """Calls a function on every batch, and sends rows whose call failed aside if asked to."""

    def __init__(
        self,
        spec: ResultSpec,
        evaluate: Evaluate,
        check_types: Callable[[StreamSchema], None] | None = None,
    ) -> None:
        self.spec = spec
        self._evaluate = evaluate
        self._check_types = check_types

    def name(self) -> str:
        """Return the kind."""
        return self.spec.kind

    def display(self) -> DisplayableOperator:
        """Show which function reads what."""
        return display_of(self.spec)

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input with the new column; refuse an input that does not fit."""
        output = self.spec.output_schema(inputs[0])
        if self._check_types is not None:
            self._check_types(inputs[0])
        return output

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the stream of bad rows, if they are wanted."""
        return self.spec.side_outputs(inputs[0])

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the rows with their results."""
        evaluation = self._evaluate(ctx.task.operator, batch)
        emit_results(batch, evaluation, ctx, collector)


def display_of(spec: ResultSpec) -> DisplayableOperator:
    """Return how an operator that calls a function shows itself."""
    facts = {
        "function": spec.name,
        "inputs": ", ".join(spec.inputs),
        "output": f"{spec.output}: {spec.return_type}",
        "on_error": spec.on_error,
    }
    return DisplayableOperator(spec.kind, facts)


def emit_results(
    batch: pa.RecordBatch,
    evaluation: Evaluation,
    ctx: OperatorContext,
    collector: ArrowCollector,
) -> None:
    """Emit rows with their results, and those that have none with the reason."""
    good = batch
    errors = evaluation.errors
    if errors:
        is_good = np.ones(batch.num_rows, dtype=bool)
        is_good[list(errors)] = False
        good = batch.filter(pa.array(is_good))
        bad = batch.filter(pa.array(~is_good))
        reasons = pa.array([errors[index] for index in sorted(errors)], pa.string())
        ctx.count("bad_rows", len(errors))
        collector.collect(_with_column(bad, ctx.outputs[BAD], reasons), BAD)
    if good.num_rows:
        collector.collect(_with_column(good, ctx.outputs[MAIN], evaluation.values))


def _with_column(
    batch: pa.RecordBatch, stream: StreamSchema, column: ResultArray
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=stream.schema)
