"""Subtasks whose event time differs: what may be kept, what is forgiven, and who holds whom."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.core.schema import StreamSchema
from penstock.core.watermark import IDLE, EventTime, InputWatermark, Watermark, advance
from penstock.errors import ErrorCode, UserError
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.event_time import WatermarkConfig
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.runtime.driver.decide import JobPhase
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import TableSpec, TimeDomain, time_keyed_table
from penstock.testing import CUT, PAUSE, LocalJob, ScriptedSource
from tests.builders.pipelines import (
    TIMED,
    CountLate,
    Pass,
    a_list,
    a_row,
    instants_of,
    numbers_in,
)


class Keep(ArrowOperator):
    """Keeps rows in panes, by one clock, and passes them on."""

    def __init__(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        self._domain = domain

    def name(self) -> str:
        return "keep"

    def tables(self) -> list[TableSpec]:
        return [
            time_keyed_table(
                "panes",
                TIMED.arrow,
                key_columns=["n"],
                time_column="at",
                time_domain=self._domain,
            )
        ]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


def keeping(keep: Keep, *, parallelism: int, is_by_key: bool = False) -> LocalJob:
    pipeline = Pipeline("job", parallelism=parallelism)
    rows = ScriptedSource([a_row(1, 1), CUT, a_row(2, 2)], TIMED)
    read = pipeline.read("read", rows, event_time="at", watermark_delay="0s")
    kept = (read.key_by("n") if is_by_key else read).process("keep", keep)
    kept.write("out", a_list())
    return LocalJob(pipeline, store=MemoryStore())


def test_panes_by_event_time_behind_a_forward_edge_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"'keep' keeps state by event time \(panes\)"
    ) as raised:
        keeping(Keep(), parallelism=2).run()
    assert raised.value.code is ErrorCode.INVALID_GRAPH


def test_panes_behind_a_forward_edge_are_refused_before_anything_is_written() -> None:
    job = keeping(Keep(), parallelism=2)
    with pytest.raises(UserError):
        job.run()
    assert list(job.store.list("")) == []


@pytest.mark.parametrize(
    ("domain", "parallelism", "is_by_key"),
    [
        pytest.param(TimeDomain.EVENT_TIME, 1, False, id="one subtask"),
        pytest.param(TimeDomain.EVENT_TIME, 2, True, id="by key"),
        pytest.param(TimeDomain.PROCESSING_TIME, 2, False, id="processing time"),
    ],
)
def test_panes_are_allowed_where_all_subtasks_see_the_same_time(
    domain: TimeDomain,
    parallelism: int,
    is_by_key: bool,
) -> None:
    job = keeping(Keep(domain), parallelism=parallelism, is_by_key=is_by_key)
    assert job.run().phase is JobPhase.FINISHED


def a_split_that_moves() -> ScriptedSource:
    """Return two splits far apart; the slow one is dealt to the fast one's subtask."""
    return ScriptedSource(
        {
            "fast": [a_row(1, 50), PAUSE("60s"), a_row(2, 51)],
            "slow": [a_row(3, 10), CUT, a_row(4, 11), CUT, a_row(5, 12)],
        },
        TIMED.arrow,
    )


def test_an_operator_that_is_given_a_slower_split_has_not_gone_back() -> None:
    out = a_list()
    pipeline = Pipeline("job", parallelism=2)
    read = pipeline.read(
        "read", a_split_that_moves(), event_time="at", watermark_delay="0s"
    )
    read.process("pass", Pass()).write("out", out)
    assert LocalJob(pipeline).run().phase is JobPhase.FINISHED
    assert numbers_in(out) == [1, 2, 3, 4, 5]


def test_an_operator_behind_a_generator_that_is_given_slower_rows_has_not_gone_back() -> (
    None
):
    out = a_list()
    generator = WatermarkConfig(partition_column="n", time_column="at").to_operator_spec()
    pipeline = Pipeline("job", parallelism=2)
    read = pipeline.read("read", a_split_that_moves())
    read.process("time", generator).process("pass", Pass()).write("out", out)
    assert LocalJob(pipeline).run().phase is JobPhase.FINISHED
    assert numbers_in(out) == [1, 2, 3, 4, 5]


class HoldLate(ArrowOperator):
    """Holds the watermark back to the oldest row of the epoch, as unanswered calls do."""

    def __init__(self) -> None:
        self._oldest: int | None = None

    def name(self) -> str:
        return "hold late"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._oldest = min(instants_of(batch))
        collector.collect(batch)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark:
        if self._oldest is None or not isinstance(watermark, EventTime):
            return watermark
        oldest, self._oldest = self._oldest, None
        return min(watermark, EventTime(oldest))


def test_a_row_that_is_late_for_its_own_subtask_only_may_be_held() -> None:
    out = a_list()
    scripts = {
        "fast": [a_row(1, 50), CUT, a_row(2, 30), CUT, a_row(3, 51)],
        "slow": [a_row(4, 10), CUT, a_row(5, 11), CUT, a_row(6, 12)],
    }
    pipeline = Pipeline("job", parallelism=2)
    source = ScriptedSource(scripts, TIMED.arrow)
    read = pipeline.read("read", source, event_time="at", watermark_delay="0s")
    read.process("hold", HoldLate()).write("out", out)
    assert LocalJob(pipeline).run().phase is JobPhase.FINISHED
    assert numbers_in(out) == [1, 2, 3, 4, 5, 6]


def test_an_input_that_was_idle_and_is_silent_holds_the_others() -> None:
    idle = advance([InputWatermark(10), InputWatermark(10)], [EventTime(20), IDLE])
    silent = advance(idle.inputs, [EventTime(99), None])
    assert silent.watermark == EventTime(20)
    assert silent.inputs == (InputWatermark(99), InputWatermark(20))


class Slow(SourceOperator):
    """Has no split at first; then one that gives its only row three epochs later."""

    def __init__(self) -> None:
        self._plans = 0

    def name(self) -> str:
        return "slow"

    def output_schema(self) -> StreamSchema:
        return TIMED

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        self._plans += 1
        if self._plans < 3:
            return SourcePlan((), is_complete=False)
        has_ended = "file" in known and known["file"].ended
        splits = () if has_ended else (SplitPlan("file", end=self._plans),)
        return SourcePlan(splits, is_complete=True)

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        (split,) = ctx.splits
        if split.end >= 6:
            batch = pa.RecordBatch.from_pylist([a_row(100, 4)], TIMED.arrow)
            collector.collect(batch, split=split.name)
            ctx.end_split(split.name)


def test_rows_of_an_input_that_was_idle_and_got_a_silent_split_are_not_late() -> None:
    out = a_list()
    steps = [step for n in range(8) for step in (a_row(n, 2 * n), CUT)]
    pipeline = Pipeline("job")
    steady = pipeline.read(
        "steady", ScriptedSource(steps, TIMED.arrow), event_time="at", watermark_delay="0s"
    )
    slow = pipeline.read("slow", Slow(), event_time="at", watermark_delay="0s")
    steady.union(slow).process("late", CountLate()).write("out", out)
    status = LocalJob(pipeline).run()
    counters = {found.operator: found.counters for found in status.operators}
    assert counters["late"].get("late", 0) == 0
    assert numbers_in(out) == [*range(8), 100]
