"""The physical plan: cuts a graph into supersteps, and routes rows between them. Pure.

Operators joined by forward edges are fused into one **chain** when every input of the later
one is a forward edge from that same chain: then no cycle between chains can arise. A chain
is a small graph of its own, in topological order. Every other edge is an **exchange**. The
level of a chain is the largest number of exchanges on any way to it from a source.

    superstep 0        chains of level 0: sources and what is fused to them
    superstep k        chains of level k; a task is one subtask of one chain

Tasks of a level are numbered chain by chain; the number is the route of a record. An edge
that skips levels is relayed by the levels between. Chains are numbered by level, and within
one by the graph's order of the operators they begin with.

`describe_plan` shows a plan as text:

superstep 0: 2 tasks
  chain 0 x2, tasks 0-1: read → filter-1
    exchange 0 by-key(user): filter-1 → count[0], to chain 1
superstep 1: 1 task
  chain 1 x1, task 0: count

`route_rows` says which rows of a batch go to which subtask of an edge's consumer.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from penstock.core.ids import OperatorId, Subtask
from penstock.core.key_hash import owners_of
from penstock.core.schema import StreamSchema
from penstock.graph.codec import fingerprint_of
from penstock.graph.logical import Edge, Exchange, LogicalGraph, topological_order
from penstock.graph.validate import validate


@dataclass(frozen=True, slots=True)
class ExchangeEdge:
    """An edge between two chains."""

    number: int
    """The name of the edge on the wire: its position in `PhysicalPlan.exchanges`."""
    edge: Edge
    schema: StreamSchema
    """The schema of the consumer's input, with the key that rows are routed by."""
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
    """A graph ready to run: what every task of every epoch shares.

    Plain data; the same graph always compiles to an equal plan.
    """

    graph: LogicalGraph
    chains: tuple[Chain, ...]
    exchanges: tuple[ExchangeEdge, ...]
    supersteps: tuple[Superstep, ...]
    fingerprint: str
    """The checksum of the graph."""

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

    def senders(self, chain: Chain, subtask: Subtask) -> Iterator[tuple[int, int, int]]:
        """Yield the edge, level and task of every producer that a subtask of a chain reads."""
        for edge in self.incoming(chain.number):
            source = self.chains[edge.source_chain]
            for index in peers_of(edge.exchange, source.parallelism, subtask.index):
                yield edge.number, source.level, source.first_task + index


def compile_graph(graph: LogicalGraph) -> PhysicalPlan:
    """Cut a graph into supersteps; raise `GraphError` with all its problems if it has some."""
    validate(graph)
    order = topological_order(graph)
    heads, levels = _fuse(graph, order)
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
    supersteps = []
    for level, group in groupby(chains, attrgetter("level")):
        members = list(group)
        task_count = sum(chain.parallelism for chain in members)
        numbers = tuple(chain.number for chain in members)
        supersteps.append(Superstep(level, numbers, task_count))
    return PhysicalPlan(graph, chains, exchanges, tuple(supersteps), fingerprint_of(graph))


def _fuse(
    graph: LogicalGraph, order: tuple[OperatorId, ...]
) -> tuple[dict[OperatorId, OperatorId], dict[OperatorId, int]]:
    """Return for every operator the one its chain begins with, and the level of these heads.

    Only the head of a chain may read from other chains, so a path between chains follows the
    order of their heads and never returns; all edges into a head are exchanges.
    """
    heads: dict[OperatorId, OperatorId] = {}
    levels: dict[OperatorId, int] = {}
    for operator in order:
        incoming = graph.edges_into(operator)
        producing = {heads[edge.source] for edge in incoming}
        is_fused = len(producing) == 1 and all(
            edge.exchange is Exchange.FORWARD for edge in incoming
        )
        heads[operator] = next(iter(producing)) if is_fused else operator
        if not is_fused:
            levels[operator] = max((levels[head] for head in producing), default=-1) + 1
    return heads, levels


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
    task_counts: Counter[int] = Counter()
    chains: list[Chain] = []
    for head in sorted(levels, key=lambda head: (levels[head], positions[head])):
        level, parallelism = levels[head], graph.node(head).parallelism
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
                first_task=task_counts[level],
            )
        )
        task_counts[level] += parallelism
    return tuple(chains)


def describe_plan(plan: PhysicalPlan) -> str:
    """Return the supersteps, their chains and what leaves each, a line each."""
    lines = []
    for superstep in plan.supersteps:
        tasks = "1 task" if superstep.task_count == 1 else f"{superstep.task_count} tasks"
        lines.append(f"superstep {superstep.level}: {tasks}")
        for number in superstep.chains:
            chain = plan.chains[number]
            first, last = chain.first_task, chain.first_task + chain.parallelism - 1
            tasks = f"task {last}" if last == first else f"tasks {first}-{last}"
            lines.append(
                f"  chain {number} x{chain.parallelism}, {tasks}: {_describe_links(chain)}"
            )
            lines += [
                f"    {_describe_exchange(plan, edge)}" for edge in plan.outgoing(number)
            ]
    return "".join(f"{line}\n" for line in lines)


def _describe_links(chain: Chain) -> str:
    """Show a straight chain by its operators, any other by its links."""
    pairs = list(zip(chain.operators, chain.operators[1:], strict=False))
    if [(edge.source, edge.target) for edge in chain.links] == pairs:
        return " → ".join(chain.operators)
    return f"{chain.operators[0]}; " + ", ".join(map(str, chain.links))


def _describe_exchange(plan: PhysicalPlan, edge: ExchangeEdge) -> str:
    by = ""
    if edge.exchange is Exchange.BY_KEY:
        by = f"({', '.join(edge.schema.key_columns)})"
    source, target = plan.chains[edge.source_chain], plan.chains[edge.target_chain]
    skipped = target.level - source.level - 1
    relayed = ""
    if skipped:
        relayed = f", relayed by {skipped} superstep{'s' if skipped > 1 else ''}"
    return (
        f"exchange {edge.number} {edge.exchange}{by}: {edge.edge}, to chain "
        f"{edge.target_chain}{relayed}"
    )


def route_rows(
    batch: pa.RecordBatch,
    exchange: Exchange,
    schema: StreamSchema,
    *,
    subtask: int,
    parallelism: int,
    turn: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the parts of a batch by consumer; rows keep their order within a part.

    `turn` decides which consumers get the remaining rows of a rebalanced batch; it should grow
    from batch to batch, so that short batches reach every consumer.
    """
    match exchange:
        case Exchange.FORWARD:
            yield subtask, batch
        case Exchange.BROADCAST:
            for index in range(parallelism):
                yield index, batch
        case Exchange.REBALANCE:
            yield from _deal(batch, parallelism, turn)
        case Exchange.BY_KEY:
            if parallelism == 1:
                yield 0, batch
            else:
                yield from _split_by_key(batch, schema, parallelism)


def peers_of(exchange: Exchange, parallelism: int, subtask: int) -> range:
    """Return the subtasks at the other end of an edge, of which there are `parallelism`.

    Each of them gets a barrier, even without rows.
    """
    if exchange is Exchange.FORWARD:
        return range(subtask, subtask + 1)
    return range(parallelism)


def _deal(
    batch: pa.RecordBatch, parallelism: int, turn: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    share, odd = divmod(batch.num_rows, parallelism)
    start = 0
    for position in range(parallelism):
        rows = share + (position < odd)
        if rows:
            yield (position + turn) % parallelism, batch.slice(start, rows)
        start += rows


def _split_by_key(
    batch: pa.RecordBatch, schema: StreamSchema, parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    owners = owners_of(schema.key_hashes_of(batch), parallelism)
    counts = np.bincount(owners, minlength=parallelism)
    if int(counts.max()) == batch.num_rows:
        yield int(counts.argmax()), batch
        return
    # NumPy sorts numbers of 16 bits by radix, without comparisons.
    narrow = owners.astype(np.uint16) if parallelism <= 1 << 16 else owners
    order = np.argsort(narrow, kind="stable")
    ordered = batch.take(pa.array(order, pa.int64()))
    start = 0
    for index, rows in enumerate(counts.tolist()):
        if rows:
            yield index, ordered.slice(start, rows)
        start += rows
