"""Jobs with far less memory for state than they have state: what is held is counted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

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

BUDGET_BYTES = 1 << 20
"""What a subtask may hold of its state in memory."""
EPOCHS = 20


_POOLS: list[Any] = []
"""Buffers point to the pool that they are of: pools stay as long as the process."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What Arrow held in a job, up to the last epoch, which closes windows and emits all."""

    between_epochs: int
    """The most bytes after an epoch."""
    at_any_time: int


def memory_of(
    pipeline: pen.Pipeline, row_count: int, folder: Path, *, epochs: int = EPOCHS
) -> Memory:
    """Run a job to its end and measure it.

    Files are not merged, so that state is in as many as there are epochs.
    """
    store, clock = MemoryStore(), ManualClock(0)
    cache = FileCache(folder, 1 << 30)
    registry = pipeline.registry
    worker = Worker(store, cache, registry, clock, memory_budget_bytes=BUDGET_BYTES)
    settings = DriverSettings(
        budget=SourceBudget(rows=row_count // epochs),
        adapts_budget=False,
        compaction=CompactionSettings(min_files=10_000, min_expiring_files=10_000),
    )
    executor = InProcessExecutor(worker)
    environment = JobEnvironment(
        pipeline.graph(), store, cache, executor, registry, clock, settings
    )
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    _POOLS.append(pool)
    found: list[tuple[int, int]] = []

    def note(_: object) -> None:
        found.append((pool.bytes_allocated(), pool.max_memory() or 0))

    pa.set_memory_pool(pool)
    try:
        JobDriver(environment, on_epoch=note).run()
    finally:
        pa.set_memory_pool(usual)
    assert len(found) >= epochs
    return Memory(max(held for held, _ in found[:-1]), found[-2][1])
