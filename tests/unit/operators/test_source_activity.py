"""When a split is busy: also when there is something to read and it was not its turn."""

from collections.abc import Mapping

import pyarrow as pa
import pytest
from typing_extensions import override

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.connectors.stdout import blackhole
from penstock.core.clock import ManualClock
from penstock.core.ids import JobId
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.checkpoints import JobCheckpoints
from penstock.testing import CrashError, LocalJob, SourceHarness
from tests.builders.pipelines import SECOND, CountLate, a_list, a_row, numbers_in

IN_STEP = [a_row(n, n // 2) for n in range(12)]
"""Rows of two splits, none of them out of order."""


def test_a_split_whose_rows_wait_for_their_turn_is_not_idle() -> None:
    source = list_source(IN_STEP, splits=2, time_column="at")
    with SourceHarness(source, idle_timeout="5s") as harness:
        harness.read(rows=2)
        seen = []
        for _ in range(4):
            harness.advance("10s")
            seen.append(harness.read(rows=1).watermark)
    assert seen == [
        EventTime(0),
        EventTime(SECOND),
        EventTime(SECOND),
        EventTime(2 * SECOND),
    ]


def test_a_budget_of_one_row_starves_no_split_of_a_list() -> None:
    with SourceHarness(list_source(IN_STEP, splits=2)) as harness:
        for _ in range(6):
            harness.read(rows=1)
        assert sorted(row["n"] for row in harness.rows()) == [0, 1, 2, 3, 4, 5]


def test_no_row_is_late_because_a_small_budget_left_it_waiting() -> None:
    out = a_list()
    pipeline = Pipeline("job")
    source = list_source([a_row(n, n) for n in range(12)], splits=2)
    read = pipeline.read(
        "a", source, event_time="at", watermark_delay="0s", idle_timeout="5s"
    )
    read.rebalance().process("late", CountLate()).write("out", out)
    settings = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    job = LocalJob(pipeline, settings=settings)
    status = job.run(between_supersteps=lambda level: job.clock.advance(10 * SECOND))
    counters = {found.operator: found.counters for found in status.operators}
    assert counters["late"].get("late", 0) == 0
    assert numbers_in(out) == list(range(12))


@pytest.mark.parametrize("timeout", [None, "10s"])
def test_a_split_that_waits_for_ever_has_few_epochs_published(timeout: str | None) -> None:
    pipeline = Pipeline("job")
    read = pipeline.read(
        "a", StuckSource(), event_time="at", watermark_delay="0s", idle_timeout=timeout
    )
    read.write("out", blackhole())
    job = LocalJob(pipeline, clock=MinuteClock())
    with pytest.raises(CrashError):
        job.run()
    published = JobCheckpoints(job.store, JobId("job")).last_epoch()
    # Twice per timeout is enough for it never to be idle; without one it never is.
    assert published <= (2 if timeout is None else 14)


class MinuteClock(ManualClock):
    """Ends the process after a minute."""

    @override
    def now_micros(self) -> int:
        if self.micros > 60 * SECOND:
            raise CrashError("a minute is over")
        return self.micros


class StuckSource(SourceOperator):
    """Gives a row of a split, and says from then on that it has more, which is not read."""

    @override
    def name(self) -> str:
        return "stuck"

    @override
    def output_schema(self) -> StreamSchema:
        return StreamSchema(pa.schema([("at", pa.timestamp("us", "UTC"))]))

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        if "s" in known:
            return SourcePlan((), is_complete=False, waiting=("s",))
        return SourcePlan((SplitPlan("s"),), is_complete=False)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            collector.collect([{"at": 0}], split=split.name)
            ctx.advance(split.name, 1)
