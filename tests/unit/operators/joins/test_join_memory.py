"""Joins over state of several times their memory budget: what is kept is mapped from files."""

from pathlib import Path
from typing import Any

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
"""Of each side: the state of both is more than eight times the budget."""
SCHEMA = a_schema(key=pa.int64(), at=pa.timestamp("us"), text=pa.string())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"within": ("0s", "1h")},
        {"within": ("0s", "1h"), "how": "full"},
        {"window": pen.tumbling("1h")},
        {"window": pen.session("1h")},
    ],
    ids=str,
)
def test_state_beyond_the_memory_budget_is_not_held_in_memory(
    options: dict[str, Any], tmp_path: Path
) -> None:
    pipeline, out = pen.Pipeline("large"), pen.list_sink(f"large-{abs(hash(str(options)))}")
    sides = []
    for name in ("left", "right"):
        rows = [{"key": n, "at": n, "text": TEXT} for n in range(ROWS)]
        source = pen.list_source(rows, SCHEMA)
        sides.append(pipeline.read(name, source, event_time="at", watermark_delay="1h"))
    joined = sides[0].join("join", sides[1], on="key", **options)
    joined.select("key").write("out", out)
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
    assert max(held[:-1]) < BUDGET, "and of both sides there are more than 8 MiB"
    assert len(out.rows()) == ROWS
