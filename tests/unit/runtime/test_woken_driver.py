"""A driver that is woken up: an epoch at once, though no source would have asked for one."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from penstock.api.pipeline import Pipeline
from penstock.catalog import default_registry
from penstock.connectors.stdout import blackhole
from penstock.core.clock import ManualClock
from penstock.core.schema import StreamSchema
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitState
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore


class SilentSource(SourceOperator):
    """Has nothing to read, and does not want to be asked before a day is over."""

    def name(self) -> str:
        return "silent"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema([("number", pa.int64())]))

    def poll_interval(self) -> str:
        return "1d"

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        return SourcePlan((), is_complete=False)

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        raise AssertionError("there is no split to read")


class WakingPacer:
    """Wakes the driver instead of waiting, and stops it the next time."""

    driver: JobDriver

    def __init__(self) -> None:
        self.waits = 0

    def wait_until(self, micros: int | None) -> None:
        self.waits += 1
        if self.waits == 1:
            self.driver.wake_up()
        else:
            self.driver.request_stop(StopMode.IMMEDIATE)

    def interrupt(self) -> None:
        """Nobody waits."""


def test_a_woken_driver_runs_one_epoch_and_tells_of_each(tmp_path: Path) -> None:
    pipeline = Pipeline("woken")
    pipeline.read("silence", SilentSource()).write("out", blackhole())
    registry, clock = default_registry(load_plugins=False), ManualClock(1)
    store, cache = MemoryStore(), FileCache(tmp_path, limit_bytes=1 << 20)
    executor = InProcessExecutor(Worker(store, cache, registry, clock))
    environment = JobEnvironment(pipeline.graph(), store, cache, executor, registry, clock)
    pacer, told = WakingPacer(), list[EpochRan]()
    pacer.driver = JobDriver(environment, pacer=pacer, on_epoch=told.append)
    status = pacer.driver.run()
    assert pacer.waits == 2
    assert status.epochs_run == len(told) == 2
