"""Spark reads what the files sink writes, whatever the numbers' widths."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.files.parquet import ParquetPart
from tests.builders.spark_session import shared_session

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
