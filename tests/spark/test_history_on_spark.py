"""History, then live, on an embedded Spark: its driver dies around the hand-over, and it goes on."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.live_stream import LiveStream, LiveTopic
from tests.builders.spark_session import shared_session
from tests.contract.sources.concat_sources import PLACED, placed_files, write_placed
from tests.contract.sources.source_under_test import EPOCH, row_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = DriverSettings(
    budget=SourceBudget(rows=20), adapts_budget=False, target_epoch_micros=1
)
ROWS, HISTORY_ROWS = 160, 80


class StopNowError(BaseException):
    """Ends a driver in the midst of its job."""


def write_rows(folder: Path) -> LiveStream:
    """Write all rows into the live stream, and the first half of them into files."""
    for name in ("old", "live"):
        (folder / name).mkdir()
    stream = LiveStream(folder / "live", pen.StreamSchema(PLACED, time_column="at"))
    rows = [
        {**row_of(n), "kafka_partition": n % 2, "kafka_offset": n // 2} for n in range(ROWS)
    ]
    for start in range(0, HISTORY_ROWS, 20):
        write_placed(folder / "old", rows[start : start + 20])
    for partition in range(2):
        stream.write(partition, rows[partition::2])
    return stream


@pytest.mark.parametrize("way", ["offsets", "time"])
def test_a_driver_that_dies_around_the_hand_over_loses_and_doubles_nothing(
    tmp_path: Path, way: str
) -> None:
    stream = write_rows(tmp_path)
    point: dict[str, Any] = {}
    if way == "time":
        point = {"at": EPOCH + timedelta(seconds=HISTORY_ROWS - 7), "by": "at"}
    source = pen.concat_sources(
        history=placed_files(tmp_path / "old"), live=LiveTopic(stream), **point
    )
    out = pen.list_sink(f"history-on-spark-{new_token()}")
    pipeline = pen.Pipeline("history", parallelism=2)
    pipeline.read("rows", source).write("out", out)

    def run(stop_after: int | None) -> None:
        def count(status: pen.JobStatus) -> None:
            if stop_after is not None and status.epochs_run >= stop_after:
                raise StopNowError

        run_on_spark(
            pipeline.graph(),
            pipeline.registry,
            RunOptions(
                checkpoint=str(tmp_path / "checkpoints"),
                session=shared_session(),
                settings=SMALL,
                on_status=count,
            ),
        )

    for _ in range(3):
        with pytest.raises(StopNowError):
            run(1)
    run(None)
    assert sorted(row["n"] for row in out.rows()) == list(range(ROWS))
