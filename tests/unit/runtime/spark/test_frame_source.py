"""A source of frames without Spark: how its splits follow parallelism, offsets and event time."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EndOfData
from penstock.errors import UserError
from penstock.operators.splits import SourceBudget, SourcePlan, SplitState
from penstock.runtime.spark.frame_source import (
    FrameSource,
    FrameStep,
    keep_feed,
    plain_offset,
)

SCHEMA = StreamSchema(pa.schema([("number", pa.int64())]))
LATEST = 1_000
LIVE = {
    "5-00000": SplitState([3], max_event_time_micros=10),
    "5-00001": SplitState([3], max_event_time_micros=LATEST),
}


class Steps:
    """A feed that remembers what it was asked."""

    def __init__(self, step: FrameStep) -> None:
        self.step = step
        self.asked: list[Any] = []

    def next_step(self, offset: Any) -> FrameStep:
        self.asked.append(offset)
        return self.step


def plan(feed: Steps, known: dict[str, SplitState], *, subtasks: int = 2) -> SourcePlan:
    keep_feed("steps", feed)
    source = FrameSource("dataframes", "steps", SCHEMA, poll=timedelta(seconds=1))
    return source.plan_splits(known, SourceBudget(subtasks=subtasks), now_micros=9)


def test_the_feed_is_asked_with_the_stored_offset() -> None:
    feed = Steps(None)
    assert plan(feed, {}) == SourcePlan((), is_complete=False)
    assert plan(feed, LIVE) == SourcePlan((), is_complete=False)
    assert feed.asked == [None, 3]


def test_the_offset_of_the_newest_parallelism_counts() -> None:
    feed = Steps(None)
    plan(feed, {**LIVE, "20-00000": SplitState([4], ended=True)})
    assert feed.asked == [4]


def test_the_end_of_all_frames_ends_all_splits() -> None:
    done = plan(Steps(EndOfData()), LIVE)
    assert [(split.name, split.end) for split in done.splits] == [
        ("5-00000", None),
        ("5-00001", None),
    ]
    assert done.is_complete
    assert done.fed is None
    assert plan(Steps(EndOfData()), {}) == SourcePlan((), is_complete=True)


@pytest.mark.parametrize("offset", [None, 3, "a", b"b", [1, {"x": 2.5}]])
def test_an_offset_is_what_comes_back_from_a_checkpoint(offset: Any) -> None:
    assert plain_offset(offset) == offset


def test_an_offset_that_cannot_be_kept_is_refused() -> None:
    assert plain_offset((1, 2)) == [1, 2]
    with pytest.raises(UserError, match="cannot be kept in a checkpoint"):
        plain_offset(object())


def test_frames_are_only_known_where_the_pipeline_was_built() -> None:
    source = FrameSource("dataframe", "elsewhere", SCHEMA, poll=timedelta(seconds=1))
    with pytest.raises(UserError, match="in the process that builds it"):
        _ = source.feed


def test_without_spark_the_job_says_what_it_needs() -> None:
    pipeline = pen.Pipeline("frames")
    read = pipeline.read("numbers", pen.dataframes(lambda *_: None, schema=SCHEMA))
    read.write("out", pen.for_each_epoch(lambda *_: None))
    with pytest.raises(pen.PenstockError, match=r"needs Spark.*Pipeline\.run"):
        pipeline.run_in_process("memory:")


def test_what_is_no_function_or_frame_is_refused_at_once() -> None:
    wrong: Any = 7
    with pytest.raises(UserError, match="dataframe was given int"):
        pen.dataframe(wrong)
    with pytest.raises(UserError, match="dataframes was given int"):
        pen.dataframes(wrong, schema=SCHEMA)
    with pytest.raises(UserError, match="for_each_epoch was given int"):
        pen.for_each_epoch(wrong)


def test_rows_that_spark_cannot_hold_are_refused_when_the_graph_is_built() -> None:
    pipeline = pen.Pipeline("types")
    rows = pa.table({"big": pa.array([1], pa.uint64())})
    read = pipeline.read("rows", pen.list_source(rows))
    read.write("out", pen.for_each_epoch(lambda *_: None))
    with pytest.raises(pen.PenstockError, match="column 'big' is uint64"):
        pipeline.graph()


def test_a_pipeline_without_an_attached_source_cannot_be_attached() -> None:
    pipeline = pen.Pipeline("plain")
    pipeline.read("numbers", pen.impulse(count=1)).write("out", pen.blackhole())
    session: Any = None
    with pytest.raises(UserError, match=r"read one with pen\.attached"):
        pipeline.start_attached("memory:", session=session)
    stream: Any = 7
    with pytest.raises(UserError, match="this one is int, not a DataFrame"):
        pipeline.attach(stream, checkpoint="memory:", query_checkpoint="unused")
