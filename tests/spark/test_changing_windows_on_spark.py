"""Windows that late rows and changelogs change, on an embedded Spark whose driver dies."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.spark_session import DriverDiedError, shared_session
from tests.property.test_lateness_pipelines import CASES, SCHEMA, WINDOWS, expected
from tests.unit.operators.aggregates.test_against_duckdb import FIRST

ROWS: list[dict[str, Any]] = [
    {
        "id": n % 40,
        "k": (None, "a", "b")[n % 3],
        "moment": FIRST + timedelta(seconds=n * 37 % 101),
        "v": n % 7 / 2,
        "gone": False,
    }
    for n in range(200)
]
SETTINGS = DriverSettings(
    budget=SourceBudget(rows=40), adapts_budget=False, target_epoch_micros=1
)
KEY = ["k", "window_start", "window_end"]


@pytest.mark.spark
@pytest.mark.slow
def test_windows_that_change_are_what_sql_says_though_their_driver_died(
    tmp_path: Path,
) -> None:
    def run(dies_after: int | None) -> None:
        pipeline = pen.Pipeline("changing", parallelism=2)
        # One split, so that the last row of an id is the last one of the list.
        source = pen.list_source(ROWS, schema=SCHEMA)
        rows = pipeline.read("rows", source, event_time="moment")
        table = rows.from_upserts("table", key="id")
        aggregates = {name: aggregate for name, (aggregate, _) in CASES.items()}
        for name, stream in (("rows", rows), ("table", table)):
            for window in WINDOWS if name == "rows" else ["sliding"]:
                step = f"{name}-{window}"
                cut = stream.key_by("k").window(
                    step, WINDOWS[window], allowed_lateness="1h"
                )
                sink = pen.files(str(tmp_path / step), "parquet")
                cut.aggregate(**aggregates).write(f"out-{step}", sink)

        def on_status(status: pen.JobStatus) -> None:
            if status.epochs_run == dies_after:
                raise DriverDiedError

        options = RunOptions(
            checkpoint=str(tmp_path / "checkpoints"),
            session=shared_session(),
            settings=SETTINGS,
            on_status=on_status,
        )
        run_on_spark(pipeline.graph(), pipeline.registry, options)

    with pytest.raises(DriverDiedError):
        run(2)
    run(None)
    left = list({row["id"]: row for row in ROWS}.values())
    for step, rows in (
        *((f"rows-{window}", ROWS) for window in WINDOWS),
        ("table-sliding", left),
    ):
        found = pen.read_latest(str(tmp_path / step), key=KEY).to_pylist()
        table = {
            tuple(row[name] for name in KEY): {name: row[name] for name in CASES}
            for row in found
        }
        assert table == expected(rows, step.partition("-")[2]), step
