"""JobSession: one claim of a job, from taking it over to losing or leaving it.

    session = JobSession.start(environment, restore=None)
    result = session.run_epoch(stop=None)        plan → run → agree → publish → commit

A failure before anything was published leaves the session usable: the epoch is simply run
again. A failure from the manifest on does not: what landed is unknown, so the driver starts
another session, which claims a new generation and finds out.
"""

import logging
from collections.abc import Mapping

from penstock.core.clock import new_token
from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import StorageError, UnknownOutcomeError
from penstock.operators.nodes import EpochTerms, OperatorReport
from penstock.operators.source import SPLITS_TABLE, SourceFinishType, splits_table
from penstock.operators.splits import SplitState
from penstock.runtime.driver.compactions import JobState, PendingCompactions
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import (
    Agreed,
    EpochLost,
    EpochOutcome,
    EpochRan,
    EpochTorn,
    Failed,
    Torn,
    combined_error,
    find_agreement,
    finish_of,
)
from penstock.runtime.driver.publish import (
    EpochPublisher,
    EpochResults,
    Unchanged,
    commit_sinks,
)
from penstock.runtime.driver.start import (
    check_ownership,
    checkpoints_of,
    damage_while_owned,
    fenced_error,
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
from penstock.runtime.plan.reports import from_part
from penstock.state.protocol.collection import CollectionDone
from penstock.state.protocol.publication import (
    CommitPermit,
    CommitRequired,
    LostEpoch,
    Published,
)
from penstock.state.protocol.records import ClaimRecord, Fenced
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import Recovered
from penstock.state.storage.watched import NO_USAGE
from penstock.state.tables.table import Frontier, TableEnvironment
from penstock.state.tables.table_manager import TableManager

_log = logging.getLogger(__name__)

_COLLECTIONS_PER_SWEEP = 64
"""Orphans are looked for at the first collection and then rarely: that lists all slots."""
SMALLEST_STEP_MICROS = 1
"""Processing time moves by at least this from epoch to epoch."""


class JobSession:
    """One generation of a job."""

    def __init__(
        self, environment: JobEnvironment, claim: ClaimRecord, decision: Recovered
    ) -> None:
        self.environment = environment
        self.claim = claim
        self.checkpoints = checkpoints_of(environment)
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
        self._identity = self.checkpoints.identity() or ""

    @classmethod
    def start(
        cls, environment: JobEnvironment, *, restore: Epochs | None = None
    ) -> "JobSession":
        """Take the job over: check that the graph fits, claim, replay open commits."""
        claim, decision = take_over_job(environment, restore)
        with damage_while_owned(checkpoints_of(environment), claim):
            return cls(environment, claim, decision)

    def check_ownership(self) -> None:
        """Raise `FencedError` if a newer driver has claimed the job."""
        check_ownership(self.checkpoints, self.claim)

    @property
    def is_finished(self) -> bool:
        """Tell whether every operator has been told the end of its input."""
        return has_finished(self.environment.graph, self.state.manifest)

    def run_epoch(self, *, stop: StopMode | None = None) -> EpochOutcome:
        """Run the next epoch, and publish and commit it if it changed anything."""
        with damage_while_owned(self.checkpoints, self.claim):
            return self._run_epoch(stop)

    def _run_epoch(self, stop: StopMode | None) -> EpochOutcome:
        environment, clock = self.environment, self.environment.clock
        environment.side_work.check()
        waited = self.compactions.wait_if_needed(self.state)
        started = clock.now_micros()
        plan, reading = self._plan(started, stop)
        reports = environment.executor.run_epoch(environment.job, plan, self.state.manifest)
        agreement = find_agreement(environment.job.plan, reports)
        if isinstance(agreement, Torn):
            return EpochTorn(agreement.reason)
        if isinstance(agreement, Failed):
            raise combined_error(agreement)
        results = self._results(agreement)
        finish = finish_of(results)
        if finish is SourceFinishType.IMMEDIATE:
            return self._ran(plan, reading, results, started, waited=waited, finish=finish)
        outcome = self.publisher.publish(self.state, plan, results)
        if isinstance(outcome, LostEpoch):
            return EpochLost(outcome.winner)
        if isinstance(outcome, Fenced):
            raise fenced_error(environment.graph.job, outcome)
        self._accept(plan, results)
        self._finish_publication(outcome)
        ran = self._ran(
            plan,
            reading,
            results,
            started,
            waited=waited,
            finish=finish,
            is_published=not isinstance(outcome, Unchanged),
        )
        self._adapt(ran)
        return ran

    def _finish_publication(self, outcome: Published | CommitRequired | Unchanged) -> None:
        """Commit the sinks of an acknowledged epoch, then tidy up."""
        match outcome:
            case Unchanged():
                return
            case CommitRequired(permit):
                self._commit(permit)
            case Published(ready):
                self.state.base = ready
        self._after_publication()

    def _accept(self, plan: EpochPlan, results: EpochResults) -> None:
        """Go on from a run that counts."""
        self._accepted_run = plan.run
        self._previous_micros = plan.terms.processing_time_micros
        self.planner.accept(results.reports.values())

    def _plan(
        self, now_micros: int, stop: StopMode | None
    ) -> tuple[EpochPlan, ReadingPlan]:
        """Fix everything that the epoch depends on."""
        previous = self._previous_micros
        now = now_micros
        if previous is not None:
            # One clock for the whole job: it never stands still and never goes back.
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
        plan = EpochPlan(
            self.environment.graph.job,
            self.claim.generation,
            terms,
            self._run,
            self._accepted_run,
            parent,
            reading.assignments,
            self.environment.settings.allow_dropped_state,
        )
        return plan, reading

    def _results(self, agreement: Agreed) -> EpochResults:
        reports: dict[tuple[OperatorId, int], OperatorReport] = {}
        for (level, task), report in agreement.reports.items():
            _, subtask = self.environment.job.plan.task(level, task)
            for part in report.operators:
                found = from_part(part)
                reports[found.operator, subtask.index] = found
        usage = sum((report.usage for report in agreement.reports.values()), NO_USAGE)
        return EpochResults(reports, usage)

    def _ran(
        self,
        plan: EpochPlan,
        reading: ReadingPlan,
        results: EpochResults,
        started_micros: int,
        *,
        waited: bool,
        finish: SourceFinishType | None,
        is_published: bool = False,
    ) -> EpochRan:
        return EpochRan(
            plan.terms.barrier.epoch,
            is_published,
            results.reports,
            reading,
            plan.terms.processing_time_micros,
            self.environment.clock.now_micros() - started_micros,
            self.compactions.swapped,
            waited,
            finish,
            results.usage,
        )

    def _commit(self, permit: CommitPermit) -> None:
        environment = self.environment
        commit_sinks(
            permit,
            environment.graph,
            environment.registry,
            environment.store,
            identity=self._identity,
            metadata=self.state.metadata,
        )
        self.state.base = self.checkpoints.complete_commit(permit)

    def _after_publication(self) -> None:
        """What follows an acknowledged epoch: unpin a restore, compact, collect."""
        if self._restores:
            self.checkpoints.release_honoured_restores(self.claim)
            self._restores = False
        self.compactions.start(self.state)
        self._published_since_collection += 1
        if self._published_since_collection >= self.environment.settings.collect_every:
            self._published_since_collection = 0
            self.environment.side_work.start(self._collect)

    def _collect(self) -> None:
        """Delete what nothing kept needs; a store that cannot is no reason to stop the job."""
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
        settings = self.environment.settings
        if not settings.adapts_budget:
            return
        for operator, planned in self.planner.sources.items():
            reports = [r for (name, _), r in ran.reports.items() if name == operator]
            pace = Pace(sum(r.rows_taken for r in reports), ran.duration_micros)
            planned.budget = adapt_budget(
                planned.budget,
                duration_micros=ran.duration_micros,
                target_micros=settings.target_epoch_micros,
                was_spent=any(r.has_more for r in reports) or ran.reading.has_more,
                rows_matter=do_rows_matter(planned.pace, pace),
            )
            planned.pace = pace

    def _read_splits(self, operator: OperatorId) -> Mapping[str, SplitState]:
        restored = self.state.metadata.get(operator, {})
        if not restored:
            return {}
        environment = TableEnvironment(
            TaskInfo(self.environment.graph.job, operator, Subtask(0, 1)),
            self.claim.generation,
            new_token(),
            self.environment.store,
            self.environment.cache,
        )
        only = [splits_table()]
        manager = TableManager.load(environment, only, restored, allow_dropped=True)
        manager.begin_epoch(Frontier())
        known = dict(manager.get_global_keyed_state(SPLITS_TABLE).items())
        manager.close()
        return known
