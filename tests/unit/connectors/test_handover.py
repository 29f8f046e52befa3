"""The hand-over point, as a pure decision: which rows are whose, and which points are refused."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.history.handover import (
    KAFKA_COLUMNS,
    Handover,
    OffsetColumns,
    find_ends,
    keep_history,
    keep_live,
    merge_ends,
    resolve,
)
from penstock.errors import SchemaError, UserError
from tests.builders.graphs import schema_of

UNITS = ("s", "ms", "us", "ns")


def times(micros: Sequence[int], unit: str = "us") -> pa.RecordBatch:
    factor = {"s": 1e-6, "ms": 1e-3, "us": 1, "ns": 1_000}[unit]
    values = [int(each * factor) for each in micros]
    return pa.record_batch({"at": pa.array(values, pa.timestamp(unit))})  # type: ignore[call-overload]


def placed(*places: tuple[str, int, int]) -> pa.RecordBatch:
    topics, partitions, offsets = zip(*places, strict=True)
    return pa.record_batch(
        {
            "kafka_topic": pa.array(topics),
            "kafka_partition": pa.array(partitions, pa.int32()),
            "kafka_offset": pa.array(offsets, pa.int64()),
        }
    )


@given(
    micros=st.lists(st.integers(-(10**9), 10**9)),
    at=st.integers(-(10**9), 10**9),
    unit=st.sampled_from(UNITS),
)
def test_every_row_is_on_one_side_of_an_instant(
    micros: list[int], at: int, unit: str
) -> None:
    rows = times(micros, unit)
    handover = Handover("time", at, "at")
    before, after = keep_history(rows, handover), keep_live(rows, handover)
    assert before.num_rows + after.num_rows == rows.num_rows
    if unit == "us":
        assert before.column(0).cast(pa.int64()).to_pylist() == [
            m for m in micros if m < at
        ]


def test_a_time_between_two_microseconds_is_on_one_side() -> None:
    rows = pa.record_batch({"at": pa.array([4_999, 5_000, 5_001], pa.timestamp("ns"))})
    handover = Handover("time", 5, "at")
    assert keep_history(rows, handover).num_rows == 1
    assert keep_live(rows, handover).num_rows == 2


def test_rows_without_a_time_are_refused_on_both_sides() -> None:
    rows = pa.record_batch({"at": pa.array([1, None], pa.timestamp("us"))})
    with pytest.raises(SchemaError, match="1 rows of history have no value in 'at'"):
        keep_history(rows, Handover("time", 5, "at"))
    with pytest.raises(SchemaError, match="1 rows of the live side"):
        keep_live(rows, Handover("time", 5, "at"))


def test_given_offsets_cut_history_if_it_has_such_columns() -> None:
    rows = placed(("a", 0, 4), ("a", 0, 5), ("a", 1, 0), ("b", 0, 9))
    handover = Handover("offsets", offsets={"a/0": 5, "b/0": 10}, columns=KAFKA_COLUMNS)
    # Of a partition without an offset live reads everything.
    kept = keep_history(rows, handover)
    assert kept.to_pylist() == placed(("a", 0, 4), ("b", 0, 9)).to_pylist()
    assert keep_history(rows, Handover("offsets", offsets={"a/0": 5})) is rows
    assert keep_live(rows, handover) is rows


def test_ends_are_behind_the_highest_offsets() -> None:
    handover = Handover("columns", columns=KAFKA_COLUMNS)
    rows = placed(("a", 0, 4), ("a", 0, 3), ("a", 1, 0), ("b", 0, 9))
    assert find_ends(rows, handover) == {"a/0": 5, "a/1": 1, "b/0": 10}
    alone = Handover(
        "columns", columns=OffsetColumns("kafka_partition", "kafka_offset"), only_topic="c"
    )
    assert find_ends(rows, alone) == {"c/0": 10, "c/1": 1}


def test_rows_without_an_offset_are_refused() -> None:
    rows = pa.record_batch(
        {
            "kafka_partition": pa.array([0, 0]),
            "kafka_offset": pa.array([1, None], pa.int64()),
        }
    )
    columns = OffsetColumns("kafka_partition", "kafka_offset")
    with pytest.raises(SchemaError, match="no value in 'kafka_offset'"):
        find_ends(rows, Handover("columns", columns=columns, only_topic="a"))


@given(
    parts=st.lists(
        st.dictionaries(st.sampled_from(["a/0", "a/1", "b/0"]), st.integers(0, 9))
    )
)
def test_ends_merge_in_any_order(parts: list[dict[str, int]]) -> None:
    merged = merge_ends(parts)
    assert merged == merge_ends(reversed(parts)) == merge_ends([merged, *parts])


def test_columns_of_kafka_are_found_by_their_names() -> None:
    schema = schema_of(kafka_partition=pa.int32(), kafka_offset=pa.int64(), n=pa.int64())
    resolved = resolve(Handover("columns", only_topic="a"), schema)
    assert resolved.columns == OffsetColumns("kafka_partition", "kafka_offset")
    with_topic = schema.append(pa.field("kafka_topic", pa.string()))
    assert resolve(Handover("columns"), with_topic).columns == KAFKA_COLUMNS
    assert resolve(Handover("offsets"), schema).columns is None


@pytest.mark.parametrize(
    ("handover", "schema", "problem"),
    [
        (Handover("columns"), {"n": pa.int64()}, "nothing says where history ends"),
        (
            Handover("columns"),
            {"kafka_partition": pa.int32(), "kafka_offset": pa.int64()},
            "several topics",
        ),
        (
            Handover("columns", columns=OffsetColumns("p", "o"), only_topic="a"),
            {"p": pa.int32()},
            "'o' of offsets is missing",
        ),
        (
            Handover("columns", columns=OffsetColumns("p", "o"), only_topic="a"),
            {"p": pa.string(), "o": pa.int64()},
            "'p' of offsets is string",
        ),
        (Handover("time", 1, "at"), {"n": pa.int64()}, "there is none of that name"),
        (Handover("time", 1, "n"), {"n": pa.int64()}, "it is int64"),
    ],
    ids=["no way", "no topic", "missing column", "wrong type", "no column", "no time"],
)
def test_points_that_the_rows_do_not_allow_are_refused(
    handover: Handover, schema: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        resolve(handover, schema_of(**schema))
