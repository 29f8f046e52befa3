"""What each aggregate means at the edges: nulls, NaN, widths of integers, types of results."""

import math
import statistics
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import ErrorCode, UserError
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import columns_to_frame, to_batch
from penstock.operators.aggregates.plan import AggregatePlan

LEAST, GREATEST = -(2**63), 2**63 - 1


def plan_for(data_type: Any, **aggregates: pen.Aggregate) -> AggregatePlan:
    columns: dict[str, Any] = {"x": data_type, "at": pa.timestamp("us")}
    return compile_aggregates(
        "step", aggregates, pen.StreamSchema(pa.schema(columns), "at")
    )


def results(
    data_type: Any, values: list[Any], **aggregates: pen.Aggregate
) -> dict[str, Any]:
    """Return the results over one group of values, each row a second later than the last."""
    plan = plan_for(data_type, **aggregates)
    seconds = pa.array([n * 1_000_000 for n in range(len(values))], pa.timestamp("us"))
    batch = pa.record_batch({"x": pa.array(values, data_type), "at": seconds})
    partials = plan.partials_of(columns_to_frame([batch], ["x", "at"]), [])
    found = to_batch(plan.results_of(partials, ()), pa.schema(list(plan.results)))
    (row,) = found.to_pylist()
    return row


def types_for(data_type: Any, **aggregates: pen.Aggregate) -> Mapping[str, Any]:
    return {field.name: field.type for field in plan_for(data_type, **aggregates).results}


EVERY = {
    "n": pen.count(),
    "present": pen.count("x"),
    "sum": pen.sum("x"),
    "min": pen.min("x"),
    "max": pen.max("x"),
    "avg": pen.avg("x"),
    "var": pen.var("x"),
    "stddev": pen.stddev("x"),
    "first": pen.first("x"),
    "last": pen.last("x"),
    "distinct": pen.count_distinct("x"),
}


def test_counts_of_no_values_are_zero_and_everything_else_is_null() -> None:
    counts = {"n": 2, "present": 0, "distinct": 0}
    assert results(pa.int64(), [None, None], **EVERY) == dict.fromkeys(EVERY) | counts


def test_a_predicate_that_is_null_lets_no_row_count() -> None:
    where = pl.col("x") > 1
    found = results(
        pa.int64(), [1, None, 3], n=pen.count(where=where), sum=pen.sum("x", where=where)
    )
    assert found == {"n": 1, "sum": 3}


def test_nan_is_the_greatest_number_and_one_value() -> None:
    found = results(pa.float64(), [math.nan, 1.0, math.inf, math.nan], **EVERY)
    assert found["min"] == 1.0
    assert math.isnan(found["max"])
    assert math.isnan(found["sum"])
    assert found["distinct"] == 3
    assert math.isnan(results(pa.float64(), [math.nan], min=pen.min("x"))["min"])


def test_the_variance_of_one_value_is_null_and_survives_a_large_mean() -> None:
    assert results(pa.int64(), [5], var=pen.var("x"), s=pen.stddev("x")) == {
        "var": None,
        "s": None,
    }
    assert results(pa.float64(), [1e9 + 1, 1e9 + 2, 1e9 + 3], var=pen.var("x")) == {
        "var": pytest.approx(1.0, rel=1e-9)
    }


@pytest.mark.parametrize("pairwise", [True, False])
def test_variances_merged_one_by_one_keep_their_digits(*, pairwise: bool) -> None:
    values = [1e9 + number % 2 for number in range(2_000)]
    plan = plan_for(pa.float64(), var=pen.var("x"))
    frames = [
        plan.partials_of(pl.DataFrame({"x": [value]}, {"x": pl.Float64}), [])
        for value in values
    ]
    merged = frames[0]
    for frame in frames[1:] if pairwise else ():
        merged = plan.merge_pairs(frame, merged)
    if not pairwise:
        merged = plan.merge(pl.concat(frames), [])
    ((found,),) = plan.results_of(merged, ()).rows()
    assert found == pytest.approx(statistics.variance(values), rel=1e-6)


def test_first_and_last_go_by_event_time_and_pass_over_nulls() -> None:
    found = results(
        pa.string(), [None, "b", "a", None], first=pen.first("x"), last=pen.last("x")
    )
    assert found == {"first": "b", "last": "a"}


def test_of_rows_at_one_instant_the_first_is_the_least_and_the_last_the_greatest() -> None:
    plan = plan_for(pa.int64(), first=pen.first("x"), last=pen.last("x"))
    instants = pa.array([0, 0, 0], pa.timestamp("us"))
    batch = pa.record_batch({"x": pa.array([2, 3, 1]), "at": instants})
    partials = plan.partials_of(columns_to_frame([batch], ["x", "at"]), [])
    assert plan.results_of(partials, ()).rows() == [(1, 3)]


def test_results_have_the_types_that_sql_gives_them() -> None:
    counts = {"n": pa.int64(), "present": pa.int64(), "distinct": pa.int64()}
    doubles = {"avg": pa.float64(), "var": pa.float64(), "stddev": pa.float64()}

    def expected(own: Any, total: Any) -> dict[str, Any]:
        same = dict.fromkeys(["min", "max", "first", "last"], own)
        return {**counts, **doubles, **same, "sum": total}

    assert types_for(pa.int16(), **EVERY) == expected(pa.int16(), pa.int64())
    assert types_for(pa.uint8(), **EVERY) == expected(pa.uint8(), pa.uint64())
    assert types_for(pa.float32(), **EVERY) == expected(pa.float32(), pa.float64())
    money = pa.decimal128(9, 2)
    assert types_for(money, **EVERY) == expected(money, pa.decimal128(38, 2))


@pytest.mark.parametrize(
    "data_type",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("s"),
        pa.timestamp("ns", "Europe/Paris"),
        pa.duration("s"),
        pa.time64("us"),
    ],
    ids=str,
)
def test_what_is_picked_has_the_type_of_its_column(data_type: Any) -> None:
    picked = {"min": pen.min("x"), "max": pen.max("x"), "last": pen.last("x")}
    assert set(types_for(data_type, **picked).values()) == {data_type}
    values = pa.array([None, 1, 0], pa.int64() if data_type != pa.date32() else pa.int32())
    cast: Any
    if pa.types.is_boolean(data_type):
        cast = pa.array([None, True, False])
    elif pa.types.is_binary(data_type):
        cast = pa.array([None, b"1", b"0"])
    else:
        cast = values.cast(data_type)
    _, one, zero = cast.to_pylist()
    found = results(data_type, cast.to_pylist(), **picked)
    assert found == {"min": zero, "max": one, "last": zero}


def test_an_encoded_column_is_as_good_as_its_values() -> None:
    encoded = pa.dictionary(pa.int8(), pa.string())
    found = results(
        encoded, ["b", "a", None, "b"], d=pen.count_distinct("x"), least=pen.min("x")
    )
    assert found == {"d": 2, "least": "a"}
    assert types_for(encoded, least=pen.min("x")) == {"least": pa.string()}


def test_sums_keep_decimals_and_durations_exact() -> None:
    total = {"sum": pen.sum("x")}
    money = [Decimal("0.10"), Decimal("0.20"), None]
    assert results(pa.decimal128(4, 2), money, **total) == {"sum": Decimal("0.30")}
    spans = [timedelta(seconds=1), timedelta(days=2)]
    assert results(pa.duration("s"), spans, **total) == {"sum": spans[0] + spans[1]}


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.int64(), [GREATEST, 1]),
        (pa.int64(), [LEAST, -1]),
        (pa.uint64(), [2**64 - 1, 1]),
        (pa.duration("us"), [timedelta(days=60_000_000)] * 2),
        (pa.decimal128(38, 2), [Decimal(9) * 10**35] * 2),
        (pa.decimal128(38, 0), [Decimal(9) * 10**37] * 4),
    ],
)
def test_a_sum_that_its_type_cannot_hold_is_an_error_and_does_not_wrap(
    data_type: Any, values: list[Any]
) -> None:
    with pytest.raises(UserError, match=r"total=sum\(x\).*cast the column") as caught:
        results(data_type, values, total=pen.sum("x"))
    assert caught.value.code is ErrorCode.VALUE_OUT_OF_RANGE


@pytest.mark.parametrize("rows", [2, 50_000])
def test_results_of_merged_sums_notice_an_overflow_too(rows: int) -> None:
    plan = plan_for(pa.int64(), total=pen.sum("x"))
    columns = {"total.sum": [GREATEST] * rows, "total.carry": [0] * rows, "key": [0] * rows}
    partials = pl.DataFrame(columns)
    for merged in (plan.merge(partials, ["key"]), plan.merge_pairs(partials, partials)):
        with pytest.raises(UserError, match="does not fit its type"):
            plan.results_of(merged, ())


def test_results_of_merged_decimals_notice_an_overflow_too() -> None:
    plan = plan_for(pa.decimal128(38, 0), total=pen.sum("x"))
    huge = pl.Series("total.sum", [Decimal(9) * 10**37], pl.Decimal(38, 0)).to_frame()
    huge = huge.with_columns(pl.lit(0, pl.Decimal(38, 0)).alias("total.carry"))
    merged = plan.merge_pairs(huge, huge)
    with pytest.raises(UserError, match="does not fit its type"):
        plan.results_of(merged, ())


def test_sums_come_to_the_very_ends_of_64_bits() -> None:
    assert results(pa.int64(), [GREATEST, 1, -1], s=pen.sum("x")) == {"s": GREATEST}
    assert results(pa.uint64(), [2**64 - 2, 1], s=pen.sum("x")) == {"s": 2**64 - 1}


def test_averages_do_not_overflow() -> None:
    found = results(pa.int64(), [GREATEST, GREATEST], a=pen.avg("x"))
    assert found == {"a": pytest.approx(float(GREATEST))}
