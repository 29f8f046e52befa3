"""The chain loop: assembles the operators of one chain of one subtask, and runs their epochs.

    batches (or the source runs) → for each operator, in topological order:
        watermark → timers → tick → close → handle_checkpoint → tables are written
        → the watermark goes to its consumers

The successors of an operator process what it emits at once. An operator has finished its whole
epoch, `handle_checkpoint` included, before the first of them merges its watermarks: so the
barrier is aligned by construction, and no row can come behind a watermark or a checkpoint.

After every batch and every signal the loop hands on what has left the chain meanwhile. A
source reads its whole share of the epoch in one call, so its rows are handed on when it
returns; its budget bounds them.

`AssembledChain` builds a chain of operators from the registry, their tables, and the links
between them.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.core.clock import Clock
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import InputWatermark, Watermark
from penstock.errors import ErrorCode, PenstockError, UserError
from penstock.graph.logical import Edge, Node
from penstock.operators.context import ArrowCollector, SourceCollector, Target, Targets
from penstock.operators.nodes import (
    ChainedOperator,
    EpochTerms,
    NodeParts,
    OperatorReport,
)
from penstock.operators.operator import ArrowOperator, SourceOperator, splits_table
from penstock.operators.registry import Registry
from penstock.operators.source_node import SourceNode
from penstock.operators.splits import SourceAssignment, SourcePhase
from penstock.operators.timers import timer_tables
from penstock.operators.user_functions import ask
from penstock.state.tables.specs import TableSpec, TimeDomain
from penstock.state.tables.table_manager import TableManager

ChainNode: TypeAlias = SourceNode | ChainedOperator
Spoken: TypeAlias = dict[tuple[str, int], Watermark | None]
"""The watermark of each input of each operator in this epoch, by operator and input."""
ChainResult: TypeAlias = tuple[list[OperatorReport], dict[OperatorId, Watermark | None]]
"""The reports of all nodes, and the last watermark of each to its consumers."""
OutT = TypeVar("OutT")
DeclaredT = TypeVar("DeclaredT")
HandOn: TypeAlias = Callable[[], Iterable[OutT]]
"""Returns what has left the chain since the last call."""


class ChainInput(Protocol):
    """The input from other chains. Its watermarks are known when the batches are exhausted."""

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        """Return the rows for each operator's input, in order per producer.

        An empty batch is for no operator: it makes the loop hand on what was relayed.
        """
        ...

    def watermarks(self) -> Mapping[tuple[str, int], Watermark | None]:
        """Return the merged watermark of all producers of each input."""
        ...


def chain_processing(
    nodes: Sequence[ChainNode],
    links: Sequence[Edge],
    source: ChainInput,
    terms: EpochTerms,
    hand_on: HandOn[OutT],
) -> Generator[OutT, None, ChainResult]:
    """Run an epoch that all nodes have begun; return their reports and last watermarks.

    The loop yields what `hand_on` returns after each batch and signal.
    """
    ports = {n.task.operator: n for n in nodes if isinstance(n, ChainedOperator)}
    for operator, index, batch in source.batches():
        if batch.num_rows:
            ports[operator].process(index, batch)
        yield from hand_on()
    spoken: Spoken = dict(source.watermarks())
    passed_on: dict[OperatorId, Watermark | None] = {}
    reports = []
    for node in nodes:
        if isinstance(node, SourceNode):
            watermark = run_source(node, terms)
        else:
            watermark = yield from run_operator(node, spoken, terms, hand_on)
        yield from hand_on()
        operator = node.task.operator
        passed_on[operator] = watermark
        for link in links:
            if link.source == operator:
                spoken[link.target, link.input_index] = watermark
        reports.append(node.report)
    return reports, passed_on


def run_source(node: SourceNode, terms: EpochTerms) -> Watermark | None:
    """Run a source over its share of the epoch, and write its offsets."""
    node.run(terms)
    node.write(terms)
    return node.watermark()


def run_operator(
    node: ChainedOperator, spoken: Spoken, terms: EpochTerms, hand_on: HandOn[OutT]
) -> Generator[OutT, None, Watermark | None]:
    """End the epoch of one operator whose rows are complete; return its own watermark."""
    operator, count = node.task.operator, len(node.node.inputs)
    told = [spoken.get((operator, index)) for index in range(count)]
    watermark = node.advance(told)
    yield from hand_on()
    if not node.had_ended:
        for signal in (node.fire_timers, node.tick, node.close):
            signal(terms)
            yield from hand_on()
    node.write(terms)
    return watermark


OpenTables: TypeAlias = Callable[[TaskInfo, tuple[TableSpec, ...]], TableManager]
"""Opens the tables of one subtask of one operator on the job's checkpoint."""


@dataclass(frozen=True, slots=True)
class ChainSetting:
    """What a chain is assembled from: its job and subtask, the registry and the tables."""

    job: JobId
    subtask: Subtask
    registry: Registry
    clock: Clock
    open_tables: OpenTables


@dataclass(frozen=True, slots=True)
class InputPort:
    """One input of a node: the target of the collectors that feed it."""

    take: Callable[[pa.RecordBatch], None]


class AssembledChain:
    """The nodes of one chain of one subtask. Lives as long as the worker remembers it."""

    def __init__(
        self, nodes: Sequence[Node], links: Sequence[Edge], setting: ChainSetting
    ) -> None:
        self.links = tuple(links)
        failures: list[PenstockError] = []
        ports: dict[tuple[str, int], Target] = {}
        built: list[ChainNode] = []
        # The last node is built first: a node is wired to the nodes behind it.
        for node in reversed(nodes):
            targets: dict[str, list[Target]] = {}
            for link in self.links:
                if link.source == node.operator:
                    port = ports[link.target, link.input_index]
                    targets.setdefault(link.output, []).append(port)
            made = _build(node, targets, setting)
            made.failures = failures
            if isinstance(made, ChainedOperator):
                for index in range(len(node.inputs)):
                    ports[node.operator, index] = InputPort(partial(made.process, index))
            built.append(made)
        self.nodes = tuple(reversed(built))
        by_name = {made.task.operator: made for made in self.nodes}
        for made in self.nodes:
            spec = made.node.watermark
            if isinstance(made, SourceNode) and spec is not None and spec.behind:
                made.measure_at([by_name[operator] for operator in spec.behind])
        self._failures = failures

    def begin(
        self,
        terms: EpochTerms,
        *,
        watermarks: Mapping[OperatorId, Sequence[InputWatermark]],
        assignments: Mapping[OperatorId, SourceAssignment],
        outlets: Mapping[OperatorId, Targets],
        fed: Iterable[pa.RecordBatch] | None = None,
    ) -> None:
        """Begin an epoch in every node, last first: a node may emit as soon as it begins.

        `fed` is for the chain's source; a chain has one at most.
        """
        self._failures.clear()
        for node in reversed(self.nodes):
            operator = node.task.operator
            node.context.known_inputs = watermarks
            leaves = outlets.get(operator, {})
            is_over = False
            if isinstance(node, SourceNode):
                assignment = assignments.get(operator, SourceAssignment())
                node.begin(terms, assignment, leaves, fed)
                is_over = assignment.phase is SourcePhase.ENDED
            else:
                node.begin(terms, watermarks.get(operator, ()), leaves)
            if not (node.is_started or is_over):
                node.call("on_start", node.context)
                node.is_started = True

    def forget(self) -> None:
        """Drop all operators; their tables stay open."""
        self._failures.clear()
        for node in self.nodes:
            node.forget()

    def close(self) -> None:
        """Release operators and tables; the chain is not used again."""
        self.forget()
        for node in self.nodes:
            node.tables.close()


def _build(node: Node, targets: Targets, setting: ChainSetting) -> ChainNode:
    task = TaskInfo(setting.job, node.operator, setting.subtask)

    def construct() -> ArrowOperator | SourceOperator:
        return setting.registry.construct(node.spec).operator

    instance = construct()
    tables = setting.open_tables(task, declared_tables(instance, node))
    parts = NodeParts(node, task, construct, instance, tables)
    if isinstance(instance, SourceOperator):
        collector = SourceCollector(node.operator, node.outputs, targets)
        return SourceNode(parts, collector, setting.clock)
    return ChainedOperator(parts, ArrowCollector(node.operator, node.outputs, targets))


def declared_tables(
    operator: ArrowOperator | SourceOperator, node: Node
) -> tuple[TableSpec, ...]:
    """Return every table of an operator: those it declares and those kept on its behalf."""
    tables = _declared(operator, node, "tables", TableSpec, "keyed_table(…)")
    if isinstance(operator, SourceOperator):
        return (*tables, splits_table())
    domains = _declared(operator, node, "timers", TimeDomain, "TimeDomain.EVENT_TIME")
    if not domains:
        return tables
    if not node.inputs[0].key_columns:
        raise UserError(
            f"operator {node.operator!r} sets timers but its first input has no key: a timer "
            "belongs to a key. Put key_by before it",
            code=ErrorCode.INVALID_GRAPH,
            operator=str(node.operator),
        )
    return (*tables, *timer_tables(domains, node.inputs[0]))


def _declared(
    operator: ArrowOperator | SourceOperator,
    node: Node,
    hook: str,
    kind: type[DeclaredT],
    such_as: str,
) -> tuple[DeclaredT, ...]:
    """Return what an operator declares in a hook; an exception gets the operator's name."""
    declared: tuple[DeclaredT, ...]
    declared = ask(node.operator, hook, lambda: tuple(getattr(operator, hook)()))
    wrong = [one for one in declared if not isinstance(one, kind)]
    if wrong:
        raise UserError(
            f"operator {node.operator!r} returned {wrong[0]!r:.80} from {hook}: return a list of "
            f"{kind.__name__}, such as {such_as}",
            code=ErrorCode.INVALID_CONFIG,
            operator=str(node.operator),
        )
    return declared
