"""Random graphs: a Hypothesis strategy for sound ones, with every exchange and parallelism."""

from dataclasses import replace

from hypothesis import strategies as st

from penstock.core.ids import JobId
from penstock.graph.logical import Edge, Exchange, LogicalGraph, Node
from tests.builders.graphs import BY_USER, CLICKS, a_node, an_edge


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
