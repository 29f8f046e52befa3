"""How a Python function is called on a batch: row by row, or with whole columns. Stateless."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.operators.udfs.results import (
    Evaluation,
    call_failed,
    conform_result,
    describe_error,
    is_row_fault,
    to_result_array,
)
from penstock.operators.udfs.specs import ResultSpec, UdfSpec

ColumnCall: TypeAlias = Callable[[pa.RecordBatch], Any]
"""Calls the function with the columns of some rows; gives an array."""


def evaluate_rows(
    function: Callable[..., Any], spec: UdfSpec, operator: str, batch: pa.RecordBatch
) -> Evaluation:
    """Call the function once per row; rows with a null argument give null unless wanted."""
    skips_nulls = spec.nulls == "skip"
    values: list[Any] = []
    called_with: list[tuple[Any, ...]] = []
    errors: dict[int, str] = {}
    for index, arguments in enumerate(arguments_of(batch, spec.inputs)):
        value = None
        if not (skips_nulls and has_null(arguments)):
            try:
                value = function(*arguments)
            except Exception as error:  # functions of users raise anything
                if not is_row_fault(error, spec):
                    raise call_failed(error, spec, operator, arguments) from error
                errors[index] = describe_error(error)
                continue
        values.append(value)
        called_with.append(arguments)
    return Evaluation(to_result_array(values, spec, operator, called_with), errors)


def arguments_of(batch: pa.RecordBatch, inputs: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the arguments of each row's call as Python values."""
    return list(zip(*(batch.column(name).to_pylist() for name in inputs), strict=True))


def has_null(arguments: tuple[Any, ...]) -> bool:
    """Tell whether an argument is null."""
    return any(argument is None for argument in arguments)


def arrow_call(function: Callable[..., Any], inputs: Sequence[str]) -> ColumnCall:
    """Return a call that passes Arrow arrays."""

    def call(batch: pa.RecordBatch) -> Any:
        return function(*(batch.column(name) for name in inputs))

    return call


def polars_call(function: Callable[..., Any], inputs: Sequence[str]) -> ColumnCall:
    """Return a call that passes Polars series."""

    def call(batch: pa.RecordBatch) -> Any:
        result = function(*(pl.Series(name, batch.column(name)) for name in inputs))
        return result.to_arrow() if isinstance(result, pl.Series) else result

    return call


def evaluate_columns(
    call: ColumnCall, spec: ResultSpec, operator: str, batch: pa.RecordBatch
) -> Evaluation:
    """Call the function with whole columns; halve a batch that fails to find the bad rows.

    That is sound because how rows are cut into batches means nothing, and takes about
    log2(rows) more calls per bad row.
    """
    try:
        result = call(batch)
    except Exception as error:  # functions of users raise anything
        if not is_row_fault(error, spec):
            sample = batch.select(list(spec.inputs)).slice(0, 1).to_pylist()
            raise call_failed(error, spec, operator, sample) from error
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
