"""The logical graph: operators by kind and config, and the edges between them.

Plain data, and pure functions over it.

    LogicalGraph(
        job=JobId("clicks"),
        nodes=(Node(OperatorId("read"), OperatorSpec("list", {...}), outputs={MAIN: clicks}),
               Node(OperatorId("count"), OperatorSpec("process", {...}), inputs=(by_user,))),
        edges=(Edge(OperatorId("read"), OperatorId("count"), exchange=Exchange.BY_KEY),),
    )

An input of a node takes exactly one edge; a union has several inputs. An output may feed
any number of edges, or none.

`topological_order` puts producers before consumers, and `find_cycles` returns the cycles that
prevent this. The graph's own order of nodes breaks ties, so equal graphs are ordered equally.
Both ignore edges that name an unknown operator: `validate` reports those.
"""

import heapq
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Protocol, TypeAlias, Union, runtime_checkable

from penstock.core.ids import JobId, OperatorId
from penstock.core.schema import StreamSchema
from penstock.errors import hide_secrets

MAIN = "main"
"""The ordinary output of an operator; every other output is a side output."""
LATE = "late"
"""The side output of rows that came after all their windows had closed."""
BAD = "bad"
"""The side output of rows that could not be read or computed."""


class Exchange(StrEnum):
    """How an edge brings rows from the producer's subtasks to the consumer's."""

    FORWARD = "forward"
    """Subtask i sends to subtask i; both sides have the same parallelism."""
    BY_KEY = "by-key"
    """Rows go to the owner of the key; the consumer's input schema names the key columns."""
    REBALANCE = "rebalance"
    """Batches go to the subtasks in turn."""
    BROADCAST = "broadcast"
    """All rows go to every subtask."""


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function or object in pickled form, with a name to show."""

    name: str
    pickled: bytes = field(repr=False)


Plain: TypeAlias = Union[  # noqa: UP007 (a recursive alias needs the string form)
    bool,
    int,
    float,
    str,
    bytes,
    UserFunction,
    tuple["Plain", ...],
    Mapping[str, "Plain"],
    None,
]
"""The values that a config may hold."""


OPTIONS = "store_options"
"""The key of a config, at any depth, whose values may be credentials."""


def hide_in_config(config: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return a config as it may be shown: without credentials of URLs and stores."""
    return {
        key: dict.fromkeys(part, "***")
        if key == OPTIONS and isinstance(part, Mapping)
        else _hide(part, key)
        for key, part in config.items()
    }


def _hide(value: Plain, name: str = "") -> Plain:
    match value:
        case str():
            return hide_secrets(value, name)
        case tuple():
            return tuple(map(_hide, value))
        case Mapping():
            return hide_in_config(value)
        case _:
            return value


@dataclass(frozen=True, slots=True, repr=False)
class OperatorSpec:
    """What an operator is built from: a kind of the registry, and a config."""

    kind: str
    config: Mapping[str, Plain] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = hide_in_config(self.config)
        return f"{type(self).__name__}(kind={self.kind!r}, config={shown!r})"


@runtime_checkable
class Readable(Protocol):
    """The result of a connector's function that can be read from."""

    def source_spec(self) -> OperatorSpec:
        """Return what the source is built from."""
        ...


@runtime_checkable
class Writable(Protocol):
    """The result of a connector's function that can be written to."""

    def sink_spec(self) -> OperatorSpec:
        """Return what the sink is built from."""
        ...


@dataclass(frozen=True, slots=True)
class WatermarkSpec:
    """How a source's watermark follows from its rows' event times."""

    delay_micros: int = 0
    """How far rows may lag behind the latest row of their split."""
    idle_timeout_micros: int | None = None
    """After this processing time without rows a split is idle and holds no other back."""
    behind: tuple[OperatorId, ...] = ()
    """The operators that follow the source one by one and decide which rows have which event
    time: one that computes it, if the source has none, then filters. Their output counts."""


@dataclass(frozen=True, slots=True)
class Node:
    """One operator: its identity, its spec, and the streams that it reads and emits."""

    operator: OperatorId
    spec: OperatorSpec
    parallelism: int = 1
    inputs: tuple[StreamSchema, ...] = ()
    """The schema it expects at each input, keys included; () for a source."""
    outputs: Mapping[str, StreamSchema] = field(default_factory=dict)
    """The schemas it emits, by output; `MAIN` is the ordinary output. A sink has none."""
    watermark: WatermarkSpec | None = None
    """Only a source with event time has one."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One stream from an output of one operator to an input of another."""

    source: OperatorId
    target: OperatorId
    output: str = MAIN
    input_index: int = 0
    exchange: Exchange = Exchange.FORWARD

    def __str__(self) -> str:
        port = "" if self.output == MAIN else f".{self.output}"
        return f"{self.source}{port} → {self.target}[{self.input_index}]"


@dataclass(frozen=True, slots=True)
class LogicalGraph:
    """A whole pipeline. It may have mistakes: `validate` finds them."""

    job: JobId
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()

    def node(self, operator: str) -> Node:
        """Return the node of an operator, which the graph must have."""
        return next(node for node in self.nodes if node.operator == operator)

    def edges_into(self, operator: str) -> tuple[Edge, ...]:
        """Return the edges that end at an operator, in order of input."""
        found = [edge for edge in self.edges if edge.target == operator]
        return tuple(sorted(found, key=lambda edge: edge.input_index))

    def edges_out_of(self, operator: str) -> tuple[Edge, ...]:
        """Return the edges that start at an operator, in the graph's order."""
        return tuple(edge for edge in self.edges if edge.source == operator)

    def unread_outputs(self, operator: str) -> tuple[str, ...]:
        """Return an operator's side outputs that no other operator reads."""
        read = {edge.output for edge in self.edges_out_of(operator)}
        outputs = self.node(operator).outputs
        return tuple(name for name in outputs if name not in {MAIN, *read})


def topological_order(graph: LogicalGraph) -> tuple[OperatorId, ...]:
    """Return the operators, each after its producers; those after a cycle are left out."""
    producers = _producers_in(graph)
    operators = list(producers)
    positions = {operator: index for index, operator in enumerate(operators)}
    sorter = TopologicalSorter(producers)
    with suppress(CycleError):  # operators before the cycles are still returned
        sorter.prepare()
    ready: list[int] = []
    order: list[OperatorId] = []
    while True:
        for operator in sorter.get_ready():
            heapq.heappush(ready, positions[operator])
        if not ready:
            return tuple(order)
        order.append(operators[heapq.heappop(ready)])
        sorter.done(order[-1])


def find_cycles(graph: LogicalGraph) -> list[tuple[OperatorId, ...]]:
    """Return cycles that share no operator; without their operators the graph has no cycle.

    A cycle starts at the operator that comes first in the graph, and follows the edges.
    """
    producers = _producers_in(graph)
    positions = {operator: index for index, operator in enumerate(producers)}
    cycles = []
    while cycle := _find_cycle(producers):
        turn = cycle.index(min(cycle, key=positions.__getitem__))
        cycles.append((*cycle[turn:], *cycle[:turn]))
        for operator in cycle:
            del producers[operator]
        for known in producers.values():
            known[:] = [operator for operator in known if operator in producers]
    return sorted(cycles, key=lambda cycle: positions[cycle[0]])


def _producers_in(graph: LogicalGraph) -> dict[OperatorId, list[OperatorId]]:
    """Return which operators each one reads from, in the graph's order."""
    producers: dict[OperatorId, list[OperatorId]] = {n.operator: [] for n in graph.nodes}
    for edge in graph.edges:
        if edge.source in producers and edge.target in producers:
            producers[edge.target].append(edge.source)
    return producers


def _find_cycle(producers: Mapping[OperatorId, list[OperatorId]]) -> list[OperatorId]:
    try:
        TopologicalSorter(producers).prepare()
    except CycleError as error:
        cycle: list[OperatorId] = error.args[1]
        return cycle[:-1]
    return []
