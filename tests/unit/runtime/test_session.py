"""One claim of a job: what it starts from, what it may not harm, and when the job is finished."""

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.core.ids import Epoch, SavepointName
from penstock.core.watermark import EndOfData
from penstock.errors import PenstockError
from penstock.graph.logical import Exchange, WatermarkSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.splits import SourcePlan, SplitPlan, SplitState
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.driver.outcomes import EpochRan, Torn
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import Chaos, InProcessExecutor, Mischief
from penstock.state.protocol.retention import Epochs
from penstock.testing import assert_nothing_was_changed, stored_objects
from tests.builders.driven_job import SECOND, DrivenJob, Ledger
from tests.builders.scripted import (
    PLAIN,
    Log,
    NumberedSource,
    Scripted,
    ScriptedSource,
    link,
    rows,
)

BY_TURNS = Exchange.REBALANCE


def a_job(ledger: Ledger | None = None) -> DrivenJob:
    job = DrivenJob()
    job.read_and_write(
        lambda: NumberedSource({"s": range(6)}),
        (ledger or Ledger()).sink,
        link("read", "write", exchange=BY_TURNS),
    )
    return job


@pytest.mark.parametrize(
    "which", [Epochs(Epoch(77)), Epochs(savepoint=SavepointName("never"))]
)
def test_a_restore_of_what_is_not_there_is_refused_and_changes_nothing(
    which: Epochs,
) -> None:
    job = a_job()
    job.run()
    before = stored_objects(job.store)
    with pytest.raises(PenstockError):
        job.run(restore=which)
    assert_nothing_was_changed(before, job.store)


def test_epochs_number_on_over_claims_and_generations_grow() -> None:
    job = a_job()
    first = job.session()
    first.run_epoch()
    second = job.session()
    ran = second.run_epoch()
    assert isinstance(ran, EpochRan)
    assert (first.claim.generation, second.claim.generation, ran.progress.epoch) == (
        1,
        2,
        2,
    )


def test_processing_time_never_goes_back_even_if_the_clock_does() -> None:
    job = a_job()
    moments = []
    for start in (50 * SECOND, 20 * SECOND, 30 * SECOND):
        job.clock.micros = start
        ran = job.session().run_epoch()
        assert isinstance(ran, EpochRan)
        moments.append(ran.progress.processing_time_micros)
    assert moments == [50 * SECOND, 50 * SECOND + 1, 50 * SECOND + 2]


def torn_session(job: DrivenJob) -> JobSession:
    session = job.session()
    executor = session.environment.executor
    assert isinstance(executor, InProcessExecutor)
    executor.chaos = Chaos(1.0, seed=3, kinds=(Mischief.LOSE,))
    return session


def test_a_torn_epoch_publishes_nothing_and_can_be_run_again() -> None:
    job = a_job()
    session = torn_session(job)
    assert isinstance(session.run_epoch(), Torn)
    assert job.checkpoints.newest() is None
    executor = session.environment.executor
    assert isinstance(executor, InProcessExecutor)
    executor.chaos = Chaos()
    ran = session.run_epoch()
    assert isinstance(ran, EpochRan)
    assert (ran.progress.epoch, ran.progress.is_published) == (1, True)


def test_an_idle_source_beside_an_ended_one_may_still_wake_up() -> None:
    """Its silence is no end: what it reads later is not lost."""
    ledger, closed = Ledger(), Log()
    job = DrivenJob()
    read: list[int] = []

    def wake_up(ctx: SourceContext, collector: SourceCollector) -> None:
        # At first, then not until long after it became idle.
        if len(read) == 0 or ctx.processing_time_micros >= 60 * SECOND:
            collector.collect(rows(100 + len(read)))
            read.append(1)
        if len(read) == 3:
            ctx.end_split("all")

    def note(final: object, *_: object) -> None:
        closed.note("write", type(final).__name__)

    job.add("short", lambda: NumberedSource({"s": range(2)}), watermark=WatermarkSpec())
    job.add(
        "slow",
        lambda: ScriptedSource("slow", run=wake_up),
        watermark=WatermarkSpec(idle_timeout_micros=5 * SECOND),
    )
    job.add("write", lambda: ledger.sink(on_close=note), PLAIN, PLAIN)
    job.join(
        link("short", "write", exchange=BY_TURNS),
        link("slow", "write", index=1, exchange=BY_TURNS),
    )
    assert job.run().phase is JobPhase.FINISHED
    assert sorted(ledger.numbers) == [0, 1, 100, 101, 102]
    assert closed.calls == [("write", EndOfData.__name__)]


def test_a_source_may_grow_for_ever_without_the_job_being_finished() -> None:
    def plan(known: Mapping[str, SplitState], *_: Any) -> SourcePlan:
        ended = known.get("a", SplitState()).ended
        return SourcePlan(() if ended else (SplitPlan("a"),), is_complete=False)

    job = DrivenJob()
    job.read_and_write(
        lambda: ScriptedSource(plan_splits=plan, run=lambda ctx, _: ctx.end_split("a")),
        lambda: Scripted("write", is_sink=True),
        link("read", "write", exchange=BY_TURNS),
    )
    session = job.session()
    for _ in range(4):
        session.run_epoch()
    assert not session.is_finished


class Socket(NumberedSource):
    """Reads what nobody can read again."""

    def is_rewindable(self) -> bool:
        return False


def test_a_source_that_cannot_be_read_again_is_warned_of_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job()
    job.session()
    assert "at most once" not in caplog.text
    job.add("read", lambda: Socket({"s": range(6)}))
    job.session()
    assert "source 'read' of job job cannot be read again" in caplog.text
    assert "processed at most once" in caplog.text


class Repeating(Scripted):
    """A sink that cannot know whether its rows have arrived."""

    def why_at_least_once(self) -> str:
        return "nobody can look up what was sent"


def test_a_sink_that_may_deliver_twice_is_warned_of_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_job()
    job.session()
    assert "at least once" not in caplog.text
    job = DrivenJob()
    job.read_and_write(
        lambda: NumberedSource({"s": range(6)}),
        lambda: Repeating("write", is_sink=True),
        link("read", "write", exchange=BY_TURNS),
    )
    job.session()
    assert (
        "sink 'write' of job job delivers at least once: nobody can look up what was sent"
    ) in caplog.text
