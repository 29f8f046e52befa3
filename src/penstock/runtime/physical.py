"""The physical plan: a graph cut into supersteps. Pure.

Operators joined by forward edges are fused into one **chain** when every input of the later
one is a forward edge from that same chain: then no cycle between chains can arise. A chain
is a small graph of its own, in topological order. Every other edge is an **exchange**. The
level of a chain is the largest number of exchanges on any way to it from a source.

    superstep 0        chains of level 0: sources and what is fused to them
    superstep k        chains of level k; a task is one subtask of one chain

Tasks of a level are numbered chain by chain; the number is the route of a record. An edge
that skips levels is relayed by the levels between.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.core.ids import OperatorId, Subtask
from penstock.core.schema import StreamSchema
from penstock.graph.logical import Edge, Exchange, LogicalGraph


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
