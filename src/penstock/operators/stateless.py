"""Operators without state and without expressions: map_batches, flat_map, key_by, union."""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import find_differences
from penstock.core.rows import RowsLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import OperatorSpec, UserFunction
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig, OperatorConfigT
from penstock.operators.user_functions import pickle_function, unpickle_function

BatchFunction: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MapBatchesConfig(OperatorConfig):
    """The config of operators that call a function for every batch."""

    kind: ClassVar[str] = "map_batches"

    function: UserFunction
    schema: bytes | None = None
    """The result of `StreamSchema.to_bytes`; None if the output has the input's schema."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"function": self.function.name}


@dataclass(frozen=True, slots=True)
class FlatMapConfig(MapBatchesConfig):
    """The config of operators whose function gives any number of results per batch."""

    kind: ClassVar[str] = "flat_map"


@dataclass(frozen=True, slots=True)
class KeyByConfig(OperatorConfig):
    """The config of operators that make columns the key of the stream."""

    kind: ClassVar[str] = "key_by"

    columns: tuple[str, ...]

    @override
    def shown(self) -> Mapping[str, str]:
        return {"columns": ", ".join(self.columns)}


@dataclass(frozen=True, slots=True)
class UnionConfig(OperatorConfig):
    """The config of unions: there is nothing to choose."""

    kind: ClassVar[str] = "union"


def map_batches_spec(
    function: BatchFunction, schema: StreamSchema | None = None
) -> OperatorSpec:
    """Compute one result per batch; `schema` if it has other columns than the input."""
    stored = None if schema is None else schema.to_bytes()
    return MapBatchesConfig(pickle_function(function), stored).to_operator_spec()


def flat_map_spec(
    function: BatchFunction, schema: StreamSchema | None = None
) -> OperatorSpec:
    """Compute any number of results per batch: the function returns or yields them."""
    stored = None if schema is None else schema.to_bytes()
    return FlatMapConfig(pickle_function(function), stored).to_operator_spec()


class MapBatches(Configured[MapBatchesConfig], ArrowOperator):
    """Calls a function for every batch.

    The function gets a `pyarrow.RecordBatch`, or a `pyarrow.Table` or `polars.DataFrame` if its
    first parameter is annotated so, and may return any of the three.
    """

    def __init__(self, config: MapBatchesConfig) -> None:
        super().__init__(config)
        function = unpickle_function(config.function)
        if not callable(function):
            raise UserError(
                f"{config.function.name!r} is a {type(function).__name__}, not a function",
                code=ErrorCode.UDF_INVALID,
            )
        self._function = function
        self._convert = _conversion_for(function)
        declared = config.schema
        self._schema = None if declared is None else StreamSchema.from_bytes(declared)

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return what was declared, else the input's."""
        return self._schema or inputs[0]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(self.call(batch))

    def call(self, batch: pa.RecordBatch) -> Any:
        """Return what the function makes of some rows."""
        return self._function(self._convert(batch))


class FlatMap(MapBatches):
    """Calls a function for every batch, and emits each of its results."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the function's results as they come."""
        results = self.call(batch)
        # Batches and frames are iterable too, column by column: they are one result.
        is_single = isinstance(results, pa.RecordBatch | pa.Table | pl.DataFrame)
        if is_single or not isinstance(results, Iterable):
            raise UserError(
                f"{self.display()} returned a {type(results).__name__}: return a list of "
                "batches or yield them, or use map_batches for exactly one",
                code=ErrorCode.UDF_INVALID,
            )
        for rows in results:
            collector.collect(rows)


class _PassOn(Configured[OperatorConfigT], ArrowOperator):
    """Passes on all rows as they are, whichever input they came by."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


class KeyBy(_PassOn[KeyByConfig]):
    """Passes rows on under another key; the exchange behind it brings them to its owner."""

    def __init__(self, config: KeyByConfig) -> None:
        super().__init__(config)
        if not config.columns:
            raise UserError(
                "key_by without a column: name at least one", code=ErrorCode.INVALID_CONFIG
            )

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input with another key; unknown columns are refused."""
        return inputs[0].keyed_by(*self.config.columns)


class Union(_PassOn[UnionConfig]):
    """Passes on the rows of all inputs; their order among each other is arbitrary."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the first input's columns, which the others must have too.

        Layouts and the order of columns may differ. The key is kept if all inputs have it.
        """
        first = inputs[0]
        problems: list[str] = []
        for index, other in enumerate(inputs):
            found = find_differences(other.arrow, first.arrow)
            if other.time_column != first.time_column:
                found.append(
                    f"its time column is {other.time_column!r}, expected {first.time_column!r}"
                )
            problems += [f"input {index}: {problem}" for problem in found]
        if problems:
            raise SchemaError(
                "the inputs of a union must have the same columns and time column as input "
                "0:\n  " + "\n  ".join(problems) + "\nBring them into one form with select "
                "before"
            )
        has_one_key = all(other.key_columns == first.key_columns for other in inputs)
        return first if has_one_key else first.keyed_by()


def _conversion_for(function: BatchFunction) -> Callable[[pa.RecordBatch], RowsLike]:
    """Return the function that converts a batch into the annotated type of rows."""
    target: Any = function
    if not hasattr(function, "__annotations__"):
        target = type(function).__call__
    try:
        hints = typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        hints = getattr(target, "__annotations__", {})
    first = next((hint for name, hint in hints.items() if name != "return"), None)
    wanted = str(first).strip("'<>")
    if wanted.endswith("DataFrame"):
        return pl.DataFrame
    if wanted.endswith("Table"):
        return lambda batch: pa.Table.from_batches([batch])
    return lambda batch: batch
