"""Joins on an embedded Spark: their driver dies, they go on, and are what SQL says."""

from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.joins import JoinJob, interval_sql, run_sql, session_sql, window_sql
from tests.builders.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = [
    [
        {"key": n % 7 or None, "text": "ab"[n % 2], "at": n * step % 101, "n": n % 6}
        for n in range(150)
    ]
    for step in (7, 11)
]
SMALL = DriverSettings(
    budget=SourceBudget(rows=60), adapts_budget=False, target_epoch_micros=1
)
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "within": ({"within": ("-5s", "3s")}, interval_sql("full", -5, 3, where=False)),
    "sliding": (
        {"window": pen.sliding("10s", "5s")},
        window_sql("full", 10, 5, where=False),
    ),
    "session": ({"window": pen.session("2s")}, session_sql("full", 2, where=False)),
}


class StopNowError(BaseException):
    """Ends a driver in the midst of its job."""


@pytest.mark.parametrize("case", CASES)
def test_a_join_whose_driver_died_goes_on_and_is_what_sql_says(
    case: str, tmp_path: Path
) -> None:
    options, sql = CASES[case]
    job = JoinJob(
        *ROWS, watermark_delay="200s", parallelism=2, splits=2, how="full", **options
    )

    def run(**more: Any) -> None:
        chosen = RunOptions(
            checkpoint=str(tmp_path), session=shared_session(), settings=SMALL, **more
        )
        run_on_spark(job.pipeline.graph(), job.pipeline.registry, chosen)

    def stop_early(status: pen.JobStatus) -> None:
        if status.epochs_published == 2:
            raise StopNowError

    with pytest.raises(StopNowError):
        run(on_status=stop_early)
    run()
    assert job.found() == run_sql(sql, *ROWS)
