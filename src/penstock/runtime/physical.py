"""The physical plan: a graph cut into supersteps. Pure.

Operators joined by forward edges are fused into one **chain** when every input of the later
one is a forward edge from that same chain: then no cycle between chains can arise. A chain
is a small graph of its own, in topological order. Every other edge is an **exchange**. The
level of a chain is the largest number of exchanges on any way to it from a source.

    superstep 0        chains of level 0: sources and what is fused to them
    superstep k        chains of level k; a task is one subtask of one chain

Tasks of a level are numbered chain by chain; the number is the route of a record. An edge
that skips levels is relayed by the levels between. Chains are numbered by level, and within
one by the graph's order of the operators they begin with.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.ids import OperatorId, Subtask
from penstock.core.schema import StreamSchema
from penstock.graph.logical import Edge, Exchange, LogicalGraph
from penstock.graph.order import topological_order
from penstock.graph.validate import validate


@dataclass(frozen=True, slots=True)
class ExchangeEdge:
    """An edge between two chains."""

    number: int
    """Names the edge on the wire; the position in `PhysicalPlan.exchanges`."""
    edge: Edge
    schema: StreamSchema
    """The consumer's input: what travels, and the key it is routed by."""
    source_chain: int
    target_chain: int

    @property
    def exchange(self) -> Exchange:
        """How rows find their subtask."""
        return self.edge.exchange


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that run together in one task per subtask."""

    number: int
    """The position in `PhysicalPlan.chains`."""
    level: int
    parallelism: int
    operators: tuple[OperatorId, ...]
    """In topological order."""
    links: tuple[Edge, ...]
    """The forward edges inside."""
    first_task: int
    """The number of its first task within its level; subtask i is task `first_task + i`."""


@dataclass(frozen=True, slots=True)
class Superstep:
    """The chains of one level."""

    level: int
    chains: tuple[int, ...]
    """Their numbers, in order of their tasks."""
    task_count: int


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """A compiled graph. Plain data; the same graph always compiles to an equal plan."""

    graph: LogicalGraph
    chains: tuple[Chain, ...]
    exchanges: tuple[ExchangeEdge, ...]
    supersteps: tuple[Superstep, ...]

    def incoming(self, chain: int) -> tuple[ExchangeEdge, ...]:
        """Return the exchanges that end in a chain."""
        return tuple(edge for edge in self.exchanges if edge.target_chain == chain)

    def outgoing(self, chain: int) -> tuple[ExchangeEdge, ...]:
        """Return the exchanges that start in a chain."""
        return tuple(edge for edge in self.exchanges if edge.source_chain == chain)

    def task(self, level: int, index: int) -> tuple[Chain, Subtask]:
        """Return what task `index` of a level runs."""
        for number in self.supersteps[level].chains:
            chain = self.chains[number]
            if index < chain.first_task + chain.parallelism:
                return chain, Subtask(index - chain.first_task, chain.parallelism)
        raise IndexError(f"level {level} has no task {index}")

    def tasks(self) -> Iterator[tuple[int, int]]:
        """Return every (level, task), level by level."""
        for superstep in self.supersteps:
            for index in range(superstep.task_count):
                yield superstep.level, index


def compile_graph(graph: LogicalGraph) -> PhysicalPlan:
    """Cut a graph into supersteps; raise `GraphError` with all its problems if it has some."""
    validate(graph)
    order = topological_order(graph)
    heads = _fuse(graph, order)
    levels = _derive_levels(graph, order, heads)
    chains = _number_chains(graph, order, heads, levels)
    chain_of = {operator: chain.number for chain in chains for operator in chain.operators}
    crossing = [edge for edge in graph.edges if heads[edge.source] != heads[edge.target]]
    exchanges = tuple(
        ExchangeEdge(
            number=number,
            edge=edge,
            schema=graph.node(edge.target).inputs[edge.input_index],
            source_chain=chain_of[edge.source],
            target_chain=chain_of[edge.target],
        )
        for number, edge in enumerate(crossing)
    )
    return PhysicalPlan(graph, chains, exchanges, _group_by_level(chains))


def _fuse(
    graph: LogicalGraph, order: tuple[OperatorId, ...]
) -> dict[OperatorId, OperatorId]:
    """Return for every operator the one its chain begins with.

    Only the head of a chain may read from other chains, so a way between chains follows the
    order of their heads and never comes back.
    """
    heads: dict[OperatorId, OperatorId] = {}
    for operator in order:
        incoming = graph.edges_into(operator)
        producing = {heads[edge.source] for edge in incoming}
        is_fused = len(producing) == 1 and all(
            edge.exchange is Exchange.FORWARD for edge in incoming
        )
        heads[operator] = producing.pop() if is_fused else operator
    return heads


def _derive_levels(
    graph: LogicalGraph,
    order: tuple[OperatorId, ...],
    heads: dict[OperatorId, OperatorId],
) -> dict[OperatorId, int]:
    """Return the level of every head: all edges into it are exchanges."""
    levels: dict[OperatorId, int] = {}
    for operator in order:
        if heads[operator] == operator:
            behind = [levels[heads[edge.source]] for edge in graph.edges_into(operator)]
            levels[operator] = max(behind, default=-1) + 1
    return levels


def _number_chains(
    graph: LogicalGraph,
    order: tuple[OperatorId, ...],
    heads: dict[OperatorId, OperatorId],
    levels: dict[OperatorId, int],
) -> tuple[Chain, ...]:
    members: dict[OperatorId, list[OperatorId]] = {head: [] for head in levels}
    for operator in order:
        members[heads[operator]].append(operator)
    positions = {node.operator: index for index, node in enumerate(graph.nodes)}
    task_counts: dict[int, int] = {}
    chains: list[Chain] = []
    for head in sorted(levels, key=lambda head: (levels[head], positions[head])):
        level, parallelism = levels[head], graph.node(head).parallelism
        first_task = task_counts.get(level, 0)
        task_counts[level] = first_task + parallelism
        chains.append(
            Chain(
                number=len(chains),
                level=level,
                parallelism=parallelism,
                operators=tuple(members[head]),
                links=tuple(
                    edge
                    for edge in graph.edges
                    if heads[edge.source] == heads[edge.target] == head
                ),
                first_task=first_task,
            )
        )
    return tuple(chains)


def _group_by_level(chains: tuple[Chain, ...]) -> tuple[Superstep, ...]:
    by_level: dict[int, list[Chain]] = {}
    for chain in chains:
        by_level.setdefault(chain.level, []).append(chain)
    return tuple(
        Superstep(
            level=level,
            chains=tuple(chain.number for chain in members),
            task_count=sum(chain.parallelism for chain in members),
        )
        for level, members in sorted(by_level.items())
    )
