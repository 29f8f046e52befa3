"""Batches of a query on their way to a job: which may follow, and who waits for whom."""

import threading
from typing import Any

import pytest

from penstock.errors import PenstockError, StateError, UserError
from penstock.runtime.spark.frame_source import FrameStep, NextFrame
from penstock.runtime.spark.handoff import BatchId, Handoff, is_stored_already

FIRST, SECOND = BatchId("q", 7), BatchId("q", 8)
FRAME: Any = object()
"""A handoff passes frames on without looking at them."""


def test_a_job_begins_with_batch_zero_unless_it_is_told_to_begin_late() -> None:
    assert not is_stored_already(BatchId("q", 0), None)
    assert not is_stored_already(FIRST, None, begins_late=True)
    with pytest.raises(StateError, match="rows of earlier ones would be lost") as raised:
        is_stored_already(FIRST, None)
    assert raised.value.context == {"offered": str(FIRST)}


def test_the_stored_batch_is_known_and_the_next_one_may_follow() -> None:
    assert is_stored_already(FIRST, FIRST)
    assert not is_stored_already(SECOND, FIRST)


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (BatchId("q", 9), "given to somebody else"),
        (BatchId("q", 6), "went back further"),
        (BatchId("other", 7), "new id when its own checkpoint is lost"),
        (BatchId("other", 8), "new id when its own checkpoint is lost"),
    ],
)
def test_any_other_batch_is_refused_naming_both(offered: BatchId, reason: str) -> None:
    with pytest.raises(StateError, match=reason) as raised:
        is_stored_already(offered, FIRST)
    assert raised.value.context == {"offered": str(offered), "stored": str(FIRST)}
    assert str(offered) in raised.value.message
    assert str(FIRST) in raised.value.message


class QueryThread:
    """The thread of a query that hands one batch over."""

    def __init__(self, handoff: Handoff, batch: BatchId) -> None:
        self.error: PenstockError | None = None
        self._handoff = handoff
        self._batch = batch
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._handoff.hand_over(self._batch, FRAME)
        except PenstockError as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(timeout=30)
        assert not self._thread.is_alive()


def an_open_handoff() -> tuple[Handoff, threading.Event]:
    handoff, woken = Handoff(begins_late=True), threading.Event()
    handoff.open(woken.set)
    return handoff, woken


def offered_step(handoff: Handoff, woken: threading.Event, stored: Any) -> FrameStep:
    assert woken.wait(timeout=30)
    return handoff.next_step(stored)


def test_a_query_waits_until_its_batch_is_stored() -> None:
    handoff, woken = an_open_handoff()
    assert handoff.next_step(None) is None
    query = QueryThread(handoff, FIRST)
    step = offered_step(handoff, woken, None)
    assert step == NextFrame(FRAME, ["q", 7])
    # An epoch that is run again gets the same batch.
    assert handoff.next_step(None) == step
    handoff.note_stored(BatchId("q", 6))
    assert handoff.next_step(None) == step
    handoff.note_stored(FIRST)
    query.join()
    assert query.error is None
    assert handoff.next_step(["q", 7]) is None


def test_a_batch_that_is_stored_already_is_not_read_again() -> None:
    handoff, woken = an_open_handoff()
    query = QueryThread(handoff, FIRST)
    assert offered_step(handoff, woken, ["q", 7]) is None
    query.join()
    assert query.error is None


def test_a_query_gets_what_ended_the_job() -> None:
    handoff, woken = an_open_handoff()
    query = QueryThread(handoff, FIRST)
    assert woken.wait(timeout=30)
    end = StateError("it went wrong")
    handoff.close(end)
    query.join()
    assert query.error is end
    with pytest.raises(StateError, match="it went wrong"):
        handoff.hand_over(FIRST, FRAME)


def test_two_queries_cannot_feed_one_source_at_once() -> None:
    handoff, woken = an_open_handoff()
    query = QueryThread(handoff, FIRST)
    assert woken.wait(timeout=30)
    with pytest.raises(UserError, match=r"batch 1 of query r .* still reads batch 7"):
        handoff.hand_over(BatchId("r", 1), FRAME)
    handoff.note_stored(FIRST)
    query.join()
    assert query.error is None


def test_a_source_without_a_query_says_how_to_attach_one() -> None:
    with pytest.raises(UserError, match=r"Pipeline\.attach"):
        Handoff().next_step(None)
    with pytest.raises(UserError, match=r"Pipeline\.attach"):
        Handoff().hand_over(FIRST, FRAME)


def test_a_pipeline_is_attached_once_at_a_time() -> None:
    handoff, _ = an_open_handoff()
    with pytest.raises(UserError, match="attached already"):
        handoff.open(lambda: None)
    handoff.close(StateError("over"))
    handoff.open(lambda: None)
    assert handoff.next_step(None) is None
