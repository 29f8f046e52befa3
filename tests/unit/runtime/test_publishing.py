"""Which epochs count: one that would be lost is published, one that changed nothing is not."""

from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.graph.logical import Exchange, WatermarkSpec
from penstock.operators.context import OperatorContext, SourceCollector, SourceContext
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.session import JobSession
from penstock.state.tables.specs import TimeDomain, global_table
from tests.builders.driven_job import SECOND, DrivenJob, Ledger
from tests.builders.scripted import (
    BY_USER,
    PLAIN,
    Log,
    NumberedSource,
    Scripted,
    ScriptedSource,
    link,
    rows,
)

BY_KEY = link("read", "op", exchange=Exchange.BY_KEY)


def ran(session: JobSession, **options: Any) -> EpochRan:
    outcome = session.run_epoch(**options)
    assert isinstance(outcome, EpochRan)
    return outcome


def a_session(
    source: Any = ScriptedSource, operator: Any = None, **options: Any
) -> JobSession:
    """Return a session of `read ═ op`, after its first epoch: that one always counts."""
    job = DrivenJob()
    sink = (lambda: Scripted("op", is_sink=True)) if operator is None else operator
    job.add("read", source, **options)
    job.add("op", sink, BY_USER)
    job.join(BY_KEY)
    session = job.session()
    assert ran(session).progress.is_published
    return session


def once(*numbers: int) -> Any:
    """Return a source that gives each of the numbers in an epoch of its own, then nothing."""
    left = list(numbers)

    def run(ctx: SourceContext, collector: SourceCollector) -> None:
        if left:
            collector.collect(rows(left.pop(0)))

    return lambda: ScriptedSource(run=run)


def clock_of(session: JobSession) -> Any:
    return session.environment.clock


def test_an_idle_source_uses_no_epoch_numbers() -> None:
    session = a_session()
    for _ in range(3):
        clock_of(session).advance(SECOND)
        epoch = ran(session)
        assert (epoch.progress.epoch, epoch.progress.is_published) == (2, False)
    assert len(session.checkpoints.epochs()) == 1


def test_a_tick_that_does_nothing_does_not_count() -> None:
    log = Log()
    session = a_session(
        operator=lambda: Scripted("op", log, is_sink=True, tick=timedelta(seconds=1))
    )
    for _ in range(3):
        clock_of(session).advance(SECOND)
        assert not ran(session).progress.is_published
    assert log.of("op").count("handle_tick") == 4


def test_a_tick_that_changes_a_table_counts() -> None:
    def note(tick: int, ctx: OperatorContext, *_: object) -> None:
        ctx.get_global_keyed_state("seen").insert("tick", tick)

    session = a_session(
        operator=lambda: Scripted(
            "op",
            is_sink=True,
            tick=timedelta(seconds=1),
            tables=[global_table("seen", str, int)],
            handle_tick=note,
        )
    )
    assert not ran(session).progress.is_published
    clock_of(session).advance(SECOND)
    assert ran(session).progress.is_published


def test_rows_that_only_pass_count_because_the_source_moved() -> None:
    session = a_session(once(1, 2))
    assert ran(session).progress.is_published
    assert not ran(session).progress.is_published


def test_a_watermark_that_moved_counts() -> None:
    spec = WatermarkSpec(idle_timeout_micros=5 * SECOND)
    session = a_session(once(1), watermark=spec)
    assert not ran(session).progress.is_published
    clock_of(session).advance(5 * SECOND)
    became_idle = ran(session)
    assert became_idle.progress.is_published
    assert (
        became_idle.reports[session.environment.graph.nodes[1].operator, 0].inputs[0].idle
    )
    assert not ran(session).progress.is_published


def test_a_timer_that_fired_counts_although_nobody_wrote_anything() -> None:
    fired = Log()

    def set_timer(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ctx.processing_timers.set(batch, ctx.processing_time_micros + SECOND)

    session = a_session(
        once(1),
        lambda: Scripted(
            "op",
            fired,
            is_sink=True,
            timers=[TimeDomain.PROCESSING_TIME],
            process_batch=set_timer,
        ),
    )
    assert not ran(session).progress.is_published
    clock_of(session).advance(SECOND)
    assert ran(session).progress.is_published
    assert not ran(session).progress.is_published
    assert fired.of("op").count("handle_timers") == 1


def test_commit_data_counts_and_is_committed() -> None:
    committed: list[tuple[int, dict[str, dict[int, bytes]]]] = []
    wishes = [b"first", b"second"]

    def stage(barrier: object, ctx: OperatorContext, *_: object) -> None:
        if wishes:
            ctx.insert_committing_data("staged", wishes.pop(0))

    session = a_session(
        operator=lambda: Scripted(
            "op",
            is_sink=True,
            tables=[global_table("staged", str, bytes, uses_two_phase_commit=True)],
            handle_checkpoint=stage,
            handle_commit=lambda epoch, data, ctx: committed.append(
                (int(epoch), {name: dict(parts) for name, parts in data.items()})
            ),
        )
    )
    assert ran(session).progress.is_published
    assert not ran(session).progress.is_published
    assert committed == [(1, {"staged": {0: b"first"}}), (2, {"staged": {0: b"second"}})]


def test_a_stop_that_changes_nothing_publishes_nothing() -> None:
    session = a_session()
    for mode in (StopMode.CHECKPOINT, StopMode.GRACEFUL):
        assert not ran(session, stop=mode).progress.is_published


def test_epochs_that_do_not_count_still_move_the_jobs_clock() -> None:
    session = a_session()
    moments = [ran(session).progress.processing_time_micros for _ in range(4)]
    assert moments == sorted(set(moments))


def test_an_ended_source_rests_while_another_goes_on() -> None:
    job, ledger = DrivenJob(), Ledger()
    log = Log()
    job.add("short", lambda: NumberedSource({"a": range(2)}, label="short", log=log))
    job.add("long", lambda: NumberedSource({"b": range(10, 20)}, label="long", log=log))
    job.add("both", ledger.sink, PLAIN, PLAIN)
    by_turns = Exchange.REBALANCE
    job.join(
        link("short", "both", exchange=by_turns),
        link("long", "both", index=1, exchange=by_turns),
    )
    status = job.run()
    assert status.phase == "finished"
    assert sorted(ledger.numbers) == [0, 1, *range(10, 20)]
    assert log.of("short").count("run") == 1
    assert log.of("short").count("on_close") == 1
