"""A program that uses most of what the tests use of Spark, and lets its JVM end in good order."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession


def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what comes, through a Python worker."""
    yield from batches


if __name__ == "__main__":
    builder: Any = SparkSession.builder
    session = builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    numbers = session.range(1_000).mapInArrow(pass_on, "id long")
    table = numbers.repartition(2).mapInArrow(pass_on, "id long").toArrow()
    assert table.num_rows == 1_000
    jvm: Any = session.sparkContext._gateway
    session.stop()
    # The JVM ends when nobody can tell it anything any more, and writes down its classes then.
    jvm.proc.stdin.close()
    jvm.proc.wait()
