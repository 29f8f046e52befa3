"""Lookup joins with tables that only the driver can load, such as Spark DataFrames."""

import logging
from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import ManualClock, new_token
from penstock.errors import PenstockError, UserError
from penstock.operators.joins.version_lookup import (
    VERSION_SCHEMA,
    VersionSource,
    VersionSourceConfig,
    keep_loader,
)
from penstock.operators.splits import SourceBudget, SplitState
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.in_process import Chaos
from penstock.state.storage.memory import MemoryStore
from penstock.testing import LocalJob, OperatorHarness

MINUTE = 60_000_000
NAMES = pa.schema([("country", pa.string()), ("name", pa.string())])


class Frame:
    """Stands for a Spark DataFrame: its rows are known when they are asked for."""

    isStreaming = False  # noqa: N815 (as Spark calls it)

    def __init__(self, **names: str) -> None:
        self.names = names
        self.computed = 0
        self.error: Exception | None = None

    def toArrow(self) -> pa.Table:  # noqa: N802 (as Spark calls it)
        self.computed += 1
        if self.error is not None:
            raise self.error
        columns = {"country": list(self.names), "name": list(self.names.values())}
        return pa.table(columns, NAMES)


class Visits:
    """A job with one visit per epoch, half a minute apart, and a lookup that can change."""

    def __init__(self, lookup: Any, count: int = 6, parallelism: int = 2) -> None:
        self.clock = ManualClock(1_000 * MINUTE)
        self.before: dict[int, Callable[[], None]] = {}
        self.out = pen.list_sink(f"visits-{new_token()}")
        self.levels = 0
        p = pen.Pipeline("p", parallelism=parallelism)
        rows = [{"n": n, "country": "ch"} for n in range(count)]
        visits = p.read("visits", pen.list_source(rows), parallelism=1)
        visits.join("named", lookup, on="country", how="left").write("out", self.out)
        self.pipeline = p
        small = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
        self.store = MemoryStore()
        self.job = LocalJob(p, clock=self.clock, settings=small, store=self.store)

    def run(self, epochs: int | None = None) -> list[Any]:
        """Return the name that each visit was given."""

        def move(level: int) -> None:
            if level == 0:
                self.clock.micros += MINUTE // 2
                self.levels += 1
                self.before.get(self.levels, lambda: None)()

        self.job.run(epochs=epochs, between_supersteps=move)
        return [row["name"] for row in sorted(self.out.rows(), key=lambda row: row["n"])]


def test_a_dataframe_is_computed_again_when_the_drivers_clock_is_in_another_interval() -> (
    None
):
    frame = Frame(ch="v0")
    visits = Visits(pen.lookup_frame(frame, reload="1m"))
    visits.before = {
        epoch: lambda epoch=epoch: frame.names.update(ch=f"v{epoch}")  # type: ignore[misc]  # mypy infers no type for a default
        for epoch in range(1, 7)
    }
    assert visits.run() == ["v0", "v0", "v2", "v2", "v4", "v4"]
    assert frame.computed <= 1 + 5  # once to learn its columns; none when nobody asks


def test_a_finite_job_ends_although_its_lookup_never_does() -> None:
    status = Visits(pen.lookup_frame(Frame(ch="S"), reload="1m")).job.run()
    assert status.phase == "finished"


def test_a_job_that_is_started_again_goes_on_with_the_version_it_had() -> None:
    frame = Frame(ch="v0")
    visits = Visits(pen.lookup_frame(frame, reload="1h"))
    assert visits.run(epochs=2) == ["v0", "v0"]
    frame.names["ch"] = "other"
    computed = frame.computed
    assert visits.run()[2:] == ["v0"] * 4
    assert frame.computed == computed


def test_a_table_that_became_empty_finds_nothing_and_one_that_is_the_same_is_not_sent() -> (
    None
):
    frame = Frame(ch="v0")
    visits = Visits(pen.lookup_frame(frame, reload="30s"))
    visits.before[3] = frame.names.clear
    assert visits.run() == ["v0", "v0", "v0", None, None, None]
    status = visits.job.run()
    assert status.phase == "finished"


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_retried_or_repeated_task_are_looked_up_in_the_same_version(
    seed: int,
) -> None:
    frame = Frame(ch="v0")
    visits = Visits(pen.lookup_frame(frame, reload="1m"), count=8)
    visits.job.chaos = Chaos(0.2, seed)

    def change() -> None:
        frame.names["ch"] = f"v{frame.computed}"

    visits.before = dict.fromkeys(range(1, 40), change)
    names = visits.run()
    assert len(names) == 8
    assert names == sorted(names, key=lambda name: int(name[1:]))


def test_a_reload_that_fails_keeps_the_version_before_for_three_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frame = Frame(ch="v0")
    visits = Visits(pen.lookup_frame(frame, reload="30s"), count=7)

    def fail() -> None:
        frame.error = RuntimeError("no cluster")

    visits.before[1] = fail
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(
            PenstockError, match=r"lookup 'named' \(a Spark DataFrame\) .*RuntimeError: no"
        ),
    ):
        visits.run()
    assert [row["name"] for row in visits.out.rows()] == ["v0"] * 4
    for age in (1, 2, 3):
        assert f"is used as it was loaded {age} reload intervals ago" in caplog.text
    frame.error = None
    assert visits.run() == ["v0"] * 7


def test_a_function_that_returns_dataframes_is_called_by_the_driver() -> None:
    made: list[Frame] = []

    def rates() -> Frame:
        made.append(Frame(ch=f"v{len(made)}"))
        return made[-1]

    visits = Visits(pen.lookup_frame(rates, reload="1m"), count=4)
    assert visits.run() == ["v1", "v1", "v2", "v2"]
    once = Visits(pen.lookup_frame(rates), count=2)
    assert len(set(once.run())) == 1


def a_source(load: Callable[[], Any]) -> VersionSource:
    columns = pen.StreamSchema(NAMES).to_bytes()
    config = VersionSourceConfig("join", keep_loader(load), columns, MINUTE, "a table")
    return VersionSource(config)


def test_a_plan_that_is_not_read_is_planned_again_with_the_same_rows() -> None:
    frame = Frame(ch="S")
    source = a_source(frame.toArrow)
    first, second = (source.plan_splits({}, SourceBudget(), now) for now in (5, 6))
    assert first.splits[0].end == second.splits[0].end
    assert frame.computed == 1
    known = {"6": SplitState(second.splits[0].start, ended=True)}
    assert source.plan_splits(known, SourceBudget(), 7).splits == ()
    frame.names["fr"] = "F"
    later = source.plan_splits(known, SourceBudget(), MINUTE + 1)
    assert later.splits[0].name == str(MINUTE + 1)
    known[later.splits[0].name] = SplitState(later.splits[0].start, ended=True)
    assert source.plan_splits(known, SourceBudget(), MINUTE + 2).forgotten == ("6",)


def test_large_tables_travel_in_parts_and_too_large_ones_are_refused() -> None:
    rows = pl.DataFrame({"country": ["x" * 1000] * 9_000, "name": ["n"] * 9_000})
    plan = a_source(rows.to_arrow).plan_splits({}, SourceBudget(), 5)
    assert len(plan.splits[0].end) == 3
    large = pl.concat([rows] * 8)
    with pytest.raises(UserError, match="too large"):
        a_source(large.to_arrow).plan_splits({}, SourceBudget(), 5)


def test_a_table_with_other_columns_or_of_another_process_is_refused() -> None:
    other = a_source(lambda: pl.DataFrame({"land": ["ch"]}))
    with pytest.raises(
        UserError, match=r"lookup 'join' \(a table\) cannot be loaded.*'country'"
    ):
        other.plan_splits({}, SourceBudget(), 5)
    columns = pen.StreamSchema(NAMES).to_bytes()
    strange = VersionSource(
        VersionSourceConfig("join", "no-token", columns, MINUTE, "a table")
    )
    with pytest.raises(UserError, match="in the process that builds it"):
        strange.plan_splits({}, SourceBudget(), 5)


def test_a_plain_frame_cannot_be_reloaded() -> None:
    with pytest.raises(UserError, match="give a function that returns it"):
        pen.lookup_frame(pl.DataFrame({"a": [1]}), reload="1m")


def test_explain_shows_who_loads_the_table_and_what_is_kept() -> None:
    visits = Visits(pen.lookup_frame(Frame(ch="S"), reload="10m"))
    shown = visits.pipeline.explain()
    assert "versions(loads=a Spark DataFrame, reload=every 10m, on the driver)" in shown
    assert "keeps right rows=those of the last version" in shown


def test_the_version_goes_on_at_another_parallelism_and_smaller_ones_leave_no_parts() -> (
    None
):
    visits = Visits(pen.lookup_frame(Frame(ch="S"), reload="10m"))
    node = next(n for n in visits.pipeline.graph().nodes if n.operator == "named")

    def parts_of(*names: str) -> list[dict[str, Any]]:
        tables = [pa.table({"country": ["ch"], "name": [name]}, NAMES) for name in names]
        sunk = [pa.BufferOutputStream() for _ in tables]
        for table, sink in zip(tables, sunk, strict=True):
            with pa.ipc.new_stream(sink, NAMES) as writer:
                writer.write_table(table)
        data = [sink.getvalue().to_pybytes() for sink in sunk]
        return [
            dict(zip(VERSION_SCHEMA.names, (number, len(data), part), strict=True))
            for number, part in enumerate(data)
        ]

    with OperatorHarness(
        node.spec, *node.inputs, parallelism=2, broadcast={1}, amnesia=True
    ) as harness:
        harness.push(parts_of("a", "b", "c"), input=1)
        harness.push([{"n": 1, "country": "ch"}])
        harness.barrier(attempts=2)
        assert sorted(row["name"] for row in harness.take()) == ["a", "b", "c"]
        harness.push(parts_of("d"), input=1)
        harness.barrier()
        assert list(harness.state("version")) == [0]
        moved = harness.checkpoint()
    with OperatorHarness.restore(moved, parallelism=3) as harness:
        harness.push([{"n": 1, "country": "ch"}])
        harness.barrier()
        assert [row["name"] for row in harness.take()] == ["d"]
