"""The golden cases there are: a function that builds each, and how its output compares."""

import polars as pl

import penstock as pen
from tests.golden_cases.changelog_operators import LatestOrders
from tests.golden_cases.golden_job import GoldenCase, GoldenInputs
from tests.golden_cases.windows import WINDOW_CASES


def cast_to_sink_type(inputs: GoldenInputs) -> pen.Stream:
    """Two columns of cars, one of them cast to text by whichever subtask gets the row."""
    cars = inputs.cars().rebalance()
    return cars.select("timestamp", pl.col("driver_id").cast(pl.String))


def union(inputs: GoldenInputs) -> pen.Stream:
    """One file read by two sources."""
    first, second = (
        inputs.impulse(name).select("counter", source=pl.lit(name))
        for name in ("first", "second")
    )
    return first.union(second)


def grouped_aggregates(inputs: GoldenInputs) -> pen.Stream:
    """Totals by remainder, emitted again whenever they change."""
    numbers = inputs.impulse().with_columns(counter_mod=pl.col("counter") % 5)
    totals = numbers.key_by("counter_mod").aggregate(
        "totals",
        min=pen.min("counter"),
        max=pen.max("counter"),
        sum=pen.sum("counter"),
        count=pen.count(),
        avg=pen.avg("counter"),
    )
    return totals.to_debezium()


def debezium_pass_through(inputs: GoldenInputs) -> pen.Stream:
    """A changelog in and out; what was before is told by state, not by the input."""
    row_id = pl.coalesce(pl.col(side).struct.field("id") for side in ("after", "before"))
    changes = inputs.order_changes().with_columns(id=row_id)
    return changes.key_by("id").process("orders-by-id", LatestOrders())


CASES = (
    GoldenCase("cast_to_sink_type", cast_to_sink_type, instants=["timestamp"]),
    GoldenCase("union", union, "impulse"),
    GoldenCase(
        "grouped_aggregates", grouped_aggregates, "impulse", fold_by=["counter_mod"]
    ),
    GoldenCase(
        "debezium_pass_through", debezium_pass_through, "aggregate_updates", fold_by=["id"]
    ),
    *WINDOW_CASES,
)
