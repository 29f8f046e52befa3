"""Committed epochs as DataFrames: exactly their rows, once more after a crash, then tidied."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import penstock as pen
from tests.builders.spark_session import CrashError, Ledger, start

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def a_pipeline(name: str, ledger: Any) -> pen.Pipeline:
    pipeline = pen.Pipeline(name, parallelism=2)
    read = pipeline.read("numbers", pen.impulse(count=500, splits=2))
    read.select(number="counter").write("ledger", pen.for_each_epoch(ledger))
    return pipeline


def staged_epochs(folder: Path) -> set[int]:
    return {
        int(path.parent.name) for path in folder.glob("checkpoints/_staging/**/*.parquet")
    }


def test_a_crash_between_the_function_and_the_marker_hands_the_epoch_over_again(
    tmp_path: Path,
) -> None:
    ledger = Ledger()

    def crash_in_second(epoch: int) -> None:
        if ledger.calls == [1, 2]:
            raise CrashError("the process dies here")

    ledger.after = crash_in_second
    pipeline = a_pipeline("epochs-crash", ledger)
    with pytest.raises(
        pen.PenstockError, match=r"operator 'ledger' raised CrashError"
    ) as raised:
        start(pipeline, tmp_path)
    assert raised.value.context["epoch"] == 2
    start(pipeline, tmp_path)
    # The ledger itself asserts that a repeated epoch has the same rows.
    assert ledger.calls[:3] == [1, 2, 2]
    assert ledger.calls[2:] == list(range(2, len(ledger.calls)))
    assert ledger.numbers == list(range(500))
    assert staged_epochs(tmp_path) == {ledger.calls[-1]}


def test_all_kinds_of_values_arrive_as_they_were(tmp_path: Path) -> None:
    table = pa.table(
        {
            "flag": pa.array([True, None]),
            "small": pa.array([1, 255], pa.uint8()),
            "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
            "name": pa.array(["a", "ü"], pa.large_string()),
            "local": pa.array([1_000, None], pa.timestamp("ms")),
            "at": pa.array(
                [datetime(2026, 1, 1, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")
            ),
            "list": pa.array([[1, None], []], pa.list_(pa.int64())),
            "pair": pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())])),
        }
    )
    found: list[Any] = []

    def take(frame: DataFrame, epoch: int) -> None:
        found.extend((epoch, row) for row in frame.orderBy("small").toArrow().to_pylist())

    pipeline = pen.Pipeline("epochs-types")
    pipeline.read("rows", pen.list_source(table)).write("take", pen.for_each_epoch(take))
    start(pipeline, tmp_path)
    assert found == [(1, row) for row in table.to_pylist()]
