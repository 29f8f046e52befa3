"""Requests are honoured once, by the driver that owns the job, or wait for the next one."""

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.core.clock import SystemClock
from penstock.core.ids import JobId
from penstock.errors import FencedError, UserCodeError, UserError
from penstock.runtime.driver.decide import JobPhase
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.journal.events import Answer, Event
from penstock.runtime.journal.reading import events_since, find_answer, newest_event
from penstock.runtime.journal.requests import (
    Request,
    Unusable,
    ask,
    is_open,
    new_request,
    open_requests,
    withdraw,
)
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import to_store

JOB = JobId("counts")
SECOND = 1_000_000


def now() -> int:
    return SystemClock().now_micros()


def request(action: str, **fields: object) -> Request:
    return new_request(action, now_micros=now(), **fields)  # type: ignore[arg-type] # as given


def counting() -> pen.Pipeline:
    pipeline = pen.Pipeline("counts")
    numbers = pipeline.read("numbers", pen.impulse(rate=2_000))
    numbers.with_columns(user=pl.col("counter") % 7).key_by("user").aggregate(
        "count", total=pen.count()
    ).write("out", pen.blackhole())
    return pipeline


def await_answer(store: ObjectStore, wanted: Request, seconds: float = 20) -> Answer:
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        found = find_answer(store, JOB, wanted.id, since_micros=wanted.created_at_micros)
        if found is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no answer to {wanted}")


@contextmanager
def running(folder: Path) -> Iterator[tuple[pen.RunningJob, ObjectStore]]:
    store = to_store(str(folder))
    with counting().start_in_process(str(folder)) as job:
        await_until(lambda: job.status.epochs_published > 1)
        yield job, store


def await_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    ends_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_requests_come_back_as_they_were_made_and_oldest_first() -> None:
    store = MemoryStore()
    asked = [request("stop", mode="graceful"), request("savepoint", name="before")]
    for each in reversed(asked):
        ask(store, JOB, each)
    assert list(open_requests(store, JOB)) == asked
    assert list(open_requests(store, JOB, known=frozenset({asked[0].id}))) == asked[1:]
    withdraw(store, JOB, asked[0].id)
    assert not is_open(store, JOB, asked[0].id)
    assert is_open(store, JOB, asked[1].id)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"action": "explode"}, "action"),
        ({"action": "stop", "mode": "later"}, "mode"),
        ({"action": "savepoint"}, "needs a name"),
        ({"action": "stop", "name": "x"}, "needs a name"),
        ({"action": "savepoint", "name": "../x"}, r"\.\./x"),
    ],
)
def test_a_request_that_no_driver_could_honour_is_refused_at_once(
    fields: dict[str, str], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        request(**fields)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "cannot be read"),
        (b'{"format": 2}', "format 2"),
        (b'{"format": 1, "id": "a"}', "cannot be read"),
    ],
)
def test_an_object_that_is_no_request_is_told_apart(data: bytes, problem: str) -> None:
    store = MemoryStore()
    store.put("counts/requests/1-a.json", data)
    store.put("counts/requests/Not A Request", b"")
    (found,) = open_requests(store, JOB)
    assert isinstance(found, Unusable)
    assert problem in found.problem


def test_a_request_in_the_place_of_another_is_unusable() -> None:
    store, asked = MemoryStore(), request("collect")
    ask(store, JOB, asked)
    data = store.read(f"counts/requests/{asked.id}.json")
    assert data is not None
    store.put("counts/requests/0-a.json", data)
    first = next(open_requests(store, JOB))
    assert isinstance(first, Unusable)
    assert asked.id in first.problem


@pytest.mark.parametrize("mode", ["checkpoint", "graceful", "immediate"])
def test_a_job_is_stopped_from_outside(tmp_path: Path, mode: str) -> None:
    with running(tmp_path) as (job, store):
        stop = request("stop", mode=mode)
        ask(store, JOB, stop)
        assert job.wait("20s").phase is JobPhase.STOPPED
        answer = await_answer(store, stop)
    assert answer.is_done
    assert "stopped" in answer.message
    assert not is_open(store, JOB, stop.id)
    newest = newest_event(store, JOB)
    assert newest is not None
    assert newest.status.phase is JobPhase.STOPPED


def test_savepoint_compaction_and_collection_are_answered_while_it_runs(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as (job, store):
        asked = [
            request("savepoint", name="before-deploy"),
            request("compact"),
            request("collect"),
        ]
        for each in asked:
            ask(store, JOB, each)
        answers = [await_answer(store, each) for each in asked]
        assert job.is_running
    assert all(answer.is_done for answer in answers)
    assert "kept as 'before-deploy'" in answers[0].message
    kept = pen.checkpoints(str(tmp_path), "counts").savepoints()
    assert [savepoint.name for savepoint in kept] == ["before-deploy"]
    assert not any(is_open(store, JOB, each.id) for each in asked)


def test_a_savepoint_whose_name_is_taken_is_refused_and_the_job_goes_on(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as (job, store):
        pen.checkpoints(str(tmp_path), "counts").pin("mine")
        epochs = job.status.epochs_published
        await_until(lambda: job.status.epochs_published > epochs)
        again = request("savepoint", name="mine")
        ask(store, JOB, again)
        answer = await_answer(store, again)
        assert job.is_running
    assert not answer.is_done
    assert "mine" in answer.message


def test_a_request_waits_for_a_driver_and_is_honoured_once(tmp_path: Path) -> None:
    store = to_store(str(tmp_path))
    with running(tmp_path):
        pass
    stop = request("stop")
    ask(store, JOB, stop)
    first = counting().start_in_process(str(tmp_path))
    assert first.wait("20s").phase is JobPhase.STOPPED
    assert not is_open(store, JOB, stop.id)
    with counting().start_in_process(str(tmp_path)) as second:
        before = second.status.epochs_run
        await_until(lambda: second.status.epochs_run > before + 2)
        assert second.is_running


def test_a_request_that_has_expired_is_refused(tmp_path: Path) -> None:
    store = to_store(str(tmp_path))
    old = replace(request("stop"), expires_at_micros=now() - SECOND)
    ask(store, JOB, old)
    with running(tmp_path) as (job, _):
        answer = await_answer(store, replace(old, created_at_micros=0))
        assert job.is_running
    assert not answer.is_done
    assert "expired" in answer.message
    assert not is_open(store, JOB, old.id)


def test_nonsense_in_the_folder_is_answered_and_deleted(tmp_path: Path) -> None:
    store = to_store(str(tmp_path))
    store.create("counts/requests/1-a.json", b"{")
    with running(tmp_path) as (job, _):
        await_until(lambda: not is_open(store, JOB, "1-a"))
        assert job.is_running
    answers = [a for event in events_since(store, JOB, 0) for a in event.answers]
    assert [(each.request, each.is_done) for each in answers] == [("1-a", False)]


def test_a_driver_that_was_replaced_leaves_requests_alone(tmp_path: Path) -> None:
    first = counting().start_in_process(str(tmp_path))
    with running(tmp_path) as (second, store):
        stop = request("stop")
        ask(store, JOB, stop)
        assert second.wait("20s").phase is JobPhase.STOPPED
        assert await_answer(store, stop).is_done
    with pytest.raises(FencedError):
        first.wait("20s")


def test_the_journal_of_a_failed_job_has_its_error(tmp_path: Path) -> None:
    def explode(row: dict[str, object]) -> dict[str, object]:
        raise ValueError("password=hunter2 is wrong")

    pipeline = pen.Pipeline("counts")
    numbers = pipeline.read("numbers", pen.impulse(count=10))
    numbers.map(explode).write("out", pen.blackhole())
    with pytest.raises(UserCodeError):
        pipeline.run_in_process(str(tmp_path))
    newest = newest_event(to_store(str(tmp_path)), JOB)
    assert newest is not None
    assert newest.status.phase is JobPhase.FAILED
    (failure,) = newest.failures
    assert failure.error == "UserCodeError"
    assert "explode" in failure.traceback
    assert "hunter2" not in str(newest)


def test_a_preview_leaves_no_journal_and_no_thread() -> None:
    pipeline = pen.Pipeline("counts")
    rows = pipeline.read("numbers", pen.impulse(count=10)).preview(3)
    assert len(rows) == 3
    assert not [each.name for each in threading.enumerate() if "journal" in each.name]


def phases_of(events: list[Event]) -> list[str]:
    return [str(event.status.phase) for event in events]


def test_a_run_to_the_end_of_data_leaves_few_events(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("counts")
    pipeline.read("numbers", pen.impulse(count=1_000)).write("out", pen.blackhole())
    pipeline.run_in_process(str(tmp_path))
    events = events_since(to_store(str(tmp_path)), JOB, 0)
    assert phases_of(events)[-1] == "finished"
    assert 1 <= len(events) <= 4
    assert sum(event.epochs.rows_read for event in events) == 1_000


def test_nothing_of_a_run_outlives_it(tmp_path: Path) -> None:
    drivers: list[weakref.ref[JobDriver]] = []
    pipeline = pen.Pipeline("counts")
    pipeline.read("numbers", pen.impulse(count=10)).write("out", pen.blackhole())
    options = RunOptions(
        checkpoint=str(tmp_path),
        on_driver=lambda driver: drivers.append(weakref.ref(driver)),
    )
    gc.disable()
    try:
        run_in_process(pipeline.graph(), pipeline.registry, options)
        assert drivers[0]() is None, "a circle keeps it, and with it a session of Spark"
    finally:
        gc.enable()
