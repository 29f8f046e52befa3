"""The operator that adds a column computed by a synchronous function. Stateless.

A Python function is called row by row, or with whole columns. Its result is checked against
the declaration. A result of another type or length is a mistake in the declaration or in the
function, never in a row, so it fails the epoch even if rows that raise go to the side output.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import describe_sample, find_differences
from penstock.core.schema import StreamSchema
from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    SchemaError,
    UserError,
    did_you_mean,
)
from penstock.graph.logical import BAD, MAIN, UserFunction
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured
from penstock.operators.udfs.specs import ResultSpec, UdfSpec
from penstock.operators.user_functions import to_failure, unpickle_function

ResultArray: TypeAlias = "pa.Array[Any]"
ResultSpecT = TypeVar("ResultSpecT", bound=ResultSpec)

_SHOWN_CHARACTERS = 200

ERROR_COLUMN = "error"
"""The column of the `BAD` side output besides the input's: why the call failed."""


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


def call_failed(
    error: BaseException, spec: ResultSpec, operator: str, arguments: Any
) -> PenstockError:
    """Return the error to raise for a call that failed and must fail the epoch."""
    who = f"UDF {spec.name!r} of operator {operator!r}"
    shown = _show(arguments)
    return to_failure(
        error,
        f"{who} raised {describe_error(error)} when called with {shown}. Correct it, or send "
        'such rows aside with on_error="bad"',
        note=f"{who} was called with {shown}",
        operator=operator,
        udf=spec.name,
    )


def is_row_fault(error: BaseException, spec: ResultSpec) -> bool:
    """Return whether a failed call only sends its row to the side output.

    It does not if user code raised `ExternalError`, so that the epoch is tried again.
    """
    return spec.on_error == "bad" and not isinstance(error, ExternalError)


def describe_error(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}"


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


Evaluate = Callable[[str, pa.RecordBatch], Evaluation]
"""Calls the function on a batch; the first argument is the operator's name, for messages."""


class ColumnOperator(Configured[ResultSpecT], ArrowOperator):
    """An operator that adds the column of a UDF, and has a side output for failed rows."""

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input with the new column; refuse an input that does not fit."""
        spec, stream, schema = self.config, inputs[0], inputs[0].schema
        problems = [
            f"it reads the column {name!r}, which its input lacks"
            f"{did_you_mean(name, set(schema.names))}"
            for name in spec.inputs
            if name not in schema.names
        ]
        if spec.output in schema.names:
            problems.append(
                f"its input has a column {spec.output!r} already: name another output"
            )
        if spec.on_error == "bad" and ERROR_COLUMN in schema.names:
            problems.append(
                f"its input has a column {ERROR_COLUMN!r}, which the {BAD!r} output adds: "
                "rename the input's"
            )
        if problems:
            raise SchemaError(
                f"UDF {spec.name!r} does not fit its input:\n  " + "\n  ".join(problems),
                udf=spec.name,
            )
        added = schema.append(pa.field(spec.output, spec.return_type))
        return StreamSchema(added, stream.time_column, stream.key_columns)

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return the stream of rows whose call failed, if they do not fail the epoch."""
        if self.config.on_error == "fail":
            return {}
        stream = inputs[0]
        added = stream.schema.append(pa.field(ERROR_COLUMN, pa.string()))
        return {BAD: StreamSchema(added, stream.time_column, stream.key_columns)}


class UdfOperator(ColumnOperator[ResultSpec]):
    """Calls a function on every batch; rows whose call failed may go to a side output."""

    def __init__(
        self,
        spec: ResultSpec,
        evaluate: Evaluate,
        check_types: Callable[[StreamSchema], None] | None = None,
    ) -> None:
        super().__init__(spec)
        self._evaluate = evaluate
        self._check_types = check_types

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        output = super().output_schema(inputs)
        if self._check_types is not None:
            self._check_types(inputs[0])
        return output

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        evaluation = self._evaluate(ctx.task.operator, batch)
        emit_results(batch, evaluation, ctx, collector)


def build_udf(config: UdfSpec) -> UdfOperator:
    """Return the operator that calls a Python function in line."""
    function = load_function(config, config.function, wants_async=False)
    if config.mode == "row":
        return UdfOperator(config, partial(evaluate_rows, function, config))
    call = column_call(function, config)
    return UdfOperator(config, partial(evaluate_columns, call, config))


def load_function(
    spec: ResultSpec, packed: UserFunction, *, wants_async: bool
) -> Callable[..., Any]:
    """Return the function of a declaration; refuse one that cannot be called as declared."""
    function: Callable[..., Any] = unpickle_function(packed)
    problems = _find_call_problems(function, spec)
    is_async = _is_async(function)
    if is_async and not wants_async:
        problems.append("it is async: declare it with async_udf")
    elif wants_async and not is_async and not problems:
        problems.append("it is not async: declare it with udf, or make it `async def`")
    if problems:
        raise UserError(
            f"UDF {spec.name!r} cannot be used: {'; '.join(problems)}",
            code=ErrorCode.UDF_INVALID,
            udf=spec.name,
        )
    return function


def emit_results(
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
        reasons = pa.array([errors[index] for index in sorted(errors)], pa.string())
        ctx.count("bad_rows", len(errors))
        collector.collect(_with_column(bad, ctx.outputs[BAD], reasons), BAD)
    if good.num_rows:
        collector.collect(_with_column(good, ctx.outputs[MAIN], evaluation.values))


def _with_column(
    batch: pa.RecordBatch, stream: StreamSchema, column: ResultArray
) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=stream.schema)


ColumnCall: TypeAlias = Callable[[pa.RecordBatch], Any]
"""Calls the function with the columns of some rows; gives an array."""


def evaluate_rows(
    function: Callable[..., Any], spec: UdfSpec, operator: str, batch: pa.RecordBatch
) -> Evaluation:
    """Call the function once per row; a null argument gives null without a call by default."""
    skips_nulls = spec.nulls == "skip"
    values: list[Any] = []
    called_with: list[tuple[Any, ...]] = []
    errors: dict[int, str] = {}
    for index, arguments in enumerate(arguments_of(batch, spec.inputs)):
        value = None
        if not (skips_nulls and has_null(arguments)):
            try:
                value = function(*arguments)
            except Exception as error:  # noqa: BLE001 (the boundary to user code)
                if not is_row_fault(error, spec):
                    failure = call_failed(error, spec, operator, arguments)
                    raise failure from failure.__cause__
                errors[index] = describe_error(error)
                continue
        values.append(value)
        called_with.append(arguments)
    return Evaluation(to_result_array(values, spec, operator, called_with), errors)


def arguments_of(batch: pa.RecordBatch, inputs: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the arguments of each row's call as Python values."""
    return list(zip(*(batch.column(name).to_pylist() for name in inputs), strict=True))


def has_null(arguments: tuple[Any, ...]) -> bool:
    """Return whether an argument is null."""
    return any(argument is None for argument in arguments)


def column_call(function: Callable[..., Any], spec: UdfSpec) -> ColumnCall:
    """Return a call that passes whole columns, as the declaration's mode wants them."""

    def call(batch: pa.RecordBatch) -> Any:
        if spec.mode == "arrow":
            return function(*(batch.column(name) for name in spec.inputs))
        result = function(*(pl.Series(name, batch.column(name)) for name in spec.inputs))
        return result.to_arrow() if isinstance(result, pl.Series) else result

    return call


def evaluate_columns(
    call: ColumnCall, spec: ResultSpec, operator: str, batch: pa.RecordBatch
) -> Evaluation:
    """Call the function with whole columns; halve a batch that fails to find the bad rows.

    That is correct because the cuts between batches have no meaning. It takes about
    log2(rows) more calls per bad row.
    """
    try:
        result = call(batch)
    except Exception as error:  # noqa: BLE001 (the boundary to user code)
        if not is_row_fault(error, spec):
            sample = batch.select(list(spec.inputs)).slice(0, 1).to_pylist()
            failure = call_failed(error, spec, operator, sample)
            raise failure from failure.__cause__
        if batch.num_rows == 1:
            nothing = pa.nulls(0, type=spec.return_type)
            return Evaluation(nothing, {0: describe_error(error)})
    else:
        return Evaluation(conform_result(result, spec, operator, batch))
    middle = batch.num_rows // 2
    first = evaluate_columns(call, spec, operator, batch.slice(0, middle))
    second = evaluate_columns(call, spec, operator, batch.slice(middle))
    moved = {middle + index: error for index, error in second.errors.items()}
    return Evaluation(
        pa.concat_arrays([first.values, second.values]), {**first.errors, **moved}
    )


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


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (it is known to be callable)
    )
