"""Instants of timers come in many forms; wrong ones are refused with what to give instead."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.core.watermark import EventTime
from penstock.errors import SchemaError, UserError
from penstock.operators.timers import due_instants, newest_rows, to_rows
from tests.unit.operators.timer_cluster import INPUT, keys

TWO = [1_000_000, -2_000_000]


@pytest.mark.parametrize(
    "given",
    [
        np.array(TWO),
        np.array(TWO, np.int32),
        np.array(TWO, "datetime64[us]"),
        pa.array(TWO, pa.int64()),
        pa.array([1, -2], pa.timestamp("s")),
        pa.array([1_000, -2_000], pa.timestamp("ms", "UTC")),
        pa.array(TWO, pa.timestamp("us")),
        pa.chunked_array([[TWO[0]], [TWO[1]]], pa.int64()),
        pa.array([0, *TWO], pa.timestamp("us")).slice(1),
        TWO,
        [datetime.fromtimestamp(second, UTC) for second in (1, -2)],
        pl.Series(TWO),
        pl.Series(TWO).cast(pl.Datetime("us")),
    ],
    ids=lambda given: f"{type(given).__name__} {getattr(given, 'type', '')}",
)
def test_instants_are_taken_in_every_form(given: Any) -> None:
    assert due_instants(given, 2).tolist() == TWO


def test_one_instant_stands_for_all_rows_and_finer_ones_are_rounded_down() -> None:
    noon = datetime(1970, 1, 1, 12, tzinfo=UTC)
    for one in (
        7,
        np.int64(7),
        EventTime(7),
        noon,
        noon.replace(tzinfo=None),
        np.datetime64("1970-01-01T12"),
    ):
        expected = 7 if one in (7, EventTime(7)) else 12 * 3_600_000_000
        assert due_instants(one, 3).tolist() == [expected] * 3
    assert due_instants(pa.array([1_999, -1], pa.timestamp("ns")), 2).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (1 << 63, "do not fit 64 bits"),
        (True, "bool is no instant"),
        (1.5, "float is no instant"),
        (pa.array([1.5, 2.5]), "of type double"),
        (pa.array([1]), "2 rows were given with 1 instants"),
        (pa.array([1, None]), "1 instants are null, first in row 1"),
        (pa.array([1, 1 << 63], pa.uint64()), "not in range"),
        (pa.array([1 << 62, 1], pa.timestamp("s")), "further from 1970"),
        (np.array([["x"]], object), "ndarray holds no instants"),
        (np.array([object(), object()]), "Could not convert"),
    ],
)
def test_wrong_instants_are_refused(given: Any, hint: str) -> None:
    with pytest.raises(UserError, match="microseconds since 1970") as caught:
        due_instants(given, 2)
    assert hint in caught.value.message


def test_rows_without_the_key_are_refused() -> None:
    other = pa.RecordBatch.from_pydict({"users": pa.array(["a"])})
    with pytest.raises(SchemaError, match="lacks the column 'user'"):
        to_rows(other, 1, INPUT, is_set=True)


def test_keys_may_come_in_another_layout() -> None:
    large = pa.RecordBatch.from_pydict({"user": pa.array(["a"], pa.large_string())})
    assert to_rows(large, 1, INPUT, is_set=True).column("key.user").type == pa.string()


def test_the_last_row_of_each_key_and_instant_counts() -> None:
    rows = to_rows(
        keys("a", "b", "a", None, None), np.array([1, 1, 1, 2, 2]), INPUT, is_set=True
    )
    assert rows.column("key.user").to_pylist() == ["b", "a", None]
    assert newest_rows(rows).equals(rows)
