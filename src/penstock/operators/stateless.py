"""Operators without state and without expressions: map_batches, map, rename, key_by, union.

`EpochOperator` is the base of others that take the rows of an epoch at once.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import find_differences
from penstock.core.rows import is_pandas
from penstock.core.schema import CHANGE_COLUMN, Settling, StreamSchema
from penstock.core.spellings import OnBad, diverts_bad
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, PenstockError, SchemaError, UserError, did_you_mean
from penstock.graph.logical import BAD, MAIN, OperatorSpec, UserFunction
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.frames import cast_back, check_convertible, conversion_for
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig, OperatorConfigT
from penstock.operators.user_functions import pickle_function, unpickle_function

BatchFunction: TypeAlias = Callable[[Any], Any]
ERROR_COLUMN = "error"
"""The column of the `BAD` side output besides the input's: why the call failed."""


class EpochOperator(ArrowOperator):
    """An operator with one input that works on the rows of an epoch when all of them are there."""

    def __init__(self) -> None:
        self._taken: list[pa.RecordBatch] = []

    @abstractmethod
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Process all rows of an epoch; not called without any. Chunks are the batches they came in."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Take rows until the epoch's are complete."""
        self._taken.append(batch)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Process what was taken."""
        if self._taken:
            taken, self._taken = self._taken, []
            self.process_epoch(pa.Table.from_batches(taken), ctx, collector)


def bad_rows_of(stream: StreamSchema) -> dict[str, StreamSchema]:
    """Return the side output of rows on which a function failed, with the reason."""
    if ERROR_COLUMN in stream.arrow.names:
        raise SchemaError(
            f"the input has a column {ERROR_COLUMN!r}, which the {BAD!r} output adds: rename "
            "the input's",
            column=ERROR_COLUMN,
        )
    added = stream.arrow.append(pa.field(ERROR_COLUMN, pa.string()))
    return {BAD: StreamSchema(added, stream.time_column, stream.key_columns)}


def divert(
    bad: pa.RecordBatch,
    reasons: Sequence[str],
    ctx: OperatorContext,
    collector: ArrowCollector,
) -> None:
    """Emit rows to the `BAD` output with the reason of each, and count them."""
    ctx.count("bad_rows", bad.num_rows)
    columns: list[Any] = [*bad.columns, pa.array(reasons, pa.string())]
    schema = ctx.outputs[BAD].arrow
    collector.collect(pa.RecordBatch.from_arrays(columns, schema=schema), BAD)


def check_columns(named: Iterable[str], known: Sequence[str], step: str) -> None:
    """Refuse names that are no columns of a stream; all of them are told at once."""
    unknown = [
        f"there is no column {name!r}{did_you_mean(str(name), known)}"
        for name in named
        if name not in known
    ]
    if unknown:
        raise SchemaError(f"{step} does not fit its input: {'; '.join(unknown)}")


@dataclass(frozen=True, slots=True)
class MapBatchesConfig(OperatorConfig):
    """The config of operators that call a function for every batch."""

    kind: ClassVar[str] = "map_batches"

    function: UserFunction
    schema: bytes | None = None
    """The result of `StreamSchema.to_bytes`; None if the output has the input's schema."""
    on_bad: OnBad = "fail"
    """Whether rows on which the function raises fail the epoch, or go to the `BAD` output."""

    @override
    def shown(self) -> Mapping[str, str]:
        return {"function": self.function.name}


@dataclass(frozen=True, slots=True)
class MapRowsConfig(MapBatchesConfig):
    """The config of operators that call a function for every row."""

    kind: ClassVar[str] = "map"


@dataclass(frozen=True, slots=True)
class FlatMapConfig(MapBatchesConfig):
    """The config of operators whose function gives any number of results per batch."""

    kind: ClassVar[str] = "flat_map"


@dataclass(frozen=True, slots=True)
class RenameConfig(OperatorConfig):
    """The config of operators that give columns other names."""

    kind: ClassVar[str] = "rename"

    names: Mapping[str, str]
    """The new name of each column that gets one."""

    @override
    def shown(self) -> Mapping[str, str]:
        return dict(self.names)


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


def function_spec(
    config: type[MapBatchesConfig],
    function: BatchFunction,
    schema: StreamSchema | None = None,
    on_bad: OnBad = "fail",
) -> OperatorSpec:
    """Call a function; `schema` if its results have other columns than the input."""
    diverts_bad(on_bad, where=f"{config.kind}: ")
    stored = None if schema is None else schema.to_bytes()
    return config(pickle_function(function), stored, on_bad).to_operator_spec()


def map_batches_spec(
    function: BatchFunction, schema: StreamSchema | None = None, on_bad: OnBad = "fail"
) -> OperatorSpec:
    """Compute one result per batch."""
    return function_spec(MapBatchesConfig, function, schema, on_bad)


def flat_map_spec(
    function: BatchFunction, schema: StreamSchema | None = None
) -> OperatorSpec:
    """Compute any number of results per batch: the function returns or yields them."""
    return function_spec(FlatMapConfig, function, schema)


class MapBatches(Configured[MapBatchesConfig], ArrowOperator):
    """Calls a function for every batch.

    The function gets a `pyarrow.RecordBatch`, or what its first parameter is annotated with: a
    `pyarrow.Table`, a Polars or a pandas `DataFrame`. It may return rows in any form.
    """

    def __init__(self, config: MapBatchesConfig) -> None:
        super().__init__(config)
        function = unpickle_function(config.function)
        if not callable(function):
            raise UserError(
                f"{config.function.name!r} is a {type(function).__name__}, not a function",
                code=ErrorCode.UDF_INVALID,
            )
        self.function: Callable[..., Any] = function
        self._convert = conversion_for(function)
        declared = config.schema
        self._schema = None if declared is None else StreamSchema.from_bytes(declared)

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return what was declared, else the input's."""
        check_convertible(self._convert, inputs[0].arrow, self.config.function.name)
        return self._schema or inputs[0].loosened()

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the stream of rows on which the function failed, if they are diverted."""
        return bad_rows_of(inputs[0]) if self.config.on_bad == "divert" else {}

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the function's result; halve a batch on which it fails to find the bad rows."""
        try:
            result = self.call(batch)
        except Exception as error:
            if not self.diverts(error):
                raise
            self.find_bad(error, batch, ctx, collector)
        else:
            collector.collect(cast_back(result, ctx.outputs[MAIN].arrow))

    def diverts(self, error: Exception) -> bool:
        """Return whether an exception is the fault of rows that are to be diverted."""
        return self.config.on_bad == "divert" and not isinstance(error, PenstockError)

    def find_bad(
        self,
        error: Exception,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Divert a row that failed, or process both halves of rows that did.

        Halving is correct because the cuts between batches have no meaning. It takes about
        log2(rows) more calls per bad row.
        """
        if batch.num_rows == 1:
            divert(batch, [f"{type(error).__name__}: {error}"], ctx, collector)
            return
        middle = batch.num_rows // 2
        self.process_batch(batch.slice(0, middle), ctx, collector)
        self.process_batch(batch.slice(middle), ctx, collector)

    def call(self, batch: pa.RecordBatch) -> Any:
        """Return what the function makes of some rows."""
        return self.function(self._convert(batch))


class FlatMap(MapBatches):
    """Calls a function for every batch, and emits each of its results."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the function's results as they come."""
        results = self.call(batch)
        # Batches and frames are iterable too, column by column: they are one result.
        is_single = isinstance(results, pa.RecordBatch | pa.Table | pl.DataFrame | Mapping)
        if is_single or is_pandas(results) or not isinstance(results, Iterable):
            raise UserError(
                f"{self.display()} returned a {type(results).__name__}: return a list of "
                "batches or yield them, or use map_batches for exactly one",
                code=ErrorCode.UDF_INVALID,
            )
        for rows in results:
            collector.collect(cast_back(rows, ctx.outputs[MAIN].arrow))


class MapRows(MapBatches):
    """Calls a function for every row, a dictionary, which returns another one."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the function's results; a row without its columns is the function's mistake."""
        try:
            rows = batch.to_pylist()
        except Exception as error:  # Python has no form of a value, such as the year 10000
            if not self.diverts(error):
                raise
            self.find_bad(error, batch, ctx, collector)
            return
        names = set(ctx.outputs[MAIN].arrow.names)
        good: list[Mapping[str, Any]] = []
        bad: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                result = self.function(row)
            except Exception as error:
                if not self.diverts(error):
                    raise
                bad[index] = f"{type(error).__name__}: {error}"
                continue
            if not isinstance(result, Mapping) or result.keys() != names:
                self._refuse(result, sorted(names))
            good.append(result)
        if good:
            collector.collect(good)
        if bad:
            divert(batch.take(pa.array(list(bad))), list(bad.values()), ctx, collector)

    def _refuse(self, result: Any, names: list[str]) -> None:
        found = f"a {type(result).__name__}"
        if isinstance(result, Mapping):
            found = f"a dictionary of ({', '.join(map(str, result))})"
        raise UserError(
            f"{self.display()} returned {found}: return a dictionary of exactly the columns "
            f"({', '.join(names)}), or give the columns as schema={{…}}; filter drops rows",
            code=ErrorCode.UDF_INVALID,
        )


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


class Rename(Configured[RenameConfig], ArrowOperator):
    """Gives columns other names; their roles go with them."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input under the new names; unknown columns are refused."""
        stream, names = inputs[0], self.config.names
        check_columns(names, stream.arrow.names, "rename")
        fields = [
            field.with_name(names.get(field.name, field.name)) for field in stream.arrow
        ]
        time = stream.time_column
        table_key = stream.table_key
        if table_key is not None:
            table_key = tuple(names.get(key, key) for key in table_key)
        return StreamSchema(
            pa.schema(fields).with_metadata(stream.arrow.metadata or {}),
            None if time is None else names.get(time, time),
            tuple(names.get(key, key) for key in stream.key_columns),
            table_key,
            stream.settling,
            stream.is_bag,
        )

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        schema = ctx.outputs[MAIN].arrow
        collector.collect(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


class Union(_PassOn[UnionConfig]):
    """Passes on the rows of all inputs; their order among each other is arbitrary."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the first input's columns, which the others must have too.

        Layouts and the order of columns may differ. The key is kept if all inputs have it.
        Of several changelogs the rows are those of all tables, without a key of their own.
        """
        first = inputs[0]
        problems: list[str] = []
        for index, other in enumerate(inputs):
            found = find_differences(other.arrow, first.arrow)
            if other.time_column != first.time_column:
                found.append(
                    f"its time column is {other.time_column!r}, expected {first.time_column!r}"
                )
            if other.is_changelog != first.is_changelog:
                is_one = "a changelog" if other.is_changelog else "append-only"
                found.append(
                    f"it is {is_one}, unlike input 0: to_table makes a changelog of rows, to_rows "
                    "rows of a changelog"
                )
            problems += [f"input {index}: {problem}" for problem in found]
        if problems:
            raise SchemaError(
                "the inputs of a union must have the same columns and time column as input "
                "0:\n  " + "\n  ".join(problems) + "\nBring them into one form with select "
                "before"
            )
        has_one_key = all(other.key_columns == first.key_columns for other in inputs)
        stream = first if has_one_key else first.keyed_by()
        if not stream.is_changelog:
            return stream
        names = [name for name in stream.arrow.names if name != CHANGE_COLUMN]
        key = tuple(names)
        return replace(stream, table_key=key, settling=Settling.APART, is_bag=True)
