"""DataFrames as sources: one that is read once, or a function that gives one per epoch.

p.read("shops", ps.dataframe(spark.table("shops")))
p.read("sales", ps.dataframes(next_day, schema=SALES))
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.core.duration import DurationLike, to_micros
from penstock.core.signals import EndOfData
from penstock.core.tokens import new_token
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.process import source_spec
from penstock.operators.user_functions import name_of
from penstock.runtime.spark.driving import driving_session
from penstock.runtime.spark.frame_source import (
    FramesEnd,
    FrameSource,
    FrameStep,
    NextFrame,
    NoFrame,
    keep_feed,
    streaming_refusal,
)
from penstock.runtime.spark.row_schemas import SchemaLike, to_stream_schema

_DEFAULT_POLL = timedelta(seconds=1)


def dataframe(frame: DataFrame, *, schema: SchemaLike | None = None) -> OperatorSpec:
    """Read a DataFrame once, whole, in one epoch; then the source has ended.

    Without `schema` its columns are those of the DataFrame; with it, other columns are left
    out. A job that is started again after that epoch does not read it again.
    """
    if not isinstance(frame, DataFrame):
        raise UserError(
            f"dataframe was given {type(frame).__name__}: give a Spark DataFrame",
            code=ErrorCode.INVALID_CONFIG,
        )
    if frame.isStreaming:
        raise streaming_refusal("dataframe")
    return _spec(
        "dataframe",
        _OneFrame(frame),
        frame.schema if schema is None else schema,
        _DEFAULT_POLL,
    )


def dataframes(
    next_frame: Callable[[SparkSession, Any], tuple[DataFrame, Any] | EndOfData | None],
    *,
    schema: SchemaLike,
    poll: DurationLike = _DEFAULT_POLL,
) -> OperatorSpec:
    """Read one DataFrame per epoch: what `next_frame(session, offset)` returns.

    It is called on the driver before an epoch, with None at first and then with the offset
    it returned last, also after a restart. It returns a DataFrame and the offset to go on
    from, None if there is nothing yet (it is asked again after `poll`), or `EndOfData()`.
    Asked twice with one offset it must give the same rows: an epoch may run again.
    """
    if not callable(next_frame):
        raise UserError(
            f"dataframes was given {type(next_frame).__name__}: give a function "
            "next_frame(session, offset)",
            code=ErrorCode.INVALID_CONFIG,
        )
    interval = timedelta(microseconds=to_micros(poll, "poll interval"))
    return _spec("dataframes", _FrameFunction(next_frame), schema, interval)


def _spec(kind: str, feed: Any, schema: SchemaLike, poll: timedelta) -> OperatorSpec:
    token = new_token()
    keep_feed(token, feed)
    return source_spec(FrameSource(kind, token, to_stream_schema(schema), poll=poll))


class _OneFrame:
    """A feed of one DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def next_step(self, offset: Any) -> FrameStep:
        """Return the frame, if it was not read before."""
        return NextFrame(self._frame, 1, is_last=True) if offset is None else FramesEnd()


class _FrameFunction:
    """A feed that asks the user's function."""

    def __init__(self, next_frame: Callable[[SparkSession, Any], Any]) -> None:
        self._next_frame = next_frame

    def next_step(self, offset: Any) -> FrameStep:
        """Ask for the frame that follows."""
        name = name_of(self._next_frame)
        answer = self._next_frame(driving_session("dataframes"), offset)
        if answer is None:
            return NoFrame()
        if isinstance(answer, EndOfData) or answer is EndOfData:
            return FramesEnd()
        if isinstance(answer, tuple) and len(answer) == 2:
            return NextFrame(*answer)
        raise UserError(
            f"{name!r} returned {type(answer).__name__}: return (DataFrame, next offset), None "
            "while there is nothing to read, or EndOfData() at the end",
            code=ErrorCode.INVALID_CONFIG,
            function=name,
        )
