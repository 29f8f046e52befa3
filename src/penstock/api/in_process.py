"""Runs in this process: a whole job, or a preview of a stream that leaves nothing behind.

For a preview, the part of the pipeline in front of the stream runs over a store in memory and
without its sinks. It ends when there are rows enough, when sources have given as many as may be
read, or after some seconds if sources never end.
"""

import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from penstock.core.clock import DurationLike, new_token, to_micros
from penstock.core.ids import OperatorId
from penstock.core.schema import Settling
from penstock.core.settings import current
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import MAIN, Edge, Exchange, LogicalGraph, Node, OperatorSpec
from penstock.operators.changelogs.settling import settle_spec
from penstock.operators.frames import polars_type
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.policies import RestartPolicy
from penstock.runtime.driver.signals import StopSignals
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.journal.attendant import attend
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from penstock.api.stream import AnyStream

_ROWS_PER_EPOCH = 1_000
_SINK = OperatorId("preview-of-rows")
_SETTLED = OperatorId("preview-of-changes")


def run_in_process(
    graph: LogicalGraph, registry: Registry, options: RunOptions
) -> JobStatus:
    """Run a job until its data ends; one that ran before goes on from its last epoch.

    The tasks run one after the other in this process. A failure that does not pass is raised.
    A signal stops it after a checkpoint; a second one ends whatever runs at that moment.
    """
    store, epochs = options.open_store(graph.job), options.epochs
    with in_process(graph, registry, options, store) as environment:
        driver = attend(options, environment)
        signals = StopSignals(str(graph.job), raises_at=2)
        with signals.listening():
            signals.direct(
                partial(driver.request_stop, StopMode.CHECKPOINT),
                partial(driver.request_stop, StopMode.IMMEDIATE),
            )
            return driver.run(restore=epochs)


@contextmanager
def in_process(
    graph: LogicalGraph, registry: Registry, options: RunOptions, store: ObjectStore
) -> Iterator[JobEnvironment]:
    """Yield what a driver in this process works with."""
    settings = current()
    with tempfile.TemporaryDirectory(prefix="penstock-cache-") as folder:
        root = Path(settings.cache_root or folder)
        cache = FileCache(root, limit_bytes=settings.cache_limit_bytes)
        budget = settings.memory_budget_bytes
        worker = Worker(store, cache, registry, options.clock, memory_budget_bytes=budget)
        yield JobEnvironment(
            graph,
            store,
            cache,
            InProcessExecutor(worker, commits_in_threads=True),
            registry,
            options.clock,
            options.driver_settings(),
        )


@dataclass(frozen=True)
class Preview:
    """Rows of a stream; printed as a table, also in notebooks."""

    arrow: pa.Table
    """The rows."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries."""
        return self.arrow.to_pylist()

    def __len__(self) -> int:
        return self.arrow.num_rows

    def __repr__(self) -> str:
        return repr(self._frame)

    def _repr_html_(self) -> str:
        return self._frame._repr_html_()

    @cached_property
    def _frame(self) -> pl.DataFrame:
        """The rows as Polars shows them; columns that it lacks a type for as text."""
        columns = {
            name: pl.Series(name, column)
            if polars_type(column.type) != pl.Object()
            else pl.Series(name, [str(value) for value in column], pl.String)
            for name, column in zip(
                self.arrow.column_names, self.arrow.columns, strict=True
            )
        }
        return pl.DataFrame(columns)


def preview(stream: "AnyStream", n: int, max_rows: int, timeout: DurationLike) -> Preview:
    """Return the first rows of a stream: see `Stream.preview`."""
    # Late: `import penstock` loads no connector.
    from penstock.connectors.memory import list_sink

    for name, number in (("n", n), ("max_rows", max_rows)):
        given: Any = number
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise UserError(
                f"preview: {name} is {given!r}: give a whole number of rows, at least 1",
                code=ErrorCode.INVALID_NUMBER,
            )
    seconds = to_micros(timeout, "timeout") / 1_000_000
    builder, port = stream.builder, stream.port
    schema = builder.schema_of(port)
    rows = list_sink(f"preview-{new_token()}")
    graph = _part_of(builder.graph(), port.operator, port.output, rows)
    drivers: list[JobDriver] = []
    is_over = Event()
    read = 0

    def stop() -> None:
        is_over.set()
        for driver in drivers:
            driver.request_stop(StopMode.IMMEDIATE)

    def take(driver: JobDriver) -> None:
        drivers.append(driver)
        if is_over.is_set():  # the time was over before there was a driver to stop
            stop()

    def note(epoch: Any) -> None:
        nonlocal read
        read += epoch.progress.rows_read
        if read >= max_rows or sum(batch.num_rows for batch in rows.batches()) >= n:
            stop()

    budget = SourceBudget(rows=max(1, min(max(n, _ROWS_PER_EPOCH), max_rows)))
    options = RunOptions(
        checkpoint=MemoryStore(),
        settings=DriverSettings(
            budget=budget,
            adapts_budget=False,
            warns_of_dropped_rows=False,  # other parts of the pipeline may read them
            restarts=RestartPolicy(max_restarts=0),
        ),
        on_driver=take,
        on_epoch=note,
        keeps_journal=False,
    )
    waiting = Timer(seconds, stop)
    waiting.daemon = True
    waiting.start()
    try:
        run_in_process(graph, builder.registry, options)
        found = [batch.select(schema.arrow.names) for batch in rows.batches()]
        return Preview(pa.Table.from_batches(found, schema.arrow).slice(0, n))
    finally:
        waiting.cancel()
        rows.clear()


def _part_of(
    graph: LogicalGraph, operator: OperatorId, output: str, sink: OperatorSpec
) -> LogicalGraph:
    """Return the operators in front of an output, in one subtask each, with a sink behind it."""
    needed = _in_front_of(operator, graph.edges)
    nodes = [_alone(node, needed) for node in graph.nodes if node.operator in needed]
    schema = graph.node(operator).outputs[output]
    plain = OperatorSpec(sink.kind, sink.config)
    edges = [edge for edge in graph.edges if edge.target in needed]
    if schema.is_changelog and schema.settling is not Settling.SETTLED:
        settled = replace(schema, settling=Settling.SETTLED)
        spec = settle_spec()
        nodes.append(Node(_SETTLED, spec, inputs=(schema,), outputs={MAIN: settled}))
        edges.append(Edge(operator, _SETTLED, output, 0, Exchange.FORWARD))
        operator, output, schema = _SETTLED, MAIN, settled
    nodes.append(Node(_SINK, plain, inputs=(schema,)))
    edges.append(Edge(operator, _SINK, output, 0, Exchange.FORWARD))
    return LogicalGraph(graph.job, tuple(nodes), tuple(edges))


def _in_front_of(operator: OperatorId, edges: Sequence[Edge]) -> set[OperatorId]:
    needed, pending = {operator}, [operator]
    while pending:
        target = pending.pop()
        sources = {edge.source for edge in edges if edge.target == target} - needed
        needed |= sources
        pending += sources
    return needed


def _alone(node: Node, needed: Collection[OperatorId]) -> Node:
    """Return a node with one subtask, and a watermark that follows only what is there."""
    watermark = node.watermark
    if watermark is not None:
        behind = tuple(each for each in watermark.behind if each in needed)
        watermark = replace(watermark, behind=behind)
    return replace(node, parallelism=1, watermark=watermark)
