"""JobEnvironment: the graph, stores, executor, settings and side work that a driver works with.

**Side work** consists of storage calls that need not wait for each other, or that no epoch
waits for. Without threads all calls are made at once and in order, which tests of failures
need. With threads, objects are written side by side, and old ones are deleted while the next
epoch runs.

A `Pacer` waits between epochs until an instant, or until another thread interrupts it.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

from penstock.core.clock import Clock, ManualClock, SystemClock
from penstock.core.ids import OperatorId
from penstock.core.settings import CompactionSettings
from penstock.errors import ErrorCode, PenstockError, UserError
from penstock.graph.logical import Exchange, LogicalGraph, Node
from penstock.operators.chain import declared_tables
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.policies import RestartPolicy, Trigger
from penstock.runtime.driver.signals import wait_attentively
from penstock.runtime.plan.executor import Executor
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph
from penstock.state.checkpoints import (
    BackingStore,
    JobCheckpoints,
    Metadata,
    ParquetBackend,
)
from penstock.state.files.cache import FileCache
from penstock.state.protocol.records import RULES, OperatorEntry, ProtocolRules
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec, TimeDomain

_log = logging.getLogger(__name__)
T = TypeVar("T")


_PATIENCE_SECONDS = 2.0
"""How long a call may go on that is waited for: most are done by then."""


class SideWork:
    """Some threads of one driver, or none."""

    def __init__(
        self, threads: int = 0, *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._patience_seconds = patience_seconds
        self._writers: ThreadPoolExecutor | None = None
        self._aside: ThreadPoolExecutor | None = None
        if threads:
            self._writers = ThreadPoolExecutor(threads, "penstock-writer")
            self._aside = ThreadPoolExecutor(1, "penstock-aside")
        self._started: Future[object] | None = None
        self.is_settling = False
        """Whether the call under way is waited for too long, and so leaves off if it can."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make all calls; raise the first failure when none of them is under way."""
        if self._writers is None or len(calls) < 2:
            return [call() for call in calls]
        futures = [self._writers.submit(call) for call in calls]
        wait(futures)
        return [future.result() for future in futures]

    def start(self, call: Callable[[], object]) -> None:
        """Start a call without waiting for it, unless another one is under way."""
        if self._aside is None:
            call()
        elif self._started is None:
            self._started = self._aside.submit(call)

    def check(self) -> None:
        """Raise the failure of a call that was not waited for."""
        if self._started is not None and self._started.done():
            self.settle()

    def settle(self) -> None:
        """Wait for the call under way, and raise its failure.

        A job that only ever runs for a few epochs would otherwise never end one.
        """
        if self._started is None:
            return
        done, self._started = self._started, None
        wait([done], self._patience_seconds)
        self.is_settling = True
        try:
            done.result()
        finally:
            self.is_settling = False

    def close(self) -> None:
        """Wait for the call under way, and start no other. Its failure is only logged."""
        try:
            self.settle()
        except PenstockError as error:
            _log.warning("the last collection failed: %s", error)
        for threads in (self._writers, self._aside):
            if threads is not None:
                threads.shutdown()


class Pacer(Protocol):
    """Waits for a driver."""

    def wait_until(self, micros: int | None) -> None:
        """Wait until that time, for ever if it is None; return early when interrupted."""
        ...

    def interrupt(self) -> None:
        """End the wait under way, or the next one. May be called from other threads."""
        ...


class ClockPacer:
    """Waits by a real clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attention = threading.Event()

    def wait_until(self, micros: int | None) -> None:
        """Sleep until that time or until interrupted."""
        seconds = None
        if micros is not None:
            seconds = max(0, micros - self._clock.now_micros()) / 1_000_000
        wait_attentively(self._attention.wait, seconds)
        self._attention.clear()

    def interrupt(self) -> None:
        """Wake the driver up."""
        self._attention.set()


class ManualPacer:
    """Moves a manual clock instead of waiting, so that tests take no time."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.waits: list[int | None] = []
        """Every instant that was waited for."""

    def wait_until(self, micros: int | None) -> None:
        """Move the clock to that time; a wait for ever fails, as no other thread would end it."""
        self.waits.append(micros)
        if micros is None:
            raise RuntimeError(
                "nothing will ever happen again: the driver would wait for ever"
            )
        self._clock.micros = max(self._clock.micros, micros)

    def interrupt(self) -> None:
        """Do nothing: no wait takes time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Choices about how a job is driven."""

    target_epoch_micros: int = 1_000_000
    """How long an epoch with data should take; without data, epochs keep this distance."""
    trigger: Trigger | None = None
    """When epochs of a job without a backlog begin, if not at that distance."""
    keep_epochs: int = 10
    keep_micros: int | None = None
    """How far back one can go at least, if that is further than `keep_epochs`."""
    collect_every: int = 4
    """How many published epochs lie between two collections."""
    budget: SourceBudget = field(default_factory=SourceBudget)
    """What a source subtask may read in the first epoch; adapted from then on."""
    adapts_budget: bool = True
    warns_of_dropped_rows: bool = True
    """Whether late and bad rows that nothing reads are told: not if a part of a graph runs."""
    epoch_deadline_micros: int | None = None
    """How long an epoch that reads may run, before an executor cancels it if it can."""
    torn_limit: int = 5
    """How often in a row a torn epoch is simply run again before it counts as a failure."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    allow_dropped_state: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The steps whose state goes on under another name, by the name it is stored under."""
    rules: ProtocolRules = RULES
    samples_every_micros: int | None = None
    """How often an epoch looks at the keys that it moves; None for never."""


@dataclass
class JobEnvironment:
    """Everything that stays the same over all claims of one driver."""

    graph: LogicalGraph
    store: ObjectStore
    cache: FileCache
    executor: Executor
    registry: Registry
    clock: Clock = field(default_factory=SystemClock)
    settings: DriverSettings = field(default_factory=DriverSettings)
    side_work: SideWork = field(default_factory=SideWork)

    @cached_property
    def job(self) -> PhysicalPlan:
        """The compiled graph; compiling validates it."""
        return compile_graph(self.graph)

    def open_checkpoints(self) -> JobCheckpoints:
        """Return a new value of the job's checkpoints, which keeps what a collection found."""
        return JobCheckpoints(self.store, self.graph.job, self.clock, self.settings.rules)

    @cached_property
    def backend(self) -> BackingStore:
        """The store of the subtasks' metadata, beside the state files."""
        return ParquetBackend(self.store)

    def read_metadata(self, entry: OperatorEntry) -> dict[int, Metadata]:
        """Read the metadata of every subtask of an operator."""
        read = self.backend.read_operator_checkpoint_metadata
        return {index: read(ref) for index, ref in enumerate(entry.subtasks)}

    @cached_property
    def tables(self) -> dict[OperatorId, tuple[TableSpec, ...]]:
        """Every operator's tables."""
        tables = {}
        for node in self.graph.nodes:
            operator = self.registry.construct(node.spec).operator
            tables[node.operator] = declared_tables(operator, node)
            _check_event_time(self.graph, node, tables[node.operator])
        return tables


def _check_event_time(
    graph: LogicalGraph, node: Node, tables: tuple[TableSpec, ...]
) -> None:
    """Refuse state that expires by event time where subtasks may see different watermarks.

    A checkpoint keeps only one watermark for all of them. A subtask that was ahead would see
    expired rows, and timers that have fired, once more.
    """
    timed = [spec.name for spec in tables if spec.expires_by is TimeDomain.EVENT_TIME]
    if node.parallelism == 1 or not timed:
        return
    for edge in graph.edges_into(node.operator):
        if edge.exchange is Exchange.FORWARD:
            raise UserError(
                f"operator {node.operator!r} keeps state by event time ({', '.join(timed)}) "
                f"and reads {edge.source!r} by a forward edge: its subtasks may see different "
                "watermarks, and what one has done would be done again. Send the rows by key",
                code=ErrorCode.INVALID_GRAPH,
                operator=str(node.operator),
            )
