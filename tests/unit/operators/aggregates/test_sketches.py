"""Estimates: how close they are to what they estimate, and how much is kept for them."""

import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import SchemaError, UserError
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import to_batch

CHANCE = np.random.default_rng(7)


def estimate(
    values: Any, aggregate: pen.Aggregate, *, pieces: int = 1
) -> tuple[Any, pl.DataFrame]:
    """Return the result over one group of values, and what was kept for it."""
    x = pl.Series("x", values)
    kind: Any = x.to_arrow().type
    columns: dict[str, Any] = {"x": kind, "at": pa.timestamp("us")}
    stream = pen.StreamSchema(pa.schema(columns), "at")
    plan = compile_aggregates("step", {"r": aggregate}, stream)
    instants = pl.Series("at", np.arange(len(x))).cast(pl.Datetime("us"))
    rows = pl.DataFrame([x, instants])
    partials = [plan.partials_of(rows.gather_every(pieces, at), []) for at in range(pieces)]
    merged = plan.merge(pl.concat(partials), [])
    (row,) = to_batch(
        plan.results_of(merged, ()), pa.schema(list(plan.results))
    ).to_pylist()
    return row["r"], merged


@pytest.mark.parametrize("kind", [pl.Int64, pl.Float64, pl.String, pl.Decimal(18, 2)])
@pytest.mark.parametrize("count", [0, 1, 2_000, 2_501])
def test_few_different_values_are_counted_exactly(kind: Any, count: int) -> None:
    values = pl.Series(np.tile(np.arange(count), 3)).extend_constant(None, 1).cast(kind)
    assert estimate(values, pen.approx_distinct("x"), pieces=2)[0] == count


def test_the_number_of_many_different_values_is_close_and_what_is_kept_is_bounded() -> None:
    found, kept = estimate(np.arange(100_000), pen.approx_distinct("x"), pieces=3)
    assert found == pytest.approx(100_000, rel=3 * 0.02)
    assert kept["r.hashes"].list.len().item() == 2_502


def test_estimates_do_not_depend_on_the_cuts() -> None:
    values = CHANCE.integers(0, 2**62, 20_000)
    for aggregate in (pen.approx_distinct("x"), pen.approx_quantile("x", [0.1, 0.9])):
        assert estimate(values, aggregate)[0] == estimate(values, aggregate, pieces=9)[0]


def test_the_standard_error_of_distinct_counts_is_the_one_asked_for() -> None:
    wide = pen.approx_distinct("x", error=0.1)
    errors = [
        estimate(np.arange(at, at + 3_000), wide)[0] / 3_000 - 1
        for at in range(0, 300_000, 3_000)
    ]
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.1, rel=0.25)
    assert abs(np.mean(errors)) < 0.03


SAMPLES: dict[str, Any] = {
    "uniform": CHANCE.uniform(-1_000, 1_000, 20_001),
    "skewed": CHANCE.lognormal(0, 4, 20_001),
    "integers": CHANCE.integers(0, 50, 20_001),
    "constant": np.full(1_000, 0.1),
    "one": np.array([123.456]),
    "small": CHANCE.normal(0, 1e-15, 20_001),
    "large": CHANCE.integers(2**62, 2**63, 20_001, dtype=np.uint64),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("error", [0.01, 0.1])
def test_quantiles_are_within_the_relative_error(sample: str, error: float) -> None:
    shares = [0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 1.0]
    values = SAMPLES[sample]
    found, kept = estimate(values, pen.approx_quantile("x", shares, error=error), pieces=3)
    ordered = np.sort(values.astype(np.float64))
    exact = [ordered[math.floor(share * (len(values) - 1))] for share in shares]
    assert found == pytest.approx(exact, rel=error * (1 + 1e-9), abs=2.0**-64)
    assert kept["r.buckets"].list.len().item() <= 265 / error


def test_quantiles_of_what_has_no_bucket_of_its_own_are_in_order() -> None:
    values = [-math.inf, -1e200, 0.0, 1e-30, 1e200, math.inf, math.nan]
    found, _ = estimate(values, pen.approx_quantile("x", [0.0, 0.4, 0.5, 0.7, 0.9, 1.0]))
    assert found[:2] == [-math.inf, 0.0]
    assert found[2:5] == [0.0, math.inf, math.inf]
    assert math.isnan(found[5])


def test_the_quantile_of_nothing_is_null_and_never_beyond_the_values() -> None:
    assert (
        estimate(pl.Series([None], dtype=pl.Float64), pen.approx_quantile("x", 0.5))[0]
        is None
    )
    assert estimate([100, 100], pen.approx_quantile("x", 0.5))[0] == 100.0


def test_frequent_values_are_found_and_their_counts_hardly_too_high() -> None:
    values = CHANCE.zipf(1.3, 50_000) % 20_000
    (names, counts) = np.unique(values, return_counts=True)
    exact = dict(zip(names.tolist(), counts.tolist(), strict=True))
    frequent = [name for name, n in exact.items() if n >= 0.02 * len(values)]
    found, kept = estimate(values, pen.approx_top_k("x", 20), pieces=3)
    assert estimate(values, pen.approx_top_k("x", 20), pieces=8)[0] == found
    assert {entry["value"] for entry in found[: len(frequent)]} == set(frequent)
    too_much = [entry["count"] - exact[entry["value"]] for entry in found]
    assert min(too_much) >= 0
    assert max(too_much) <= 0.01 * len(values)
    assert [e["count"] for e in found] == sorted((e["count"] for e in found), reverse=True)
    assert kept["r.cells"].list.len().item() <= 4 * math.ceil(math.e / 0.01)


def test_frequent_texts_are_found_as_well() -> None:
    values = [f"page {n % 7}" for n in range(700)] + ["home"] * 200
    found, _ = estimate(values, pen.approx_top_k("x", 2))
    assert found == [{"value": "home", "count": 200}, {"value": "page 0", "count": 100}]


def test_without_an_event_time_a_column_must_tell_rows_apart() -> None:
    columns: dict[str, Any] = {"x": pa.string(), "id": pa.int64()}
    stream = pen.StreamSchema(pa.schema(columns))
    with pytest.raises(SchemaError, match="name a column that does, such as an id, as by="):
        compile_aggregates("step", {"r": pen.approx_top_k("x")}, stream)
    compile_aggregates("step", {"r": pen.approx_top_k("x", by="id")}, stream)


MISTAKES: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("approx_distinct", (), {"error": 0.001}, "error must be a number from 0.005 to 0.5"),
    ("approx_quantile", (0.5,), {"error": 1.0}, "error must be a number from 0.001 to 0.5"),
    ("approx_quantile", (1.5,), {}, "q must be a number from 0 to 1, or several, not 1.5"),
    ("approx_quantile", ([],), {}, "q must be a number from 0 to 1"),
    ("quantile", ("median",), {}, "q must be a number from 0 to 1"),
    ("approx_top_k", (0,), {}, "k must be a whole number from 1 to 1000, not 0"),
    ("approx_top_k", (), {"by": 3}, "3 is not the name of a column"),
    ("collect_list", (), {"limit": 0}, "limit must be a whole number from 1"),
    ("string_agg", (3,), {}, "separator must be a text, not 3"),
    ("first", (), {"order_by": pl.col("y")}, "it takes the name of a column"),
    ("arg_min", (None,), {}, "None is not the name of a column"),
    ("corr", (5,), {}, "5 is not the name of a column"),
]


@pytest.mark.parametrize(("function", "given", "options", "problem"), MISTAKES)
def test_arguments_that_make_no_sense_fail_at_their_own_line(
    function: str, given: tuple[Any, ...], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        getattr(pen, function)("x", *given, **options)
    assert problem in caught.value.message
    assert caught.value.message.startswith(f"pen.{function}: ")
