"""What a driver works with: the graph it runs, where state lives, and the choices made for it."""

from dataclasses import dataclass, field
from functools import cached_property

from penstock.core.clock import Clock, SystemClock
from penstock.core.ids import OperatorId
from penstock.core.settings import CompactionSettings
from penstock.errors import ErrorCode, UserError
from penstock.graph.codec import fingerprint_of
from penstock.graph.logical import Exchange, LogicalGraph, Node
from penstock.operators.nodes import declared_tables
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceBudget
from penstock.runtime.executor import Executor
from penstock.runtime.physical import compile_graph
from penstock.runtime.restarts import RestartPolicy
from penstock.runtime.side_work import SideWork
from penstock.runtime.superstep import CompiledJob
from penstock.state.files.cache import FileCache
from penstock.state.protocol.rules import RULES, ProtocolRules
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec, TimeDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """Choices about how a job is driven."""

    target_epoch_micros: int = 1_000_000
    """How long an epoch with data should take; without data, epochs keep this distance."""
    keep_epochs: int = 10
    collect_every: int = 4
    """How many published epochs lie between two collections."""
    budget: SourceBudget = field(default_factory=SourceBudget)
    """What a source subtask may read in the first epoch; adapted from then on."""
    adapts_budget: bool = True
    torn_limit: int = 5
    """How often in a row a torn epoch is simply run again before it counts as a failure."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    allow_dropped_state: bool = False
    rules: ProtocolRules = RULES


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
    def job(self) -> CompiledJob:
        """The compiled graph; compiling validates it."""
        return CompiledJob(compile_graph(self.graph), fingerprint_of(self.graph))

    def check_graph(self) -> None:
        """Raise `GraphError` with all that is wrong with the graph."""
        _ = self.job

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

    Only one watermark is kept for all of them. A subtask that was ahead would see expired
    rows, and timers that have fired, once more.
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
