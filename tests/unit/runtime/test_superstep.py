"""One task: what it sends, what it reports, and what becomes of failures at any point of it."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.core.ids import Token
from penstock.core.watermark import EventTime
from penstock.errors import StorageError, UserCodeError
from penstock.graph.logical import Exchange
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.plan.physical import compile_graph
from penstock.runtime.task.exchange import Attempt, Mailbox, Outlet
from penstock.runtime.task.wire import RecordKind, decode_barrier
from tests.builders.driven_job import DrivenJob
from tests.builders.graphs import CLICKS, a_graph
from tests.builders.scripted import PLAIN, Log, NumberedSource, Scripted, link

BY_TURNS = Exchange.REBALANCE


def an_outlet() -> tuple[Outlet, Mailbox]:
    plan = compile_graph(a_graph("a -b> b", parallelism={"b": 2}))
    mailbox = Mailbox(plan, Attempt(0, 0, Token("a" * 32)))
    edge = plan.exchanges[0]
    return Outlet(edge, plan.chains[1], mailbox, subtask=0, first_turn=0), mailbox


def some_clicks(*pages: int) -> pa.RecordBatch:
    listed = [{"user": "u", "page": page, "at": page} for page in pages]
    return pa.RecordBatch.from_pylist(listed, schema=CLICKS.arrow)


def test_small_batches_for_one_consumer_leave_together_behind_them_the_barrier() -> None:
    outlet, mailbox = an_outlet()
    outlet.take(some_clicks(1))
    outlet.take(some_clicks(2))
    outlet.finish(EventTime(3))
    records = list(mailbox.drain())
    assert [record.kind for record in records] == [RecordKind.DATA, RecordKind.BARRIER] * 2
    barrier = decode_barrier(records[1].payload)
    assert (barrier.record_count, barrier.is_aborted) == (1, False)
    assert barrier.watermark == EventTime(3)


def test_consumers_without_rows_hear_of_the_barrier_too() -> None:
    outlet, mailbox = an_outlet()
    outlet.finish(None)
    assert [record.route for record in mailbox.drain()] == [0, 1]


def test_an_outlet_that_has_ended_does_not_abort_as_well() -> None:
    outlet, mailbox = an_outlet()
    outlet.finish(None)
    outlet.abort()
    assert [record.route for record in mailbox.drain()] == [0, 1]


def a_job(operator: Any, *, log: Log | None = None) -> DrivenJob:
    """Return read ═ op ═ write: three levels, `op` in the middle."""
    job = DrivenJob()
    job.add("read", lambda: NumberedSource({"s": range(4)}))
    job.add("op", operator, PLAIN)
    job.add("write", lambda: Scripted("write", log, is_sink=True), PLAIN)
    job.join(link("read", "op", exchange=BY_TURNS), link("op", "write", exchange=BY_TURNS))
    return job


def test_a_failure_skips_the_levels_behind_it() -> None:
    log = Log()

    def fail(*_: object) -> None:
        raise ValueError("no")

    session = a_job(lambda: Scripted(process_batch=fail), log=log).session()
    with pytest.raises(UserCodeError, match="operator 'op' raised ValueError"):
        session.run_epoch()
    assert "handle_checkpoint" not in log.of("write")


def test_a_failure_of_storage_is_raised_and_the_session_stays_usable() -> None:
    failures = [StorageError("no answer")]

    def fail(*_: object) -> None:
        if failures:
            raise failures.pop()

    session = a_job(lambda: Scripted(handle_checkpoint=fail)).session()
    with pytest.raises(StorageError, match="no answer"):
        session.run_epoch()
    ran = session.run_epoch()
    assert isinstance(ran, EpochRan)
    assert ran.progress.is_published
    assert ran.progress.epoch == 1


def test_operators_are_remembered_between_epochs_and_forgotten_after_a_failure() -> None:
    log, failures = Log(), [None, ValueError("no")]

    def fail(*_: object) -> None:
        if failures and (failure := failures.pop(0)) is not None:
            raise failure

    session = a_job(lambda: Scripted("op", log, handle_checkpoint=fail)).session()
    session.run_epoch()
    assert log.take_of("op")[0] == "on_start"
    with pytest.raises(UserCodeError):
        session.run_epoch()
    assert log.take_of("op") == [
        "process_batch",
        "handle_watermark",
        "handle_checkpoint",
        "release",
    ]
    session.run_epoch()
    assert log.take_of("op")[0] == "on_start"
