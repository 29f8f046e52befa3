"""Small logical graphs of operators that do nothing: written as text, or drawn by Hypothesis."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from penstock.core.ids import JobId, OperatorId
from penstock.core.schema import StreamSchema
from penstock.graph.logical import MAIN, Edge, Exchange, LogicalGraph, Node, OperatorSpec


def schema_of(**types: Any) -> pa.Schema:
    """Return a schema of columns by name and type."""
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


AT: pa.DataType = pa.timestamp("us", "UTC")
CLICKS = StreamSchema(schema_of(user=pa.string(), page=pa.int64(), at=AT), "at")
BY_USER = CLICKS.keyed_by("user")

_ARROWS = {
    "-": Exchange.FORWARD,
    "k": Exchange.BY_KEY,
    "r": Exchange.REBALANCE,
    "b": Exchange.BROADCAST,
}


def an_edge(
    source: str,
    target: str,
    *,
    exchange: Exchange = Exchange.FORWARD,
    output: str = MAIN,
    input_index: int = 0,
) -> Edge:
    return Edge(OperatorId(source), OperatorId(target), output, input_index, exchange)


def a_node(
    operator: str, *, kind: str = "noop", parallelism: int = 1, input_count: int = 1
) -> Node:
    return Node(
        OperatorId(operator),
        OperatorSpec(kind),
        parallelism=parallelism,
        inputs=(CLICKS,) * input_count,
        outputs={MAIN: CLICKS},
    )


def a_graph(*edges: str, parallelism: dict[str, int] | None = None) -> LogicalGraph:
    """Return a graph from lines such as `"read > map"`; see `_ARROWS` for the other arrows.

    The arrows are `>` or `->` forward, `-k>` by key, `-r>` rebalance, `-b>` broadcast. The
    inputs of an operator are numbered in order; operators without any are sources.
    """
    parsed = [_parse(line) for line in edges]
    nodes: dict[str, Node] = {}
    for source, _, target in parsed:
        for operator in (source, target):
            nodes.setdefault(operator, a_node(operator, input_count=0))
    built = []
    for source, exchange, target in parsed:
        node = nodes[target]
        schema = BY_USER if exchange is Exchange.BY_KEY else CLICKS
        built.append(
            an_edge(source, target, exchange=exchange, input_index=len(node.inputs))
        )
        nodes[target] = replace(node, inputs=(*node.inputs, schema))
    for operator, value in (parallelism or {}).items():
        nodes[operator] = replace(nodes[operator], parallelism=value)
    return LogicalGraph(JobId("clicks"), tuple(nodes.values()), tuple(built))


def with_node(graph: LogicalGraph, node: Node) -> LogicalGraph:
    """Return the graph with another node of the same name in place of its own."""
    nodes = (node if node.operator == old.operator else old for old in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def with_edges(graph: LogicalGraph, edges: Iterable[Edge]) -> LogicalGraph:
    return replace(graph, edges=(*graph.edges, *edges))


def _parse(line: str) -> tuple[str, Exchange, str]:
    source, arrow, target = line.split()
    return source, _ARROWS[arrow.strip("->") or "-"], target


@st.composite
def sound_graphs(draw: st.DrawFn, largest: int = 8) -> LogicalGraph:
    """Return a graph whose operators read from earlier ones, its nodes in any order."""
    count = draw(st.integers(1, largest))
    nodes: list[Node] = []
    edges: list[Edge] = []
    for index in range(count):
        node = a_node(f"op-{index}", parallelism=draw(st.integers(1, 3)), input_count=0)
        sources = draw(st.lists(st.sampled_from(nodes), max_size=3)) if nodes else []
        for input_index, source in enumerate(sources):
            # Forward is drawn most: fusing is where the rules are.
            wanted = draw(st.sampled_from([Exchange.FORWARD, Exchange.FORWARD, *Exchange]))
            is_forward = wanted is Exchange.FORWARD
            if is_forward and input_index == 0:
                node = replace(node, parallelism=source.parallelism)
            if is_forward and node.parallelism != source.parallelism:
                wanted = Exchange.REBALANCE
            schema = BY_USER if wanted is Exchange.BY_KEY else CLICKS
            node = replace(node, inputs=(*node.inputs, schema))
            edges.append(
                an_edge(
                    source.operator,
                    node.operator,
                    exchange=wanted,
                    input_index=input_index,
                )
            )
        nodes.append(node)
    return LogicalGraph(
        JobId("random"),
        tuple(draw(st.permutations(nodes))),
        tuple(draw(st.permutations(edges))),
    )
