"""Assembling a chain: operators from the registry, their tables, and the wires between them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import pyarrow as pa

from penstock.core.clock import Clock
from penstock.core.ids import JobId, OperatorId, Subtask, TaskInfo
from penstock.errors import PenstockError
from penstock.graph.logical import Edge, Node
from penstock.operators.chain import ChainNode
from penstock.operators.chained_operator import ChainedOperator, InputPort
from penstock.operators.collector import ArrowCollector, SourceCollector, Target
from penstock.operators.nodes import (
    EpochTerms,
    NodeParts,
    Outlets,
    declared_tables,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Registry
from penstock.operators.source import SourceOperator
from penstock.operators.source_node import SourceNode
from penstock.operators.splits import SourceAssignment
from penstock.state.protocol.records import InputWatermark
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table_manager import TableManager

OpenTables: TypeAlias = Callable[[TaskInfo, tuple[TableSpec, ...]], TableManager]
"""Opens the tables of one subtask of one operator on the job's checkpoint."""


@dataclass(frozen=True, slots=True)
class ChainSetting:
    """Where a chain is assembled: whose it is and what it is given."""

    job: JobId
    subtask: Subtask
    registry: Registry
    clock: Clock
    open_tables: OpenTables


class AssembledChain:
    """The nodes of one chain of one subtask. Lives as long as the worker remembers it."""

    def __init__(
        self, nodes: Sequence[Node], links: Sequence[Edge], setting: ChainSetting
    ) -> None:
        self.links = tuple(links)
        self.nodes: tuple[ChainNode, ...] = ()
        failures: list[PenstockError] = []
        ports: dict[tuple[str, int], Target] = {}
        built: list[ChainNode] = []
        # Last first: a node is wired to nodes that exist already.
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
                    ports[node.operator, index] = InputPort(made, index)
            built.append(made)
        self.nodes = tuple(reversed(built))
        self._failures = failures

    def begin(
        self,
        terms: EpochTerms,
        *,
        watermarks: Mapping[OperatorId, Sequence[InputWatermark]],
        assignments: Mapping[OperatorId, SourceAssignment],
        outlets: Mapping[OperatorId, Outlets],
        fed: Iterable[pa.RecordBatch] | None = None,
    ) -> None:
        """Begin an epoch in every node, last first: rows may be emitted as soon as one begins.

        `fed` is for the chain's source; a chain has one at most.
        """
        self._failures.clear()
        for node in reversed(self.nodes):
            operator = node.task.operator
            node.context.known_inputs = watermarks
            leaves = outlets.get(operator, {})
            if isinstance(node, SourceNode):
                assignment = assignments.get(operator, SourceAssignment())
                node.begin(terms, assignment, leaves, fed)
            else:
                node.begin(terms, watermarks.get(operator, ()), leaves)

    def forget(self) -> None:
        """Drop all operators; their tables stay open."""
        self._failures.clear()
        for node in self.nodes:
            node.forget()

    def close(self) -> None:
        """Let go of operators and tables; the chain is not used again."""
        self.forget()
        for node in self.nodes:
            node.tables.close()


def _build(
    node: Node, targets: Mapping[str, Sequence[Target]], setting: ChainSetting
) -> ChainNode:
    task = TaskInfo(setting.job, node.operator, setting.subtask)

    def construct() -> ArrowOperator | SourceOperator:
        return setting.registry.construct(node.spec).operator

    instance = construct()
    tables = setting.open_tables(task, declared_tables(instance, node))
    if isinstance(instance, SourceOperator):
        made = cast("Callable[[], SourceOperator]", construct)
        collector = SourceCollector(node.operator, node.outputs, targets)
        return SourceNode(
            NodeParts(node, task, made, instance, tables), collector, setting.clock
        )
    parts = NodeParts(
        node, task, cast("Callable[[], ArrowOperator]", construct), instance, tables
    )
    return ChainedOperator(parts, ArrowCollector(node.operator, node.outputs, targets))
