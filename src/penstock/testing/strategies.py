"""Hypothesis strategies: rows, disorder, watermarks, epochs and small pipelines.

Needs Hypothesis, which Penstock does not install: `pip install hypothesis`.

    @given(batches(schema), watermark_histories())
    def test_…
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.api.pipeline import Pipeline
from penstock.api.stream import Stream
from penstock.connectors.memory import ListSinkSpec, list_sink, list_source
from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, MAX_EVENT_TIME, EventTime, Watermark
from penstock.errors import ErrorCode, UserError
from penstock.operators.stateless import map_batches_spec

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise UserError(
        "penstock.testing.strategies needs Hypothesis: pip install hypothesis",
        code=ErrorCode.INVALID_SETTING,
    ) from error

_MICROS = 1_767_225_600_000_000
"""The beginning of 2026."""
_COLUMN_TYPES: tuple[Any, ...] = (
    pa.int64(),
    pa.int32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
)
_KEY_TYPES: tuple[Any, ...] = (pa.string(), pa.int64(), pa.int32(), pa.bool_())


@st.composite
def stream_schemas(
    draw: st.DrawFn, *, max_columns: int = 4, keyed: bool = True, timed: bool = True
) -> StreamSchema:
    """Return schemas of streams: key columns `key-0`…, a time column `at`, and others."""
    keys = draw(st.lists(st.sampled_from(_KEY_TYPES), min_size=1, max_size=2))
    others = draw(st.lists(st.sampled_from(_COLUMN_TYPES), max_size=max_columns))
    fields: list[Any] = [
        pa.field(f"key-{number}", kind) for number, kind in enumerate(keys if keyed else [])
    ]
    key_columns = tuple(field.name for field in fields)
    if timed:
        fields.append(pa.field("at", pa.timestamp("us"), nullable=False))
    fields += [pa.field(f"value-{number}", kind) for number, kind in enumerate(others)]
    if not fields:
        fields.append(pa.field("value", pa.int64()))
    return StreamSchema(pa.schema(fields), "at" if timed else None, key_columns)


def values(data_type: Any, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Return values of a column; few different ones, so that keys meet."""
    whole = st.integers(-3, 3)
    some = next((some for is_kind, some in _VALUES if is_kind(data_type)), whole)
    return st.one_of(st.none(), some) if nullable else some


_VALUES: tuple[tuple[Callable[[Any], bool], st.SearchStrategy[Any]], ...] = (
    (pa.types.is_string, st.sampled_from(["", "a", "b", "c", "é", "a\x00b"])),
    (pa.types.is_binary, st.binary(max_size=3)),
    (pa.types.is_boolean, st.booleans()),
    (pa.types.is_floating, st.floats(allow_nan=False, width=32)),
    (pa.types.is_date, st.dates()),
    (pa.types.is_timestamp, st.integers(_MICROS, _MICROS + 60_000_000)),
)


@st.composite
def batches(
    draw: st.DrawFn,
    schema: StreamSchema | pa.Schema,
    *,
    min_rows: int = 1,
    max_rows: int = 10,
) -> pa.RecordBatch:
    """Return batches of a schema; event times are within one minute and never null."""
    columns = schema.arrow if isinstance(schema, StreamSchema) else schema
    count = draw(st.integers(min_rows, max_rows))
    arrays: list[Any] = []
    for field in columns:
        some = values(field.type, nullable=field.nullable)
        listed = draw(st.lists(some, min_size=count, max_size=count))
        arrays.append(pa.array(listed, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


@st.composite
def disordered_times(
    draw: st.DrawFn,
    *,
    count: int = 20,
    watermark_delay_micros: int = 5_000_000,
    step_micros: int = 1_000_000,
) -> list[int]:
    """Return event times that move on, each at most `watermark_delay_micros` behind the latest."""
    times: list[int] = []
    latest = _MICROS
    for _ in range(draw(st.integers(1, count))):
        latest = latest + draw(st.integers(0, step_micros))
        times.append(latest - draw(st.integers(0, watermark_delay_micros)))
        latest = max(times)
    return times


@st.composite
def watermark_histories(
    draw: st.DrawFn, *, epochs: int = 8, ends: bool = True
) -> list[Watermark | None]:
    """Return the watermark of one input in each epoch: None at first, later sometimes idle.

    Instants never fall. With `ends` the last one is the end of data.
    """
    history: list[Watermark | None] = [None] * draw(st.integers(0, epochs // 2))
    instant = _MICROS
    for _ in range(draw(st.integers(1, epochs))):
        instant += draw(st.integers(0, 5_000_000))
        history.append(IDLE if draw(st.booleans()) else EventTime(instant))
    return [*history, MAX_EVENT_TIME] if ends else history


@st.composite
def epoch_cuts(
    draw: st.DrawFn, row_count: int, *, max_epochs: int = 5
) -> list[tuple[int, int]]:
    """Return the rows `[start, end)` of each epoch; some epochs are empty."""
    inner = draw(st.lists(st.integers(0, row_count), max_size=max_epochs - 1))
    edges = [0, *sorted(inner), row_count]
    return list(pairwise(edges))


@dataclass(frozen=True, slots=True)
class SmallPipeline:
    """A pipeline that only moves rows: every row of every source comes out once per sink."""

    pipeline: Pipeline
    rows: tuple[dict[str, Any], ...]
    """The rows of all sources together."""
    sinks: tuple[ListSinkSpec, ...]


@st.composite
def small_pipelines(
    draw: st.DrawFn, *, max_rows: int = 12, max_steps: int = 4
) -> SmallPipeline:
    """Return pipelines of all exchanges, branches, unions and parallelisms, ready to run.

    Their sinks are cleared when they are drawn.
    """
    pipeline = Pipeline("small", parallelism=draw(st.integers(1, 3)))
    rows: list[dict[str, Any]] = []
    streams: list[Stream] = []
    for number in range(draw(st.integers(1, 2))):
        some = [
            {"source": number, "number": index, "key": draw(st.sampled_from("abc"))}
            for index in range(draw(st.integers(0, max_rows)))
        ]
        rows += some
        spec = list_source(some, _ROWS, splits=draw(st.integers(1, 3)))
        streams.append(pipeline.read(f"source-{number}", spec))
    stream = streams[0].union(*streams[1:])
    for number in range(draw(st.integers(0, max_steps))):
        stream = draw(st.sampled_from(_Step)).add_to(
            stream, number, draw(st.integers(1, 3))
        )
    sinks = tuple(list_sink(f"small-{number}") for number in range(draw(st.integers(1, 2))))
    for number, sink in enumerate(sinks):
        sink.clear()
        stream.write(f"sink-{number}", sink)
    return SmallPipeline(pipeline, tuple(rows), sinks)


_COLUMNS: dict[str, Any] = {"source": pa.int64(), "number": pa.int64(), "key": pa.string()}
_ROWS = pa.schema(_COLUMNS)


class _Step(Enum):
    """Ways to pass all rows of a stream on."""

    FILTER = auto()
    BY_KEY = auto()
    REBALANCE = auto()
    BRANCH = auto()

    def add_to(self, stream: Stream, number: int, parallelism: int) -> Stream:
        """Return the stream behind the step; the number makes its name unique."""
        same = map_batches_spec(_same)
        match self:
            case _Step.FILTER:
                return stream.filter(pl.col("number") >= 0)
            case _Step.BY_KEY:
                keyed = stream.key_by("key")
                return keyed.process(f"by-key-{number}", same, parallelism=parallelism)
            case _Step.REBALANCE:
                spread = stream.rebalance(parallelism=parallelism)
                return spread.process(f"rebalanced-{number}", same)
            case _Step.BRANCH:
                even = stream.filter(pl.col("number") % 2 == 0)
                return even.union(stream.filter(pl.col("number") % 2 != 0))


def _same(batch: Any) -> Any:
    return batch
