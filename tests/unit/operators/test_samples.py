"""Samples are few, cut when long, and never fail, whatever the rows hold."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from penstock.core import settings
from penstock.operators.samples import KeyCounter, sample_rows


def batch(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(of) for name, of in columns.items()})


def test_the_first_rows_of_an_output_are_kept_as_json() -> None:
    samples: dict[str, tuple[str, ...]] = {}
    sample_rows(samples, "late", batch(n=[1, 2], at=[datetime(2026, 1, 1, tzinfo=UTC)] * 2))
    sample_rows(samples, "late", batch(n=[3, 4, 5], at=[None] * 3))
    assert [json.loads(row)["n"] for row in samples["late"]] == [1, 2, 3]
    assert json.loads(samples["late"][0])["at"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    "values",
    [
        pa.array([2**62], pa.timestamp("us")),
        pa.array([b"\xff\x00"]),
        pa.array([[{"a": 1}]]),
        pa.array([float("nan")]),
        pa.array([None]),
        pa.array([2**64 - 1], pa.uint64()),
        pa.array(["x" * 5_000]),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    ],
)
def test_any_value_can_be_shown(values: "pa.Array[Any]") -> None:
    samples: dict[str, tuple[str, ...]] = {}
    rows = pa.RecordBatch.from_arrays([values], ["v"])
    sample_rows(samples, "bad", rows)
    counter = KeyCounter(("v",))
    counter.note(rows)
    assert len(samples["bad"][0]) <= 1_024
    ((shown, count),) = counter.rows_by_key().items()
    assert (len(shown) <= 128, count) == (True, 1)


def test_samples_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    off = settings.load_settings({"PENSTOCK_JOURNAL_SAMPLES": "off"})
    monkeypatch.setattr("penstock.operators.samples.current", lambda: off)
    samples: dict[str, tuple[str, ...]] = {}
    sample_rows(samples, "bad", batch(n=[1]))
    assert samples == {}


def test_a_hot_key_is_found_among_many_rows() -> None:
    counter = KeyCounter(("user",))
    for _ in range(500):
        counter.note(batch(user=["hot" if row % 2 else f"u{row}" for row in range(1_000)]))
    (first, rows), *others = counter.rows_by_key().items()
    assert counter.rows == 500_000
    assert first == '"hot"'
    assert 150_000 < rows < 350_000
    assert all(count < 50_000 for _, count in others)


def test_keys_of_several_columns_are_told_together() -> None:
    counter = KeyCounter(("country", "city"))
    counter.note(batch(city=["Paris"], country=["FR"]))
    assert counter.rows_by_key() == {'["FR","Paris"]': 1}
