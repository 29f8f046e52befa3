"""What sources read: dealt before every epoch, from what the last one left."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from penstock.core.ids import OperatorId
from penstock.errors import ErrorCode, ExternalError, UserCodeError, UserError
from penstock.graph.logical import Exchange, LogicalGraph
from penstock.operators.splits import (
    SourceAssignment,
    SourceBudget,
    SourcePhase,
    SourcePlan,
    SplitPlan,
    SplitState,
)
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.plan.epoch_plan import ReadingPlan, SourcePlanner
from tests.builders.driven_job import JOB, DrivenJob, Ledger
from tests.builders.scripted import (
    PLAIN,
    NumberedSource,
    Parts,
    ScriptedSource,
    link,
)

READ = OperatorId("read")
BUDGET = SourceBudget(rows=7)


def a_planner(
    plan: Any, *, parallelism: int = 1, known: Mapping[str, SplitState] | None = None
) -> SourcePlanner:
    parts = Parts()
    hook = plan if callable(plan) else lambda *_: plan
    node = parts.node(
        "read",
        lambda: ScriptedSource(plan_splits=hook, poll=timedelta(seconds=3)),
        parallelism=parallelism,
    )
    planner = SourcePlanner(LogicalGraph(JOB, (node,)), parts.registry, BUDGET)
    planner.sources[READ].known = dict(known or {})
    return planner


def planned(*names: str, is_complete: bool = True) -> SourcePlan:
    return SourcePlan(tuple(SplitPlan(name) for name in names), is_complete=is_complete)


def dealt(plan: ReadingPlan) -> tuple[SourceAssignment, ...]:
    return plan.assignments[READ]


def test_splits_are_dealt_evenly_and_those_not_read_rest_with_somebody() -> None:
    known = {name: SplitState() for name in "abcdef"} | {"z": SplitState(ended=True)}
    planner = a_planner(planned("a", "b", "g"), parallelism=3, known=known)
    parts = dealt(planner.plan(0, None))
    assert sorted(s.name for part in parts for s in part.splits) == ["a", "b", "g"]
    assert sorted(name for part in parts for name in part.resting) == ["c", "d", "e", "f"]
    assert {part.phase for part in parts} == {SourcePhase.READING}
    assert {part.budget for part in parts} == {BUDGET}
    sizes = [len(part.splits) + len(part.resting) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_plan_is_the_same_whenever_it_is_made_from_the_same() -> None:
    known = {name: SplitState() for name in "abcdef"}
    planner = a_planner(planned("a", "b"), parallelism=3, known=known)
    assert planner.plan(0, None) == planner.plan(0, None)


@pytest.mark.parametrize(
    ("plan", "known", "phase"),
    [
        (planned(), {}, SourcePhase.ENDING),
        (planned(is_complete=False), {}, SourcePhase.READING),
        (planned("a"), {}, SourcePhase.READING),
        (planned(), {"a": SplitState(ended=True)}, SourcePhase.ENDING),
        (planned(), {"a": SplitState()}, SourcePhase.READING),
        (
            planned(is_complete=False),
            {"a": SplitState(ended=True)},
            SourcePhase.READING,
        ),
    ],
    ids=["empty", "waits", "reads", "ended", "rests", "may-grow"],
)
def test_a_source_ends_when_all_it_will_ever_have_has_ended(
    plan: SourcePlan, known: dict[str, SplitState], phase: SourcePhase
) -> None:
    reading = a_planner(plan, known=known).plan(0, None)
    assert dealt(reading)[0].phase is phase
    assert reading.has_ending is (phase is SourcePhase.ENDING)
    is_reading = phase is SourcePhase.READING
    assert reading.poll_micros == (3_000_000 if is_reading else None)


def test_in_the_last_epoch_of_a_run_nothing_is_read_and_nothing_ends() -> None:
    planner = a_planner(planned("a"), known={"b": SplitState()})
    (part,) = dealt(planner.plan(0, None, is_last=True))
    assert (part.phase, part.splits) == (SourcePhase.READING, ())
    assert part.resting == ("b",)


@pytest.mark.parametrize(
    ("plan", "holds"),
    [
        (planned("a"), True),
        (SourcePlan((), is_complete=False, waiting=("a",)), True),
        (SourcePlan((), is_complete=False), False),
    ],
)
def test_in_the_last_epoch_event_time_does_not_pass_what_the_next_run_reads(
    plan: SourcePlan, holds: bool
) -> None:
    # A split that gave rows long ago would count as idle: the epoch before may have been long.
    planner = a_planner(plan, known={"a": SplitState(), "b": SplitState()})
    (part,) = dealt(planner.plan(0, None, is_last=True))
    assert part.holds_watermark is holds


def test_a_source_is_asked_with_what_is_known_the_budget_and_the_time() -> None:
    asked: list[Any] = []

    def plan(known: Mapping[str, SplitState], budget: SourceBudget, now: int) -> SourcePlan:
        asked.append((dict(known), budget, now))
        return planned("a")

    state = {"a": SplitState(offset=3)}
    a_planner(plan, known=state).plan(99, None)
    assert asked == [(state, BUDGET, 99)]


def test_an_outage_while_planning_keeps_its_class_and_other_errors_name_the_source() -> (
    None
):
    def outage(*_: object) -> SourcePlan:
        raise ExternalError("cannot list")

    with pytest.raises(ExternalError) as raised:
        a_planner(outage).plan(0, None)
    assert raised.value.context["operator"] == "read"

    def fail(*_: object) -> SourcePlan:
        raise KeyError("bucket")

    with pytest.raises(UserCodeError, match="source 'read' raised KeyError in plan_splits"):
        a_planner(fail).plan(0, None)


@pytest.mark.parametrize("plan", [None, "a", [SplitPlan("a")], planned("a", "a")])
def test_plans_that_are_none_are_refused(plan: object) -> None:
    with pytest.raises(UserError) as raised:
        a_planner(lambda *_: plan).plan(0, None)
    assert raised.value.code is ErrorCode.UNKNOWN_SPLIT


def test_a_split_that_is_forgotten_is_dropped_once_the_epoch_counts() -> None:
    known = {"a": SplitState(ended=True), "b": SplitState()}
    plan = SourcePlan((SplitPlan("b"),), is_complete=False, forgotten=("a",))
    planner = a_planner(plan, parallelism=2, known=known)

    reading = planner.plan(0, None)

    assert [part.forgotten for part in dealt(reading)] == [("a",), ()]
    assert set(planner.sources[READ].known) == {"a", "b"}
    planner.accept([], reading, 1)
    assert set(planner.sources[READ].known) == {"b"}


@pytest.mark.parametrize(
    ("name", "reason"), [("b", "has not ended"), ("x", "is not known")]
)
def test_a_split_that_was_not_read_to_its_end_is_not_forgotten(
    name: str, reason: str
) -> None:
    known = {"a": SplitState(ended=True), "b": SplitState()}
    plan = SourcePlan((), is_complete=False, forgotten=("a", name))

    with pytest.raises(UserError, match=f"forget the split '{name}', which {reason}"):
        a_planner(plan, known=known).plan(0, None)


class Discovering(NumberedSource):
    """Finds one more split every time it is asked, up to three."""

    def __init__(self, asked: list[int]) -> None:
        super().__init__({f"s{i}": range(10 * i, 10 * i + 5) for i in range(3)})
        self._asked = asked

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        plan = super().plan_splits(known, budget, now_micros)
        self._asked.append(0)
        found = {f"s{i}" for i in range(len(self._asked))}
        splits = tuple(split for split in plan.splits if split.name in found)
        return SourcePlan(splits, is_complete=len(found) >= 3, has_more=True)


def test_splits_that_are_found_later_are_read_from_their_beginning() -> None:
    job, ledger = DrivenJob(), Ledger()
    asked: list[int] = []
    job.read_and_write(
        lambda: Discovering(asked),
        ledger.sink,
        link("read", "write", exchange=Exchange.REBALANCE),
        parallelism=2,
    )
    assert job.run().phase is JobPhase.FINISHED
    assert sorted(ledger.numbers) == [*range(5), *range(10, 15), *range(20, 25)]


def test_any_parallelism_goes_on_with_the_splits_of_subtasks_that_are_gone() -> None:
    ledger = Ledger()
    splits = {f"s{i}": range(100 * i, 100 * i + 7) for i in range(4)}
    job = DrivenJob()

    def run(parallelism: int, epochs: int) -> JobPhase:
        job.add("read", lambda: NumberedSource(splits), parallelism=parallelism)
        session = job.session()
        for _ in range(epochs):
            session.run_epoch()
        return JobPhase.FINISHED if session.is_finished else JobPhase.RUNNING

    job.add("write", ledger.sink, PLAIN)
    job.join(link("read", "write", exchange=Exchange.REBALANCE))
    assert run(3, 1) is JobPhase.RUNNING
    assert run(1, 1) is JobPhase.RUNNING
    assert run(2, 4) is JobPhase.FINISHED
    assert sorted(ledger.numbers) == sorted(n for part in splits.values() for n in part)
