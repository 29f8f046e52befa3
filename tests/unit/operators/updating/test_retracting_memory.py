"""Kept values of four times the memory budget: they are mapped from files, not held."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import ManualClock
from penstock.core.settings import CompactionSettings
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from tests.unit.state.files.file_builders import a_schema

BUDGET = 1 << 20
ROWS, TEXT = 10_000, "x" * 440
SCHEMA = a_schema(id=pa.int64(), text=pa.string())


@pytest.mark.slow
def test_kept_values_beyond_the_memory_budget_are_not_held_in_memory(
    tmp_path: Path,
) -> None:
    pipeline, out = pen.Pipeline("large"), pen.list_sink("large-retraction")
    rows = [{"id": n, "text": f"{n:08}{TEXT}"} for n in range(ROWS)]
    # At the end the greatest value goes: the one before it is found in what was kept.
    rows.append({"id": ROWS - 1, "text": "-"})
    table = pipeline.read("rows", pen.list_source(rows, SCHEMA))
    changes = table.from_upserts("table", key="id").with_columns(k=pl.col("id") % 2)
    changes.key_by("k").aggregate("top", top=pen.max("text")).write("out", out)
    graph, store, clock = pipeline.graph(), MemoryStore(), ManualClock(0)
    cache = FileCache(tmp_path, 1 << 30)
    worker = Worker(store, cache, pipeline.registry, clock, memory_budget_bytes=BUDGET)
    settings = DriverSettings(
        budget=SourceBudget(rows=500),
        adapts_budget=False,
        compaction=CompactionSettings(min_files=10_000, min_expiring_files=10_000),
    )
    environment = JobEnvironment(
        graph, store, cache, InProcessExecutor(worker), pipeline.registry, clock, settings
    )
    held: list[int] = []
    before = pa.total_allocated_bytes()
    driver = JobDriver(
        environment, on_epoch=lambda _: held.append(pa.total_allocated_bytes() - before)
    )
    driver.run()
    assert len(held) > 15
    assert max(held[:-1]) < 2 * BUDGET, "and each of two tables has more than 4 MiB"
    last = {
        row["k"]: row["top"][:8] for row in out.rows() if row["change"] != "update-before"
    }
    out.clear()
    assert last == {0: f"{ROWS - 2:08}", 1: f"{ROWS - 3:08}"}
