"""Pipelines for tests of the API, and small jobs of numbered rows on a clock that stands still.

A source of clicks has no rows, and its operators and its sink do nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.api.pipeline import Pipeline
from penstock.api.stream import Stream
from penstock.catalog import default_registry
from penstock.connectors.memory import ListSinkSpec, list_sink
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.graph.logical import BAD, LATE, OperatorSpec
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceFinishType, SourceOperator
from penstock.operators.registry import Registry
from tests.builders.graphs import CLICKS


class Clicks(SourceOperator):
    """A source of clicks that has none, and a side output for bad ones."""

    def __init__(self, stream: StreamSchema = CLICKS) -> None:
        self._stream = stream

    def name(self) -> str:
        return "clicks"

    def output_schema(self) -> StreamSchema:
        return self._stream

    def side_outputs(self) -> Mapping[str, StreamSchema]:
        return {BAD: CLICKS}

    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        return SourceFinishType.FINAL


class Pass(ArrowOperator):
    """Passes rows on, and knows late ones."""

    def name(self) -> str:
        return "pass"

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        return {LATE: inputs[0]}

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


class Drop(ArrowOperator):
    """A sink that forgets its rows."""

    def name(self) -> str:
        return "drop"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        return None

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ClicksConfig:
    rate: int = 1


def small_registry() -> Registry:
    registry = default_registry(load_plugins=False)
    registry.add("clicks", ClicksConfig, lambda config: Clicks())
    return registry


def a_pipeline(name: str = "clicks", *, parallelism: int = 1) -> Pipeline:
    return Pipeline(name, parallelism=parallelism, registry=small_registry())


def some_clicks(pipeline: Pipeline, name: str = "read") -> Stream:
    return pipeline.read(name, OperatorSpec("clicks"))


SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_COLUMNS: dict[str, Any] = {"n": pa.int64(), "at": pa.timestamp("us")}
NUMBERED = StreamSchema(pa.schema({"n": pa.int64()}))
TIMED = StreamSchema(pa.schema(_COLUMNS), "at")


def a_row(n: int, second: int) -> dict[str, Any]:
    """Return a numbered row of that second of event time."""
    return {"n": n, "at": _EPOCH + timedelta(seconds=second)}


def numbered(*numbers: int) -> list[dict[str, int]]:
    """Return rows without an instant."""
    return [{"n": n} for n in numbers]


def a_list() -> ListSinkSpec:
    """Return a sink whose list nobody else knows."""
    return list_sink(f"list-{new_token()}")


def numbers_in(out: ListSinkSpec) -> list[int]:
    """Return the numbers that were collected, sorted."""
    return sorted(row["n"] for row in out.rows())


def instants_of(batch: pa.RecordBatch) -> list[int]:
    """Return the event times of rows, in microseconds."""
    instants: Any = batch.column("at").cast(pa.int64())
    return [int(micros) for micros in instants.to_numpy()]


class CountLate(ArrowOperator):
    """Passes rows on, and counts those the watermark had passed before they came."""

    def name(self) -> str:
        return "count late"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        passed = ctx.previous_watermark
        if passed is not None:
            ctx.count("late", sum(at < passed.micros for at in instants_of(batch)))
        collector.collect(batch)
