"""Whose time it is: what a source's rows cost further on is not the source's."""

import time

import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.errors import ErrorCode, UserCodeError
from penstock.operators.collector import ArrowCollector, call_within, not_counted
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.local_jobs import a_list, numbered, numbers_in

FOREVER = 60.0
LIMIT = 0.2
LONGER = 0.3


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_an_interruption_that_is_caught_is_told_when_the_function_returns() -> None:
    def careless() -> str:
        try:
            spin(FOREVER)
        except BaseException:  # noqa: BLE001 (the careless author this is about)
            return "as if nothing had happened"
        return "done"

    with pytest.raises(UserCodeError) as raised:
        call_within(0.02, "read", careless)
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN


def test_time_that_is_not_the_sources_does_not_count() -> None:
    def run() -> str:
        not_counted(lambda: spin(LONGER))
        return "done"

    assert call_within(LIMIT, "read", run) == "done"


def test_time_counts_again_after_a_pause() -> None:
    def run() -> None:
        not_counted(lambda: None)
        spin(FOREVER)

    with pytest.raises(UserCodeError) as raised:
        call_within(0.05, "read", run)
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN


def test_time_counts_again_after_a_pause_that_failed() -> None:
    def fail() -> None:
        raise ValueError("further on")

    def run() -> None:
        with pytest.raises(ValueError, match="further on"):
            not_counted(fail)
        spin(FOREVER)

    with pytest.raises(UserCodeError) as raised:
        call_within(0.05, "read", run)
    assert raised.value.code is ErrorCode.SOURCE_OVERRAN


def test_a_pause_without_a_limit_is_only_a_call() -> None:
    calls: list[str] = []
    not_counted(lambda: calls.append("called"))
    assert calls == ["called"]


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
    read = pipeline.read("read", list_source(numbered(1, 2)))
    read.process("slow", Slow()).write("out", out)
    budget = SourceBudget(wall_micros=100_000, overrun_micros=100_000)
    LocalJob(pipeline, settings=DriverSettings(budget=budget)).run()
    assert numbers_in(out) == [1, 2]
