"""The journal has one event every ten seconds, one at each change, and never stops a job."""

import threading
from collections.abc import Sequence

import pytest

from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, Generation, JobId, Token
from penstock.runtime.driver.decide import JobPhase, JobStatus, OperatorStatus
from penstock.runtime.driver.progress import EpochPhase, EpochProgress, RowSample
from penstock.runtime.journal.events import Answer, DriverPlace, Event, EventKind
from penstock.runtime.journal.gathering import Gathered
from penstock.runtime.journal.reading import (
    events_backwards,
    events_since,
    find_answer,
    newest_event,
)
from penstock.runtime.journal.writer import JournalWriter
from penstock.state.protocol.codec import encode
from penstock.state.protocol.paths import claim_path, event_path
from penstock.state.protocol.records import ClaimRecord
from penstock.state.storage.memory import MemoryStore
from penstock.testing.faults import Fault, FaultMode, FaultyStore

SECOND = 1_000_000
HOUR = 3_600 * SECOND
JOB = JobId("shop")


class Rig:
    """A writer over a store in memory, by a clock that tests move."""

    def __init__(self, *faults: Fault, keep_micros: int = HOUR) -> None:
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory, *faults)
        self.clock = ManualClock(1_000 * SECOND)
        self.keep_micros = keep_micros
        self.begin(1)

    def begin(self, generation: int) -> None:
        """Start another driver."""
        claim = ClaimRecord(
            JOB, Generation(generation), Token("0" * 32), 1, first_epoch=Epoch(1)
        )
        self.memory.put(claim_path(JOB, generation), encode(claim))
        self.gathered = Gathered(DriverPlace("host", 1, "0", self.clock.micros))
        self.writer = JournalWriter(
            *(self.store, JOB, self.gathered, self.clock),
            keep_micros=self.keep_micros,
            lock=threading.Lock(),
        )
        self.say(JobPhase.STARTING, generation)

    def say(self, phase: JobPhase, generation: int | None = 1, rows: int = 0) -> None:
        operators = (OperatorStatus("count", "process", 1, rows),)
        self.gathered.status = JobStatus(
            "shop", phase, generation=generation, operators=operators
        )

    def after(self, seconds: float) -> None:
        self.clock.advance(int(seconds * SECOND))
        self.writer.write_due()

    @property
    def events(self) -> Sequence[Event]:
        return events_since(self.memory, JOB, 0)


def test_nothing_is_written_before_the_claim() -> None:
    rig = Rig()
    rig.say(JobPhase.STARTING, generation=None)
    rig.after(60)
    assert rig.writer.due_micros() is None
    assert rig.events == []


def test_a_change_of_state_is_written_at_once_and_the_rest_every_ten_seconds() -> None:
    rig = Rig()
    rig.after(0)
    rig.say(JobPhase.RUNNING)
    for _ in range(25):
        rig.after(1)
    rig.say(JobPhase.STOPPING)
    rig.after(0.1)
    rig.say(JobPhase.STOPPED)
    rig.after(0.1)
    assert [(each.kind, each.status.phase) for each in rig.events] == [
        (EventKind.STATE, JobPhase.STARTING),
        (EventKind.STATE, JobPhase.RUNNING),
        (EventKind.STATUS, JobPhase.RUNNING),
        (EventKind.STATUS, JobPhase.RUNNING),
        (EventKind.STATE, JobPhase.STOPPING),
        (EventKind.STATE, JobPhase.STOPPED),
    ]
    assert [each.number for each in rig.events] == [1, 2, 3, 4, 5, 6]


def test_running_and_waiting_are_one_state() -> None:
    rig = Rig()
    rig.say(JobPhase.RUNNING)
    rig.after(0)
    for phase in (JobPhase.WAITING, JobPhase.RUNNING) * 4:
        rig.say(phase)
        rig.after(1)
    assert len(rig.events) == 1


def test_an_answer_does_not_wait() -> None:
    rig = Rig()
    rig.after(0)
    rig.gathered.note_answer(Answer("1-a", "stop", True, "stopped"))
    told = [rig.writer.has_told_all]
    rig.after(0.1)
    assert [*told, rig.writer.has_told_all] == [False, True]
    assert rig.events[-1].kind is EventKind.ANSWER
    found = find_answer(rig.memory, JOB, "1-a", since_micros=0)
    assert found == Answer("1-a", "stop", True, "stopped")
    assert find_answer(rig.memory, JOB, "2-b", since_micros=0) is None


def epoch(number: int, micros: int) -> EpochProgress:
    return EpochProgress(
        *(number, True, 0, micros, 10, 100, 1_000, 0),
        phases={EpochPhase.RUN: micros - 1, EpochPhase.COMMIT: 1},
        rows_by_subtask={"count": (7, 3)},
        samples=(RowSample("count", "late", (f"row {number}",)),),
    )


def test_the_epochs_between_two_events_are_summed_up_once() -> None:
    rig = Rig()
    rig.after(0)
    for number, micros in ((1, 50), (2, 70), (3, 20)):
        rig.gathered.note_epoch(epoch(number, micros))
    rig.after(10)
    rig.after(10)
    told, after = rig.events[1:]
    assert (told.epochs.count, told.epochs.rows_read) == (3, 30)
    assert (told.epochs.duration_micros, told.epochs.longest_micros) == (140, 70)
    assert told.epochs.phases == {EpochPhase.RUN: 137, EpochPhase.COMMIT: 3}
    assert told.rows_by_subtask == {"count": (21, 9)}
    assert told.samples == (RowSample("count", "late", ("row 1", "row 2", "row 3")),)
    assert (after.epochs.count, after.samples) == (0, ())


def test_a_rate_is_of_some_seconds_even_if_events_follow_each_other() -> None:
    rig = Rig()
    rig.after(0)
    rig.say(JobPhase.RUNNING, rows=1_000)
    rig.after(10)
    rig.say(JobPhase.STOPPING, rows=1_100)
    rig.after(0.01)
    first, second = rig.events[1:]
    assert first.rates == {"count": 100.0}
    assert second.rates["count"] == pytest.approx(10_000)
    rig.say(JobPhase.STOPPED, rows=1_100)
    rig.after(9.99)
    assert rig.events[-1].rates == {"count": 10.0}


def test_failures_of_one_kind_are_counted_and_hold_no_password() -> None:
    rig = Rig()
    rig.after(0)
    for _ in range(3):
        error = ValueError("no answer: host=db password=hunter2")
        rig.gathered.note_failure(error, is_retried=True, now_micros=rig.clock.micros)
        rig.clock.advance(SECOND)
    rig.say(JobPhase.RESTARTING)
    rig.after(1)
    (failure,) = rig.events[-1].failures
    assert (failure.error, failure.count, failure.is_retried) == ("ValueError", 3, True)
    assert failure.last_at_micros - failure.first_at_micros == 2 * SECOND
    assert "ValueError" in failure.traceback
    assert "hunter2" not in failure.message + failure.traceback


@pytest.mark.parametrize(
    "mode", [FaultMode.FAIL_BEFORE, FaultMode.FAIL_AFTER, FaultMode.LOSE_RESPONSE]
)
def test_an_event_whose_write_fails_comes_later_under_the_same_number(
    mode: FaultMode, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(Fault(mode, at=None, operation="create"))
    rig.after(0)
    rig.gathered.note_epoch(epoch(1, 50))
    for _ in range(30):
        rig.after(1)
    assert [record.levelname for record in caplog.records].count("WARNING") <= 1
    rig.writer._store = rig.memory  # it works again
    for _ in range(30):
        rig.after(1)
    assert [each.number for each in rig.events] == [*range(1, len(rig.events) + 1)]
    assert sum(each.epochs.count for each in rig.events) == 1


def test_old_events_are_deleted_but_the_newest_is_found() -> None:
    rig = Rig(keep_micros=60 * SECOND)
    for _ in range(1_200):
        rig.after(10)
    numbers = [each.number for each in rig.events]
    assert numbers[-1] == 1_200
    left = [info.path for info in rig.memory.list("shop/events")]
    assert event_path(JOB, 1, 1) in left
    assert event_path(JOB, 1, 500) not in left
    assert event_path(JOB, 1, 1_025) in left
    assert len(left) < 520
    newest = newest_event(rig.memory, JOB)
    assert newest is not None
    assert newest.number == 1_200


def test_the_next_driver_deletes_generations_that_are_too_old() -> None:
    rig = Rig(keep_micros=60 * SECOND)
    rig.after(0)
    rig.begin(2)
    rig.after(30)
    assert [each.generation for each in rig.events] == [1, 2]
    rig.clock.advance(50 * SECOND)
    rig.begin(3)
    rig.after(0)
    assert [each.generation for each in rig.events] == [2, 3]


def test_generations_without_events_are_passed_over() -> None:
    rig = Rig()
    rig.after(0)
    for generation in (2, 3, 4):
        rig.begin(generation)  # each died before its first event
    assert [each.generation for each in events_backwards(rig.memory, JOB)] == [1]


def test_a_job_that_is_unknown_has_no_events() -> None:
    assert newest_event(MemoryStore(), JOB) is None
