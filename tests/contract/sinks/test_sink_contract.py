"""What every sink owes its users: each row once, whoever dies, fails, sleeps or comes twice.

Lines that a sink cannot promise are in its `cannot`: there at least nothing may be missing.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

import penstock as pen
from penstock.errors import FencedError, PenstockError
from penstock.operators.operator import ArrowOperator
from penstock.runtime.driver.policies import is_transient
from penstock.runtime.in_process import Chaos
from penstock.testing import Call, CrashError, Fault, FaultMode, assert_job_is_whole
from tests.builders.profile import a_start
from tests.contract.sinks.conftest import MakeSink
from tests.contract.sinks.shipped_sinks import StdoutUnderTest
from tests.contract.sinks.sink_under_test import (
    DEATHS,
    Harm,
    Line,
    SinkJob,
    SinkUnderTest,
    Strike,
    numbers_of,
)

PARALLELISMS = (2, 1, 3)
HARMS = [harm for harm in Harm if harm is not Harm.SLEEPS]
DEATHS_OF_A_STORE = (Fault(FaultMode.CRASH_BEFORE), Fault(FaultMode.CRASH_AFTER))
FAILURES_OF_A_STORE = (
    Fault(FaultMode.FAIL_BEFORE),
    Fault(FaultMode.FAIL_AFTER),
    Fault(FaultMode.LOSE_RESPONSE),
)


def spread(every: list[Any], cases: int) -> Iterator[tuple[int, Any]]:
    """Yield, by number, as many of the cases as wanted, over the whole run.

    Steps have no divisor in common with the number of harms, so that each has its turn.
    """
    step = max(1, len(every) // cases)
    while math.gcd(step, len(HARMS)) > 1:
        step += 1
    # Not from the start, where a job only looks at what is there.
    for number in range(a_start(step) or step // 2, len(every), step):
        yield number, every[number]


def strikes_on(job: SinkJob) -> list[Strike]:
    """Return every harm to every call that an undisturbed run of this job makes."""
    job.run()
    job.sink.settle()
    job.check()
    harms = [harm for harm in job.sink.harms if harm in HARMS]
    return [Strike(harm, at) for at in range(1, job.sink.calls + 1) for harm in harms]


def faults_of(make_sink: MakeSink, kinds: Iterable[Fault]) -> Iterator[tuple[int, Fault]]:
    """Return faults of the calls to the checkpoints that an undisturbed run makes."""
    whole = SinkJob(make_sink())
    whole.run()
    every = [
        replace(kind, at=at) for at in range(1, len(whole.job.calls) + 1) for kind in kinds
    ]
    return spread(every, make_sink().cases)


def test_every_row_is_there_once_at_any_parallelism(make_sink: MakeSink) -> None:
    for parallelism in PARALLELISMS:
        job = SinkJob(make_sink())
        assert job.run(parallelism=parallelism).phase is pen.JobPhase.FINISHED
        job.check()


def test_a_sink_tells_its_users_whether_it_delivers_once(make_sink: MakeSink) -> None:
    job = SinkJob(make_sink())
    sink = job.registry.construct(job.spec).operator
    assert isinstance(sink, ArrowOperator)
    assert (sink.why_at_least_once() is not None) == (Line.ONCE in job.sink.cannot)


def test_whatever_call_is_harmed_every_row_is_there_once(make_sink: MakeSink) -> None:
    strikes = strikes_on(SinkJob(make_sink()))
    for number, strike in spread(strikes, make_sink().cases):
        job = SinkJob(make_sink())
        try:
            job.run(strike=strike)
        except CrashError:
            assert strike.harm in DEATHS
        assert_job_is_whole(job.job.checkpoints)
        job.finish(PARALLELISMS[number % len(PARALLELISMS)])


def test_killed_between_any_two_steps_of_the_job_every_row_is_there_once(
    make_sink: MakeSink,
) -> None:
    """The steps are the calls to the checkpoints: staging, publication, markers of commits."""
    for number, fault in faults_of(make_sink, DEATHS_OF_A_STORE):
        job = SinkJob(make_sink())
        with pytest.raises(CrashError):
            job.run(fault)
        job.finish(PARALLELISMS[number % len(PARALLELISMS)])


def test_whatever_call_to_the_checkpoints_fails_every_row_is_there_once(
    make_sink: MakeSink,
) -> None:
    """Sinks stage beside the checkpoints, too: a call is not made, is made, or nobody knows."""
    for number, fault in faults_of(make_sink, FAILURES_OF_A_STORE):
        job = SinkJob(make_sink())
        failure = failure_of(job, fault)
        assert failure is None or is_transient(failure)
        job.finish(PARALLELISMS[number % len(PARALLELISMS)])


def failure_of(job: SinkJob, fault: Fault) -> PenstockError | None:
    """Run a job, which may fail of the fault."""
    try:
        job.run(fault)
    except PenstockError as error:
        return error
    return None


def test_a_job_that_is_killed_again_and_again_gets_to_its_end(make_sink: MakeSink) -> None:
    job = SinkJob(make_sink())
    if not job.sink.harms:
        pytest.skip("it makes no calls that could be harmed")
    for deaths in range(1, 1_000):
        strike = Strike(DEATHS[deaths % 2], at=deaths)
        try:
            job.run(strike=strike, parallelism=PARALLELISMS[deaths % len(PARALLELISMS)])
            break
        except CrashError:
            job.sink.settle()
    assert deaths > 2
    job.finish()


def test_a_zombie_that_wakes_up_behind_its_successor_changes_nothing(
    make_sink: MakeSink,
) -> None:
    counted = SinkJob(make_sink())
    if Harm.SLEEPS not in counted.sink.harms:
        pytest.skip("it makes no calls that could be slow")
    counted.run()
    for number, at in spread([*range(1, counted.sink.calls + 1)], counted.sink.cases):
        job = SinkJob(make_sink())
        asleep = Strike(
            Harm.SLEEPS,
            at,
            meanwhile=lambda job=job, number=number: job.finish(  # type: ignore[misc]
                PARALLELISMS[number % len(PARALLELISMS)]
            ),
        )
        try:
            job.run(strike=asleep)
        except PenstockError as error:
            assert isinstance(error, FencedError), error  # noqa: PT017 (any other is a bug)
        job.sink.settle()
        job.check()


def test_a_zombie_that_sleeps_between_two_steps_of_the_job_changes_nothing(
    make_sink: MakeSink,
) -> None:
    counted = SinkJob(make_sink())
    counted.run()
    for number, at in spread([*range(1, len(counted.job.calls) + 1)], counted.sink.cases):
        job = SinkJob(make_sink())

        def be_replaced(_: Call, job: SinkJob = job, number: int = number) -> None:
            job.finish(PARALLELISMS[number % len(PARALLELISMS)])

        try:
            job.run(Fault(FaultMode.DELAY, at=at, hook=be_replaced))
        except PenstockError as error:
            assert isinstance(error, FencedError), error  # noqa: PT017 (any other is a bug)
        job.sink.settle()
        job.check()


def test_the_suite_finds_a_sink_that_repeats_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Boastful(StdoutUnderTest):
        cannot: Mapping[Line, str] = {}

    def make() -> SinkUnderTest:
        return Boastful(monkeypatch)

    for broken in (
        test_a_sink_tells_its_users_whether_it_delivers_once,
        test_whatever_call_is_harmed_every_row_is_there_once,
        test_after_a_restore_to_an_older_epoch_every_row_is_there,
    ):
        with pytest.raises(AssertionError):
            broken(make)


def test_parts_of_commits_that_run_twice_change_nothing(make_sink: MakeSink) -> None:
    for seed in range(3):
        job = SinkJob(make_sink(), chaos=Chaos(rate=0.3, seed=seed))
        assert job.run().phase is pen.JobPhase.FINISHED
        job.check()


def test_a_reader_sees_whole_epochs_at_every_moment(make_sink: MakeSink) -> None:
    job = SinkJob(make_sink())
    if Line.WHOLE_EPOCHS in job.sink.cannot or not job.sink.harms:
        pytest.skip(job.sink.cannot.get(Line.WHOLE_EPOCHS, "it makes no calls"))
    seen: set[int] = set()

    def look() -> None:
        found = sorted(row["n"] for row in job.sink.rows())
        epochs = len({n // 100 for n in found})
        assert found == numbers_of(epochs)
        seen.add(epochs)

    job.run(strike=Strike(Harm.SLEEPS, at=None, meanwhile=look))
    job.check()
    assert len(seen) > 1


def test_after_a_restore_to_an_older_epoch_every_row_is_there(make_sink: MakeSink) -> None:
    for epoch in (1, 2):
        job = SinkJob(make_sink())
        job.run()
        assert job.run(restore=epoch).phase is pen.JobPhase.FINISHED
        job.check(Line.RESTORE)


def test_a_restore_is_killed_at_any_call_and_goes_on(make_sink: MakeSink) -> None:
    counted = SinkJob(make_sink())
    if not counted.sink.harms:
        pytest.skip("it makes no calls that could be harmed")
    counted.run()
    counted.run(restore=1)
    every = [Strike(harm, at) for at in range(1, counted.sink.calls + 1) for harm in DEATHS]
    for number, strike in spread(every, counted.sink.cases):
        job = SinkJob(make_sink())
        job.run()
        try:
            job.run(strike=strike, restore=1)
        except CrashError:
            job.sink.settle()
            status = job.run(parallelism=PARALLELISMS[number % len(PARALLELISMS)])
            assert status.phase is pen.JobPhase.FINISHED
        job.check(Line.RESTORE)


def test_two_sinks_of_a_job_share_an_output(make_sink: MakeSink) -> None:
    strikes = strikes_on(SinkJob(make_sink(), has_two=True))
    for number, strike in spread(strikes, max(1, make_sink().cases // 3)):
        job = SinkJob(make_sink(), has_two=True)
        try:
            job.run(strike=strike)
        except CrashError:
            assert strike.harm in DEATHS
        job.finish(PARALLELISMS[number % len(PARALLELISMS)])


def test_two_jobs_write_to_an_output_at_the_same_time(make_sink: MakeSink) -> None:
    counted = SinkJob(make_sink())
    counted.run()
    calls = [*range(1, counted.sink.calls + 1)] if counted.sink.harms else [0]
    for _, at in spread(calls, max(1, counted.sink.cases // 3)):
        sink = make_sink()
        one, other = SinkJob(sink), SinkJob(sink, name="other", step="beside")
        if at:
            one.run(strike=Strike(Harm.SLEEPS, at, meanwhile=other.run))
        else:
            one.run()
            other.run()
        found = sorted(row["n"] for row in sink.rows())
        # Both write the same rows: merged by key they are the same.
        beside = [] if sink.merges else other.expected
        assert found == sorted([*one.expected, *beside])
