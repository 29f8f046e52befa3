"""Laws of windows by processing time: they are what the driver's clock says, whatever happens."""

# ruff: noqa: S608 (queries are made of the numbers of tests)

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.core.settings import CompactionSettings
from penstock.operators import EventTime
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.splits import SourceBudget
from penstock.operators.windows.aggregation import WindowAggregation
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.processing_time import clock_window_specs
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.in_process import Chaos
from penstock.testing import (
    Amnesia,
    CrashError,
    Fault,
    FaultMode,
    LocalJob,
    OperatorHarness,
    assert_job_is_whole,
)
from tests.builders.graphs import schema_of
from tests.builders.profile import by_profile
from tests.builders.windows import SECOND, Stamp, WindowModel, micros

JOBS = by_profile(10, ci=25, nightly=300)
"""How many whole jobs a property runs."""
START = 1_700_000_000 * SECOND

# ---- one step, epoch by epoch, against a plain model

ROWS = StreamSchema(pa.schema([("key", pa.int64()), ("value", pa.int64())]), None, ("key",))
PLAN = compile_aggregates("test", {"rows": pen.count(), "total": pen.sum("value")}, ROWS)


@dataclass(frozen=True)
class Epoch:
    """What happens in an epoch, and to the job after it."""

    rows: Sequence[dict[str, int]]
    ahead: int
    """How far the driver's clock moves before it; back on another machine, if negative."""
    attempts: int
    parallelism: int | None
    """Go on with so many subtasks, in another process; None: in this one."""


some_rows = st.lists(
    st.builds(
        lambda key, value: {"key": key, "value": value},
        st.integers(0, 3),
        st.integers(-5, 5),
    ),
    max_size=8,
)
epochs = st.builds(
    Epoch,
    some_rows,
    st.sampled_from([0, 1, 2, 5, 9, 30, 200, -7, -100]),
    st.sampled_from([1, 1, 2]),
    st.none() | st.integers(1, 3),
)


@pytest.mark.slow
@given(
    width=st.integers(1, 30),
    slide=st.integers(1, 30),
    offset=st.integers(-40, 40),
    life=st.lists(epochs, min_size=1, max_size=8),
    amnesia=st.sampled_from(Amnesia),
)
def test_every_epoch_closes_the_windows_that_the_clock_has_passed(
    width: int, slide: int, offset: int, life: list[Epoch], amnesia: Amnesia
) -> None:
    model, outside = WindowModel(width, slide, offset), 0
    specs = clock_window_specs(
        WindowGrid(width, slide, offset),
        WindowAggregation(ROWS, PLAN),
        consumer="operator-2",
        shown="windows",
    )
    harness = OperatorHarness(specs, ROWS, amnesia=amnesia, now=START)
    now = 0
    try:
        for epoch in life:
            harness.push(list(epoch.rows))
            harness.clock.micros += epoch.ahead
            now = max(harness.clock.micros, now + 1)
            out = harness.barrier(attempts=epoch.attempts)
            expected = model.run_epoch([{**row, "at": now} for row in epoch.rows], now)
            assert results_of(out.rows()) == sorted(expected, key=repr)
            outside += out.counters.get("rows_outside_windows", 0)
            # The next window to close is the one to wake up for, and event time has come there.
            ends = [start + width for start in windows_open_at(now, width, slide, offset)]
            assert out.wake_up_micros == min(ends)
            assert out.watermark == EventTime(min(ends) - 1)
            if epoch.parallelism is not None:
                checkpoint = harness.checkpoint()
                harness.close()
                harness = OperatorHarness.restore(
                    checkpoint, parallelism=epoch.parallelism, amnesia=amnesia
                )
        assert results_of(harness.end().rows()) == sorted(model.end(), key=repr)
    finally:
        harness.close()
    assert model.late == []
    assert outside == len(model.outside)


def windows_open_at(now: int, width: int, slide: int, offset: int) -> list[int]:
    """Return where some windows start that have not ended, the first of them among these."""
    near = (now - offset) // slide * slide + offset
    starts = range(near - (width // slide + 2) * slide, near + 2 * slide, slide)
    return [start for start in starts if start + width > now]


def results_of(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return key, start, end, count and sum of results, sorted as text."""
    for row in rows:
        assert micros(row["window_time"]) == micros(row["window_end"]) - 1
    found = [
        (
            row["key"],
            micros(row["window_start"]),
            micros(row["window_end"]),
            row["rows"],
            row["total"],
        )
        for row in rows
    ]
    return sorted(found, key=repr)


# ---- whole jobs, against SQL over the rows with the instants of their epochs


@pytest.mark.slow
@settings(max_examples=JOBS)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "key": st.sampled_from(["a", "b", "c", None]),
                "value": st.none() | st.integers(-5, 5),
            }
        ),
        max_size=60,
    ),
    lengths=st.sampled_from([(10, 10, 0), (10, 4, 1), (3, 5, 0), (7, 7, -2)]),
    steps=st.lists(st.sampled_from([0, 1, 2, 4, 30]), min_size=1, max_size=6),
    budget=st.integers(1, 20),
    lives=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.none() | st.integers(1, 4),
            st.none() | st.integers(1, 60),
            st.sampled_from([0, 20, -15, -500]),
        ),
        max_size=4,
    ),
    chaos=st.tuples(st.sampled_from([0, 0, 0.05]), st.integers(0, 1_000)),
)
def test_however_a_job_is_run_its_windows_are_those_of_the_instants_of_its_epochs(
    *,
    rows: list[dict[str, Any]],
    lengths: tuple[int, int, int],
    steps: list[int],
    budget: int,
    lives: list[tuple[int, int | None, int | None, int]],
    chaos: tuple[float, int],
) -> None:
    width, slide, offset = (length * SECOND for length in lengths)
    pipeline, token = pen.Pipeline("clock", parallelism=2), new_token()
    out, seen = pen.list_sink(f"out-{token}"), pen.list_sink(f"seen-{token}")
    schema = schema_of(key=pa.string(), value=pa.int64())
    stream = pipeline.read("rows", pen.list_source(rows, schema, splits=3))
    window = pen.sliding(width, slide, offset=offset, time_domain="processing-time")
    counts = stream.key_by("key").window("w", window)
    counts.aggregate(rows=pen.count(), total=pen.sum("value")).write("out", out)
    stream.process("stamp", Stamp()).write("seen", seen)
    rate, seed = chaos
    job = LocalJob(
        pipeline,
        now=START,
        chaos=Chaos(rate, seed),
        seed=seed,
        settings=DriverSettings(
            budget=SourceBudget(rows=budget),
            adapts_budget=False,
            compaction=CompactionSettings(min_files=2, min_expiring_files=2, max_runs=3),
        ),
    )
    ahead = cycle(steps)

    def move_clock(level: int) -> None:
        job.clock.advance(next(ahead) * SECOND)

    for parallelism, most_epochs, dies_at, jump in [*lives, (3, None, None, 0)]:
        faults = [] if dies_at is None else [Fault(FaultMode.CRASH_AFTER, at=dies_at)]
        with suppress(CrashError):
            job.run(
                *faults,
                parallelism=parallelism,
                epochs=most_epochs,
                between_supersteps=move_clock,
            )
        job.clock.micros += jump * SECOND  # the next driver has a clock of its own
    assert_job_is_whole(job.checkpoints)
    with duckdb.connect() as connection:
        stamped = pa.Table.from_batches(
            seen.batches(), schema.append(pa.field("instant", pa.int64()))
        )
        assert stamped.num_rows == len(rows)
        connection.register("stamped", stamped)
        expected = connection.sql(f"""
            with starts as (
                select *, (instant - {offset}) // {slide} * {slide} + {offset} - n * {slide} s
                from stamped, range({width // slide + 1}) t(n)
            )
            select key, s, s + {width}, count(*), sum(value)::bigint from starts
            where s + {width} > instant group by key, s
        """).fetchall()
    assert results_of(out.rows()) == sorted(expected, key=repr)
