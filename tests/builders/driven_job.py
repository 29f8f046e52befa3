"""A job of scripted parts with its store, clock and drivers, all in this process."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from penstock.core.clock import ManualClock
from penstock.core.ids import JobId
from penstock.core.schema import StreamSchema
from penstock.graph.logical import Edge, LogicalGraph, Node
from penstock.operators.operator import ArrowOperator
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, ManualPacer
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.driver.policies import RestartPolicy
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from tests.builders.scripted import PLAIN, Parts, Scripted, numbers_in
from tests.unit.state.tables.table_builders import NO_CACHE

JOB = JobId("job")
SECOND = 1_000_000


class Ledger:
    """What a sink was given, outside of the job: rows of epochs that failed are here, too."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def sink(self, **hooks: Any) -> ArrowOperator:
        def take(batch: pa.RecordBatch, *_: object) -> None:
            self.numbers += numbers_in([batch])

        return Scripted("write", is_sink=True, process_batch=take, **hooks)


class DrivenJob:
    """One job; every driver is a new process. Nodes and edges may be replaced between them."""

    def __init__(self, store: ObjectStore | None = None, **settings: Any) -> None:
        self.job = JOB
        self.parts = Parts()
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.store: ObjectStore = MemoryStore() if store is None else store
        self.clock = ManualClock(10 * SECOND)
        self.pacer = ManualPacer(self.clock)
        self.statuses: list[JobStatus] = []
        self.settings = DriverSettings(
            **{
                "adapts_budget": False,
                "budget": SourceBudget(wall_micros=SECOND, overrun_micros=20 * SECOND),
                "restarts": RestartPolicy(max_restarts=3),
                **settings,
            }
        )

    def add(
        self, name: str, build: Callable[[], Any], *inputs: StreamSchema, **more: Any
    ) -> None:
        """Add an operator or a source, or replace the one of that name."""
        self.nodes = [node for node in self.nodes if node.operator != name]
        self.nodes.append(self.parts.node(name, build, *inputs, **more))

    def join(self, *edges: Edge) -> None:
        self.edges += edges

    def read_and_write(
        self,
        source: Callable[[], Any],
        sink: Callable[[], Any],
        edge: Edge,
        **source_options: Any,
    ) -> None:
        """Make it a job of one source and one sink."""
        self.add("read", source, **source_options)
        self.add("write", sink, PLAIN)
        self.join(edge)

    @property
    def graph(self) -> LogicalGraph:
        return LogicalGraph(self.job, tuple(self.nodes), tuple(self.edges))

    def environment(self, store: ObjectStore | None = None) -> JobEnvironment:
        used = self.store if store is None else store
        worker = Worker(used, NO_CACHE, self.parts.registry, self.clock)
        return JobEnvironment(
            self.graph,
            used,
            NO_CACHE,
            InProcessExecutor(worker),
            self.parts.registry,
            self.clock,
            self.settings,
        )

    def session(self) -> JobSession:
        return JobSession.start(self.environment())

    def driver(
        self,
        store: ObjectStore | None = None,
        on_status: Callable[[JobDriver, JobStatus], None] | None = None,
    ) -> JobDriver:
        drivers: list[JobDriver] = []

        def note(status: JobStatus) -> None:
            self.statuses.append(status)
            if on_status is not None and drivers:
                on_status(drivers[0], status)

        driver = JobDriver(
            self.environment(store), pacer=self.pacer, listeners=[StatusFunction(note)]
        )
        drivers.append(driver)
        return driver

    def run(
        self,
        *,
        on_status: Callable[[JobDriver, JobStatus], None] | None = None,
        restore: Epochs | None = None,
        store: ObjectStore | None = None,
    ) -> JobStatus:
        return self.driver(store, on_status).run(restore=restore)

    @property
    def phases(self) -> Sequence[JobPhase]:
        """The phases of all drivers in order, without repetition."""
        found: list[JobPhase] = []
        for status in self.statuses:
            if not found or found[-1] is not status.phase:
                found.append(status.phase)
        return found

    @property
    def checkpoints(self) -> JobCheckpoints:
        return JobCheckpoints(self.store, self.job, self.clock, self.settings.rules)
