"""A damaged source file on Spark: the file is named at once, whatever part of it is damaged."""

from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.files.formats import Allowance, FileOffset, SourceFile
from penstock.connectors.files.parquet import ParquetFormat
from penstock.errors import ErrorCode, UserError
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from penstock.state.storage.memory import MemoryStore
from tests.builders.files_job import SCHEMA, some_rows, to_bytes
from tests.builders.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def damage_that_only_a_task_finds() -> bytes:
    """Flip a bit of a footer that the driver can plan with, and that no task can read."""
    whole = to_bytes("parquet", some_rows(0, 10))
    allowance = Allowance(1000, 1 << 20, is_first=True)
    for bit in range(8 * (len(whole) - 800), 8 * (len(whole) - 8)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        file = SourceFile(MemoryStore({"a": bytes(data)}), "a", len(data))
        format_ = ParquetFormat(SCHEMA, ignores_extra=False)
        start = FileOffset(len(data))
        try:
            reach = format_.reach(file, start, allowance)
        except UserError:
            continue
        try:
            list(format_.read(file, start, reach.end if reach else 0))
        except UserError as error:
            if "histogram" in str(error):
                return bytes(data)
    raise AssertionError("no such bit")


def test_a_flipped_bit_in_a_footer_is_told_by_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(damage_that_only_a_task_finds())
    pipeline = pen.Pipeline("spark-damaged")
    source = pen.files(f"{tmp_path}/*.parquet", schema=pa.schema(SCHEMA))
    pipeline.read("rows", source).write("out", pen.list_sink("spark-damaged"))
    seen: list[pen.JobStatus] = []
    options = RunOptions(
        checkpoint=str(tmp_path / "checkpoints"),
        session=shared_session(),
        on_status=seen.append,
    )

    with pytest.raises(UserError, match=r"bad\.parquet cannot be read") as caught:
        run_on_spark(pipeline.graph(), pipeline.registry, options)

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT
    assert caught.value.exit_code == 2
    assert not any(status.restarts for status in seen)
