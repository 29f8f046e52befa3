"""Spark reads what the files sink writes: numbers of any width, and rows of several epochs."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.files.parquet import ParquetPart
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from tests.builders.spark_session import shared_session

ROWS = 200
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32())


def test_numbers_dates_and_instants_come_back(tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    columns: dict[str, Any] = {
        str(kind): pa.array(random.integers(0, 100, 3_000), kind) for kind in INTEGERS
    }
    columns["day"] = pa.array([date(2026, 1, 1) + timedelta(n) for n in range(3_000)])
    columns["at"] = pa.array(
        [start + timedelta(microseconds=n * 977) for n in range(3_000)],
        pa.timestamp("us", "UTC"),
    )
    table = pa.table(columns)
    part = ParquetPart(table.schema)
    part.write(table)
    (tmp_path / "part.parquet").write_bytes(part.close())
    found = shared_session().read.parquet(str(tmp_path)).toArrow()
    for name in table.column_names:
        read = found.column(name).cast(table.schema.field(name).type)
        assert read.to_pylist() == table.column(name).to_pylist(), name


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("small_bytes", [4 << 20, -1], ids=["by-threads", "by-a-job"])
def test_files_of_several_epochs_are_merged_and_spark_reads_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr("penstock.runtime.spark.executor._SMALL_BYTES", small_bytes)
    out = tmp_path / "out"
    pipeline = pen.Pipeline("merged", parallelism=2)
    numbers = pipeline.read("numbers", pen.impulse(count=ROWS, splits=2, step="1ms"))
    numbers.write("out", pen.files(str(out), format="parquet", min_bytes=2_000))
    options = RunOptions(
        checkpoint=str(tmp_path / "checkpoint"),
        session=shared_session(),
        settings=DriverSettings(budget=SourceBudget(rows=25), adapts_budget=False),
    )
    status = run_on_spark(pipeline.graph(), pipeline.registry, options)
    files = [*out.glob("part-*")]
    assert 1 < len(files) < status.epochs_published
    read = shared_session().read.parquet(str(out)).toArrow()
    found: list[Any] = read.column("counter").to_pylist()
    assert sorted(found) == [*range(ROWS)]
