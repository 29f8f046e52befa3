"""DataFrames as sources: one that is read once, or a function that gives one per epoch.

    p.read("shops", pen.dataframe(spark.table("shops")))
    p.read("sales", pen.dataframes(next_day, schema=SALES))

A frame is read whole in one epoch, a part of it by every subtask. There are as many splits as
subtasks, so that each subtask has a watermark for its part. All splits hold the same offset,
that of the next frame. At another parallelism new splits begin where the old ones end.

All splits are one stream: from the epoch after a frame was read, event time in each of them
has reached the latest row of that frame, even where few rows went.

A DataFrame belongs to the driver's process and cannot be part of a plan: the plan holds the
token of its source.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import override

from penstock.core.clock import DurationLike, new_token, to_micros
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EndOfData
from penstock.errors import ErrorCode, InternalError, SchemaError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import DisplayableOperator, SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.operators.user_functions import name_of, source_spec
from penstock.runtime.spark.failures import noticing_its_end
from penstock.runtime.spark.row_schemas import (
    SchemaLike,
    find_frame_problems,
    to_stream_schema,
)
from penstock.runtime.spark.session import driving_session

_FRAMES: dict[str, DataFrame] = {}
"""The DataFrame that the next epoch of each source reads, by the source's token."""


def fed_frame(name: str) -> DataFrame:
    """Return the DataFrame that the source of this token has planned to read."""
    frame = _FRAMES.get(name)
    if frame is None:
        raise InternalError(
            f"an epoch is to read the DataFrame {name!r}, which no source gave"
        )
    return frame


@dataclass(frozen=True, slots=True)
class NextFrame:
    """A DataFrame to read in the next epoch."""

    frame: DataFrame
    offset: Any
    """The argument that gives the frame after it; kept in the checkpoint."""
    is_last: bool = False


FrameStep: TypeAlias = NextFrame | EndOfData | None
"""What to read in the next epoch: a frame, nothing for now, or nothing ever again."""


class FrameFeed(Protocol):
    """Gives DataFrames to a source. It lives in the driver's process and is used by its thread."""

    def next_step(self, offset: Any) -> FrameStep:
        """Return what follows the frame with this offset; the offset is None at first."""
        ...


_FEEDS: dict[str, FrameFeed] = {}
"""The feeds by token. The graph holds the token, because a feed cannot be pickled."""


def keep_feed(token: str, feed: FrameFeed) -> None:
    """Let sources of this process find a feed by its token."""
    _FEEDS[token] = feed


class FrameSource(SourceOperator):
    """Reads DataFrames that the executor brings. It is pickled as plain data."""

    def __init__(
        self, kind: str, token: str, stream: StreamSchema, *, poll: timedelta
    ) -> None:
        self._kind = kind
        self._token = token
        self._stream = stream.to_bytes()
        self._poll = poll

    @override
    def name(self) -> str:
        return self._kind

    @override
    def display(self) -> DisplayableOperator:
        columns = ", ".join(self.output_schema().arrow.names)
        return DisplayableOperator(self._kind, {"columns": columns})

    @override
    def output_schema(self) -> StreamSchema:
        return StreamSchema.from_bytes(self._stream)

    @override
    def has_keys_in_several_splits(self) -> bool:
        return True

    @override
    def poll_interval(self) -> timedelta:
        """Return how long to wait before the feed is called again."""
        return self._poll

    @property
    def feed(self) -> FrameFeed:
        """The feed of its frames, which only the process that built the pipeline has."""
        feed = _FEEDS.get(self._token)
        if feed is None:
            raise UserError(
                f"the DataFrames of a {self._kind!r} source are not known in this process: run "
                "the pipeline in the process that builds it",
                code=ErrorCode.INVALID_CONFIG,
            )
        return feed

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Take the next frame from the feed, and let every subtask read its part of it.

        A split is named `{when its parallelism began}-{index}`.
        """
        live = sorted(name for name, state in known.items() if not state.ended)
        newest = max(known, key=lambda name: int(name.partition("-")[0]), default=None)
        stored = None if newest is None else known[newest].offset
        offset = None if stored is None else stored[0]
        _FRAMES.pop(self._token, None)  # what it refers to may be large
        step = self.feed.next_step(offset)
        if step is None:
            return SourcePlan((), is_complete=False)
        if isinstance(step, EndOfData):
            return SourcePlan(_ending(live, offset), is_complete=True)
        _FRAMES[self._token] = self._checked(step.frame)
        names, retired = live, list[str]()
        if len(live) != budget.subtasks:
            names, retired = [f"{now_micros}-{i:05}" for i in range(budget.subtasks)], live
        times = [state.max_event_time_micros for state in known.values()]
        latest = max((micros for micros in times if micros is not None), default=None)
        # In a list: None is an offset, too.
        part = _Part([plain_offset(step.offset)], latest, step.is_last)
        reading = [SplitPlan(name, offset, part) for name in names]
        plans = (*reading, *_ending(retired, offset))
        return SourcePlan(plans, is_complete=step.is_last, fed=self._token)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Emit the rows that were brought; end splits that will not be read again."""
        for split in ctx.splits:
            if split.end is None:
                ctx.end_split(split.name)
                continue
            part: _Part = split.end
            for batch in self._rows(ctx):
                collector.collect(batch, split=split.name)
            ctx.advance(split.name, part.offset)
            if part.event_time_micros is not None:
                ctx.note_event_time(split.name, part.event_time_micros)
            if part.is_last:
                ctx.end_split(split.name)

    def _rows(self, ctx: SourceContext) -> Iterator[pa.RecordBatch]:
        if ctx.fed is None:
            raise UserError(
                f"a {self._kind!r} source reads DataFrames, and this job runs without Spark: "
                "start it with Pipeline.run or Pipeline.attach",
                code=ErrorCode.ENGINE_MISSING,
            )
        required = [f.name for f in self.output_schema().arrow if not f.nullable]
        for batch in ctx.fed:
            problems = [
                f"column {name!r} has {batch.column(name).null_count} nulls"
                for name in required
                if batch.column(name).null_count
            ]
            if problems:
                raise SchemaError(
                    "a DataFrame has nulls where its schema declares none: "
                    f"{'; '.join(problems)}. Filter such rows out, or declare the columns as "
                    "nullable",
                    problems=tuple(problems),
                )
            yield batch

    def _checked(self, frame: object) -> DataFrame:
        """Return the declared columns of a frame, or raise what is wrong with it."""
        if not isinstance(frame, DataFrame):
            raise UserError(
                f"a {self._kind!r} source was given {type(frame).__name__}: it reads Spark "
                "DataFrames",
                code=ErrorCode.INVALID_CONFIG,
            )
        if frame.isStreaming:
            raise streaming_refusal(self._kind)
        declared = self.output_schema().arrow
        problems = find_frame_problems(frame.schema, declared)
        if problems:
            raise SchemaError(
                f"a {self._kind!r} source was given a DataFrame that does not fit its schema:"
                "\n  " + "\n  ".join(problems),
                problems=tuple(problems),
            )
        return frame.select(*(f"`{name.replace('`', '``')}`" for name in declared.names))


def streaming_refusal(kind: str) -> UserError:
    """Return the error for a streaming DataFrame where one that ends is needed."""
    return UserError(
        f"a {kind!r} source was given a streaming DataFrame: read pen.attached(schema=…) "
        "instead, and start the pipeline with Pipeline.attach(stream, …)",
        code=ErrorCode.INVALID_CONFIG,
    )


def compute_again(frame: DataFrame) -> pa.Table:
    """Return the rows of a DataFrame as they are at this call.

    A DataFrame remembers which files it reads, and what it has computed of them. So the files
    are listed again, and the rows are those of another DataFrame with the same plan.
    """
    frame._jdf.queryExecution().analyzed().refresh()  # noqa: SLF001 (Python has no name for it)
    return frame.select("*").toArrow()


def plain_offset(offset: Any) -> Any:
    """Return an offset as a checkpoint gives it back; refuse one that cannot be stored."""
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(offset))
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise UserError(
            f"the offset {offset!r} cannot be kept in a checkpoint ({error}): use numbers, "
            "texts, bytes, timestamps, lists and dictionaries of them",
            code=ErrorCode.INVALID_CONFIG,
        ) from error


@dataclass(frozen=True, slots=True)
class _Part:
    """The end of a split plan: what one subtask does with its part of a frame."""

    offset: Any
    event_time_micros: int | None
    """How far event time had come in all earlier frames."""
    is_last: bool


def _ending(names: list[str], offset: Any) -> tuple[SplitPlan, ...]:
    """Plan splits that end without being read."""
    return tuple(SplitPlan(name, offset, None, weight=0) for name in names)


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
    given = frame.schema if schema is None else schema
    return frames_spec("dataframe", _OneFrame(frame), given, _DEFAULT_POLL)


def dataframes(
    next_frame: Callable[[SparkSession, Any], tuple[DataFrame, Any] | EndOfData | None],
    *,
    schema: SchemaLike,
    poll: DurationLike = _DEFAULT_POLL,
) -> OperatorSpec:
    """Read one DataFrame per epoch: what `next_frame(session, offset)` returns.

    It is called on the driver before an epoch, with None at first and then with the offset
    it returned last, also after a restart. It returns a DataFrame and the offset to go on
    from, None if there is nothing yet (it is called again after `poll`), or `EndOfData()`.
    Two calls with one offset must give the same rows, because an epoch may run again.
    """
    if not callable(next_frame):
        raise UserError(
            f"dataframes was given {type(next_frame).__name__}: give a function "
            "next_frame(session, offset)",
            code=ErrorCode.INVALID_CONFIG,
        )
    interval = timedelta(microseconds=to_micros(poll, "poll interval"))
    return frames_spec("dataframes", _FrameFunction(next_frame), schema, interval)


def frames_spec(
    kind: str, feed: FrameFeed, schema: SchemaLike, poll: timedelta
) -> OperatorSpec:
    """Return the source of this kind that reads what a feed of this process gives."""
    token = new_token()
    keep_feed(token, feed)
    return source_spec(FrameSource(kind, token, to_stream_schema(schema), poll=poll))


@dataclass(frozen=True, slots=True)
class _OneFrame:
    """A feed of one DataFrame."""

    frame: DataFrame

    def next_step(self, offset: Any) -> FrameStep:
        """Return the frame, if it was not read before."""
        return NextFrame(self.frame, 1, is_last=True) if offset is None else EndOfData()


@dataclass(frozen=True, slots=True)
class _FrameFunction:
    """A feed that calls the user's function."""

    function: Callable[[SparkSession, Any], Any]

    def next_step(self, offset: Any) -> FrameStep:
        """Call the function for the frame that follows."""
        name = name_of(self.function)
        session = driving_session("dataframes")
        with noticing_its_end(session, f"{name!r}, the function of dataframes"):
            answer = self.function(session, offset)
        if answer is None or isinstance(answer, EndOfData):
            return answer
        if answer is EndOfData:
            return EndOfData()
        if isinstance(answer, tuple) and len(answer) == 2:
            return NextFrame(*answer)
        raise UserError(
            f"{name!r} returned {type(answer).__name__}: return (DataFrame, next offset), None "
            "while there is nothing to read, or EndOfData() at the end",
            code=ErrorCode.INVALID_CONFIG,
            function=name,
        )
