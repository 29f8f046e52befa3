"""JobSession: one claim of a job, from taking it over to losing or leaving it.

    session = JobSession.start(environment, restore=None)
    result = session.run_epoch(stop=None)        plan → run → agree → publish → commit

After a failure before anything was published the session stays usable: the epoch is run again.
After a failure from the manifest on it is not: which objects were written is unknown, so the
driver starts another session, which claims a new generation and reads them.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from penstock.core.clock import new_token
from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import CorruptStateError, StorageError, UnknownOutcomeError
from penstock.operators.nodes import EpochTerms
from penstock.operators.operator import SourceFinishType
from penstock.runtime.driver.committing import CommittingSinks, find_repeating
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import (
    EpochLost,
    EpochOutcome,
    EpochRan,
    EpochSkipped,
    Failed,
    Torn,
    combined_error,
    damage_while_owned,
    fenced_error,
    find_agreement,
    is_idle_as,
)
from penstock.runtime.driver.progress import (
    EpochPhase,
    EpochProgress,
    PhaseWatch,
    joined_keys,
    rows_by_subtask,
    samples_of,
)
from penstock.runtime.driver.publish import (
    EpochPublisher,
    JobState,
    PendingCompactions,
    frontier_of,
)
from penstock.runtime.driver.renames import rename_base
from penstock.runtime.driver.restores import has_finished
from penstock.runtime.driver.start import (
    leave,
    leaving_if_it_fails,
    read_splits,
    take_over_job,
)
from penstock.runtime.plan.epoch_plan import EpochPlan, ReadingPlan, SourcePlanner
from penstock.state.protocol.collection import CollectionDone, LeftOff
from penstock.state.protocol.publication import CommitPermit, LostEpoch, ReadyCheckpoint
from penstock.state.protocol.records import ClaimRecord, Fenced
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import Recovered
from penstock.state.storage.watched import NO_USAGE
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Frontier, TableEnvironment
from penstock.state.tables.table_manager import TableManager

_log = logging.getLogger(__name__)

_COLLECTIONS_PER_SWEEP = 64
"""How many collections lie between two sweeps, which list all slots. The first one sweeps."""
SMALLEST_STEP_MICROS = 1
"""The least step of processing time from epoch to epoch."""


class JobSession:
    """One generation of a job. The driver closes it when it stops or claims the job again."""

    def __init__(
        self,
        environment: JobEnvironment,
        claim: ClaimRecord,
        decision: Recovered,
        sinks: CommittingSinks,
    ) -> None:
        self.environment = environment
        self.claim = claim
        self.checkpoints = environment.open_checkpoints()
        self._sinks = sinks
        self._restores = decision.restore is not None
        base = decision.base
        manifest = None if base is None else self.checkpoints.manifest(base.ref)
        entries = () if manifest is None else manifest.operators
        metadata = {entry.operator: environment.read_metadata(entry) for entry in entries}
        self.state = JobState(decision.next_epoch, base, manifest, metadata)
        settings = environment.settings
        target = settings.target_epoch_micros if settings.adapts_budget else None
        self.planner = SourcePlanner(
            environment.graph, environment.registry, settings.budget, target
        )
        self.compactions = PendingCompactions(environment, claim.generation)
        self.publisher = EpochPublisher(
            environment, self.checkpoints, claim, self.compactions
        )
        environment.executor.forget_compactions()
        self._run = 0
        self._accepted_run: int | None = None
        self._previous_micros = (
            None if manifest is None else manifest.processing_time_micros
        )
        # By the epoch's number: else a job that runs for a few epochs each would never collect.
        self._published_since_collection = (
            decision.next_epoch - 1
        ) % settings.collect_every
        self._collections = 0
        self._next_sample_micros = 0
        self._warn_of_weak_promises()
        for operator, planned in self.planner.sources.items():
            planned.known = read_splits(environment, operator, metadata.get(operator, {}))

    @classmethod
    def start(
        cls,
        environment: JobEnvironment,
        *,
        restore: Epochs | None = None,
        sinks: CommittingSinks | None = None,
        is_last_attempt: bool = False,
    ) -> "JobSession":
        """Claim the job: check that the graph fits, claim, replay open commits.

        The last attempt to start a job skips an open commit that fails, if a restore allows it.
        """
        sinks = sinks or CommittingSinks(environment)
        try:
            claim, decision = take_over_job(
                environment, restore, sinks, is_last_attempt=is_last_attempt
            )
            checkpoints = environment.open_checkpoints()
            with (
                leaving_if_it_fails(checkpoints, claim),
                damage_while_owned(checkpoints, claim),
            ):
                decision = rename_base(environment, checkpoints, claim, decision)
                return cls(environment, claim, decision, sinks)
        except BaseException:
            sinks.release()
            raise

    def _warn_of_weak_promises(self) -> None:
        """Name sources whose rows are lost if an epoch fails, and sinks that may repeat rows."""
        sources = self.planner.sources.items()
        lossy = [name for name, each in sources if not each.source.is_rewindable()]
        if lossy:
            _log.warning(
                "source %s of job %s cannot be read again: its rows are processed at most once. "
                "Those of an epoch that fails, or was not published when the job died, are lost",
                ", ".join(map(repr, lossy)),
                self.claim.job,
            )
        for name, reason in find_repeating(self.environment):
            _log.warning(
                "sink %r of job %s delivers at least once: %s",
                str(name),
                self.claim.job,
                reason,
            )

    def close(self) -> None:
        """Release the driver's own instances of sinks and sources."""
        self._sinks.release()
        self.planner.release()

    def leave(self) -> None:
        """Note that this driver has ended."""
        leave(self.checkpoints, self.claim)

    def check_ownership(self) -> None:
        """Raise `FencedError` if a newer driver has claimed the job."""
        if self.checkpoints.is_fenced(self.claim):
            raise fenced_error(self.claim.job, Fenced(self.claim.generation))

    @property
    def is_finished(self) -> bool:
        """Return whether the input of every operator has ended."""
        return has_finished(self.environment.graph, self.state.manifest)

    def run_epoch(
        self, *, stop: StopMode | None = None, idle_as: ReadingPlan | None = None
    ) -> EpochOutcome:
        """Run the next epoch, and publish and commit it if it changed anything.

        `idle_as` is what the sources did in an epoch that changed nothing, if no time has come
        since that anybody waits for: an epoch in which they do the same is skipped.
        """
        environment = self.environment
        with damage_while_owned(self.checkpoints, self.claim):
            environment.side_work.check()
            watch = PhaseWatch(environment.clock)
            waited = self.compactions.wait_if_needed(self.state)
            watch.end(EpochPhase.WAIT)
            started = environment.clock.now_micros()
            plan, reading = self._plan(started, stop)
            if idle_as is not None and is_idle_as(reading, idle_as):
                return EpochSkipped()
            watch.end(EpochPhase.PLAN)
            self._run = plan.run
            job, parent = environment.job, self.state.manifest
            arrived = environment.executor.run_epoch(job, plan, parent)
            agreement = find_agreement(job, arrived)
            watch.end(EpochPhase.RUN)
            if isinstance(agreement, Torn):
                return agreement
            if isinstance(agreement, Failed):
                raise combined_error(agreement)
            reports = {
                (report.operator, job.task(*key)[1].index): report
                for key, task in agreement.reports.items()
                for report in task.operators
            }
            # The most urgent stop of any source counts; FINAL concerns only the source itself.
            wishes = {report.finish for report in reports.values()}
            stopping = (SourceFinishType.IMMEDIATE, SourceFinishType.GRACEFUL)
            finish = next((wish for wish in stopping if wish in wishes), None)
            outcome = None
            if finish is not SourceFinishType.IMMEDIATE:
                outcome = self.publisher.publish(self.state, plan, reports)
                watch.end(EpochPhase.PUBLISH)
            if isinstance(outcome, LostEpoch):
                return EpochLost(outcome.winner)
            if isinstance(outcome, Fenced):
                raise fenced_error(environment.graph.job, outcome)
            if outcome is not None:
                self._commit(outcome)
                watch.end(EpochPhase.COMMIT)
            usage = sum((task.usage for task in agreement.reports.values()), NO_USAGE)
            read = [r for r in reports.values() if r.operator in self.planner.sources]
            progress = EpochProgress(
                int(plan.terms.barrier.epoch),
                outcome is not None,
                plan.terms.processing_time_micros,
                environment.clock.now_micros() - started,
                sum(report.rows_taken for report in read),
                sum(report.bytes_read for report in read),
                sum(report.checkpoint.bytes_written for report in reports.values()),
                self.compactions.swapped,
                waited,
                usage.requests,
                usage.cache_hits,
                usage.cache_misses,
                watch.phases,
                rows_by_subtask(reports),
                joined_keys(agreement.reports.values()),
                samples_of(reports.values()),
            )
            if finish is not SourceFinishType.IMMEDIATE:
                self._accepted_run = plan.run
                self._previous_micros = plan.terms.processing_time_micros
                self.planner.accept(read, reading, progress.duration_micros)
            return EpochRan(progress, reports, reading, finish)

    def _commit(self, outcome: ReadyCheckpoint | CommitPermit) -> None:
        """Commit the sinks of an acknowledged epoch; then unpin a restore, compact, collect."""
        if isinstance(outcome, CommitPermit):
            self._sinks.commit(outcome, self.state.metadata)
            outcome = self.checkpoints.complete_commit(outcome)
        self.state.base = outcome
        if self._restores:
            self.checkpoints.release_honoured_restores(self.claim)
            self._restores = False
        self.compactions.start(self.state)
        self._published_since_collection += 1
        if self._published_since_collection >= self.environment.settings.collect_every:
            self._published_since_collection = 0
            self.environment.side_work.start(self._collect)

    def _plan(
        self, now_micros: int, stop: StopMode | None
    ) -> tuple[EpochPlan, ReadingPlan]:
        """Return the plan, which fixes everything that the epoch depends on."""
        settings, state = self.environment.settings, self.state
        now, previous = now_micros, self._previous_micros
        if previous is not None:
            # The job has one clock, which advances with every epoch and never goes back.
            now = max(now, previous + SMALLEST_STEP_MICROS)
        min_epoch = Epoch(max(1, state.next_epoch - settings.keep_epochs + 1))
        barrier = CheckpointBarrier(
            state.next_epoch, min_epoch, now, then_stop=stop is StopMode.CHECKPOINT
        )
        reading = self.planner.plan(now, state.manifest, is_last=stop is not None)
        parent = None if state.base is None else state.base.ref
        terms = EpochTerms(
            barrier,
            now,
            previous,
            is_stop=stop is StopMode.GRACEFUL,
            parent=None if parent is None else parent.epoch,
        )
        # Only an epoch in which a source itself reads has a deadline, because the source may
        # be stuck. Spark computes fed rows within the epoch, however long that takes.
        parts = [part for parts in reading.assignments.values() for part in parts]
        is_fed = any(part.fed is not None for part in parts)
        has_readers = any(part.splits for part in parts) and not is_fed
        plan = EpochPlan(
            self.environment.graph.job,
            self.claim.generation,
            terms,
            self._run + 1,
            self._accepted_run,
            parent,
            reading.assignments,
            settings.allow_dropped_state,
            settings.epoch_deadline_micros if has_readers else None,
            samples_keys=self._samples_keys(now),
        )
        return plan, reading

    def _samples_keys(self, now_micros: int) -> bool:
        """Return whether it is time that an epoch looks at the keys that it moves."""
        every = self.environment.settings.samples_every_micros
        if every is None or now_micros < self._next_sample_micros:
            return False
        self._next_sample_micros = now_micros + every
        return True

    def _collect(self) -> None:
        """Delete what no kept epoch needs; neither storage nor a damaged epoch stops the job."""
        settings, side_work = self.environment.settings, self.environment.side_work

        def is_over() -> bool:
            return side_work.is_settling

        try:
            outcome = self.checkpoints.collect(
                self.claim,
                keep_epochs=settings.keep_epochs,
                keep_micros=settings.keep_micros,
                is_over=is_over,
            )
            if isinstance(outcome, LeftOff):
                return
            if isinstance(outcome, CollectionDone) and not outcome.needs_origin:
                self.checkpoints.release_origin(self.claim)
            if isinstance(outcome, Fenced):
                raise fenced_error(self.claim.job, outcome)
            if self._collections % _COLLECTIONS_PER_SWEEP == 0:
                swept = self.checkpoints.sweep(self.claim, is_over=is_over)
                if isinstance(swept, LeftOff):
                    return
                if isinstance(swept, Fenced):
                    raise fenced_error(self.claim.job, swept)
        except (StorageError, UnknownOutcomeError, CorruptStateError) as error:
            _log.warning("collecting old epochs failed, they stay for now: %s", error)
            return
        self._collections += 1

    @contextmanager
    def read_tables(
        self,
        operator: OperatorId,
        specs: Sequence[TableSpec],
        subtask: Subtask | None = None,
    ) -> Iterator[TableManager]:
        """Open some tables as a subtask does; by default as a subtask that owns all keys."""
        environment = TableEnvironment(
            TaskInfo(self.environment.graph.job, operator, subtask or Subtask(0, 1)),
            self.claim.generation,
            new_token(),
            self.environment.store,
            self.environment.cache,
        )
        restored = self.state.metadata.get(operator, {})
        manager = TableManager.load(environment, specs, restored, allow_dropped=True)
        with closing(manager):
            manager.begin_epoch(self.frontier(operator))
            yield manager

    def frontier(self, operator: OperatorId) -> Frontier:
        """Return the frontier by which an operator's state expires in the next epoch."""
        if self.state.manifest is None:
            return Frontier()
        known = frontier_of(self.state.manifest, operator)
        return replace(known, previous_processing_time_micros=known.processing_time_micros)
