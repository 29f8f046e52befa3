"""The order of operators, and the cycles that make it impossible."""

from hypothesis import given

from penstock.graph.logical import LogicalGraph, find_cycles, topological_order
from tests.builders.graphs import a_graph, an_edge, sound_graphs, with_edges


@given(sound_graphs())
def test_producers_come_before_consumers(graph: LogicalGraph) -> None:
    order = topological_order(graph)
    assert sorted(order) == sorted(node.operator for node in graph.nodes)
    assert all(order.index(edge.source) < order.index(edge.target) for edge in graph.edges)
    assert find_cycles(graph) == []


def test_operators_without_an_order_between_them_keep_that_of_the_graph() -> None:
    graph = a_graph("b -> d", "a -> d", "c -> d")
    assert topological_order(graph) == ("b", "a", "c", "d")


def test_operators_in_and_behind_a_cycle_are_left_out_of_the_order() -> None:
    graph = a_graph("read -> a", "a -> b", "b -> a", "b -> behind")
    assert topological_order(graph) == ("read",)


def test_a_cycle_follows_its_edges_from_its_first_operator() -> None:
    graph = a_graph("read -> a", "a -> b", "b -> c", "c -> a", "c -> write")
    assert find_cycles(graph) == [("a", "b", "c")]


def test_an_operator_that_feeds_itself_is_a_cycle() -> None:
    assert find_cycles(a_graph("a -> a")) == [("a",)]


def test_cycles_apart_from_each_other_are_all_found() -> None:
    graph = a_graph("a -> b", "b -> a", "x -> y", "y -> z", "z -> x")
    assert find_cycles(graph) == [("a", "b"), ("x", "y", "z")]


def test_edges_of_unknown_operators_are_left_out() -> None:
    graph = with_edges(a_graph("a -> b"), [an_edge("nobody", "a"), an_edge("b", "none")])
    assert topological_order(graph) == ("a", "b")
    assert find_cycles(graph) == []
