"""SparkExecutor: an epoch as one Spark job, a superstep as one stage.

    range(tasks) ─ mapInArrow(level 0) ─ repartitionById(route) ─ mapInArrow(level 1) ─ … ─ collect

Compactions are jobs of their own in a background thread; a failed one is logged and
forgotten, because the next epochs order it again.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, wait

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from penstock.errors import InternalError
from penstock.graph.codec import encode_graph
from penstock.runtime.epoch_plan import EpochPlan
from penstock.runtime.executor import CompactionOrder, CompactionResult
from penstock.runtime.reports import TaskReport, decode_report
from penstock.runtime.spark.compaction import (
    RESULT_SCHEMA,
    CompactionTask,
    compact_here,
    read_results,
)
from penstock.runtime.spark.exchange import SPARK_SCHEMA, from_batches
from penstock.runtime.spark.failures import describe_job_failure
from penstock.runtime.spark.first_superstep import first_superstep, is_fed
from penstock.runtime.spark.job_threads import COMPACTIONS, EPOCHS, cancel_jobs, job_thread
from penstock.runtime.spark.plan_delivery import send_beside
from penstock.runtime.spark.task import SuperstepTask, WorkerSpec
from penstock.runtime.superstep import CompiledJob
from penstock.state.protocol.records import CheckpointManifest

_log = logging.getLogger(__name__)
_EPOCH = "epoch"
_FEW_ORDERS, _SMALL_BYTES = 16, 4 << 20


class SparkExecutor:
    """Runs supersteps on Spark. The session stays the caller's."""

    def __init__(self, session: SparkSession, worker: WorkerSpec) -> None:
        self._session = session
        self._worker = worker
        self.tag = f"penstock-{worker.name}"
        """What all its Spark jobs can be cancelled by."""
        self._epochs = job_thread(session, EPOCHS, self.tag)
        self._compactions = job_thread(session, COMPACTIONS, self.tag)
        self._compacting: list[Future[Sequence[CompactionResult]]] = []
        self._standing: tuple[str, DataFrame] | None = None
        """The DataFrame that runs every epoch of a graph, and the graph's fingerprint."""

    def run_epoch(
        self, job: CompiledJob, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        """Run all supersteps as one job and return every report that came back."""
        del parent  # workers read it themselves: in each closure it would be P times P
        return self._epochs.submit(self._run_epoch, job, epoch).result()

    def _run_epoch(self, job: CompiledJob, epoch: EpochPlan) -> Sequence[TaskReport]:
        try:
            table = self._frame(job, epoch).toArrow()
        except (PySparkException, Py4JError) as error:
            raise describe_job_failure(error, str(job.graph.job)) from error
        return [
            decode_report(record.payload) for record in from_batches(table.to_batches())
        ]

    def compact(self, orders: Sequence[CompactionOrder]) -> None:
        """Start a job with a task per order; never waits for it.

        A few small orders are not worth a job: a thread of the driver carries them out.
        """
        size_bytes = sum(order.due_bytes for order in orders)
        is_small = len(orders) <= _FEW_ORDERS and size_bytes <= _SMALL_BYTES
        compact = self._compact_here if is_small else self._compact
        self._compacting.append(self._compactions.submit(compact, tuple(orders)))

    @property
    def is_compacting(self) -> bool:
        """Tell whether a compaction is under way, or done and not taken yet."""
        return bool(self._compacting)

    def compacted(self, *, wait: bool = False) -> Sequence[CompactionResult]:
        """Return, once, what was compacted; `wait` for all that is started."""
        if wait:
            _wait_for(self._compacting)
        done = [future for future in self._compacting if future.done()]
        # Not by asking again: one that ends just now would be in neither list.
        self._compacting = [future for future in self._compacting if future not in done]
        return [result for future in done for result in future.result()]

    def forget_compactions(self) -> None:
        """Drop what is started or done; files of a job that still runs become orphans."""
        for future in self._compacting:
            future.cancel()
        self._compacting = []

    def cancel(self) -> None:
        """Cancel the jobs under way; for any thread. Whoever waits for one is told."""
        cancel_jobs(self._session, self.tag)

    def close(self) -> None:
        """Wait for the compaction under way, if any, and start no other."""
        self._compactions.shutdown(wait=True, cancel_futures=True)
        self._epochs.shutdown()

    def _frame(self, job: CompiledJob, epoch: EpochPlan) -> DataFrame:
        """Return what runs an epoch: the standing DataFrame again, or one of its own."""
        if is_fed(job.plan, epoch) or not send_beside(self._session, epoch):
            return self._build(job, epoch, epoch)
        if self._standing is None or self._standing[0] != job.fingerprint:
            self._standing = (job.fingerprint, self._build(job, epoch, None))
        # Under a new name it is planned and run anew; the same again would reuse its shuffle.
        return self._standing[1].alias(_EPOCH)

    def _build(
        self, job: CompiledJob, epoch: EpochPlan, carried: EpochPlan | None
    ) -> DataFrame:
        graph = encode_graph(job.graph)
        frame: DataFrame | None = None
        for superstep in job.plan.supersteps:
            task = SuperstepTask(graph, carried, superstep.level, self._worker)
            if frame is None:
                frame = first_superstep(self._session, job.plan, epoch, task)
            else:
                routed = frame.repartitionById(superstep.task_count, F.col("route"))
                frame = routed.mapInArrow(task, SPARK_SCHEMA)
        if frame is None:
            raise InternalError(f"the plan of job {job.graph.job!r} has no superstep")
        return frame

    def _compact_here(
        self, orders: tuple[CompactionOrder, ...]
    ) -> Sequence[CompactionResult]:
        return compact_here(orders, self._worker)

    def _compact(self, orders: tuple[CompactionOrder, ...]) -> Sequence[CompactionResult]:
        task, count = CompactionTask(orders, self._worker), len(orders)
        frame = self._session.range(0, count, 1, count).toDF("id")
        try:
            return read_results(frame.mapInArrow(task, RESULT_SCHEMA).toArrow())
        except (PySparkException, Py4JError) as error:
            _log.warning("a job of compactions failed and is ordered again: %s", error)
            return ()


def _wait_for(futures: Sequence[Future[Sequence[CompactionResult]]]) -> None:
    wait(futures)
