"""JobDriver: the loop that runs a job. It takes each next action from `decide`.

    driver = JobDriver(environment)
    status = driver.run()              until the data ends, a stop, or a failure that stays
    driver.request_stop(StopMode…)     from another thread or a signal handler
    driver.wake_up()                   from another thread that has data for a source

Every restart, also in one process, is a new session: it claims a new generation and goes on
from the last acknowledged epoch, whatever the failed session left behind.

The driver counts what happens to the job, and publishes immutable values of its status.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from penstock.errors import ErrorCode, FencedError, PenstockError, StorageError
from penstock.operators.operator import SourceFinishType
from penstock.runtime.driver.decide import (
    Action,
    AskSources,
    Facts,
    Finish,
    JobPhase,
    JobStatus,
    Restart,
    RunEpoch,
    StopMode,
    Wait,
    next_action,
)
from penstock.runtime.driver.environment import (
    ClockPacer,
    JobEnvironment,
    Pacer,
)
from penstock.runtime.driver.listening import JobListener, Listeners
from penstock.runtime.driver.operator_totals import OperatorTotals
from penstock.runtime.driver.outcomes import EpochLost, EpochRan, EpochSkipped, Torn
from penstock.runtime.driver.policies import decide_restart, is_transient
from penstock.runtime.driver.publish import JobState
from penstock.runtime.driver.session import JobSession
from penstock.runtime.driver.signals import StoppedNow
from penstock.runtime.driver.start import (
    find_finished,
    prepare_restore,
    warn_of_running,
)
from penstock.state.protocol.records import CheckpointManifest, ClaimRecord
from penstock.state.protocol.retention import Epochs

_log = logging.getLogger(__name__)


class JobDriver:
    """Owns a job until a newer driver claims it. Used by one thread, except to stop or wake it."""

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        pacer: Pacer | None = None,
        listeners: Sequence[JobListener] = (),
        on_epoch: Callable[[EpochRan], None] | None = None,
    ) -> None:
        self._environment = environment
        self._listeners = Listeners(str(environment.graph.job), listeners)
        self._on_epoch = on_epoch
        self._pacer = pacer or ClockPacer(environment.clock)
        self.status = JobStatus(str(environment.graph.job), JobPhase.STARTING)
        """What the job is doing now; an immutable value."""
        self._totals = OperatorTotals(environment.graph)
        self._session: JobSession | None = None
        self._stop: StopMode | None = None
        self._has_stopped = False
        self._is_woken = False
        self._asked_micros: int | None = None
        self._skipped_micros: int | None = None
        """When the last epoch was skipped, if one was since the last that ran."""
        self._failures = 0
        self._torn_in_a_row = 0
        self._retry_at_micros: int | None = None
        self._last: EpochRan | None = None
        self._last_started_micros = 0
        self._restore: Epochs | None = None
        self._finished: CheckpointManifest | None = None
        self._has_looked = False
        """Whether it was looked for other drivers, before the first claim."""

    def request_stop(self, mode: StopMode = StopMode.CHECKPOINT) -> None:
        """Request a stop; a later, more urgent request replaces an earlier one."""
        if self._stop is not StopMode.IMMEDIATE:
            self._stop = mode
        if mode is StopMode.IMMEDIATE:
            self._environment.executor.cancel()
        self._pacer.interrupt()

    def add_listener(self, listener: JobListener) -> None:
        """Have another listener hear of the job from now on."""
        self._listeners.add(listener)

    @property
    def claim(self) -> ClaimRecord | None:
        """The claim under which it runs; None before the first."""
        return None if self._session is None else self._session.claim

    def ask_compaction(self, on_done: Callable[[int], None]) -> None:
        """Request that every table be merged as far as possible, while epochs go on.

        `on_done` is called with the number of merges, once, by the driver's thread. After a
        restart it must be asked again.
        """
        if self._session is not None:
            self._session.compactions.ask(on_done)
            self.wake_up()

    def wake_up(self) -> None:
        """Request an epoch at once, because there is data that no source can poll for."""
        self._is_woken = True
        self._pacer.interrupt()

    def run(self, *, restore: Epochs | None = None) -> JobStatus:
        """Run the job until it ends; raise a failure that it cannot recover from.

        `restore` goes back to an epoch or savepoint first.
        """
        self._restore = restore
        try:
            return self._run_to_end()
        finally:
            self._listeners.end()

    def _run_to_end(self) -> JobStatus:
        action: Action
        try:
            if self._stop is None:
                self._restart()
            while not isinstance(action := next_action(self._facts()), Finish):
                self._carry_out(action)
        except StoppedNow:
            action = Finish(JobPhase.STOPPED)
        except Exception as error:
            phase = JobPhase.FENCED if isinstance(error, FencedError) else JobPhase.FAILED
            self._listeners.tell("on_failure", error, is_retried=False)
            self._update(phase=phase, error=str(error))
            raise
        finally:
            self._close()
        self._update(phase=action.phase)
        return self.status

    def _close(self) -> None:
        """Close everything, whatever fails: instances of operators hold connections."""
        environment = self._environment
        with ExitStack() as closing:
            closing.callback(environment.executor.close)
            if self._session is not None:
                closing.callback(self._session.leave)  # when nothing of it works any more
            closing.callback(environment.side_work.close)
            if self._session is not None:
                closing.callback(self._session.close)

    def _carry_out(self, action: RunEpoch | Wait | AskSources | Restart) -> None:
        match action:
            case RunEpoch(stop):
                self._attempt(lambda: self._run_epoch(stop))
            case Wait(until, phase):
                self._update(phase=phase, next_wake_up_micros=until)
                self._pacer.wait_until(until)
            case AskSources():
                self._attempt(self._ask_sources)
            case Restart():
                self._retry_at_micros = None
                self._restart()

    def _restart(self) -> None:
        self._last = None
        self._update(phase=JobPhase.STARTING)
        self._attempt(self._start)

    def _start(self) -> None:
        self._restore = prepare_restore(self._environment, self._restore)
        if self._restore is None:
            self._finished = find_finished(self._environment)
        if self._finished is not None:
            self._update(epoch=int(self._finished.ref.epoch))
            return
        self._environment.side_work.settle()
        if self._session is not None:
            # A driver that was replaced after its failure must not take the job back.
            self._session.check_ownership()
            self._session.close()
        self._environment.executor.recover()
        if not self._has_looked:
            warn_of_running(self._environment)
            self._has_looked = True
        limit = self._environment.settings.restarts.max_restarts
        session = JobSession.start(
            self._environment,
            restore=self._restore,
            is_last_attempt=self._failures >= limit,
        )
        # The claim holds the restore from here on: another one would abandon new epochs.
        self._restore = None
        self._session = session
        generation = int(session.claim.generation)
        self._update(generation=generation, epoch=_epoch_of(session.state))

    def _run_epoch(self, stop: StopMode | None) -> None:
        session = self._session
        assert session is not None  # noqa: S101 (facts only lead here with one)
        self._last_started_micros = now = self._environment.clock.now_micros()
        idle = None
        if stop is None and not self._is_woken and _is_idle(self._last, now):
            idle = self._last
        # Reset before the plan is made: a later `wake_up` may be too late for this plan.
        self._is_woken = False
        self._asked_micros = None
        if idle is None:
            phase = JobPhase.RUNNING if stop is None else JobPhase.STOPPING
            self._update(phase=phase)
        outcome = session.run_epoch(
            stop=stop, idle_as=None if idle is None else idle.reading
        )
        self._skipped_micros = None
        match outcome:
            case EpochSkipped():
                self._failures = 0
                self._skipped_micros = now
            case EpochRan():
                self._note(outcome, session, stop)
            case Torn(reason):
                self._note_torn(reason)
            case EpochLost(winner):
                _log.warning("lost epoch to %s: taking the job over again", winner)
                self._restart()

    def _ask_sources(self) -> None:
        """Have an epoch run at once if so much waits at a source that the trigger asks for it."""
        trigger, session = self._environment.settings.trigger, self._session
        self._asked_micros = now = self._environment.clock.now_micros()
        assert trigger is not None and session is not None  # noqa: S101, PT018 (facts say so)
        if session.planner.has_waiting(
            rows=trigger.rows, size_bytes=trigger.size_bytes, now_micros=now
        ):
            self._is_woken = True

    def _note_torn(self, reason: str) -> None:
        """Have the torn epoch run again; it is a failure after `torn_limit` runs in a row."""
        self._update(torn_epochs=self.status.torn_epochs + 1)
        self._torn_in_a_row += 1
        job = str(self._environment.graph.job)
        error = StorageError(
            f"an epoch of job {job!r} did not hold together: {reason}. Nothing of it was "
            "published",
            code=ErrorCode.TORN_EPOCH,
            job=job,
        )
        if self._torn_in_a_row > self._environment.settings.torn_limit:
            self._torn_in_a_row = 0
            raise error
        _log.warning("%s. It is run again", error)
        self._last = None

    def _note(self, ran: EpochRan, session: JobSession, stop: StopMode | None) -> None:
        """Note an epoch that counts."""
        self._failures = self._torn_in_a_row = 0
        self._last = ran
        self._has_stopped = stop is not None
        if ran.finish is SourceFinishType.IMMEDIATE:
            self._stop = StopMode.IMMEDIATE
        elif ran.finish is SourceFinishType.GRACEFUL and self._stop is None:
            self._stop = StopMode.GRACEFUL
        self._totals.note(ran)
        status = self.status
        self._update(
            epoch=_epoch_of(session.state),
            epochs_run=status.epochs_run + 1,
            epochs_published=status.epochs_published + ran.progress.is_published,
            rows_read=status.rows_read + ran.progress.rows_read,
            last=ran.progress,
            operators=tuple(self._totals.statuses(ran, session)),
            error=None,
        )
        if self._environment.settings.warns_of_dropped_rows:
            self._totals.warn_of_dropped_rows(self.status.job, self.status.operators)
        self._listeners.tell("on_epoch", ran.progress)
        if self._on_epoch is not None:
            self._on_epoch(ran)

    def _update(self, **changes: Any) -> None:
        """Change some fields of the status and publish it; a time to wake up lasts until then."""
        self.status = replace(self.status, **{"next_wake_up_micros": None, **changes})
        self._listeners.tell("on_status", self.status)

    def _attempt(self, step: Callable[[], None]) -> None:
        """Do a step; after a failure that may pass retry later, raise any other."""
        try:
            step()
        except PenstockError as error:
            if self._stop is StopMode.IMMEDIATE and is_transient(error):
                return  # the stop itself, most likely: the engine gave the epoch up
            self._failures += 1
            policy = self._environment.settings.restarts
            delay_micros = decide_restart(error, self._failures, policy)
            if delay_micros is None:
                raise
            then = f"trying again in {delay_micros / 1_000_000:.1f} s"
            if self._stop is not None:
                then = "the job stops without it: what it has not published comes again"
            _log.warning("attempt %d failed, %s: %s", self._failures, then, error)
            now = self._environment.clock.now_micros()
            self._retry_at_micros = now + delay_micros
            self._listeners.tell("on_failure", error, is_retried=True)
            self._update(restarts=self.status.restarts + 1, error=str(error))

    def _facts(self) -> Facts:
        session, last = self._session, self._last
        settings = self._environment.settings
        now = self._environment.clock.now_micros()
        trigger = settings.trigger
        distance = settings.target_epoch_micros
        if trigger is not None:
            distance = trigger.every_micros
        return Facts(
            now_micros=now,
            stop=self._stop,
            # A job that was stopped before it was claimed has nothing to end.
            has_stopped=self._has_stopped
            or (self._stop is not None and session is None and self._finished is None),
            is_finished=self._finished is not None
            or (session is not None and session.is_finished),
            retry_at_micros=self._retry_at_micros,
            has_work=last is None or self._is_woken or _has_work(last),
            wake_up_micros=None if last is None else _wake_up(last, self._skipped_micros),
            next_epoch_micros=self._last_started_micros + distance,
            ask_micros=self._when_to_ask(),
        )

    def _when_to_ask(self) -> int | None:
        """Return when to ask the sources how much waits; None if no trigger depends on it."""
        trigger, last = self._environment.settings.trigger, self._last
        if trigger is None or not trigger.has_size or last is None:
            return None
        poll = last.reading.poll_micros
        if poll is None:
            return None
        since = self._asked_micros or last.progress.processing_time_micros
        return since + poll


def _epoch_of(state: JobState) -> int | None:
    return None if state.manifest is None else int(state.manifest.ref.epoch)


def _has_work(ran: EpochRan) -> bool:
    """Return whether the next epoch should follow at once."""
    return (
        ran.reading.has_more
        or ran.reading.has_ending
        or any(
            report.has_more or any(state.ended for state in report.splits.values())
            for report in ran.reports.values()
        )
    )


def _is_idle(ran: EpochRan | None, now_micros: int) -> bool:
    """Return whether the next epoch is like this one, unless the sources find something.

    It changed nothing, and no time has come since that anybody waits for.
    """
    if ran is None or ran.progress.is_published or _has_work(ran):
        return False
    return all(due > now_micros for due in _awaited(ran))


def _awaited(ran: EpochRan) -> list[int]:
    """Return the times at which operators want an epoch."""
    return [
        report.wake_up_micros
        for report in ran.reports.values()
        if report.wake_up_micros is not None
    ]


def _wake_up(ran: EpochRan, polled_micros: int | None) -> int | None:
    """Return when to look for work again; the sources may have been asked since it ran."""
    wake_ups = _awaited(ran)
    if ran.reading.poll_micros is not None:
        since = polled_micros or ran.progress.processing_time_micros
        wake_ups.append(since + ran.reading.poll_micros)
    return min(wake_ups, default=None)
