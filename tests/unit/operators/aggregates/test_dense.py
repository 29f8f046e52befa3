"""Groups of whole numbers that lie close together come out as Polars computes them."""

from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.errors import UserError
from penstock.operators.aggregates.compiled import Reduction
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import PLACES_PER_ROW, number_equal
from penstock.operators.aggregates.plan import AggregatePlan, reduce_by_place
from penstock.operators.registry import read_config
from penstock.operators.updating.combine import CombineConfig, combine_spec

KEY_TYPES = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
VALUE_TYPES = (*KEY_TYPES, pl.Float32, pl.Float64)
EVERY = {
    "n": Reduction("count", None),
    "values": Reduction("count", "value"),
    "total": Reduction("sum", "value"),
    "floats": Reduction("float_sum", "value"),
    "least": Reduction("min", "value"),
    "most": Reduction("max", "value"),
}


def grouped_by_polars(rows: pl.DataFrame) -> pl.DataFrame:
    value = pl.col("value")
    if rows["value"].dtype.is_float():
        total = value.cast(pl.Float64).sum()
    elif rows["value"].dtype.is_unsigned_integer():
        total = value.cast(pl.UInt64).sum()
    else:
        total = value.cast(pl.Int64).sum()
    return rows.group_by("key").agg(
        n=pl.len().cast(pl.Int64),
        values=value.count().cast(pl.Int64),
        total=total,
        floats=value.cast(pl.Float64).sum(),
        least=value.min(),
        most=value.max(),
    )


@given(
    st.sampled_from(KEY_TYPES),
    st.sampled_from(VALUE_TYPES),
    st.integers(0, 90),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100)), min_size=1, max_size=60),
)
def test_it_agrees_with_polars(
    key_type: Any, value_type: Any, first: int, pairs: list[tuple[int, int]]
) -> None:
    rows = pl.DataFrame(
        {"key": [first + key for key, _ in pairs], "value": [value for _, value in pairs]}
    ).cast({"key": key_type, "value": value_type})
    found = reduce_by_place(rows, "key", EVERY)
    span = max(pairs)[0] - min(pairs)[0] + 1
    if span > PLACES_PER_ROW * len(pairs):
        assert found is None
        return
    assert found is not None
    assert_frame_equal(found, grouped_by_polars(rows).sort("key"))


def test_negative_keys_and_values_are_numbers_like_others() -> None:
    rows = pl.DataFrame({"key": [-3, -1, -3], "value": [-5, 7, 2]})
    found = reduce_by_place(rows, "key", EVERY)
    assert found is not None
    assert found.select("key", "total", "least", "most").rows() == [
        (-3, -3, -5, 2),
        (-1, 7, 7, 7),
    ]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ([1, None], [1, 2]),
        ([1, 2], [1, None]),
        ([1, 2], [1.0, float("nan")]),
        ([1.0, 2.0], [1, 2]),
        (["a", "b"], [1, 2]),
        ([True, False], [1, 2]),
        ([0, 2 * PLACES_PER_ROW], [1, 2]),
        ([1, 2], [1 << 62, 1 << 62]),
        ([1, 2], [-(1 << 63), 0]),
        ([], []),
    ],
)
def test_what_it_cannot_do_exactly_it_leaves_alone(
    key: list[Any], value: list[Any]
) -> None:
    assert reduce_by_place(pl.DataFrame({"key": key, "value": value}), "key", EVERY) is None


@pytest.mark.parametrize("wide", [pl.UInt64, pl.Int128])
def test_wider_numbers_than_64_bits_with_a_sign_are_left_alone(wide: Any) -> None:
    rows = pl.DataFrame({"key": [1, 2], "value": [1, 2]})
    assert reduce_by_place(rows.cast({"key": wide}), "key", EVERY) is None
    assert reduce_by_place(rows.cast({"value": wide}), "key", EVERY) is None


def plan(**aggregates: pen.Aggregate) -> AggregatePlan:
    stream = StreamSchema(pa.schema([("key", pa.int64()), ("value", pa.int64())]))
    return compile_aggregates("step", aggregates, stream)


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_a_group_of_infinities_has_that_extreme(value: float) -> None:
    rows = pl.DataFrame({"key": [1, 1], "value": [value, value]})
    reduced = reduce_by_place(rows, "key", EVERY)
    assert reduced is not None
    assert (reduced["least"].item(), reduced["most"].item()) == (value, value)


def test_a_kind_that_is_not_there_is_refused() -> None:
    config: Any = dict(combine_spec(plan(n=pen.count()), ["key"]).config)
    (aggregate,) = config["aggregates"]
    config["aggregates"] = ({**aggregate, "reductions": (("median", None),)},)
    with pytest.raises(UserError, match="median"):
        read_config("combine", config, CombineConfig)


def test_plans_use_it_for_rows_and_for_partials() -> None:
    computed = plan(
        n=pen.count(), total=pen.sum("value"), mean=pen.avg("value"), top=pen.max("value")
    )
    assert all(a.reductions is not None for a in computed.aggregates)
    rows = pl.DataFrame({"key": [4, 2, 4], "value": [10, 20, 31]})
    partials = computed.partials_of(rows, ["key"])
    assert partials["key"].to_list() == [2, 4], "by key: not what hashing gives"
    merged = computed.merge(pl.concat([partials, partials]), ["key"])
    results = computed.results_of(merged, ["key"])
    assert results.rows() == [(2, 2, 40, 20.0, 20), (4, 4, 82, 20.5, 31)]


def test_aggregates_of_some_rows_are_not_plain_reductions() -> None:
    some = pl.col("value") > 1
    computed = plan(
        n=pen.count(where=some),
        total=pen.sum("value", where=some),
        mean=pen.avg("value", where=some),
        top=pen.max("value", where=some),
        distinct=pen.count_distinct("value"),
        spread=pen.stddev("value"),
    )
    assert all(a.reductions is None for a in computed.aggregates)


@pytest.mark.parametrize("kind", [*KEY_TYPES, pl.UInt64, pl.String])
@given(st.lists(st.none() | st.integers(0, 9) | st.just(100), max_size=20))
def test_keys_are_numbered_as_they_come(
    kind: type[pl.DataType], keys: list[int | None]
) -> None:
    frame = pl.DataFrame({"key": pl.Series(keys, dtype=pl.Int64).cast(kind)})
    distinct = list(dict.fromkeys(keys))

    numbers, firsts = number_equal(frame)

    assert numbers.tolist() == [distinct.index(key) for key in keys]
    assert firsts.tolist() == [keys.index(key) for key in distinct]
