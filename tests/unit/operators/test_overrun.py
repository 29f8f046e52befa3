"""A source that is busy for too long fails its epoch, whatever it does with the error."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.errors import ErrorCode, ExternalError, UserCodeError
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceFinishType
from penstock.operators.splits import (
    Deadline,
    SourceAssignment,
    SourceBudget,
    SourceOverrunError,
    SplitPlan,
)
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.chain_rig import ChainRig, Ran
from tests.builders.pipelines import a_list, numbered, numbers_in
from tests.builders.scripted import PLAIN, Parts, Scripted, ScriptedSource, link, rows

TOO_LONG = 0.04
TINY = SourceBudget(wall_micros=1_000, overrun_micros=19_000)
AMPLE_SECONDS, LONGER = 0.2, 0.3
AMPLE = SourceBudget(wall_micros=100_000, overrun_micros=100_000)
FACTS = {"operator": "read", "subtask": 0, "epoch": 1, "hook": "run"}

Run = Callable[[SourceContext, SourceCollector], Any]


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def read(
    run: Run, budget: SourceBudget = TINY, *, on_close: Any = None, **terms: Any
) -> Ran:
    """Run an epoch of a source and the operator that it feeds."""
    parts = Parts()
    hooks = {} if on_close is None else {"on_close": on_close}
    nodes = [
        parts.node("read", lambda: ScriptedSource("read", run=run, **hooks)),
        parts.node("op", Scripted, PLAIN),
    ]
    rig = ChainRig(parts.registry, nodes, [link("read", "op")])
    assignment = SourceAssignment(splits=(SplitPlan("all"),), budget=budget)
    return rig.run(assignments={"read": assignment}, **terms)


def overrun_of(run: Run, budget: SourceBudget = TINY) -> UserCodeError:
    with pytest.raises(UserCodeError) as raised:
        read(run, budget)
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN
    return raised.value


def emit_for_ever(_: SourceContext, collector: SourceCollector) -> None:
    while True:
        collector.collect(rows(1))


def advance_for_ever(ctx: SourceContext, _: SourceCollector) -> None:
    while True:
        ctx.advance("all", 1)


def return_late(*_: object) -> None:
    spin(TOO_LONG)


def raise_late(*_: object) -> None:
    spin(TOO_LONG)
    raise ExternalError("no answer from the service")


@pytest.mark.parametrize("run", [emit_for_ever, advance_for_ever, return_late, raise_late])
def test_a_source_that_is_too_late_fails_with_an_error_that_names_it(run: Run) -> None:
    error = overrun_of(run)
    assert error.context == FACTS
    assert "source 'read' did not end its epoch" in error.message
    assert "0.02 s" in error.message
    assert "ctx.budget.is_spent" in error.message


def test_a_source_that_returns_in_time_is_left_alone() -> None:
    def run(ctx: SourceContext, collector: SourceCollector) -> SourceFinishType:
        collector.collect(rows(1))
        ctx.advance("all", 1)
        return SourceFinishType.FINAL

    assert read(run, SourceBudget()).reports["read"].rows_taken == 1


def test_what_a_source_raises_in_time_comes_out_as_it_is() -> None:
    def run(*_: object) -> None:
        raise ValueError("no such file")

    with pytest.raises(UserCodeError, match="no such file") as raised:
        read(run, SourceBudget())
    assert raised.value.code is not ErrorCode.SOURCE_OVERRAN


def test_catching_every_exception_does_not_keep_a_source_alive() -> None:
    def stubborn(_: SourceContext, collector: SourceCollector) -> None:
        while True:
            try:
                collector.collect(rows(1))
            except Exception:  # noqa: BLE001, S112 (what many polling loops do)
                continue

    overrun_of(stubborn)


def test_an_overrun_that_is_caught_still_fails_the_epoch() -> None:
    def careless(ctx: SourceContext, collector: SourceCollector) -> SourceFinishType:
        with suppress(BaseException):  # the careless author this is about
            emit_for_ever(ctx, collector)
        return SourceFinishType.FINAL

    overrun_of(careless)


def test_an_overrun_that_is_turned_into_another_error_stays_an_overrun() -> None:
    def blaming(ctx: SourceContext, collector: SourceCollector) -> None:
        try:
            emit_for_ever(ctx, collector)
        except BaseException as error:
            raise ValueError("somebody else did it") from error

    overrun_of(blaming)


def test_a_failure_further_on_is_told_before_an_overrun_that_follows_it() -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such column")

    def stubborn(_: SourceContext, collector: SourceCollector) -> None:
        while True:
            try:
                collector.collect(rows(1))
            except Exception:  # noqa: BLE001, S112 (what many polling loops do)
                continue

    parts = Parts()
    nodes = [
        parts.node("read", lambda: ScriptedSource("read", run=stubborn)),
        parts.node("op", lambda: Scripted(process_batch=fail), PLAIN),
    ]
    rig = ChainRig(parts.registry, nodes, [link("read", "op")])
    assignment = SourceAssignment(splits=(SplitPlan("all"),), budget=TINY)
    with pytest.raises(UserCodeError, match="no such column") as raised:
        rig.run(assignments={"read": assignment})
    assert raised.value.context["operator"] == "op"


def test_hooks_besides_run_have_no_deadline() -> None:
    def close(ctx: SourceContext, *_: object) -> None:
        spin(LONGER)
        ctx.advance("all", 7)

    ran = read(lambda *_: None, AMPLE, on_close=close, is_stop=True)
    assert ran.reports["read"].splits["all"].offset == 7


def test_time_that_is_not_the_sources_does_not_count() -> None:
    deadline = Deadline(AMPLE_SECONDS)
    with deadline.paused():
        spin(LONGER)
    deadline.check()


def test_time_counts_again_after_a_pause() -> None:
    deadline = Deadline(TOO_LONG / 2)
    with deadline.paused():
        pass
    spin(TOO_LONG)
    with pytest.raises(SourceOverrunError):
        deadline.check()


def test_time_counts_again_after_a_pause_that_failed() -> None:
    deadline = Deadline(TOO_LONG / 2)
    with pytest.raises(ValueError, match="further on"), deadline.paused():
        raise ValueError("further on")
    spin(TOO_LONG)
    with pytest.raises(SourceOverrunError):
        deadline.check()


def test_a_deadline_without_a_limit_never_passes() -> None:
    deadline = Deadline()
    with deadline.paused():
        pass
    deadline.check()


class Slow(ArrowOperator):
    """Takes longer over a batch than a source may."""

    def name(self) -> str:
        return "slow"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        spin(LONGER)
        collector.collect(batch)


def test_a_source_is_not_blamed_for_a_slow_operator_behind_it() -> None:
    out = a_list()
    pipeline = Pipeline("job")
    stream = pipeline.read("read", list_source(numbered(1, 2)))
    stream.process("slow", Slow()).write("out", out)
    LocalJob(pipeline, settings=DriverSettings(budget=AMPLE)).run()
    assert numbers_in(out) == [1, 2]
