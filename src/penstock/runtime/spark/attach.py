"""AttachedJob: a job that streaming queries feed, driven by a thread of its own.

It ends when the queries have ended that `Pipeline.attach` started for it, when it is stopped,
or when it fails. Then it also ends every wait of a query's thread in a `Handoff`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from typing_extensions import override

from penstock.core.spellings import absent
from penstock.errors import ErrorCode, ExternalError, PenstockError, StateError, UserError
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.running_job import RunningJob, Timeout
from penstock.runtime.spark.frame_source import (
    FrameSource,
)
from penstock.runtime.spark.handoff import BatchId, Handoff
from penstock.runtime.spark.running import run_on_spark
from penstock.runtime.spark.session import context_of

_log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""The local property that holds the query's id in the query's thread."""

_LOOK_SECONDS = 1.0
"""How long it may take until a signal is noticed."""
_SHORTEST_SECONDS = 0.001
_ABSENT = {"await_termination": "wait does it, with a timeout if you like"}

Feed: TypeAlias = Callable[[DataFrame, int], None]
"""What `foreachBatch` calls: a batch and its number."""


class AttachedJob(RunningJob):
    """A running job and the queries that feed it. Ends when they end, or when it fails."""

    def __init__(
        self, graph: LogicalGraph, registry: Registry, options: RunOptions
    ) -> None:
        self._handoffs = find_handoffs(graph, registry)
        watched = replace(options, on_epoch=self._note_stored)
        super().__init__(str(graph.job), partial(run_on_spark, graph, registry), watched)
        self.queries: dict[str, StreamingQuery] = {}
        """The queries that `Pipeline.attach` started, by source."""
        self._is_hasty = False
        """Whether it was stopped at once: then queries fail because of it."""
        self._failure: ExternalError | None = None
        """What the first query that failed has failed of."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent("AttachedJob", name, _ABSENT, dir(AttachedJob))

    @override
    def start(self) -> Self:
        """Start the thread that drives the job, and return when the job is claimed."""
        opened: list[Handoff] = []
        try:
            for handoff in self._handoffs.values():
                handoff.open(self._wake)
                opened.append(handoff)
        except PenstockError as error:
            for handoff in opened:
                handoff.close(error)
            raise
        return super().start()

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
            f"queries can be attached to these sources of pipeline {self._name!r}: {names}; "
            f"{reason}",
            code=ErrorCode.INVALID_CONFIG,
        )

    def attach(
        self,
        source: str,
        stream: DataFrame,
        *,
        query_checkpoint: str,
        query_trigger: Mapping[str, Any] | None = None,
    ) -> StreamingQuery:
        """Start a query that feeds a source. The job must be running."""
        writer = stream.writeStream.foreachBatch(self.feed(source))
        writer = writer.option("checkpointLocation", f"{query_checkpoint}/{source}")
        if query_trigger:
            writer = writer.trigger(**query_trigger)
        self.queries[source] = query = writer.start()
        if self._error is not None:
            # The job has failed meanwhile, and may not have stopped this query.
            query.stop()
        return query

    @override
    def wait(self, timeout: Timeout | None = None) -> JobStatus:
        """Wait until the queries that `Pipeline.attach` started have ended, then stop the job.

        A job that is fed by queries of the user's own is waited for until somebody stops it.
        The failure of the job is raised, or else that of a query. A signal, such as Ctrl-C,
        stops queries and job after the batches under way, a second one at once.
        """
        status = super().wait(timeout)
        if self._failure is not None:
            raise self._failure
        return status

    @override
    def _await_end(self, seconds: float | None) -> bool:
        ends_at = None if seconds is None else time.monotonic() + seconds
        for source, query in self.queries.items():
            while not self._has_ended(source, query, ends_at):
                if ends_at is not None and time.monotonic() >= ends_at:
                    return False
        if self.queries:
            # The queries may have ended by a stop in a mode that is not passed on yet.
            super()._request(self._wanted or StopMode.CHECKPOINT)
        left = None if ends_at is None else max(0.0, ends_at - time.monotonic())
        return super()._await_end(left)

    def _has_ended(self, source: str, query: StreamingQuery, ends_at: float | None) -> bool:
        """Wait for a short time, and return whether a query has ended; note its failure.

        A longer wait would not notice a signal: Python handles it between calls to the JVM.
        """
        seconds = _LOOK_SECONDS
        if ends_at is not None:
            seconds = min(seconds, max(_SHORTEST_SECONDS, ends_at - time.monotonic()))
        try:
            return bool(query.awaitTermination(seconds))  # type: ignore[arg-type] # fractions pass
        except PySparkException as error:
            if not self._is_hasty:
                self._failure = self._failure or _query_failed(source, error)
            return True

    @override
    def _request(self, mode: StopMode) -> None:
        """Let the batches under way finish, then stop queries and job; at once if so asked.

        Spark waits for the batch under way before it stops a query, which a caller must not.
        """
        if not self.queries:
            super()._request(mode)
            return
        self._want(mode)
        if mode is StopMode.IMMEDIATE:
            self._is_hasty = True
            super()._request(mode)
        threading.Thread(
            target=self._end_queries,
            args=(mode,),
            name=f"penstock-{self.name}-stop",
            daemon=True,
        ).start()

    def _end_queries(self, mode: StopMode) -> None:
        self._stop_queries()
        super()._request(mode)

    def _stop_queries(self) -> None:
        for source, query in list(self.queries.items()):
            try:
                query.stop()
            except Exception as error:  # noqa: BLE001 (whatever is wrong with Spark)
                _log.warning("the query of source %r did not stop: %s", source, error)

    @override
    def _close(self) -> None:
        """End every wait for the job, which has ended for whatever reason."""
        end = self._why_ended()
        for handoff in self._handoffs.values():
            handoff.close(end)
        if self._error is not None:
            # A query without data would go on for ever, and hide the failure.
            self._stop_queries()

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake_up()

    def _note_stored(self, ran: EpochRan) -> None:
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
            f"job {self._name!r} {reason}; a batch that it has not published comes again when "
            "the query is started again",
            code=ErrorCode.JOB_FINISHED,
            job=self._name,
        )


def _query_failed(source: str, error: PySparkException) -> ExternalError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    failure = ExternalError(
        f"the query that feeds source {source!r} failed: {reason}. The job has stopped after "
        "its last batch; start both again when the query can run",
        code=ErrorCode.ENGINE_FAILED,
        source=source,
    )
    failure.__cause__ = error
    return failure


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
