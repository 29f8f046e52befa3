"""Golden cases about windows over event time."""

import polars as pl

import penstock as pen
from tests.golden_cases.golden_case import GoldenCase, GoldenInputs


def hourly_by_event_type(inputs: GoldenInputs) -> pen.Stream:
    """Tumbling windows with a key."""
    hours = (
        inputs.cars(watermark_delay="1m")
        .key_by("event_type")
        .window("hours", pen.tumbling("1h"))
    )
    counts = hours.aggregate(count=pen.count())
    return counts.select("event_type", "count", hour="window_start")


def tight_watermark(inputs: GoldenInputs) -> pen.Stream:
    """No key, and no patience with rows out of order."""
    hours = inputs.cars().rebalance().window("hours", pen.tumbling("1h"))
    return hours.aggregate(count=pen.count()).select("count", timestamp="window_end")


def month_loose_watermark(inputs: GoldenInputs) -> pen.Stream:
    """One window that holds all rows, and closes with the end of data."""
    months = inputs.cars(watermark_delay="1m").window("months", pen.tumbling("30d"))
    return months.aggregate(count=pen.count()).select("count", month="window_start")


def sliding_window_end(inputs: GoldenInputs) -> pen.Stream:
    """Windows that share panes."""
    windows = inputs.impulse().window("windows", pen.sliding("10s", "2s"))
    results = windows.aggregate(
        count=pen.count(), min=pen.min("counter"), max=pen.max("counter")
    )
    return results.select("count", "min", "max", start="window_start", end="window_end")


def session_window(inputs: GoldenInputs) -> pen.Stream:
    """One key with ten rows, and ninety with one each."""
    user = pl.when(pl.col("counter") % 10 == 0).then(0).otherwise(pl.col("counter"))
    sessions = (
        inputs.impulse()
        .with_columns(user_id=user)
        .key_by("user_id")
        .window("sessions", pen.session("20s"))
    )
    results = sessions.aggregate(rows=pen.count())
    return results.select("user_id", "rows", start="window_start", end="window_end")


def windowed_inner_join(inputs: GoldenInputs) -> pen.Stream:
    """Two streams of aggregates over the same hours, joined by the hour alone."""
    counts = []
    for event_type, column in (("dropoff", "drivers"), ("pickup", "pickups")):
        cars = inputs.cars(f"{event_type}-cars", watermark_delay="1m")
        hours = cars.filter(pl.col("event_type") == event_type).window(
            f"{event_type}-hours", pen.tumbling("1h")
        )
        counts.append(hours.aggregate(**{column: pen.count_distinct("driver_id")}))
    joined = counts[0].join("both", counts[1], window=pen.same_window())
    return joined.select("drivers", "pickups", hour="window_start")


WINDOW_CASES = (
    GoldenCase("hourly_by_event_type", hourly_by_event_type, instants=["hour"]),
    GoldenCase("tight_watermark", tight_watermark, instants=["timestamp"]),
    GoldenCase("month_loose_watermark", month_loose_watermark, instants=["month"]),
    GoldenCase("sliding_window_end", sliding_window_end, "impulse", ["start", "end"]),
    GoldenCase("windowed_inner_join", windowed_inner_join, instants=["hour"]),
    GoldenCase("session_window", session_window, "impulse", ["start", "end"]),
)
