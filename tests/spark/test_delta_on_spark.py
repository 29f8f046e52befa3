"""Delta tables on an embedded Spark: read, looked up, appended and merged, while drivers die."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SMALL = DriverSettings(
    budget=SourceBudget(rows=20), adapts_budget=False, target_epoch_micros=1
)


class StopNowError(BaseException):
    """Ends a driver in the midst of its job."""


def test_from_table_to_tables_each_row_counts_once(tmp_path: Path) -> None:
    given, out, counts = (str(tmp_path / name) for name in ("given", "out", "counts"))
    for start in range(0, 120, 30):
        numbers = list(range(start, start + 30))
        rows = pa.table({"n": numbers, "kind": [n % 3 for n in numbers]})
        write_deltalake(given, rows, mode="append", partition_by=["kind"])
    names = pa.table({"kind": [0, 1, 2], "name": ["zero", "one", "two"]})
    write_deltalake(str(tmp_path / "names"), names)
    pipeline = pen.Pipeline("tables", parallelism=2)
    read = pipeline.read("given", pen.delta(given))
    named = read.join("named", pen.lookup_delta(tmp_path / "names"), on="kind")
    named.write("out", pen.delta(out, partition_by="name"))
    named.key_by("name").aggregate("count", count=pen.count()).write(
        "counts", pen.delta(counts)
    )

    def run(**more: Any) -> None:
        chosen = RunOptions(
            checkpoint=str(tmp_path / "checkpoints"),
            session=shared_session(),
            settings=SMALL,
            **more,
        )
        run_on_spark(pipeline.graph(), pipeline.registry, chosen)

    def stop_early(status: pen.JobStatus) -> None:
        if status.epochs_published == 2:
            raise StopNowError

    with pytest.raises(StopNowError):
        run(on_status=stop_early)
    run()
    found = DeltaTable(out).to_pyarrow_table().sort_by("n").to_pylist()
    assert [row["n"] for row in found] == list(range(120))
    assert {row["name"] for row in found if row["kind"] == 1} == {"one"}
    counted = DeltaTable(counts).to_pyarrow_table().to_pylist()
    assert {row["name"]: row["count"] for row in counted} == dict.fromkeys(
        ("zero", "one", "two"), 40
    )
