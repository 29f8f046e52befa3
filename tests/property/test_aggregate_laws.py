"""Laws of aggregates: however rows are split and partials merged, the results are the same."""

import math
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.frames import columns_to_frame, to_batch
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.registry import read_config
from penstock.operators.updating.combine import CombineConfig, combine_spec
from tests.builders.aggregate_cases import (
    FLAGGED,
    MORE_CASES,
    PAIR_STATISTICS,
    SKETCHES,
    Oracle,
    flagged,
    pair_statistics,
    ranked,
    values_of,
)
from tests.builders.aggregated_rows import Row, agrees

_COLUMNS: dict[str, Any] = {
    "key": pa.float64(),
    "n": pa.int64(),
    "short": pa.int16(),
    "real": pa.float64(),
    "text": pa.dictionary(pa.int32(), pa.string()),
    "price": pa.decimal128(9, 2),
    "flag": pa.bool_(),
    "at": pa.timestamp("us"),
}
SCHEMA = pen.StreamSchema(pa.schema(_COLUMNS), "at")
FIRST = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_FINITE = st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3))
ROWS = st.fixed_dictionaries(
    {
        "key": st.sampled_from([None, 0.0, -0.0, 1.5, math.nan]),
        "n": st.none() | st.integers(-(2**52), 2**52),
        "short": st.none() | st.integers(-(2**15), 2**15 - 1),
        "real": st.none() | _FINITE | st.sampled_from([math.nan, 0.0, -0.0]),
        "text": st.none() | st.sampled_from(["", "a", "b", "ä", "zz"]),
        "price": st.none() | st.decimals(-9999, 9999, places=2),
        "flag": st.none() | st.booleans(),
        "at": st.integers(0, 3).map(lambda second: FIRST + timedelta(seconds=second)),
    }
)


def _total(rows: Sequence[Row], column: str) -> Any:
    values = values_of(rows, column)
    if not values:
        return None
    return math.fsum(values) if isinstance(values[0], float) else sum(values)


def _extreme(rows: Sequence[Row], column: str, *, is_max: bool) -> Any:
    pick = max if is_max else min
    return pick(values_of(rows, column), key=ranked, default=None)


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = values_of(rows, column)
    if any(math.isnan(value) for value in values):
        return math.nan
    return float(sum(map(Fraction, values)) / len(values)) if values else None


def _variance(rows: Sequence[Row], column: str) -> float | None:
    values = values_of(rows, column)
    if len(values) < 2:
        return None
    if any(math.isnan(value) for value in values):
        return math.nan
    return float(statistics.variance(map(Fraction, values)))


def _deviation(rows: Sequence[Row], column: str) -> float | None:
    variance = _variance(rows, column)
    return None if variance is None else math.sqrt(variance)


def _by_time(rows: Sequence[Row], column: str, *, is_last: bool) -> Any:
    pick = max if is_last else min
    present = [(row["at"], ranked(row[column]), row[column]) for row in rows]
    present = [entry for entry in present if entry[2] is not None]
    return pick(present, default=(None, None, None), key=lambda entry: entry[:2])[2]


def _distinct(rows: Sequence[Row], column: str) -> int:
    return len({ranked(value) for value in values_of(rows, column)})


CASES: Mapping[str, tuple[pen.Aggregate, Oracle]] = {
    "rows": (pen.count(), len),
    "texts": (pen.count("text"), lambda rows: len(values_of(rows, "text"))),
    "flagged": (pen.count(where=FLAGGED), flagged(len)),
    "n_sum": (pen.sum("n"), lambda rows: _total(rows, "n")),
    "short_sum": (pen.sum("short"), lambda rows: _total(rows, "short")),
    "real_sum": (pen.sum("real"), lambda rows: _total(rows, "real")),
    "price_sum": (pen.sum("price"), lambda rows: _total(rows, "price")),
    "flagged_sum": (
        pen.sum("n", where=FLAGGED),
        flagged(lambda rows: _total(rows, "n")),
    ),
    "real_min": (pen.min("real"), lambda rows: _extreme(rows, "real", is_max=False)),
    "real_max": (pen.max("real"), lambda rows: _extreme(rows, "real", is_max=True)),
    "text_min": (pen.min("text"), lambda rows: _extreme(rows, "text", is_max=False)),
    "text_max": (pen.max("text"), lambda rows: _extreme(rows, "text", is_max=True)),
    "flag_max": (pen.max("flag"), lambda rows: _extreme(rows, "flag", is_max=True)),
    "at_max": (pen.max("at"), lambda rows: _extreme(rows, "at", is_max=True)),
    "price_min": (pen.min("price"), lambda rows: _extreme(rows, "price", is_max=False)),
    "n_avg": (pen.avg("n"), lambda rows: _mean(rows, "n")),
    "price_avg": (pen.avg("price"), lambda rows: _mean(rows, "price")),
    "real_avg": (pen.avg("real"), lambda rows: _mean(rows, "real")),
    "real_var": (pen.var("real"), lambda rows: _variance(rows, "real")),
    "short_stddev": (pen.stddev("short"), lambda rows: _deviation(rows, "short")),
    "n_first": (pen.first("n"), lambda rows: _by_time(rows, "n", is_last=False)),
    "text_last": (pen.last("text"), lambda rows: _by_time(rows, "text", is_last=True)),
    "real_last": (
        pen.last("real", where=FLAGGED),
        flagged(lambda rows: _by_time(rows, "real", is_last=True)),
    ),
    "text_distinct": (
        pen.count_distinct("text"),
        lambda rows: _distinct(rows, "text"),
    ),
    "real_distinct": (
        pen.count_distinct("real", where=FLAGGED),
        flagged(lambda rows: _distinct(rows, "real")),
    ),
    **MORE_CASES,
}
"""An aggregate of every kind, and what it comes to."""
AGGREGATES = {name: aggregate for name, (aggregate, _) in CASES.items()}


def group_of(row: Mapping[str, Any]) -> tuple[bool, Any]:
    """Return what tells groups apart: null, NaN and zero of either sign are one group each."""
    return ranked(row["key"])


def results_expected(rows: Sequence[Row]) -> dict[tuple[bool, Any], Row]:
    """Return the results of every group, computed one by one."""
    groups: dict[tuple[bool, Any], list[Row]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    return {
        group: {name: oracle(members) for name, (_, oracle) in CASES.items()}
        for group, members in groups.items()
    }


def partials_of(plan: AggregatePlan, rows: Sequence[Row]) -> pl.DataFrame:
    """Return the partials of some rows, by way of Arrow as they travel and are stored."""
    batch: pa.RecordBatch = pa.RecordBatch.from_pylist(list(rows), SCHEMA.arrow)
    frame = columns_to_frame([batch], ["key", *plan.reads])
    return through_arrow(plan, plan.partials_of(frame, ["key"]))


def through_arrow(plan: AggregatePlan, partials: pl.DataFrame) -> pl.DataFrame:
    """Return partials as they come back from a table."""
    stored = pa.schema([SCHEMA.arrow.field("key"), *plan.partials])
    return columns_to_frame([to_batch(partials, stored)], stored.names)


def results_of(plan: AggregatePlan, partials: pl.DataFrame) -> list[Row]:
    """Return the results, in the types that were promised."""
    promised = pa.schema([SCHEMA.arrow.field("key"), *plan.results])
    rows: list[Row] = to_batch(plan.results_of(partials, ["key"]), promised).to_pylist()
    return rows


PLAN = compile_aggregates("all", AGGREGATES, SCHEMA, taken=["key"])

SIMPLE = {
    name: aggregate
    for name, aggregate in AGGREGATES.items()
    if not name.endswith(("_first", "_last", "_distinct", "_kept"))
}
"""What is merged side by side; together with the others everything is grouped instead."""


def assert_results(found: list[Row], rows: list[Row]) -> None:
    expected = results_expected(rows)
    assert len(found) == len(expected)
    scale = max(
        (abs(row["real"] or 0) for row in rows if row["real"] == row["real"]), default=0
    )
    for result in found:
        wanted = {n: v for n, v in expected[group_of(result)].items() if n in result}
        wrong = {
            name: (result[name], value)
            for name, value in wanted.items()
            if not agrees(result[name], value, scale * len(rows))
        }
        assert wrong == {}


def merged_in_any_way(
    plan: AggregatePlan, rows: Sequence[Row], data: st.DataObject
) -> list[Row]:
    """Return the results of rows that are cut into pieces, whose partials are merged as drawn."""
    pieces: list[pl.DataFrame] = []
    rest = rows
    while rest:
        cut = data.draw(st.integers(1, len(rest)), label="rows of a piece")
        pieces.append(partials_of(plan, rest[:cut]))
        rest = rest[cut:]
    while len(pieces) > 1:
        picked = data.draw(
            st.lists(st.integers(0, len(pieces) - 1), min_size=2, max_size=4, unique=True),
            label="pieces to merge",
        )
        merged = plan.merge(pl.concat([pieces[index] for index in picked]), ["key"])
        pieces = [p for index, p in enumerate(pieces) if index not in picked]
        pieces.append(through_arrow(plan, merged))
    return results_of(plan, pieces[0]) if pieces else []


@pytest.mark.slow
@given(rows=st.lists(ROWS, max_size=30), data=st.data())
def test_any_tree_of_merges_gives_what_one_pass_over_the_rows_gives(
    rows: list[Row], data: st.DataObject
) -> None:
    assert_results(merged_in_any_way(PLAN, rows, data), rows)


def comparable(value: Any) -> Any:
    """Return results such that NaN is itself; a zero has no sign."""
    if isinstance(value, dict):
        return {n: comparable(v) for n, v in value.items() if n != "key"}
    return list(map(comparable, value)) if isinstance(value, list) else ranked(value)


SKETCHED = compile_aggregates("sketches", SKETCHES, SCHEMA, taken=["key"])


@pytest.mark.slow
@given(rows=st.lists(ROWS, max_size=30), data=st.data())
def test_estimates_are_the_same_however_rows_are_cut_and_partials_merged(
    rows: list[Row], data: st.DataObject
) -> None:
    expected = results_of(SKETCHED, partials_of(SKETCHED, rows)) if rows else []
    found = merged_in_any_way(SKETCHED, rows, data)
    assert {group_of(row): comparable(row) for row in found} == {
        group_of(row): comparable(row) for row in expected
    }


PAIRED = compile_aggregates(
    "pairs",
    {name: getattr(pen, name)("price", "short") for name in PAIR_STATISTICS},
    SCHEMA,
)


@pytest.mark.slow
@given(rows=st.lists(ROWS, max_size=30), data=st.data())
def test_statistics_of_pairs_are_exact_to_nine_digits_however_they_are_merged(
    rows: list[Row], data: st.DataObject
) -> None:
    for result in merged_in_any_way(PAIRED, rows, data):
        members = [row for row in rows if group_of(row) == group_of(result)]
        expected = pair_statistics(members, "price", "short")
        # What is added up are products of distances of at most 2**15 and 10**4.
        wrong = {
            name: (result[name], value)
            for name, value in expected.items()
            if not agrees(result[name], value, 2.0**15 * 1e4 if "_s" in name else 1e4)
        }
        assert wrong == {}


@pytest.mark.slow
@settings(max_examples=20)
@given(rows=st.lists(ROWS, min_size=1, max_size=10))
def test_merging_a_single_partial_changes_nothing(rows: list[Row]) -> None:
    once = PLAN.merge(partials_of(PLAN, rows), ["key"])
    assert_results(results_of(PLAN, through_arrow(PLAN, once)), rows)


@pytest.mark.slow
@settings(max_examples=20)
@pytest.mark.parametrize("aggregates", [SIMPLE, AGGREGATES], ids=["simple", "all"])
@given(old=st.lists(ROWS, max_size=8), new=st.lists(ROWS, min_size=1, max_size=8))
def test_merging_row_by_row_with_what_is_known_is_as_good_as_grouping(
    aggregates: dict[str, pen.Aggregate], old: list[Row], new: list[Row]
) -> None:
    plan = compile_aggregates("some", aggregates, SCHEMA)
    assert (aggregates is SIMPLE) == all(a.from_pair is not None for a in plan.aggregates)
    news = partials_of(plan, new)
    known = partials_of(plan, old)
    # Not by a join: to Polars' no NaN is another one.
    places = {group_of(row): place for place, row in enumerate(known.to_dicts())}
    wanted = [places.get(group_of(row)) for row in news.to_dicts()]
    aligned = known.select(pl.all().gather(pl.Series(wanted, dtype=pl.UInt32)))
    merged = plan.merge_pairs(news, aligned).with_columns(news["key"])
    seen = {group_of(row) for row in new}
    rows = [*new, *(row for row in old if group_of(row) in seen)]
    assert_results(results_of(plan, through_arrow(plan, merged)), rows)


@pytest.mark.slow
@settings(max_examples=10)
@given(rows=st.lists(ROWS, max_size=10))
def test_a_plan_computes_the_same_once_it_has_been_in_a_graph(rows: list[Row]) -> None:
    config = read_config("combine", combine_spec(PLAN, ["key"]).config, CombineConfig)
    plan = AggregatePlan.from_config(config.aggregates)
    assert plan.display() == PLAN.display()
    assert_results(results_of(plan, partials_of(plan, rows)), rows)
