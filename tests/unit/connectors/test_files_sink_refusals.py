"""What could not be committed, or not be read after it, fails the epoch before it counts."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.files.connector import files
from penstock.connectors.files.sink import FilesSinkConfig
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.testing import LocalJob, OperatorHarness
from tests.builders.files_job import an_output
from tests.builders.graphs import schema_of

LONG = "x" * 260
FAR = pa.array([253_402_300_800], pa.int64()).view(pa.timestamp("s"))


@pytest.mark.parametrize("value", [LONG, "ü" * 130, "/" * 90])
def test_a_partition_too_long_for_a_folder_fails_before_it_is_staged(
    tmp_path: Path, value: str
) -> None:
    schema = schema_of(n=pa.int64(), day=pa.string())
    spec = files(str(tmp_path / "out"), partition_by=["day"]).sink_spec()
    with OperatorHarness(spec, schema) as sink:
        sink.push([{"n": 1, "day": value}])
        with pytest.raises(UserError, match="column 'day' makes a folder name") as raised:
            sink.barrier()
        assert sink.commits == {}
    assert raised.value.code is ErrorCode.INVALID_NAME
    assert not list(tmp_path.rglob("*.parquet"))


def test_partitions_that_make_a_path_too_long_are_refused(tmp_path: Path) -> None:
    columns = ["a", "b", "c", "d", "e"]
    schema = schema_of(n=pa.int64(), **dict.fromkeys(columns, pa.string()))
    spec = files(str(tmp_path / "out"), partition_by=columns).sink_spec()
    with OperatorHarness(spec, schema) as sink:
        sink.push([{"n": 1} | dict.fromkeys(columns, "x" * 240)])
        with pytest.raises(UserError, match="1024 is the most"):
            sink.barrier()


def test_a_job_with_such_a_value_is_stopped_and_goes_on_when_it_is_mended(
    tmp_path: Path,
) -> None:
    out = str(tmp_path / "out")

    def job(key: Any) -> pen.Pipeline:
        pipeline = pen.Pipeline("mended")
        rows = [{"n": 1, "day": "mon"}, {"n": 2, "day": LONG}]
        read = pipeline.read("rows", pen.list_source(rows)).with_columns(day=key)
        read.write("out", pen.files(out, partition_by=["day"]))
        return pipeline

    broken = LocalJob(job(pl.col("day")))
    with pytest.raises(UserError, match="column 'day'"):
        broken.run()
    assert broken.checkpoints.newest() is None
    mended = LocalJob(job(pl.col("day").str.head(9)), store=broken.store)
    assert mended.run().phase is pen.JobPhase.FINISHED
    assert sorted(row["n"] for row in pen.read_committed(out).to_pylist()) == [1, 2]


@pytest.mark.parametrize("options", [{"format": "jsonl"}, {"partition_by": ["at"]}])
def test_a_value_that_could_not_be_read_back_fails_the_epoch(
    options: dict[str, Any],
) -> None:
    schema = schema_of(n=pa.int64(), at=FAR.type)
    with OperatorHarness(files(an_output(), **options).sink_spec(), schema) as sink:
        sink.push(pa.table([pa.array([1]), FAR], schema=schema))
        with pytest.raises(UserError, match="'at'") as raised:
            sink.barrier()
        assert sink.commits == {}
    assert raised.value.code is ErrorCode.VALUE_OUT_OF_RANGE


def test_a_time_that_parquet_has_no_unit_for_fails_the_epoch_as_a_mistake_in_the_rows() -> (
    None
):
    schema = schema_of(at=pa.timestamp("s"))
    far: Any = pa.array([2**60]).view(pa.timestamp("s"))
    with OperatorHarness(files(an_output()).sink_spec(), schema) as sink:
        sink.push(pa.table([far], schema=schema))
        with pytest.raises(UserError, match="no form in Parquet") as raised:
            sink.barrier()
        assert sink.commits == {}
    assert raised.value.code is ErrorCode.VALUE_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"partition_by": ["x"]}, pa.decimal256(40, 2)),
        ({"partition_by": ["x"]}, pa.timestamp("s", "+01:00")),
        ({"format": "jsonl"}, pa.decimal256(40, 2)),
        ({"format": "parquet"}, pa.decimal128(5, -2)),
    ],
)
def test_a_type_that_cannot_be_written_is_refused_when_the_sink_is_built(
    options: dict[str, Any], kind: pa.DataType
) -> None:
    with pytest.raises(SchemaError, match="'x'"):
        OperatorHarness(
            files("out", **options).sink_spec(), schema_of(n=pa.int64(), x=kind)
        )


def test_everything_wrong_with_the_call_is_said_at_once() -> None:
    with pytest.raises(UserError) as caught:
        FilesSinkConfig("out", "csv", "day", target_bytes=0)  # type: ignore[arg-type]
    for part in ("'csv'", "['day']", "target_bytes is 0"):
        assert part in str(caught.value)


def test_columns_that_cannot_be_written_are_all_named_when_the_graph_is_built() -> None:
    schema = schema_of(f=pa.float64(), gap=pa.month_day_nano_interval())
    with pytest.raises(SchemaError) as caught:
        OperatorHarness(files("out", partition_by=["f", "dya"]).sink_spec(), schema)
    text = str(caught.value)
    for part in ("'f' of type double", "'dya', which is no column", "'gap'"):
        assert part in text


@pytest.mark.parametrize("columns", [["n"], ["n", "n"]])
def test_a_file_needs_a_column_besides_the_partition(columns: list[str]) -> None:
    with pytest.raises(SchemaError, match="all columns"):
        OperatorHarness(
            files("out", partition_by=columns).sink_spec(), schema_of(n=pa.int64())
        )
