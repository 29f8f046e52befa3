"""Files of very many columns are read in time proportional to their columns."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.files.connector import files
from penstock.testing import SourceHarness

COLUMNS = 10_000
"""A lookup in a list of so many names, for each of them, takes longer than a source may run."""


def write(path: Path) -> None:
    path.parent.mkdir(parents=True)
    names = [f"c{index}" for index in range(COLUMNS)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [1] for name in names}), path)
    elif path.suffix == ".csv":
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    else:
        path.write_text("{" + ", ".join(f'"{name}": 1' for name in names) + "}\n")


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_files_of_ten_thousand_columns_are_read_within_an_epoch(
    tmp_path: Path, ending: str
) -> None:
    write(tmp_path / "day=1" / f"a.{ending}")

    with SourceHarness(files(tmp_path / "*" / f"*.{ending}").source_spec()) as harness:
        harness.read_all()
        [row] = harness.rows()

    assert len(row) == COLUMNS + 1
    assert (row["c0"], row["c9999"], row["day"]) == (1, 1, 1)
