from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_sink, list_source
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS, EventTime, Watermark
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.event_time import WatermarkConfig
from penstock.operators.operator import ArrowOperator
from penstock.state.storage.memory import MemoryStore

SECOND = 1_000_000
START = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
ROWS: list[dict[str, Any]] = [
    {"device": "ab"[n % 2], "ts": START + timedelta(seconds=n)} for n in range(100)
]
WATERMARKS = StreamSchema(pa.schema({"micros": pa.int64()}))


class WatermarkRecorder(ArrowOperator):
    """Emits every watermark it is told."""

    def name(self) -> str:
        return "recorder"

    def output_schema(self, inputs: object) -> StreamSchema:
        return WATERMARKS

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        pass

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        if isinstance(watermark, EventTime):
            collector.collect(pa.RecordBatch.from_pydict({"micros": [watermark.micros]}))
        return watermark


def test_a_generator_gives_event_time_to_a_stream_whose_source_has_none() -> None:
    out = list_sink(f"watermarks-{new_token()}")
    pipeline = Pipeline("job", parallelism=2)
    rows = pipeline.read("rows", list_source(ROWS, splits=2))
    timed = rows.process(
        "event-time",
        WatermarkConfig(
            delay_micros=5 * SECOND, partition_column="device", time_column="ts"
        ).to_operator_spec(),
    )
    timed.key_by("device").process("recorder", WatermarkRecorder(), parallelism=1).write(
        "out", out
    )

    pipeline.run_in_process(MemoryStore())

    # The latest row of device "a" is that of second 98, of "b" that of second 99.
    assert out.rows() == [{"micros": 93 * SECOND}, {"micros": MAX_MICROS}]
