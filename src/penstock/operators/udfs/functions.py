"""Operators that add a column computed by a synchronous function. Stateless.

A Python function is called row by row, or with whole columns. Its result is checked against
the declaration. A result of another type or length is a mistake in the declaration or in the
function, never in a row, so it fails the epoch even if rows that raise go to the side output.
"""

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import describe_sample, find_differences
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, ExternalError, SchemaError, UserError, did_you_mean
from penstock.graph.logical import BAD, MAIN
from penstock.operators.changes import check_change_unread, project_changes
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured
from penstock.operators.stateless import ERROR_COLUMN, bad_rows_of, divert
from penstock.operators.udfs.specs import AsyncUdfSpec, ResultSpec, UdfSpec
from penstock.operators.user_functions import to_failure, unpickle_function

ResultArray: TypeAlias = "pa.Array[Any]"
ResultSpecT = TypeVar("ResultSpecT", bound=ResultSpec)

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results and errors of calling a function on some rows."""

    values: ResultArray
    """The results of the rows that have one, in order."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why the other rows have no result, by row."""


def to_result_array(
    values: Sequence[Any], spec: ResultSpec, operator: str, arguments: Sequence[Any]
) -> ResultArray:
    """Return Python values as an array of the declared type; raise for the first misfit.

    `arguments` are those of each call, for the message.
    """
    kind = spec.return_type
    try:
        array: ResultArray = pa.array(values, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        index = _first_misfit(values, kind)
        raise UserError(
            f"UDF {spec.name!r} of operator {operator!r} returned {_show(values[index])} of "
            f"type {type(values[index]).__name__}, which is no {kind}, when called with "
            f"{_show(arguments[index])}. Correct the function, or declare what it returns",
            code=ErrorCode.UDF_INVALID,
            operator=operator,
            udf=spec.name,
        ) from error
    return array


def conform_result(
    result: Any, spec: ResultSpec, operator: str, batch: pa.RecordBatch
) -> ResultArray:
    """Return a whole column of results in the declared type, or raise how it differs."""
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    kind = spec.return_type
    if not isinstance(result, pa.Array):
        problem = f"a {type(result).__name__} instead of an array"
    elif len(result) != batch.num_rows:
        problem = f"{len(result)} values for {batch.num_rows} rows"
    elif find_differences(
        pa.schema([("result", result.type)]), pa.schema([("result", kind)])
    ):
        problem = f"the type {result.type} instead of {kind}"
    else:
        return result if result.type.equals(kind) else result.cast(kind)
    raise UserError(
        f"UDF {spec.name!r} of operator {operator!r} returned {problem}. Correct the function, "
        f"or declare what it returns. The batch it was given begins with:\n"
        f"{describe_sample(batch)}",
        code=ErrorCode.UDF_INVALID,
        operator=operator,
        udf=spec.name,
    )


def _first_misfit(values: Sequence[Any], kind: Any) -> int:
    for index, value in enumerate(values):
        try:
            pa.array([value], type=kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return index
    return 0


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


class ColumnOperator(Configured[ResultSpecT], ArrowOperator):
    """An operator that adds the column of a UDF, and has a side output for failed rows."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input with the new column; refuse an input that does not fit."""
        spec, stream, schema = self.config, inputs[0], inputs[0].arrow
        problems = [
            f"it reads the column {name!r}, which its input lacks"
            f"{did_you_mean(name, set(schema.names))}"
            for name in spec.inputs
            if name not in schema.names
        ]
        if spec.output in schema.names and not spec.replaces:
            problems.append(
                f"its input has a column {spec.output!r} already: name another output, or name "
                f"this one, output={spec.output!r}, to replace it"
            )
        if spec.on_bad == "divert" and ERROR_COLUMN in schema.names:
            problems.append(
                f"its input has a column {ERROR_COLUMN!r}, which the {BAD!r} output adds: "
                "rename the input's"
            )
        if problems:
            raise SchemaError(
                f"UDF {spec.name!r} does not fit its input:\n  " + "\n  ".join(problems),
                udf=spec.name,
            )
        check_change_unread(f"udf {spec.name!r}", stream, spec.inputs)
        if spec.on_bad == "divert":
            stream = stream.loosened()  # one half of an update may be diverted alone
        added = pa.field(spec.output, spec.return_type)
        at = schema.get_field_index(spec.output)
        if at < 0:
            table_key = stream.table_key
            if table_key is not None and stream.is_bag:
                table_key = (*table_key, spec.output)
            return replace(stream, arrow=schema.append(added), table_key=table_key)
        # As with an expression: rows came to their subtask by the old value of a key column.
        time, keys = stream.time_column, stream.key_columns
        is_no_time = time == spec.output and not pa.types.is_timestamp(added.type)
        project_changes(stream, schema.names, [spec.output], f"udf {spec.name!r}")
        return StreamSchema(
            schema.set(at, added),
            None if is_no_time else time,
            () if spec.output in keys else keys,
            stream.table_key,
            stream.loosened().settling,
            stream.is_bag,
        )

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the stream of rows whose call failed, if they do not fail the epoch."""
        if self.config.on_bad == "fail":
            return {}
        return bad_rows_of(inputs[0])

    def is_row_fault(self, error: BaseException) -> bool:
        """Return whether a failed call only sends its row to the side output.

        It does not if user code raised `ExternalError`, so that the epoch is tried again.
        """
        return self.config.on_bad == "divert" and not isinstance(error, ExternalError)

    def reason_for(self, error: BaseException, operator: str, arguments: Any) -> str:
        """Return why a row goes to the side output, or raise the error that fails the epoch."""
        reason = f"{type(error).__name__}: {error}"
        if self.is_row_fault(error):
            return reason
        who = f"UDF {self.config.name!r} of operator {operator!r}"
        shown = _show(arguments)
        failure = to_failure(
            error,
            f"{who} raised {reason} when called with {shown}. Correct it, or send such rows "
            'aside with on_bad="divert"',
            note=f"{who} was called with {shown}",
            operator=operator,
            udf=self.config.name,
        )
        raise failure from failure.__cause__

    def emit(
        self,
        batch: pa.RecordBatch,
        evaluation: Evaluation,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Emit rows with their results, and rows without one to `BAD` with the reason."""
        good = batch
        errors = evaluation.errors
        if errors:
            is_good = np.ones(batch.num_rows, dtype=bool)
            is_good[list(errors)] = False
            good = batch.filter(pa.array(is_good))
            bad = batch.filter(pa.array(~is_good))
            divert(bad, [errors[index] for index in sorted(errors)], ctx, collector)
        if good.num_rows:
            output = self.config.output
            rows = _with_column(good, ctx.outputs[MAIN], output, evaluation.values)
            collector.collect(rows)


def _with_column(
    batch: pa.RecordBatch, stream: StreamSchema, name: str, column: ResultArray
) -> pa.RecordBatch:
    columns: list[Any] = [*batch.columns]
    at = batch.schema.get_field_index(name)
    if at < 0:
        columns.append(column)
    else:
        columns[at] = column
    return pa.RecordBatch.from_arrays(columns, schema=stream.arrow)


class RowUdf(ColumnOperator[UdfSpec]):
    """Calls a Python function once per row, or not if an argument is null, by default."""

    def __init__(self, spec: UdfSpec) -> None:
        super().__init__(spec)
        self._function = load_function(spec)

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        spec, operator = self.config, ctx.task.operator
        skips_nulls = spec.nulls == "skip"
        values: list[Any] = []
        called_with: list[tuple[Any, ...]] = []
        errors: dict[int, str] = {}
        for index, arguments in enumerate(arguments_of(batch, spec.inputs)):
            value = None
            if not (skips_nulls and has_null(arguments)):
                try:
                    value = self._function(*arguments)
                except Exception as error:  # noqa: BLE001 (the boundary to user code)
                    errors[index] = self.reason_for(error, operator, arguments)
                    continue
            values.append(value)
            called_with.append(arguments)
        results = to_result_array(values, spec, operator, called_with)
        self.emit(batch, Evaluation(results, errors), ctx, collector)


def arguments_of(batch: pa.RecordBatch, inputs: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the arguments of each row's call as Python values."""
    return list(zip(*(batch.column(name).to_pylist() for name in inputs), strict=True))


def has_null(arguments: tuple[Any, ...]) -> bool:
    """Return whether an argument is null."""
    return any(argument is None for argument in arguments)


class BatchUdf(ColumnOperator[ResultSpecT]):
    """Calls a function with the whole columns of every batch."""

    @abstractmethod
    def call(self, batch: pa.RecordBatch) -> Any:
        """Call the function with the columns of some rows; return an array."""

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self.emit(batch, self._evaluate(batch, ctx.task.operator), ctx, collector)

    def _evaluate(self, batch: pa.RecordBatch, operator: str) -> Evaluation:
        """Call the function; halve a batch that fails to find the bad rows.

        That is correct because the cuts between batches have no meaning. It takes about
        log2(rows) more calls per bad row.
        """
        spec = self.config
        try:
            result = self.call(batch)
        except Exception as error:  # noqa: BLE001 (the boundary to user code)
            sample: Any = None
            if not self.is_row_fault(error):
                # Only then: Python cannot hold every value, such as an instant of year 10000.
                sample = batch.select(list(spec.inputs)).slice(0, 1).to_pylist()
            reason = self.reason_for(error, operator, sample)
            if batch.num_rows == 1:
                return Evaluation(pa.nulls(0, type=spec.return_type), {0: reason})
        else:
            return Evaluation(conform_result(result, spec, operator, batch))
        middle = batch.num_rows // 2
        first = self._evaluate(batch.slice(0, middle), operator)
        second = self._evaluate(batch.slice(middle), operator)
        moved = {middle + index: error for index, error in second.errors.items()}
        return Evaluation(
            pa.concat_arrays([first.values, second.values]), {**first.errors, **moved}
        )


class PythonBatchUdf(BatchUdf[UdfSpec]):
    """Calls a Python function with Arrow arrays or Polars series."""

    def __init__(self, spec: UdfSpec) -> None:
        super().__init__(spec)
        self._function = load_function(spec)

    @override
    def call(self, batch: pa.RecordBatch) -> Any:
        inputs = self.config.inputs
        if self.config.mode == "arrow":
            return self._function(*(batch.column(name) for name in inputs))
        result = self._function(*(pl.Series(name, batch.column(name)) for name in inputs))
        return result.to_arrow() if isinstance(result, pl.Series) else result


def build_udf(config: UdfSpec) -> RowUdf | PythonBatchUdf:
    """Return the operator that calls a Python function in line."""
    return RowUdf(config) if config.mode == "row" else PythonBatchUdf(config)


def load_function(spec: UdfSpec | AsyncUdfSpec) -> Callable[..., Any]:
    """Return the function of a declaration; refuse one that cannot be called as declared."""
    function: Callable[..., Any] = unpickle_function(spec.function)
    problems = _find_call_problems(function, spec)
    waits, wants_async = is_async(function), isinstance(spec, AsyncUdfSpec)
    if waits and not wants_async:
        problems.append("it is async: declare it with async_udf")
    elif wants_async and not waits and not problems:
        problems.append("it is not async: declare it with udf, or make it `async def`")
    if problems:
        raise UserError(
            f"UDF {spec.name!r} cannot be used: {'; '.join(problems)}",
            code=ErrorCode.UDF_INVALID,
            udf=spec.name,
        )
    return function


def _find_call_problems(function: Any, spec: ResultSpec) -> list[str]:
    if not callable(function):
        return [f"it is a {type(function).__name__}, which cannot be called"]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return []
    try:
        signature.bind(*spec.inputs)
    except TypeError as error:
        columns = ", ".join(spec.inputs)
        return [f"it takes {signature} and cannot be called with {columns}: {error}"]
    return []


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calls of a function are awaited."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (it is known to be callable)
    )
