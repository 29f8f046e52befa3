"""JobSession: one claim of a job, from taking it over to losing or leaving it.

    session = JobSession.start(environment, restore=None)
    result = session.run_epoch(stop=None)        plan → run → agree → publish → commit

After a failure before anything was published the session stays usable: the epoch is run again.
After a failure from the manifest on it is not: which objects were written is unknown, so the
driver starts another session, which claims a new generation and reads them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from penstock.core.clock import new_token
from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import StorageError, UnknownOutcomeError
from penstock.operators.nodes import EpochTerms
from penstock.operators.operator import SPLITS_TABLE, SourceFinishType, splits_table
from penstock.operators.splits import SplitState
from penstock.runtime.driver.decide import EpochProgress, StopMode
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import (
    EpochLost,
    EpochOutcome,
    EpochRan,
    Failed,
    Torn,
    combined_error,
    damage_while_owned,
    fenced_error,
    find_agreement,
)
from penstock.runtime.driver.publish import (
    CommittingSinks,
    EpochPublisher,
    JobState,
    PendingCompactions,
    frontier_of,
)
from penstock.runtime.driver.start import (
    checkpoints_of,
    has_finished,
    read_metadata,
    take_over_job,
)
from penstock.runtime.plan.epoch_plan import (
    EpochPlan,
    Pace,
    ReadingPlan,
    SourcePlanner,
    adapt_budget,
    do_rows_matter,
)
from penstock.state.protocol.collection import CollectionDone
from penstock.state.protocol.publication import CommitRequired, LostEpoch, Published
from penstock.state.protocol.records import ClaimRecord, Fenced
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import Recovered
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
        self.checkpoints = checkpoints_of(environment)
        self._sinks = sinks
        self._restores = decision.restore is not None
        base = decision.base
        manifest = None if base is None else self.checkpoints.manifest(base.ref)
        self.state = JobState(
            decision.next_epoch, base, manifest, read_metadata(environment, manifest)
        )
        self.planner = SourcePlanner(
            environment.graph, environment.registry, environment.settings.budget
        )
        self.planner.restore(self._read_splits)
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
        self._published_since_collection = 0
        self._collections = 0

    @classmethod
    def start(
        cls,
        environment: JobEnvironment,
        *,
        restore: Epochs | None = None,
        sinks: CommittingSinks | None = None,
    ) -> "JobSession":
        """Claim the job: check that the graph fits, claim, replay open commits."""
        checkpoints = checkpoints_of(environment)
        sinks = sinks or CommittingSinks(environment, checkpoints)
        try:
            claim, decision = take_over_job(environment, restore, sinks)
            with damage_while_owned(checkpoints, claim):
                return cls(environment, claim, decision, sinks)
        except BaseException:
            sinks.release()
            raise

    def close(self) -> None:
        """Release the driver's own instances of sinks."""
        self._sinks.release()

    def check_ownership(self) -> None:
        """Raise `FencedError` if a newer driver has claimed the job."""
        if self.checkpoints.is_fenced(self.claim):
            raise fenced_error(self.claim.job, Fenced(self.claim.generation))

    @property
    def is_finished(self) -> bool:
        """Return whether the input of every operator has ended."""
        return has_finished(self.environment.graph, self.state.manifest)

    def run_epoch(self, *, stop: StopMode | None = None) -> EpochOutcome:
        """Run the next epoch, and publish and commit it if it changed anything."""
        with damage_while_owned(self.checkpoints, self.claim):
            return self._run_epoch(stop)

    def _run_epoch(self, stop: StopMode | None) -> EpochOutcome:
        environment = self.environment
        environment.side_work.check()
        waited = self.compactions.wait_if_needed(self.state)
        started = environment.clock.now_micros()
        plan, reading = self._plan(started, stop)
        arrived = environment.executor.run_epoch(environment.job, plan, self.state.manifest)
        agreement = find_agreement(environment.job.plan, arrived)
        if isinstance(agreement, Torn):
            return agreement
        if isinstance(agreement, Failed):
            raise combined_error(agreement)
        reports = agreement.by_operator(environment.job.plan)
        # The most urgent stop of any source counts; FINAL concerns only the source itself.
        wishes = {report.finish for report in reports.values()}
        stopping = (SourceFinishType.IMMEDIATE, SourceFinishType.GRACEFUL)
        finish = next((wish for wish in stopping if wish in wishes), None)
        is_published = False
        if finish is not SourceFinishType.IMMEDIATE:
            outcome = self.publisher.publish(self.state, plan, reports)
            if isinstance(outcome, LostEpoch):
                return EpochLost(outcome.winner)
            if isinstance(outcome, Fenced):
                raise fenced_error(environment.graph.job, outcome)
            self._accepted_run = plan.run
            self._previous_micros = plan.terms.processing_time_micros
            self.planner.accept(reports.values())
            if outcome is not None:
                self._commit(outcome)
                is_published = True
        read = [
            report for (name, _), report in reports.items() if name in self.planner.sources
        ]
        progress = EpochProgress(
            int(plan.terms.barrier.epoch),
            is_published,
            plan.terms.processing_time_micros,
            environment.clock.now_micros() - started,
            sum(report.rows_taken for report in read),
            sum(report.bytes_read for report in read),
            sum(report.checkpoint.bytes_written for report in reports.values()),
            self.compactions.swapped,
            waited,
            agreement.usage.requests,
            agreement.usage.cache_hits,
            agreement.usage.cache_misses,
        )
        ran = EpochRan(progress, reports, reading, finish)
        if finish is not SourceFinishType.IMMEDIATE and environment.settings.adapts_budget:
            self._adapt(ran)
        return ran

    def _commit(self, outcome: Published | CommitRequired) -> None:
        """Commit the sinks of an acknowledged epoch; then unpin a restore, compact, collect."""
        match outcome:
            case CommitRequired(permit):
                self._sinks.commit(permit, self.state.metadata)
                self.state.base = self.checkpoints.complete_commit(permit)
            case Published(ready):
                self.state.base = ready
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
        previous = self._previous_micros
        now = now_micros
        if previous is not None:
            # The job has one clock, which advances with every epoch and never goes back.
            now = max(now, previous + SMALLEST_STEP_MICROS)
        epoch = self.state.next_epoch
        keep = self.environment.settings.keep_epochs
        min_epoch = Epoch(max(1, epoch - keep + 1))
        barrier = CheckpointBarrier(
            epoch, min_epoch, now, then_stop=stop is StopMode.CHECKPOINT
        )
        reading = self.planner.plan(now, self.state.manifest, is_last=stop is not None)
        self._run += 1
        parent = None if self.state.base is None else self.state.base.ref
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
        settings = self.environment.settings
        deadline = settings.epoch_deadline_micros if has_readers else None
        plan = EpochPlan(
            self.environment.graph.job,
            self.claim.generation,
            terms,
            self._run,
            self._accepted_run,
            parent,
            reading.assignments,
            self.environment.settings.allow_dropped_state,
            deadline,
        )
        return plan, reading

    def _collect(self) -> None:
        """Delete what no kept epoch needs; a storage failure does not stop the job."""
        try:
            outcome = self.checkpoints.collect(
                self.claim, keep_epochs=self.environment.settings.keep_epochs
            )
            if isinstance(outcome, CollectionDone) and not outcome.needs_origin:
                self.checkpoints.release_origin(self.claim)
            if isinstance(outcome, Fenced):
                raise fenced_error(self.claim.job, outcome)
            if self._collections % _COLLECTIONS_PER_SWEEP == 0:
                swept = self.checkpoints.sweep(self.claim)
                if isinstance(swept, Fenced):
                    raise fenced_error(self.claim.job, swept)
        except (StorageError, UnknownOutcomeError) as error:
            _log.warning("collecting old epochs failed, they stay for now: %s", error)
            return
        self._collections += 1

    def _adapt(self, ran: EpochRan) -> None:
        """Adapt each source's budget, so that the next epoch takes about its target time."""
        duration = ran.progress.duration_micros
        for operator, planned in self.planner.sources.items():
            reports = [r for (name, _), r in ran.reports.items() if name == operator]
            pace = Pace(sum(r.rows_taken for r in reports), duration)
            planned.budget = adapt_budget(
                planned.budget,
                duration_micros=duration,
                target_micros=self.environment.settings.target_epoch_micros,
                was_spent=any(r.has_more for r in reports) or ran.reading.has_more,
                rows_matter=do_rows_matter(planned.pace, pace),
            )
            planned.pace = pace

    def _read_splits(self, operator: OperatorId) -> Mapping[str, SplitState]:
        if not self.state.metadata.get(operator):
            return {}
        with self.read_tables(operator, [splits_table()]) as manager:
            return dict(manager.get_global_keyed_state(SPLITS_TABLE).items())

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
