"""What functions give back, checked against what was declared.

A result of another type or length is a mistake in the declaration or in the function, never
in a row: it fails the epoch even where rows that raise are sent aside.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.core.batch import describe_sample, find_differences
from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    UserCodeError,
    UserError,
)
from penstock.operators.udfs.specs import ResultSpec

ResultArray: TypeAlias = "pa.Array[Any]"

_TRACEBACK_FRAMES = 12
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of calling a function on some rows."""

    values: ResultArray
    """The results of the rows that have one, in order."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why the others have none, by row."""


def to_result_array(
    values: Sequence[Any], spec: ResultSpec, operator: str, arguments: Sequence[Any]
) -> ResultArray:
    """Return Python values as an array of the declared type; name the first that is not.

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
    """Return a whole column of results in the declared type, or say how it differs."""
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    kind = spec.return_type
    if not isinstance(result, pa.Array):
        problem = f"a {type(result).__name__} instead of an array"
    elif len(result) != batch.num_rows:
        problem = f"{len(result)} values for {batch.num_rows} rows"
    elif _differs(result.type, kind):
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
    """Return the error to raise for a call that failed and must fail the epoch.

    Errors that are Penstock's own, such as `ExternalError`, keep their class.
    """
    where = f"UDF {spec.name!r} of operator {operator!r} was called with {_show(arguments)}"
    if isinstance(error, PenstockError):
        error.add_note(where)
        return error
    failure = UserCodeError(
        f"UDF {spec.name!r} of operator {operator!r} raised {describe_error(error)} when "
        f"called with {_show(arguments)}. Correct it, or send such rows aside with "
        'on_error="bad"',
        operator=operator,
        udf=spec.name,
    )
    failure.add_note(
        "".join(traceback.format_exception(error, limit=-_TRACEBACK_FRAMES)).rstrip()
    )
    failure.__cause__ = error
    return failure


def is_row_fault(error: BaseException, spec: ResultSpec) -> bool:
    """Tell whether a failed call only sends its row aside.

    Not so if user code says with `ExternalError` that the epoch is to be tried again.
    """
    return spec.on_error == "bad" and not isinstance(error, ExternalError)


def describe_error(error: BaseException) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}"


def _differs(found: Any, declared: Any) -> bool:
    return bool(
        find_differences(pa.schema([("result", found)]), pa.schema([("result", declared)]))
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
