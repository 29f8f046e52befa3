"""Laws of aggregates: however rows are split and partials merged, the results are the same."""

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.operators.aggregates.aggregate import compile_aggregates
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.registry import read_config
from penstock.operators.updating.combine import CombineConfig, combine_spec
from tests.builders.aggregated_rows import (
    AGGREGATES,
    ROWS,
    SCHEMA,
    Row,
    agrees,
    group_of,
    partials_of,
    results_expected,
    results_of,
    through_arrow,
)

PLAN = compile_aggregates("all", AGGREGATES, SCHEMA, taken=["key"])

SIMPLE = {
    name: aggregate
    for name, aggregate in AGGREGATES.items()
    if not name.endswith(("_first", "_last", "_distinct"))
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


@pytest.mark.slow
@given(rows=st.lists(ROWS, max_size=30), data=st.data())
def test_any_tree_of_merges_gives_what_one_pass_over_the_rows_gives(
    rows: list[Row], data: st.DataObject
) -> None:
    pieces: list[pl.DataFrame] = []
    rest = rows
    while rest:
        cut = data.draw(st.integers(1, len(rest)), label="rows of a piece")
        pieces.append(partials_of(PLAN, rest[:cut]))
        rest = rest[cut:]
    while len(pieces) > 1:
        picked = data.draw(
            st.lists(st.integers(0, len(pieces) - 1), min_size=2, max_size=4, unique=True),
            label="pieces to merge",
        )
        merged = PLAN.merge(pl.concat([pieces[index] for index in picked]), ["key"])
        pieces = [p for index, p in enumerate(pieces) if index not in picked]
        pieces.append(through_arrow(PLAN, merged))
    found: list[Any] = results_of(PLAN, pieces[0]) if pieces else []
    assert_results(found, rows)


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
    aggregates: dict[str, ps.Aggregate], old: list[Row], new: list[Row]
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
