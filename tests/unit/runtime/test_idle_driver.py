"""A driver whose sources have nothing to read: it asks them, and runs no epoch for that."""

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
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore

SECOND = 1_000_000
ROWS_AT = (5 * SECOND, 20 * SECOND)
"""When the source has a row."""


class RareSource(SourceOperator):
    """Has a row now and then, and says when it has none."""

    def name(self) -> str:
        return "rare"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(
            pa.schema([("at", pa.timestamp("us", "UTC"))]), time_column="at"
        )

    def poll_interval(self) -> str:
        return "1s"

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        done = 0 if "only" not in known else int(known["only"].offset)
        due = sum(at <= now_micros for at in ROWS_AT)
        splits = () if due <= done else (SplitPlan("only", done, due),)
        return SourcePlan(splits, is_complete=False)

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            rows = pa.table(
                {"at": ROWS_AT[split.start or 0 : split.end]},
                pa.schema([("at", pa.int64())]),
            )
            collector.collect(rows.cast(self.output_schema().arrow), split=split.name)
            ctx.advance(split.name, split.end)


class SteppingPacer:
    """Lets the time pass that the driver waits for, and stops the driver after a minute."""

    driver: JobDriver

    def __init__(self, clock: ManualClock) -> None:
        self.waits = 0
        self._clock = clock
        self._until = clock.now_micros() + 60 * SECOND

    def wait_until(self, micros: int | None) -> None:
        self.waits += 1
        now = self._clock.now_micros()
        assert micros is not None
        assert micros > now, "the driver waits for what has passed"
        if micros > self._until:
            self.driver.request_stop(StopMode.IMMEDIATE)
        else:
            self._clock.micros = micros

    def interrupt(self) -> None:
        """Nobody waits."""


def test_a_source_without_rows_is_asked_and_no_epoch_is_run(tmp_path: Path) -> None:
    pipeline = Pipeline("rare")
    rare = pipeline.read("rare", RareSource(), event_time="at", idle_timeout="10s")
    rare.write("out", blackhole())
    registry, clock = default_registry(load_plugins=False), ManualClock(1)
    store, cache = MemoryStore(), FileCache(tmp_path, limit_bytes=1 << 20)
    executor = InProcessExecutor(Worker(store, cache, registry, clock))
    environment = JobEnvironment(pipeline.graph(), store, cache, executor, registry, clock)
    pacer, ran = SteppingPacer(clock), list[EpochRan]()
    pacer.driver = JobDriver(environment, pacer=pacer, on_epoch=ran.append)
    status = pacer.driver.run()

    assert status.rows_read == len(ROWS_AT)
    at = [each.progress.processing_time_micros // SECOND for each in ran]
    # The first; both rows; both times at which the split is found idle; and behind each of
    # them one that changes nothing, by which the driver knows that there is nothing to do.
    assert at == [0, 1, 5, 6, 15, 16, 20, 21, 30, 31]
    # Rows are found as soon as if every poll were an epoch.
    assert pacer.waits >= 60
    assert status.operators[-1].is_idle
