"""Rows with their partitions and offsets, and the live stream that has them, for `concat_sources`."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.testing import SourceHarness
from tests.builders.live_stream import LiveStream
from tests.contract.sources.concat_sources import PLACED
from tests.contract.sources.source_under_test import EPOCH, row_of

STREAM = StreamSchema(PLACED, time_column="at")


def rows_of(*seconds: float, partition: int = 0, start: int = 0) -> list[dict[str, Any]]:
    """Return rows of these seconds after `EPOCH`, at the offsets from `start` on."""
    return [
        {
            **row_of(int(second)),
            "at": EPOCH + timedelta(seconds=second),
            "kafka_partition": partition,
            "kafka_offset": start + index,
        }
        for index, second in enumerate(seconds)
    ]


def two_partitions(folder: Path) -> LiveStream:
    """Return a live stream in `live` of a folder, without rows, and make `old` for history."""
    (folder / "live").mkdir()
    (folder / "old").mkdir()
    stream = LiveStream(folder / "live", STREAM, ends=False)
    for partition in range(2):
        stream.write(partition, [])
    return stream


def has_handed_over(harness: SourceHarness) -> bool:
    """Return whether the live side is read."""
    return harness.splits["#handover"].ended


def pipeline_of(both: Any, name: str = "job") -> pen.Pipeline:
    """Return a pipeline that only reads."""
    pipeline = pen.Pipeline(name)
    pipeline.read("both", both).write("out", pen.blackhole())
    return pipeline
