"""The latency of an event ends with the first result that holds it, and none may be missing."""

import polars as pl
import pytest

from benchmarks.steady_load import Timing, describe, match

TIMING = Timing(warm_seconds=1.0, timed_seconds=1.0, drain_seconds=0.0)
SECOND = 1_000_000


def some_events(*events: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(events, schema=["user", "sent"], orient="row")


def some_counts(*counts: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(counts, schema=["user", "events", "seen"], orient="row")


def test_an_event_is_seen_with_the_first_count_that_holds_it() -> None:
    start = 10 * SECOND
    events = some_events(
        (1, start),
        (1, start + SECOND + 1),
        (2, start + SECOND + 2),
        (1, start + 2 * SECOND),
    )
    counts = some_counts(
        (1, 1, start + 5),
        # Two events in one result, which came twice.
        (1, 3, start + 3 * SECOND),
        (1, 3, start + 4 * SECOND),
        (2, 1, start + 2 * SECOND + 2),
    )

    timed = match(events, counts, TIMING).sort("sent")

    assert (timed["seen"] - timed["sent"]).to_list() == [
        2 * SECOND - 1,
        SECOND,
        SECOND,
    ]
    assert describe(timed)["p50_ms"] == 1_000


def test_an_event_without_a_result_is_an_error() -> None:
    events = some_events((1, SECOND), (2, SECOND))
    with pytest.raises(RuntimeError, match="1 of 2 events are in no result"):
        match(events, some_counts((1, 1, 2 * SECOND)), TIMING)
