"""AttachedJob: a job that streaming queries feed, driven by a thread of its own.

    Spark's thread                                the job's thread
    feed(frame, batch id) ── offer, wake up ──►   plan: compare with the stored (query, batch)
          waits                                   run the epoch, publish it, commit its sinks
    returns, Spark notes the batch as done  ◄──   the batch is stored

| offered batch | what follows |
|---|---|
| batch 0, none is stored; or the stored one + 1 | it is read |
| a later one, none is stored | refused unless the source has `begins_late`: the job may have gone back |
| the stored one | not read again: it is committed, but Spark died before it noted the batch as done |
| any other, or one of another query | refused: rows would be lost or counted twice |
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import ErrorCode, InternalError, PenstockError, StateError, UserError
from penstock.graph.logical import LogicalGraph, OperatorSpec
from penstock.operators.registry import Registry
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.spark.frame_source import (
    FrameSource,
    FrameStep,
    NextFrame,
    frames_spec,
)
from penstock.runtime.spark.row_schemas import SchemaLike
from penstock.runtime.spark.running import on_ctrl_c, run_on_spark
from penstock.runtime.spark.session import context_of

_log = logging.getLogger(__name__)

_NEVER = timedelta(days=1)  # no polling: the query wakes the job when it has a batch


def attached(*, schema: SchemaLike, begins_late: bool = False) -> OperatorSpec:
    """Read the micro-batches of a streaming query, one per epoch; see `Pipeline.attach`.

    With `begins_late` a new job may begin with a later batch than the query's first.
    """
    return frames_spec("attached", Handoff(begins_late=begins_late), schema, _NEVER)


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query: the query's id and the batch's number."""

    query: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


def is_stored_already(
    offered: BatchId, stored: BatchId | None, *, begins_late: bool = False
) -> bool:
    """Return whether a batch is stored already; refuse one that may not follow. Pure."""
    if stored is None:
        if offered.number == 0 or begins_late:
            return False
        raise StateError(
            f"{offered} cannot be the first one of this job: rows of earlier ones would be "
            "lost. If the job went back to an epoch before its first batch, start job and "
            "query anew; a new job that shall begin in the middle of a query is told so by "
            "pen.attached(schema=…, begins_late=True)",
            code=ErrorCode.NOT_RESTORABLE,
            offered=str(offered),
        )
    if offered == stored:
        return True
    if offered.query == stored.query and offered.number == stored.number + 1:
        return False
    if offered.query != stored.query:
        reason = "A query gets a new id when its own checkpoint is lost or replaced"
    elif offered.number < stored.number:
        reason = "The query went back further than its last batch"
    else:
        reason = "The batches between were given to somebody else, or the job went back"
    raise StateError(
        f"{offered} cannot follow {stored}, the last one of this job: rows would be lost or "
        f"counted twice. {reason}. Go on with the query and the checkpoint that belong "
        "together, or start both anew",
        code=ErrorCode.NOT_RESTORABLE,
        offered=str(offered),
        stored=str(stored),
    )


@dataclass(slots=True)
class _Offer:
    batch: BatchId
    frame: DataFrame
    is_done: bool = False


class Handoff:
    """Passes batches from one streaming query to one job, each in a thread of its own."""

    def __init__(self, *, begins_late: bool = False) -> None:
        self._begins_late = begins_late
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._wake_job: Callable[[], None] | None = None
        self._end: PenstockError | None = None

    def open(self, wake_job: Callable[[], None]) -> None:
        """Accept batches, because a job is there that takes them."""
        with self._changed:
            if self._wake_job is not None:
                raise UserError(
                    "this pipeline is attached already: stop that job first, or build another "
                    "pipeline",
                    code=ErrorCode.INVALID_CONFIG,
                )
            self._wake_job, self._end = wake_job, None

    def close(self, end: PenstockError) -> None:
        """End every wait with this error: the job has ended."""
        with self._changed:
            self._wake_job, self._end = None, end
            self._changed.notify_all()

    def hand_over(self, batch: BatchId, frame: DataFrame) -> None:
        """Give a batch to the job; return once it is published and its sinks have committed."""
        offer = _Offer(batch, frame)
        with self._changed:
            if self._offer is not None:
                raise UserError(
                    f"{batch} was given to a job that still reads {self._offer.batch}: a "
                    "source takes the batches of one query, one after the other",
                    code=ErrorCode.INVALID_CONFIG,
                )
            if self._wake_job is None:
                raise self._end or _not_attached()
            self._offer = offer
            wake_job = self._wake_job
        wake_job()
        with self._changed:
            try:
                self._changed.wait_for(lambda: offer.is_done or self._end is not None)
                if not offer.is_done and self._end is not None:
                    raise self._end
            finally:
                self._offer = None

    def next_step(self, offset: Any) -> FrameStep:
        """Return the batch that waits, if it may follow the stored one. For the job's thread."""
        with self._changed:
            if self._wake_job is None:
                raise _not_attached()
            offer = self._offer
        if offer is None or offer.is_done:
            return None
        stored = None if offset is None else BatchId(*offset)
        if is_stored_already(offer.batch, stored, begins_late=self._begins_late):
            # The claim of the job has finished the commit of what was published.
            self.note_stored(offer.batch)
            return None
        if stored is None and offer.batch.number > 0:
            _log.warning("this job begins with %s: earlier ones are not in it", offer.batch)
        return NextFrame(offer.frame, [offer.batch.query, offer.batch.number])

    def note_stored(self, batch: BatchId) -> None:
        """Note that a batch is published and committed."""
        with self._changed:
            if self._offer is not None and self._offer.batch == batch:
                self._offer.is_done = True
                self._changed.notify_all()


def _not_attached() -> UserError:
    return UserError(
        "an 'attached' source takes the batches of a streaming query, and none is attached: "
        "start the pipeline with Pipeline.attach, or Pipeline.start_attached for a query of "
        "your own",
        code=ErrorCode.INVALID_CONFIG,
    )


QUERY_ID = "sql.streaming.queryId"
"""The local property that holds the query's id in the query's thread."""

_LOOK_SECONDS = 1
"""How long it may take until a Ctrl-C is noticed."""

Feed: TypeAlias = Callable[[DataFrame, int], None]
"""What `foreachBatch` calls: a batch and its number."""


class AttachedJob:
    """A running job and the queries that feed it. Ends when they end, or when it fails."""

    def __init__(
        self, graph: LogicalGraph, registry: Registry, options: RunOptions
    ) -> None:
        self._handoffs = find_handoffs(graph, registry)
        self._job = str(graph.job)
        watched = replace(options, on_driver=self._take, on_epoch=self._note)
        self._run_job = partial(run_on_spark, graph, registry, watched)
        self._driver: JobDriver | None = None
        self._has_driver = threading.Event()
        self._error: BaseException | None = None
        self.queries: dict[str, StreamingQuery] = {}
        """The queries that `Pipeline.attach` started, by source."""
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-{graph.job}", daemon=True
        )

    def start(self) -> Self:
        """Start the thread that drives the job."""
        opened: list[Handoff] = []
        try:
            for handoff in self._handoffs.values():
                handoff.open(self._wake)
                opened.append(handoff)
        except PenstockError as error:
            for handoff in opened:
                handoff.close(error)
            raise
        self._thread.start()
        return self

    @property
    def status(self) -> JobStatus | None:
        """What the job is doing; None before it has begun."""
        return None if self._driver is None else self._driver.status

    def feed(self, source: str | None = None) -> Feed:
        """Return the function to give to `foreachBatch` of the query that feeds a source."""
        handoff = self._handoffs[self.which_source(source)]

        def feed(frame: DataFrame, batch_id: int) -> None:
            context = context_of(frame.sparkSession)
            query = None if context is None else context.getLocalProperty(QUERY_ID)
            if not query:
                raise UserError(
                    "a batch came from no streaming query: give the function to foreachBatch, "
                    "and do not call it from another thread",
                    code=ErrorCode.INVALID_CONFIG,
                )
            handoff.hand_over(BatchId(str(query), batch_id), frame)

        return feed

    def which_source(self, name: str | None) -> str:
        """Return the named source; without a name the only one."""
        if name is None and len(self._handoffs) == 1:
            return next(iter(self._handoffs))
        if name is not None and name in self._handoffs:
            return name
        names = ", ".join(map(repr, self._handoffs))
        reason = "name one of them" if name is None else f"{name!r} is none of them"
        raise UserError(
            f"queries can be attached to these sources of pipeline {self._job!r}: {names}; "
            f"{reason}",
            code=ErrorCode.INVALID_CONFIG,
        )

    def attach(
        self,
        source: str,
        stream: DataFrame,
        *,
        query_checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start a query that feeds a source. The job must be running."""
        writer = stream.writeStream.foreachBatch(self.feed(source))
        writer = writer.option("checkpointLocation", f"{query_checkpoint}/{source}")
        if trigger:
            writer = writer.trigger(**trigger)
        self.queries[source] = query = writer.start()
        if self._error is not None:
            # The job has failed meanwhile, and may not have stopped this query.
            query.stop()
        return query

    def await_termination(self) -> JobStatus:
        """Wait until all attached queries have ended, then stop the job; raise its failure.

        Ctrl-C stops queries and job after the batches under way; a second one raises.
        """
        failure: PySparkException | None = None
        pressed = threading.Event()
        with on_ctrl_c(pressed.set):
            for query in self.queries.values():
                try:
                    # Each wait is short: Python handles signals only between calls to the JVM.
                    while not (pressed.is_set() or query.awaitTermination(_LOOK_SECONDS)):
                        pass
                except PySparkException as error:
                    failure = failure or error
        status = self.stop()
        if failure is not None:
            raise failure
        return status

    def stop(self) -> JobStatus:
        """Let the batches under way finish, then stop queries and job; raise its failure."""
        for query in self.queries.values():
            query.stop()
        self._has_driver.wait()
        if self._driver is not None:
            self._driver.request_stop(StopMode.CHECKPOINT)
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._driver is None:
            raise InternalError(f"job {self._job!r} ended without a status")
        return self._driver.status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del kind, trace
        try:
            self.stop()
        except Exception as own:
            if error is None:
                raise
            error.add_note(f"The job ended with: {own}")

    def _run(self) -> None:
        """Drive the job; when it ends, for any reason, end every wait for it."""
        try:
            self._run_job()
        except BaseException as error:  # noqa: BLE001 (it is raised again by `stop`)
            self._error = error
        finally:
            self._has_driver.set()
            end = self._why_ended()
            for handoff in self._handoffs.values():
                handoff.close(end)
            if self._error is not None:
                # A query without data would go on for ever, and hide the failure.
                for query in list(self.queries.values()):
                    query.stop()

    def _take(self, driver: JobDriver) -> None:
        self._driver = driver
        self._has_driver.set()

    def _wake(self) -> None:
        self._has_driver.wait()
        if self._driver is not None:
            self._driver.wake_up()

    def _note(self, ran: EpochRan) -> None:
        """End the waits of queries whose batches an epoch has stored."""
        if not ran.progress.is_published:
            return
        for (operator, _), report in ran.reports.items():
            handoff = self._handoffs.get(str(operator))
            for state in report.splits.values():
                if handoff is not None and state.offset is not None:
                    handoff.note_stored(BatchId(*state.offset[0]))

    def _why_ended(self) -> PenstockError:
        if isinstance(self._error, PenstockError):
            return self._error
        reason = "was stopped" if self._error is None else f"failed: {self._error}"
        return StateError(
            f"job {self._job!r} {reason}; a batch that it has not published comes again when "
            "the query is started again",
            code=ErrorCode.JOB_FINISHED,
            job=self._job,
        )


def find_handoffs(graph: LogicalGraph, registry: Registry) -> dict[str, Handoff]:
    """Return the handoffs of the graph's attached sources, by the name of the source."""
    found = {}
    for node in graph.nodes:
        made = registry.construct(node.spec).operator
        if isinstance(made, FrameSource) and isinstance(made.feed, Handoff):
            found[str(node.operator)] = made.feed
    if not found:
        raise UserError(
            f"pipeline {graph.job!r} has no source that a query could be attached to: read one "
            "with pen.attached(schema=…)",
            code=ErrorCode.INVALID_CONFIG,
        )
    return found


def check_streams(streams: Mapping[Any, Any]) -> None:
    """Refuse values that are no streaming DataFrame of a Spark in this process, all at once."""
    problems = [
        f"{name or 'this one'} {problem}"
        for name, stream in streams.items()
        if (problem := _problem_of(stream)) is not None
    ]
    if problems:
        raise UserError(
            "attach takes streaming DataFrames (spark.readStream): " + "; ".join(problems),
            code=ErrorCode.INVALID_CONFIG,
            problems=tuple(problems),
        )


def _problem_of(stream: object) -> str | None:
    if not isinstance(stream, DataFrame):
        return f"is {type(stream).__name__}, not a DataFrame"
    if not stream.isStreaming:
        return "ends: read it with pen.dataframe(frame)"
    if context_of(stream.sparkSession) is None:
        return "is of Spark Connect, whose queries call functions in another process"
    return None
