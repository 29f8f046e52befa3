"""Pipeline: where a job begins. It adds sources, makes and explains the graph, and runs it.

A job runs on Spark or in this process, with the same supersteps, state and protocol.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import polars as pl

from penstock.api.event_time import to_event_time, to_watermark_spec
from penstock.api.explaining import Explanation, Format, explain, explain_as_html
from penstock.api.gathering import step
from penstock.api.graph_builder import BrokenPort, GraphBuilder
from penstock.api.in_process import in_process, run_in_process
from penstock.api.other_words import STREAM_HINTS
from penstock.api.stream import Stream
from penstock.core.clock import DurationLike
from penstock.core.ids import JobId
from penstock.core.spellings import absent, renamed
from penstock.errors import ErrorCode, UserError, naming_missing_extras
from penstock.graph.logical import MAIN, LogicalGraph, OperatorSpec, Readable
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.user_functions import source_spec
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.driver.fitness import StartCheck
from penstock.runtime.driver.options import JobOptions, PacedOptions, RunOptions
from penstock.runtime.driver.running_job import RunningJob
from penstock.runtime.driver.start import preview_start
from penstock.state.storage.urls import StorePlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.runtime.spark.attach import AttachedJob


_ABSENT = {
    **dict.fromkeys(
        (*STREAM_HINTS, *dir(Stream)), "read(…) returns a stream: steps follow it"
    ),
    "foreach_batch": "start_attached starts a job that a query of your own feeds",
}


def _broken(pipeline: "Pipeline") -> Stream:
    return Stream(pipeline.builder, BrokenPort())


class Pipeline:
    """A job as it is being written. Mutable: its streams add their steps to it.

    Writing it runs nothing. Mistakes are raised all at once when it is to run or to be shown.
    `parallelism` is how many subtasks each step has; it may differ from start to start.

    >>> import penstock as pen, polars as pl
    >>> p = pen.Pipeline("clicks")
    >>> clicks = p.read("clicks", pen.list_source([{"user": "ada", "page": 1}]))
    >>> pages = clicks.filter(pl.col("page") > 0).key_by("user")
    >>> pages.aggregate("pages", n=pen.count()).write("out", pen.stdout())
    >>> status = p.run_in_process("memory:")
    {"change": "insert", "user": "ada", "n": 1}
    """

    def __init__(
        self, name: str, *, parallelism: int = 1, registry: Registry | None = None
    ) -> None:
        if registry is None:
            # Late: `import penstock` must not load every connector and its libraries.
            from penstock.catalog import default_registry

            registry = default_registry()
        self.builder = GraphBuilder(JobId(name), parallelism, registry)
        """The graph that steps are added to; code that adds steps of its own uses it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise absent("Pipeline", name, _ABSENT, dir(Pipeline))

    @property
    def name(self) -> str:
        """The name of the job, under which its state is stored."""
        return self.builder.job

    @property
    def registry(self) -> Registry:
        """The registry that builds its operators; a UDF added to it can be called by name."""
        return self.builder.registry

    @step(_broken, is_named=True)
    @renamed(lateness="watermark_delay")
    def read(
        self,
        name: str,
        source: SourceOperator | OperatorSpec | Readable,
        *,
        event_time: str | pl.Expr | None = None,
        watermark_delay: DurationLike | None = None,
        idle_timeout: DurationLike | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Read from a source: what a connector's function returns, or a source object.

        `event_time` names the timestamp column that windows and timers use, or computes it:
        `pl.from_epoch("ms", time_unit="ms")`, `pl.col("at").str.to_datetime("%FT%T")`. The
        result replaces the column of its name, or is added to the others. A row may be up to
        `watermark_delay` behind the latest one of its split. A split without rows for
        `idle_timeout` does not hold the watermark of the others back. Rows that are dropped
        by filters directly behind `read` do not move the watermark.

        >>> import datetime as dt, penstock as pen
        >>> rows = pen.list_source([{"at": dt.datetime(2024, 1, 1), "n": 1}])
        >>> stream = pen.Pipeline("p").read(
        ...     "rows", rows, event_time="at", watermark_delay="5s"
        ... )
        >>> stream.schema.time_column
        'at'
        >>> import polars as pl
        >>> millis = pen.list_source([{"ms": 1_700_000_000_000}])
        >>> at = pl.from_epoch("ms", time_unit="ms").alias("at")
        >>> pen.Pipeline("p").read("rows", millis, event_time=at).schema.time_column
        'at'
        """
        watermark = to_watermark_spec(self.builder.problems, watermark_delay, idle_timeout)
        port = self.builder.add_source(
            name,
            _to_spec(source),
            event_time=to_event_time(name, event_time),
            watermark=watermark,
            parallelism=parallelism,
        )
        return Stream(self.builder, port)

    def graph(self) -> LogicalGraph:
        """Return the graph so far, or raise with every mistake that was made in writing it.

        A single mistake is raised as the error it is, several as one `GraphError` that lists
        them in the order they were written, each with file and line.

        >>> import penstock as pen
        >>> p = pen.Pipeline("typo")
        >>> keyed = p.read("numbers", pen.list_source([{"number": 1}])).key_by("numbr")
        >>> try:
        ...     p.graph()
        ... except pen.PenstockError as error:
        ...     print(error)
        the schema of a stream cannot be used:
          key column 'numbr' is not a column; did you mean 'number'?
        """
        return self.builder.graph()

    @renamed(shows_logs="show_logs")
    def run(
        self,
        checkpoint: StorePlace,
        *,
        master: str | None = None,
        session: "SparkSession | None" = None,
        show_logs: bool = False,
        **options: Unpack[PacedOptions],
    ) -> JobStatus:
        """Run the job on Spark until its data ends, from its last epoch if it ran before.

        Spark is embedded in this process (`local[*]`, with retries) unless `master` names a
        cluster or `session` is the user's own. Ctrl-C stops after a checkpoint, a second one
        at once. `options` are those of every job: `restore`, `trigger`, `retention`,
        `restarts`, `renamed`, `on_status`, `store_options` and `allow_dropped_state`;
        docs/running.md describes them.
        """
        run = self._run_on_spark()
        chosen = RunOptions.of(
            "run",
            options,
            checkpoint=checkpoint,
            master=master,
            session=session,
            show_logs=show_logs,
        )
        return run(chosen)

    def _run_on_spark(self) -> Callable[[RunOptions], JobStatus]:
        """Return what runs the job on Spark, or raise what is wrong with the pipeline."""
        graph = self._graph_to_run()
        # Late: a run in process needs neither Spark nor the seconds it takes to load.
        with naming_missing_extras():
            from penstock.runtime.spark.running import run_on_spark

        return partial(run_on_spark, graph, self.registry)

    def start(
        self,
        checkpoint: StorePlace,
        *,
        master: str | None = None,
        session: "SparkSession | None" = None,
        show_logs: bool = False,
        **options: Unpack[PacedOptions],
    ) -> RunningJob:
        """Start the job on Spark as `run` does, in a thread of its own, and return it.

        What prevents the start is raised here. From then on the job is watched, stopped and
        waited for by the methods of what is returned, in any thread.
        """
        run = self._run_on_spark()
        chosen = RunOptions.of(
            "start",
            options,
            checkpoint=checkpoint,
            master=master,
            session=session,
            show_logs=show_logs,
        )
        return RunningJob(self.name, run, chosen).start()

    @renamed(trigger="query_trigger")
    def attach(
        self,
        streams: "DataFrame | Mapping[str, DataFrame]",
        *,
        checkpoint: StorePlace,
        query_checkpoint: str,
        query_trigger: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> "AttachedJob":
        """Feed the `attached` source from a streaming DataFrame, one epoch per micro-batch.

        This starts a query, and the job beside it in a thread of its own. Both run until the
        query ends, which `wait` of the returned job waits for, or until its `stop`.
        `checkpoint` is the job's; the query keeps its own below `query_checkpoint`, in a
        folder named after the source.
        `query_trigger` is that of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.
        If there are several sources, `streams` is a dictionary by the sources' names.
        `options` are those of `run`, without a trigger.
        """
        with naming_missing_extras():
            from penstock.runtime.spark.attach import AttachedJob, check_streams

        named = streams if isinstance(streams, Mapping) else {"": streams}
        check_streams(named)
        session = next(iter(named.values())).sparkSession
        chosen = RunOptions.of("attach", options, checkpoint=checkpoint, session=session)
        job = AttachedJob(self._graph_to_run(), self.registry, chosen)
        by_source = {job.which_source(name or None): named[name] for name in named}
        job.start()
        with ExitStack() as if_one_fails:
            if_one_fails.push(job)
            for source, stream in by_source.items():
                job.attach(
                    source,
                    stream,
                    query_checkpoint=query_checkpoint,
                    query_trigger=query_trigger,
                )
            if_one_fails.pop_all()
        return job

    def start_attached(
        self,
        checkpoint: StorePlace,
        *,
        session: "SparkSession",
        **options: Unpack[JobOptions],
    ) -> "AttachedJob":
        """Start the job in a thread of its own, to be fed by the user's own streaming query.

        `job.feed(source)` is the function to give to `DataStreamWriter.foreachBatch`. The job
        is a context manager: leaving it stops the job. `options` are those of `attach`.
        """
        with naming_missing_extras():
            from penstock.runtime.spark.attach import AttachedJob

        chosen = RunOptions.of(
            "start_attached", options, checkpoint=checkpoint, session=session
        )
        return AttachedJob(self._graph_to_run(), self.registry, chosen).start()

    def run_in_process(
        self, checkpoint: StorePlace, **options: Unpack[PacedOptions]
    ) -> JobStatus:
        """Run the job here until its data ends, without Spark.

        This is for tests, notebooks and small jobs. `options` are those of `run`.
        """
        chosen = RunOptions.of("run_in_process", options, checkpoint=checkpoint)
        return run_in_process(self._graph_to_run(), self.registry, chosen)

    def check(self, checkpoint: StorePlace, **options: Unpack[PacedOptions]) -> StartCheck:
        """Say what `run` with the same arguments would do to the job's state, and do nothing.

        It says of each table of each step whether it is kept, migrated, starts empty, is
        dropped, or is why the job would be refused. A job that runs is not disturbed.

        >>> import penstock as pen
        >>> p = pen.Pipeline("p")
        >>> p.read("numbers", pen.list_source([{"n": 1}])).write("out", pen.blackhole())
        >>> print(p.check("memory:"))
        job 'p' would start empty: there is no checkpoint of it
          numbers  starts empty  read positions
        The job would start. Nothing was changed.
        """
        chosen = RunOptions.of("check", options, checkpoint=checkpoint)
        with in_process(
            self._graph_to_run(), self.registry, chosen, chosen.store()
        ) as environment:
            return preview_start(environment, chosen.epochs)

    def start_in_process(
        self, checkpoint: StorePlace, **options: Unpack[PacedOptions]
    ) -> RunningJob:
        """Start the job as `run_in_process` does, in a thread of its own, and return it.

        >>> import penstock as pen
        >>> p = pen.Pipeline("numbers")
        >>> p.read("numbers", pen.impulse(rate=1_000)).write("out", pen.blackhole())
        >>> with p.start_in_process("memory:") as job:
        ...     job.is_running
        True
        >>> job.wait().phase
        <JobPhase.STOPPED: 'stopped'>
        """
        chosen = RunOptions.of("start_in_process", options, checkpoint=checkpoint)
        run = partial(run_in_process, self._graph_to_run(), self.registry)
        return RunningJob(self.name, run, chosen).start()

    def explain(self, format: Format = "text") -> Explanation:  # noqa: A002
        """Show how the pipeline will run: supersteps as text, or the graph as a drawing.

        Notebooks show what this returns, and the pipeline itself, as a table.

        >>> import penstock as pen
        >>> p = pen.Pipeline("p")
        >>> p.read("numbers", pen.list_source([{"n": 1}])).write("out", pen.blackhole())
        >>> print(p.explain(), end="")
        job p
        superstep 0: 1 task
          chain 0 x1, task 0: numbers → out
        operators
          numbers: list_source(rows=1, splits=1)
          out: blackhole()
        """
        return explain(self.builder, format)

    def _repr_html_(self) -> str:
        return explain_as_html(self.builder)

    def _graph_to_run(self) -> LogicalGraph:
        """Return the graph, which must have a sink: without one a run would be in vain."""
        graph = self.graph()
        if all(MAIN in node.outputs for node in graph.nodes):
            raise UserError(
                f"pipeline {self.name!r} has no sink, so its rows would go nowhere: end a stream "
                'with write("a-name", …), such as pen.stdout(). preview(n) of a stream shows rows '
                "without one",
                code=ErrorCode.INVALID_GRAPH,
            )
        return graph


def _to_spec(source: SourceOperator | OperatorSpec | Readable) -> OperatorSpec:
    if isinstance(source, OperatorSpec):
        return source
    return source.source_spec() if isinstance(source, Readable) else source_spec(source)
