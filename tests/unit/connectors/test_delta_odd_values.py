"""Values and names that Delta tables or their client have trouble with: written, or refused before."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import SchemaError
from tests.builders.graphs import schema_of


def write(folder: Path, rows: pa.Table, **options: Any) -> None:
    pipeline = pen.Pipeline(f"write-{new_token()}")
    sink = pen.delta(folder, **options)
    pipeline.read("rows", pen.list_source(rows)).write("out", sink)
    pipeline.run_in_process("memory:", restarts=0)


def table_of(**columns: Any) -> pa.Table:
    return pa.table(columns)


def statistics_of(folder: Path) -> dict[str, Any]:
    entry = folder / "_delta_log" / f"{1:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    found: dict[str, Any] = json.loads(
        next(a["add"]["stats"] for a in actions if "add" in a)
    )
    return found


FAR = [
    pa.array([0, 1 << 60], pa.timestamp("us")),
    pa.array([0, -(1 << 60)], pa.timestamp("us", "UTC")),
    pa.array([0, 1 << 30], pa.date32()),
]


@pytest.mark.parametrize("values", FAR, ids=lambda values: str(values.type))
def test_times_of_years_that_python_does_not_have_are_written_and_read(
    tmp_path: Path, values: Any
) -> None:
    folder = tmp_path / "table"
    write(folder, table_of(n=[1, 2], v=values))
    assert statistics_of(folder)["minValues"] == {"n": 1}
    out = pen.list_sink(f"far-{new_token()}")
    pipeline = pen.Pipeline("read")
    pipeline.read("rows", pen.delta(folder)).write("out", out)
    pipeline.run_in_process("memory:", restarts=0)
    found: Any = out.table().column("v").combine_chunks()
    assert found.equals(values)


def test_tables_of_others_with_such_times_are_read(tmp_path: Path) -> None:
    values = FAR[0]
    write_deltalake(str(tmp_path), table_of(n=[1, 2], v=values))
    out = pen.list_sink(f"far-{new_token()}")
    pipeline = pen.Pipeline("read")
    source = pen.delta(tmp_path, time_column="v")
    pipeline.read("rows", source).write("out", out)
    pipeline.run_in_process("memory:", restarts=0)
    assert sorted(row["n"] for row in out.rows()) == [1, 2]


def test_columns_that_differ_by_capital_letters_are_refused_before_the_start(
    tmp_path: Path,
) -> None:
    with pytest.raises(SchemaError, match="columns 'item' and 'Item' have one name"):
        write(tmp_path / "new", table_of(item=[1], Item=[2]))
    folder = tmp_path / "table"
    write_deltalake(str(folder), table_of(item=[1]))
    with pytest.raises(SchemaError, match="the table has 'item', and a column 'Item'"):
        write(folder, table_of(Item=[2]), evolve=True)
    assert DeltaTable(str(folder)).version() == 0


def test_decimals_with_fractions_are_no_partitions(tmp_path: Path) -> None:
    # The client would write -0.01 as `0.-1` in a merge, and open the table never again.
    schema = schema_of(price=pa.decimal128(10, 2), n=pa.int64())
    with pytest.raises(SchemaError, match=r"'price' .* decimals with fractions"):
        write(tmp_path / "table", schema.empty_table(), partition_by="price")
    assert not (tmp_path / "table").exists()
    whole = pa.array([-1, 7], pa.int64()).cast(pa.decimal128(20, 0))
    write(tmp_path / "whole", table_of(n=[1, 2], id=whole), partition_by="id")
    assert DeltaTable(str(tmp_path / "whole")).to_pyarrow_table().num_rows == 2
