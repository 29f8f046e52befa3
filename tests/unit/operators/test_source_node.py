"""A source as a node: what it reads, what it says of event time, and what it may not do."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.core.watermark import IDLE, MAX_EVENT_TIME, EventTime
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import WatermarkSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceFinishType
from penstock.operators.splits import SourceAssignment, SourceBudget, SourcePhase, SplitPlan
from tests.builders.chain_rig import ChainRig, Ran
from tests.builders.scripted import Log, Parts, ScriptedSource, rows

LATE_BY_TWO = WatermarkSpec(delay_micros=2)


class SourceRig:
    """A source alone in a chain, with what it is dealt."""

    def __init__(
        self,
        *,
        log: Log | None = None,
        watermark: WatermarkSpec | None = LATE_BY_TWO,
        **hooks: Any,
    ) -> None:
        parts = Parts()
        node = parts.node(
            "read", lambda: ScriptedSource("read", log, **hooks), watermark=watermark
        )
        self.rig = ChainRig(parts.registry, [node])

    def run(
        self,
        *splits: str,
        phase: SourcePhase = SourcePhase.READING,
        resting: tuple[str, ...] = (),
        budget: SourceBudget | None = None,
        **terms: Any,
    ) -> Ran:
        assignment = SourceAssignment(
            phase,
            tuple(SplitPlan(name) for name in splits),
            resting,
            budget or SourceBudget(),
        )
        return self.rig.run(assignments={"read": assignment}, **terms)


def reading(**by_split: list[int]) -> Callable[..., None]:
    """Return a `run` that emits, of each split it has, the numbers given."""

    def run(ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            collector.collect(rows(*by_split.get(split.name, ())), split=split.name)
            ctx.advance(split.name, split.name)

    return run


def test_the_watermark_is_that_of_the_slowest_split_less_the_delay() -> None:
    source = SourceRig(run=reading(a=[10, 30], b=[20]))
    assert source.run("a", "b").watermarks["read"] == EventTime(18)


def test_a_split_without_rows_yet_keeps_the_watermark_unknown() -> None:
    source = SourceRig(run=reading(a=[10]))
    assert source.run("a", "b").watermarks["read"] is None


def test_a_subtask_without_splits_is_idle_at_once() -> None:
    log = Log()
    source = SourceRig(log=log)
    assert source.run().watermarks["read"] == IDLE
    assert "run" not in log.of("read")


def test_a_split_that_ended_holds_nobody_back_and_speaks_once_more_if_nobody_is_left() -> (
    None
):
    def run(ctx: SourceContext, collector: SourceCollector) -> None:
        for split in ctx.splits:
            number = 10 if split.name == "a" else 20
            collector.collect(rows(number), split=split.name)
            if split.name == "a" or "b" not in ctx.split_states:
                ctx.end_split(split.name)

    source = SourceRig(run=run)
    assert source.run("a", "b").watermarks["read"] == EventTime(18)
    assert source.run("c").watermarks["read"] == EventTime(18)
    assert source.run().watermarks["read"] == IDLE


def test_a_resting_split_still_counts_for_the_watermark() -> None:
    source = SourceRig(run=reading(a=[10], b=[20]))
    source.run("a", "b")
    assert source.run("b", resting=("a",)).watermarks["read"] == EventTime(8)


def test_a_split_becomes_idle_after_its_timeout_and_the_source_wakes_up_for_it() -> None:
    spec = WatermarkSpec(idle_timeout_micros=100)
    source = SourceRig(watermark=spec, run=reading(a=[10]))
    ran = source.run("a", "b", now=1_000)
    assert ran.watermarks["read"] is None
    assert ran.reports["read"].wake_up_micros == 1_100
    ran = source.run("a", "b", now=1_099)
    assert ran.watermarks["read"] is None
    ran = source.run("a", "b", now=1_100)
    assert ran.watermarks["read"] == EventTime(10)


def test_a_source_without_event_time_says_nothing_until_its_end() -> None:
    source = SourceRig(watermark=None, run=reading(a=[10]))
    assert source.run("a").watermarks["read"] is None
    ended = source.run(phase=SourcePhase.ENDING)
    assert ended.watermarks["read"] == MAX_EVENT_TIME


def test_an_ending_source_closes_once_and_an_ended_one_is_not_even_started() -> None:
    log = Log()
    source = SourceRig(log=log)
    source.run("a")
    assert log.take_of("read") == ["on_start", "run"]
    source.run(phase=SourcePhase.ENDING)
    assert log.take_of("read") == ["on_close"]
    source.rig.restart()
    log.take()
    ran = source.run(phase=SourcePhase.ENDED)
    assert log.take_of("read") == []
    assert ran.watermarks["read"] == MAX_EVENT_TIME
    assert ran.reports["read"].wake_up_micros is None


def test_a_graceful_stop_reads_once_more_and_closes() -> None:
    log = Log()
    SourceRig(log=log).run("a", is_stop=True)
    assert log.of("read") == ["on_start", "run", "on_close"]


def test_rows_that_a_source_emits_as_it_closes_count_for_its_watermark() -> None:
    kept: list[SourceCollector] = []

    def run(_: SourceContext, collector: SourceCollector) -> None:
        collector.collect(rows(10))
        kept.append(collector)

    def on_close(_: SourceContext) -> None:
        kept[-1].collect(rows(30))

    ran = SourceRig(run=run, on_close=on_close).run("a", is_stop=True)
    assert ran.watermarks["read"] == EventTime(28)
    assert ran.reports["read"].splits["a"].max_event_time_micros == 30


def test_offsets_are_stored_by_split_and_only_changes_are_reported() -> None:
    def run(ctx: SourceContext, collector: SourceCollector) -> None:
        state = ctx.split_state("a")
        if state.offset is None:
            ctx.advance("a", [1, "x"])

    source = SourceRig(run=run)
    first = source.run("a", "b", now=7).reports["read"]
    assert first.splits["a"].offset == [1, "x"]
    assert first.splits["b"].last_active_micros == 7
    assert first.checkpoint.changed
    source.rig.restart()
    again = source.run("a", "b").reports["read"]
    assert again.splits == {}
    assert not again.checkpoint.changed


def test_final_ends_every_split_that_was_read() -> None:
    source = SourceRig(run=lambda ctx, _: SourceFinishType.FINAL)
    report = source.run("a", "b").reports["read"]
    assert {name: state.ended for name, state in report.splits.items()} == {
        "a": True,
        "b": True,
    }
    assert report.finish is SourceFinishType.FINAL
    assert not report.has_more


def test_there_is_more_if_the_budget_ended_the_epoch() -> None:
    source = SourceRig(run=reading(a=[1, 2, 3]))
    report = source.run("a", budget=SourceBudget(rows=3)).reports["read"]
    assert report.has_more
    assert (report.rows_taken, report.rows_emitted) == (3, {"main": 3})
    assert report.bytes_read > 0
    assert not source.run("a", budget=SourceBudget(rows=4)).reports["read"].has_more


def test_rows_of_the_only_split_need_not_name_it() -> None:
    def run(ctx: SourceContext, collector: SourceCollector) -> None:
        collector.collect(rows(10))
        collector.collect(rows(30), split="a")
        collector.collect(rows(20))

    ran = SourceRig(run=run).run("a")
    assert ran.reports["read"].splits["a"].max_event_time_micros == 30


def emitting(split: str | None) -> Callable[..., None]:
    def run(ctx: SourceContext, collector: SourceCollector) -> None:
        collector.collect(rows(1), split=split)

    return run


FACTS = {"operator": "read", "subtask": 0, "epoch": 1, "hook": "run"}


@pytest.mark.parametrize(
    ("run", "part"),
    [
        (emitting(None), "emitted rows without saying of which of its splits"),
        (emitting("z"), "speaks of the split 'z'"),
        (lambda ctx, _: ctx.advance("z", 1), "it reads: 'a', 'b'"),
        (lambda ctx, _: ctx.end_split("z"), "speaks of the split 'z'"),
    ],
    ids=["none", "unknown", "advance", "end"],
)
def test_splits_that_are_not_its_own_are_refused(run: Any, part: str) -> None:
    with pytest.raises(UserError) as raised:
        SourceRig(run=run).run("a", "b")
    assert raised.value.code is ErrorCode.UNKNOWN_SPLIT
    assert part in raised.value.message
    assert FACTS.items() <= raised.value.context.items()


@pytest.mark.parametrize("finish", ["final", True, 3])
def test_a_finish_that_is_none_is_refused(finish: object) -> None:
    with pytest.raises(
        UserError, match=r"from run\(\): return a SourceFinishType"
    ) as raised:
        SourceRig(run=lambda *_: finish).run("a")
    assert raised.value.context == FACTS
