"""AttachedJob: a job that streaming queries feed, driven by a thread of its own.

    job = pipeline.attach(stream, checkpoint="…", query_checkpoint="…")
    job.await_termination()

Penstock keeps its checkpoint, Spark that of the query. A batch is done for Spark only after
the job has published and committed it; which batch that was is in the job's checkpoint.
"""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import (
    ErrorCode,
    InternalError,
    PenstockError,
    StateError,
    UserError,
)
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.runtime.driver import JobDriver
from penstock.runtime.epoch import StopMode
from penstock.runtime.outcomes import EpochRan
from penstock.runtime.spark.contexts import context_of
from penstock.runtime.spark.frame_source import FrameSource
from penstock.runtime.spark.handoff import BatchId, Handoff
from penstock.runtime.spark.interrupts import noticing_ctrl_c
from penstock.runtime.status import JobStatus

QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark names the query to whatever runs in its thread."""

_LOOK_SECONDS = 1
"""How long a Ctrl-C may go unseen."""

Feed: TypeAlias = Callable[[DataFrame, int], None]
"""What `foreachBatch` calls: a batch and its number."""


class RunJob(Protocol):
    """Runs a job to its end on this thread."""

    def __call__(
        self,
        *,
        on_driver: Callable[[JobDriver], None],
        on_epoch: Callable[[EpochRan], None],
    ) -> JobStatus:
        """Call `on_driver` before the job starts and `on_epoch` after each epoch that counts."""
        ...


class AttachedJob:
    """A running job and the queries that feed it. Ends when they end, or when it fails."""

    def __init__(self, graph: LogicalGraph, registry: Registry, run_job: RunJob) -> None:
        self._handoffs = find_handoffs(graph, registry)
        self._job = str(graph.job)
        self._run_job = run_job
        self._driver: JobDriver | None = None
        self._has_driver = threading.Event()
        self._error: BaseException | None = None
        self._status: JobStatus | None = None
        self.queries: dict[str, StreamingQuery] = {}
        """Those that `Pipeline.attach` started, by source."""
        self._thread = threading.Thread(
            target=self._run, name=f"penstock-{graph.job}", daemon=True
        )

    def start(self) -> Self:
        """Begin to drive the job."""
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
        return self._status if self._driver is None else self._driver.status

    def feed(self, source: str | None = None) -> Feed:
        """Return the function to give to `foreachBatch` of the query that feeds a source."""
        handoff = self._handoffs[self.which_source(source)]

        def feed(frame: DataFrame, batch_id: int) -> None:
            handoff.hand_over(BatchId(_query_of(frame), batch_id), frame)

        return feed

    def which_source(self, name: str | None) -> str:
        """Return which source is meant: the only one, or the one that is named."""
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
        """Start a query that feeds a source; the job is running."""
        writer = stream.writeStream.foreachBatch(self.feed(source))
        writer = writer.option("checkpointLocation", f"{query_checkpoint}/{source}")
        if trigger:
            writer = writer.trigger(**trigger)
        self.queries[source] = query = writer.start()
        if self._error is not None:
            # The job failed just now, and may not have seen this query.
            query.stop()
        return query

    def await_termination(self) -> JobStatus:
        """Wait until all attached queries have ended, then stop the job; raise why it failed.

        Ctrl-C does the same at once, after the batches under way; a second one raises.
        """
        failure: PySparkException | None = None
        with noticing_ctrl_c() as pressed:
            for query in self.queries.values():
                try:
                    # Not for ever: signals are seen between calls to the JVM only.
                    while not (pressed.is_set() or query.awaitTermination(_LOOK_SECONDS)):
                        pass
                except PySparkException as error:
                    failure = failure or error
        status = self.stop()
        if failure is not None:
            raise failure
        return status

    def stop(self) -> JobStatus:
        """Let the batches under way finish, then stop queries and job; raise why it failed."""
        for query in self.queries.values():
            query.stop()
        self._has_driver.wait()
        if self._driver is not None:
            self._driver.request_stop(StopMode.CHECKPOINT)
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._status is None:
            raise InternalError(f"job {self._job!r} ended without a word")
        return self._status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        try:
            self.stop()
        except Exception as own:
            if error is None:
                raise
            error.add_note(f"The job ended with: {own}")

    def _run(self) -> None:
        """Drive the job; whatever ends it, nobody is left waiting."""
        try:
            self._status = self._run_job(on_driver=self._take, on_epoch=self._note)
        except BaseException as error:  # noqa: BLE001 (it is raised to whoever waits)
            self._error = error
        finally:
            self._has_driver.set()
            end = self._why_ended()
            for handoff in self._handoffs.values():
                handoff.close(end)
            if self._error is not None:
                # Queries without data would go on for ever, and nobody would know.
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
        """Tell the queries which of their batches an epoch has stored."""
        if not ran.is_published:
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
    """Return what queries can be attached to, by the name of the source."""
    found = {}
    for node in graph.nodes:
        made = registry.construct(node.spec).operator
        if isinstance(made, FrameSource) and isinstance(made.feed, Handoff):
            found[str(node.operator)] = made.feed
    if not found:
        raise UserError(
            f"pipeline {graph.job!r} has no source that a query could be attached to: read one "
            "with ps.attached(schema=…)",
            code=ErrorCode.INVALID_CONFIG,
        )
    return found


def check_streams(streams: Mapping[Any, Any]) -> None:
    """Refuse what is no streaming DataFrame of a Spark in this process, all of it at once."""
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
        return "ends: read it with ps.dataframe(frame)"
    if context_of(stream.sparkSession) is None:
        return "is of Spark Connect, whose queries call functions in another process"
    return None


def _query_of(frame: DataFrame) -> str:
    context = context_of(frame.sparkSession)
    query = None if context is None else context.getLocalProperty(QUERY_ID)
    if not query:
        raise UserError(
            "a batch came from no streaming query: give the function to foreachBatch, and do "
            "not call it from another thread",
            code=ErrorCode.INVALID_CONFIG,
        )
    return str(query)
