"""The golden cases there are: a function that builds each, and how its output compares."""

import polars as pl

import penstock as pen
from tests.golden_cases.golden_case import GoldenCase, GoldenInputs
from tests.golden_cases.windows import WINDOW_CASES

MICROS_PER_SECOND = 1_000_000


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
    """A changelog in and out, its dates in whole seconds."""
    orders = inputs.order_changes().from_debezium("orders-by-id", key="id")
    seconds = pl.col("order_date") // MICROS_PER_SECOND
    return orders.with_columns(order_date=seconds).to_debezium()


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
