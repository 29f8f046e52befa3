"""What the dataflow itself costs, in one process: per batch and operator, and per epoch.

The operators do next to nothing, so that what is measured is the framework around them.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.suites import Row
from penstock.catalog import default_registry
from penstock.core.clock import SystemClock, new_token
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.graph.logical import MAIN, Edge, Exchange, LogicalGraph, Node, OperatorSpec
from penstock.operators.chain import AssembledChain, ChainSetting
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.nodes import ChainedOperator, EpochTerms
from penstock.operators.operator import ArrowOperator, SourceFinishType, SourceOperator
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.protocol.records import FIRST_GENERATION
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.state.tables.specs import TableSpec, global_table
from penstock.state.tables.table import TableEnvironment
from penstock.state.tables.table_manager import TableManager

SCHEMA = StreamSchema(pa.schema([("key", pa.int64()), ("value", pa.int64())]))
ROWS = pa.RecordBatch.from_pydict({"key": [1, 2, 3], "value": [1, 2, 3]}, SCHEMA.arrow)
CHAIN_LIMIT_MICROS = 20.0
EPOCH_LIMIT_MILLIS = 3.0


class PassOn(ArrowOperator):
    """Emits what it gets."""

    def name(self) -> str:
        return "pass-on"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)


class CountEpochs(PassOn):
    """Writes one value to its table in every epoch."""

    def tables(self) -> tuple[TableSpec, ...]:
        return (global_table("epochs", str, int),)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        table = ctx.get_global_keyed_state("epochs")
        table.insert("count", (table.get("count") or 0) + 1)


class OneBatch(SourceOperator):
    """Emits the same few rows in every epoch."""

    def name(self) -> str:
        return "one-batch"

    def output_schema(self) -> StreamSchema:
        return SCHEMA

    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        (split,) = ctx.splits
        collector.collect(ROWS)
        ctx.advance(split.name, (split.start or 0) + 1)
        return None


def run(*, quick: bool) -> list[Row]:
    return [
        measure_chain(batches=2_000 if quick else 20_000),
        measure_epochs("memory", MemoryStore(), epochs=100 if quick else 500),
        _measure_on_disk(epochs=50 if quick else 200),
    ]


def measure_chain(*, batches: int, operators: int = 5) -> Row:
    """Time per batch and operator of a chain of operators that pass everything on."""
    nodes = [
        _process(f"step-{index}", PassOn(), SCHEMA, outputs=True)
        for index in range(operators)
    ]
    links = [
        Edge(left.operator, right.operator) for left, right in itertools.pairwise(nodes)
    ]
    store, cache = MemoryStore(), FileCache(Path(tempfile.mkdtemp()), limit_bytes=1 << 30)

    def open_tables(task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        where = TableEnvironment(task, FIRST_GENERATION, new_token(), store, cache)
        return TableManager.load(where, specs, {})

    setting = ChainSetting(
        JobId("bench"), Subtask(0, 1), default_registry(), SystemClock(), open_tables
    )
    chain = AssembledChain(nodes, links, setting)
    terms = EpochTerms(CheckpointBarrier(Epoch(1), Epoch(1), 0), 0)
    chain.begin(terms, watermarks={}, assignments={}, outlets={})
    first = chain.nodes[0]
    assert isinstance(first, ChainedOperator)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(batches):
            first.process(0, ROWS)
        times.append((time.perf_counter() - started) / batches / operators * 1e6)
    chain.close()
    best = min(times)
    return {
        "name": "chain loop, per batch and operator",
        "micros": round(best, 2),
        "target_micros": CHAIN_LIMIT_MICROS,
        "ok": best <= CHAIN_LIMIT_MICROS,
    }


def measure_epochs(label: str, store: ObjectStore, *, epochs: int) -> Row:
    """Time per epoch of two supersteps with one table each, published and compacted."""
    keyed = SCHEMA.keyed_by("key")
    graph = LogicalGraph(
        JobId("bench"),
        (
            Node(
                OperatorId("read"),
                OperatorSpec("source", {"source": pickle_function(OneBatch(), "OneBatch")}),
                outputs={MAIN: SCHEMA},
            ),
            _process("count", CountEpochs(), keyed, outputs=False),
        ),
        (Edge(OperatorId("read"), OperatorId("count"), exchange=Exchange.BY_KEY),),
    )
    registry = default_registry()
    cache = FileCache(Path(tempfile.mkdtemp()), limit_bytes=1 << 30)
    worker = Worker(store, cache, registry)
    environment = JobEnvironment(
        graph,
        store,
        cache,
        InProcessExecutor(worker),
        registry,
        settings=DriverSettings(adapts_budget=False),
    )
    session = JobSession.start(environment)
    times = []
    for _ in range(epochs):
        started = time.perf_counter()
        ran = session.run_epoch()
        times.append((time.perf_counter() - started) * 1e3)
        assert isinstance(ran, EpochRan)
        assert ran.progress.is_published
    median = statistics.median(times[len(times) // 5 :])
    row: Row = {
        "name": f"epoch of two supersteps, one table each, {label} store",
        "median_millis": round(median, 3),
        "mean_millis": round(statistics.fmean(times[len(times) // 5 :]), 3),
    }
    if label == "memory":
        row |= {"target_millis": EPOCH_LIMIT_MILLIS, "ok": median <= EPOCH_LIMIT_MILLIS}
    return row


def _measure_on_disk(*, epochs: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return measure_epochs("local disk", open_store(folder), epochs=epochs)


def _process(
    name: str, operator: ArrowOperator, schema: StreamSchema, *, outputs: bool
) -> Node:
    return Node(
        OperatorId(name),
        OperatorSpec("process", {"operator": pickle_function(operator, name)}),
        inputs=(schema,),
        outputs={MAIN: schema} if outputs else {},
    )
