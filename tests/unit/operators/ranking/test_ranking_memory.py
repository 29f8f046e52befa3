"""Rankings with far more state than memory: what is held stays within the budget."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import ManualClock, new_token
from penstock.core.settings import CompactionSettings
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore

BUDGET = 1 << 20
ROWS = 8_000
_COLUMNS: dict[str, Any] = {
    "key": pa.string(),
    "n": pa.int64(),
    "at": pa.timestamp("us"),
    "text": pa.string(),
}
SCHEMA = pa.schema(_COLUMNS)
STEPS: dict[str, Callable[[Any], Any]] = {
    "top": lambda rows: rows.top("step", 2, by="n", per="key"),
    "top-of-table": lambda rows: rows.to_table("table", key="n").top(
        "step", 2, by="n", per="key"
    ),
    "top-of-windows": lambda rows: (
        rows.key_by("key").window("step", pen.tumbling("1h")).top(2, by="n")
    ),
    "first": lambda rows: rows.deduplicate("step", ["key", "text"], ttl="1h"),
    "last": lambda rows: rows.deduplicate("step", "key", keep="last"),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", sorted(STEPS))
def test_state_beyond_the_memory_budget_is_not_held_in_memory(
    step: str, tmp_path: Path
) -> None:
    pipeline, out = pen.Pipeline("large"), pen.list_sink(f"large-{new_token()}")
    rows = [{"key": f"k{n}", "n": n, "at": n, "text": f"{n:0600d}"} for n in range(ROWS)]
    source = pen.list_source(rows, SCHEMA)
    stream = pipeline.read("rows", source, event_time="at", watermark_delay="1h")
    STEPS[step](stream).write("out", out)
    store, clock = MemoryStore(), ManualClock(0)
    cache = FileCache(tmp_path, 1 << 30)
    worker = Worker(store, cache, pipeline.registry, clock, memory_budget_bytes=BUDGET)
    settings = DriverSettings(
        budget=SourceBudget(rows=400),
        adapts_budget=False,
        compaction=CompactionSettings(min_files=10_000, min_expiring_files=10_000),
    )
    environment = JobEnvironment(
        pipeline.graph(),
        store,
        cache,
        InProcessExecutor(worker),
        pipeline.registry,
        clock,
        settings,
    )
    held: list[int] = []
    before = pa.total_allocated_bytes()
    JobDriver(
        environment, on_epoch=lambda _: held.append(pa.total_allocated_bytes() - before)
    ).run()
    assert len(held) > 15
    assert max(held[:-1]) < BUDGET, "and of state there are more than 4 MiB"
    assert len(out.rows()) == ROWS
