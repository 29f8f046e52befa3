"""SparkExecutor: runs an epoch as one Spark job and each superstep as one stage.

    range(tasks) ─ mapInArrow(level 0) ─ repartitionById(route) ─ mapInArrow(level 1) ─ … ─ collect

**The first superstep** is a DataFrame with a partition per task, in the tasks' order. It is one
union of

    range(n) ─ mapInArrow(task)                  chains whose sources read by themselves
    rows.repartition(p) ─ mapInArrow(task)       chains that are fed a DataFrame in this epoch

so an epoch stays one job, and the number of a partition over the whole union is that of its
task.

**Commits.** The parts of a commit are the tasks of one job, behind the epoch's. A few small ones run
in threads of the driver, because a job costs more than they do.

**Compactions** are jobs of their own in a background thread, a task per subtask, and no epoch
waits for them. A failed one returns its error as a value, which is logged: Spark's retries
would take cores from the epochs, and what is still due is ordered again after the next epoch.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from penstock.errors import ErrorCode, ExternalError
from penstock.graph.codec import encode_graph
from penstock.operators.worker_output import tell_output
from penstock.runtime.driver.signals import wait_attentively
from penstock.runtime.in_process import wait_for_parts
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.executor import (
    CommitOrder,
    CompactionOrder,
    CompactionResult,
    PartReport,
    TaskReport,
    cancelled_error,
    decode_report,
)
from penstock.runtime.plan.physical import Chain, PhysicalPlan
from penstock.runtime.spark.failures import (
    ENGINE_ERRORS,
    describe_job_failure,
    noticing_its_end,
    source_overran,
)
from penstock.runtime.spark.frame_source import fed_frame
from penstock.runtime.spark.jvm import call_within, is_gone
from penstock.runtime.spark.session import (
    COMPACTIONS,
    EPOCHS,
    cancel_jobs,
    context_of,
    job_thread,
)
from penstock.runtime.spark.side_tasks import (
    RESULT_SCHEMA,
    CommitTask,
    CompactionTask,
    compact_here,
    compaction_results,
    part_reports,
)
from penstock.runtime.spark.task import (
    SPARK_SCHEMA,
    Farewell,
    SuperstepTask,
    WorkerSpec,
    from_batches,
    send_beside,
    worker_of,
)
from penstock.runtime.task.task import Worker
from penstock.state.protocol.records import CheckpointManifest

_log = logging.getLogger(__name__)


def first_superstep(
    session: SparkSession, plan: PhysicalPlan, epoch: EpochPlan, task: SuperstepTask
) -> DataFrame:
    """Return the DataFrame that runs the tasks of level 0.

    Adjacent chains that read by themselves are one part of the union.
    """
    chains = [plan.chains[number] for number in plan.supersteps[0].chains]
    parts: list[DataFrame] = []
    for name, group in groupby(chains, partial(_fed_by, epoch)):
        counts = [chain.parallelism for chain in group]
        if name is None:
            rows = _numbered(session, sum(counts))
            parts.append(rows.mapInArrow(task, SPARK_SCHEMA))
            continue
        if not parts:
            # The session of a union's first part plans the union. It must be our own session:
            # another one may cut the epoch into several jobs. Spark removes the empty part.
            nothing = _numbered(session, 1).where("false")
            parts.append(nothing.mapInArrow(task, SPARK_SCHEMA))
        for count in counts:
            rows = fed_frame(name).repartition(count)
            parts.append(rows.mapInArrow(replace(task, is_fed=True), SPARK_SCHEMA))
    # Called on the part: `DataFrame.union` goes by the mode of the process, not by its argument.
    return reduce(lambda whole, part: whole.union(part), parts)


def _numbered(session: SparkSession, count: int) -> DataFrame:
    """Return a DataFrame with as many partitions, each with one row."""
    return session.range(0, count, 1, count).toDF("id")


def _fed_by(epoch: EpochPlan, chain: Chain) -> str | None:
    """Return what feeds the chain's source, its first operator, in this epoch; or None."""
    assignments = epoch.assignments.get(chain.operators[0], ())
    return next((part.fed for part in assignments), None)


_EPOCH = "epoch"
_COMMIT = "a commit"
_FEW_ORDERS, _FEW_PARTS, _SMALL_BYTES = 16, 64, 4 << 20
_CANCEL_SECONDS = 1.0
_CANCELS = 10
_FAREWELL_SECONDS = 5.0
_COMPACTION_SECONDS = 10.0
"""How long a compaction may go on when the executor is closed: what it did is used by nobody."""


def _nothing() -> None:
    """Show that a thread has made all its calls."""


class SparkExecutor:
    """Runs supersteps on Spark. The caller owns the session."""

    def __init__(
        self,
        session: SparkSession,
        worker: WorkerSpec,
        *,
        restart: Callable[[], SparkSession] | None = None,
    ) -> None:
        """Run on a session; `restart` starts another one when it has ended.

        Without `restart` the session is the user's, and goes on after the job.
        """
        self._worker = worker
        self._restart = restart
        self.tag = f"penstock-{worker.name}"
        """The tag of all its Spark jobs, by which they can be cancelled."""
        self._has_run = False
        self._here: Worker | None = None
        """The driver's own worker, for parts of commits that are small."""
        self._compacting: list[Future[Sequence[CompactionResult]]] = []
        self._cancelled: Future[None] = Future()
        """Done when no epoch is to be run any more."""
        self._open(session)

    def _open(self, session: SparkSession) -> None:
        self._session = session
        self._epochs = job_thread(session, EPOCHS, self.tag)
        self._compactions = job_thread(session, COMPACTIONS, self.tag)
        self._standing: tuple[str, DataFrame] | None = None
        """The DataFrame that runs every epoch of a graph, and the graph's fingerprint."""

    def run_epoch(
        self, job: PhysicalPlan, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        """Run all supersteps as one job and return every report that came back."""
        del parent  # workers read it: in every closure its size would grow as tasks squared
        self._has_run = True
        running = self._epochs.submit(self._run_epoch, job, epoch)
        limit = epoch.deadline_micros
        self._wait_for(running, None if limit is None else limit / 1_000_000)
        if running.done():
            # Also what prepares the thread for its first call may find that the JVM is gone.
            with noticing_its_end(self._session, f"an epoch of job {str(job.graph.job)!r}"):
                return running.result()
        is_overdue = not self._cancelled.done()
        self._cancel_until_done([running])
        raise source_overran(job, epoch) if is_overdue else cancelled_error(job.graph.job)

    def _wait_for(self, running: Future[Any], seconds: float | None = None) -> None:
        """Wait until a call is done, all is cancelled, or the time is over."""
        awaited: list[Future[Any]] = [running, self._cancelled]

        def has_come(limit: float) -> bool:
            return bool(futures.wait(awaited, limit, futures.FIRST_COMPLETED).done)

        wait_attentively(has_come, seconds)

    def _cancel_until_done(self, calls: Sequence[Future[Any]]) -> None:
        """Cancel all jobs until the calls that wait for them are over; give up after a while."""
        for _ in range(_CANCELS):
            # Again and again: a job that a thread was about to start escapes the first call.
            call_within(_CANCEL_SECONDS, partial(cancel_jobs, self._session, self.tag))
            if not futures.wait(calls, _CANCEL_SECONDS).not_done:
                return
        _log.warning("Spark does not end its jobs after %d requests to cancel", _CANCELS)

    def _run_epoch(self, job: PhysicalPlan, epoch: EpochPlan) -> Sequence[TaskReport]:
        name = str(job.graph.job)
        try:
            with noticing_its_end(self._session, f"an epoch of job {name!r}"):
                table = self._frame(job, epoch).toArrow()
        except ENGINE_ERRORS as error:
            raise describe_job_failure(error, name) from error
        records = from_batches(table.to_batches())
        reports = [decode_report(record.payload) for record in records]
        tell_output(line for report in reports for line in report.output)
        return reports

    def commit(self, orders: Sequence[CommitOrder]) -> Sequence[PartReport]:
        """Run a job with a task per part; threads of the driver run a few small parts."""
        job = orders[0].task.job
        if self._cancelled.done():
            raise cancelled_error(job, _COMMIT)
        size_bytes = sum(order.part.size_bytes for order in orders)
        if len(orders) <= _FEW_PARTS and size_bytes <= _SMALL_BYTES:
            if self._here is None:
                self._here = worker_of(self._worker)
            started = self._here.committers.start(orders)
            return wait_for_parts(orders, started, self._cancelled)
        self._has_run = True
        running = self._epochs.submit(self._commit, tuple(orders))
        self._wait_for(running)
        if not running.done():
            self._cancel_until_done([running])
            raise cancelled_error(job, _COMMIT)
        with noticing_its_end(self._session, f"{_COMMIT} of job {str(job)!r}"):
            return running.result()

    def _commit(self, orders: tuple[CommitOrder, ...]) -> Sequence[PartReport]:
        name, task = str(orders[0].task.job), CommitTask(orders, self._worker)
        try:
            with noticing_its_end(self._session, f"{_COMMIT} of job {name!r}"):
                rows = _numbered(self._session, len(orders))
                table = rows.mapInArrow(task, RESULT_SCHEMA).toArrow()
        except ENGINE_ERRORS as error:
            raise describe_job_failure(error, name, _COMMIT) from error
        reports = part_reports(table)
        tell_output(line for report in reports for line in report.output)
        return reports

    def compact(self, orders: Sequence[CompactionOrder]) -> None:
        """Start a job with a task per order, without waiting for it.

        A thread of the driver runs a few small orders itself, because a job costs more.
        """
        size_bytes = sum(order.due_bytes for order in orders)
        is_small = len(orders) <= _FEW_ORDERS and size_bytes <= _SMALL_BYTES
        started = self._compactions.submit(self._compact, tuple(orders), is_small=is_small)
        self._compacting.append(started)

    @property
    def is_compacting(self) -> bool:
        """Return whether a compaction is under way, or done and not taken yet."""
        return bool(self._compacting)

    def compacted(self, *, wait: bool = False) -> Sequence[CompactionResult]:
        """Return, once, what was compacted; `wait` for all that is started."""
        if wait:
            wait_attentively(
                lambda limit: not futures.wait(self._compacting, limit).not_done
            )
        done = [future for future in self._compacting if future.done()]
        # Futures are not checked a second time: one that ends meanwhile would be lost.
        self._compacting = [future for future in self._compacting if future not in done]
        return [result for future in done for result in future.result()]

    def forget_compactions(self) -> None:
        """Drop what is started or done; files of a job that still runs become orphans."""
        for future in self._compacting:
            future.cancel()
        self._compacting = []

    def cancel(self) -> None:
        """Give up the epoch under way, from any thread; no other one is run."""
        with suppress(InvalidStateError):
            self._cancelled.set_result(None)

    def recover(self) -> None:
        """Go on with another session if this one has ended; raise if there is none."""
        if not is_gone(self._session):
            return
        if self._restart is None:
            raise ExternalError(
                "the Spark session that the job was given has ended: its JVM was killed, or the "
                "session was stopped. Start Spark and the job again: it goes on after its last "
                "epoch",
                code=ErrorCode.ENGINE_GONE,
            )
        self.forget_compactions()
        session = self._restart()
        self._epochs.close()
        self._compactions.close()
        self._open(session)

    def close(self) -> None:
        """End all jobs of this executor, and its threads."""
        under_way = [future for future in self._compacting if not future.cancel()]
        late = futures.wait(under_way, _COMPACTION_SECONDS).not_done
        last = self._epochs.submit(_nothing)
        if late or futures.wait([last], _CANCEL_SECONDS).not_done:
            self._cancel_until_done([*late, last])
        if self._restart is None and self._has_run:
            futures.wait([self._epochs.submit(self._say_farewell)], _FAREWELL_SECONDS)
        if self._here is not None:
            self._here.forget()
        self._epochs.close()
        self._compactions.close()

    def _say_farewell(self) -> None:
        """Release operators in Python processes that Spark keeps; best effort, as all of this.

        Which processes there are nobody knows: as many tasks as run at a time reach most.
        """
        context = context_of(self._session)
        if context is None:
            return
        context.setJobGroup(f"{self.tag}-farewell", "release operators")
        rows = _numbered(self._session, context.defaultParallelism)
        rows.mapInArrow(Farewell(self._worker.name), RESULT_SCHEMA).toArrow()

    def _frame(self, job: PhysicalPlan, epoch: EpochPlan) -> DataFrame:
        """Return the DataFrame that runs an epoch: the standing one, or one for this epoch."""
        is_fed = any(_fed_by(epoch, chain) is not None for chain in job.chains)
        if is_fed or not send_beside(self._session, epoch):
            return self._build(job, epoch, epoch)
        if self._standing is None or self._standing[0] != job.fingerprint:
            self._standing = (job.fingerprint, self._build(job, epoch, None))
        # With a new alias it is planned and run again; otherwise Spark would reuse its shuffle.
        return self._standing[1].alias(_EPOCH)

    def _build(
        self, job: PhysicalPlan, epoch: EpochPlan, carried: EpochPlan | None
    ) -> DataFrame:
        first = SuperstepTask(encode_graph(job.graph), carried, 0, self._worker)
        frame = first_superstep(self._session, job, epoch, first)
        for superstep in job.supersteps[1:]:
            routed = frame.repartitionById(superstep.task_count, F.col("route"))
            task = replace(first, level=superstep.level)
            frame = routed.mapInArrow(task, SPARK_SCHEMA)
        return frame

    def _compact(
        self, orders: tuple[CompactionOrder, ...], *, is_small: bool
    ) -> Sequence[CompactionResult]:
        if is_small:
            return compact_here(orders, self._worker)
        task = CompactionTask(orders, self._worker)
        try:
            rows = _numbered(self._session, len(orders))
            table = rows.mapInArrow(task, RESULT_SCHEMA).toArrow()
        except ENGINE_ERRORS as error:
            _log.warning("a job of compactions failed and is ordered again: %s", error)
            return ()
        return compaction_results(table)
