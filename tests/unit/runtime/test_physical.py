"""Compilation: what is fused, what is exchanged, and how levels and tasks are numbered."""

from dataclasses import replace

import pytest
from hypothesis import given

from penstock.core.ids import JobId, Subtask
from penstock.errors import GraphError
from penstock.graph.logical import Exchange, LogicalGraph
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph
from tests.builders.graphs import BY_USER, a_graph, sound_graphs


def chain_of(plan: PhysicalPlan, operator: str) -> int:
    (number,) = [chain.number for chain in plan.chains if operator in chain.operators]
    return number


def test_a_branch_is_one_chain_with_producers_before_consumers() -> None:
    plan = compile_graph(a_graph("read -> odd", "read -> even", "odd -> write"))
    (chain,) = plan.chains
    assert chain.operators == ("read", "odd", "even", "write")
    assert chain.links == plan.graph.edges


def test_an_exchange_carries_the_input_schema_of_its_consumer_with_the_key() -> None:
    plan = compile_graph(a_graph("read -k> count"))
    (exchange,) = plan.exchanges
    assert exchange.schema == BY_USER
    assert exchange.exchange is Exchange.BY_KEY


def test_an_operator_with_one_input_by_key_from_its_own_chain_starts_a_new_chain() -> None:
    plan = compile_graph(a_graph("read -> map", "map -> join", "read -k> join"))
    assert [chain.operators for chain in plan.chains] == [("read", "map"), ("join",)]
    assert [edge.exchange for edge in plan.exchanges] == [
        Exchange.FORWARD,
        Exchange.BY_KEY,
    ]


def test_operators_listed_backwards_are_brought_into_order() -> None:
    graph = a_graph("read -> map", "map -k> count", "count -> write")
    backwards = replace(graph, nodes=graph.nodes[::-1], edges=graph.edges[::-1])
    plan = compile_graph(backwards)
    assert [chain.operators for chain in plan.chains] == [
        ("read", "map"),
        ("count", "write"),
    ]


def test_a_task_number_leads_to_its_chain_and_subtask() -> None:
    plan = compile_graph(a_graph("a -k> c", "b -k> c", parallelism={"a": 2, "b": 3}))
    found = [plan.task(level, index) for level, index in plan.tasks()]
    assert [(chain.operators[0], subtask) for chain, subtask in found] == [
        ("a", Subtask(0, 2)),
        ("a", Subtask(1, 2)),
        ("b", Subtask(0, 3)),
        ("b", Subtask(1, 3)),
        ("b", Subtask(2, 3)),
        ("c", Subtask(0, 1)),
    ]
    with pytest.raises(IndexError, match="level 0 has no task 5"):
        plan.task(0, 5)


def test_incoming_and_outgoing_exchanges_of_a_chain_are_found() -> None:
    plan = compile_graph(a_graph("a -k> c", "b -k> c", "c -r> d"))
    middle = chain_of(plan, "c")
    assert [edge.edge.source for edge in plan.incoming(middle)] == ["a", "b"]
    assert [edge.edge.target for edge in plan.outgoing(middle)] == ["d"]


def test_a_graph_that_cannot_run_is_not_compiled() -> None:
    with pytest.raises(GraphError, match="it has no operators"):
        compile_graph(LogicalGraph(JobId("empty"), ()))


@given(sound_graphs())
def test_every_operator_is_in_one_chain_and_every_edge_is_a_link_or_an_exchange(
    graph: LogicalGraph,
) -> None:
    plan = compile_graph(graph)
    placed = [operator for chain in plan.chains for operator in chain.operators]
    assert sorted(placed) == sorted(node.operator for node in graph.nodes)
    links = [edge for chain in plan.chains for edge in chain.links]
    crossing = [exchange.edge for exchange in plan.exchanges]
    assert sorted(map(str, links + crossing)) == sorted(map(str, graph.edges))
    assert [exchange.number for exchange in plan.exchanges] == list(range(len(crossing)))
    assert [chain.number for chain in plan.chains] == list(range(len(plan.chains)))


@given(sound_graphs())
def test_every_exchange_leads_to_a_higher_level_so_chains_form_no_cycle(
    graph: LogicalGraph,
) -> None:
    plan = compile_graph(graph)
    for exchange in plan.exchanges:
        source, target = (
            plan.chains[exchange.source_chain],
            plan.chains[exchange.target_chain],
        )
        assert exchange.edge.source in source.operators
        assert exchange.edge.target in target.operators
        assert target.level > source.level
    for chain in plan.chains:
        behind = [
            plan.chains[edge.source_chain].level for edge in plan.incoming(chain.number)
        ]
        assert chain.level == max(behind, default=-1) + 1


@given(sound_graphs())
def test_links_are_forward_within_one_parallelism_and_follow_the_order_of_the_chain(
    graph: LogicalGraph,
) -> None:
    for chain in compile_graph(graph).chains:
        positions = {operator: index for index, operator in enumerate(chain.operators)}
        for operator in chain.operators:
            assert graph.node(operator).parallelism == chain.parallelism
        for link in chain.links:
            assert link.exchange is Exchange.FORWARD
            assert positions[link.source] < positions[link.target]


@given(sound_graphs())
def test_what_could_be_fused_is_fused(graph: LogicalGraph) -> None:
    plan = compile_graph(graph)
    for node in graph.nodes:
        incoming = graph.edges_into(node.operator)
        sources = {chain_of(plan, edge.source) for edge in incoming}
        may_fuse = len(sources) == 1 and all(
            edge.exchange is Exchange.FORWARD for edge in incoming
        )
        assert (chain_of(plan, node.operator) in sources) == may_fuse


@given(sound_graphs())
def test_the_tasks_of_a_level_are_numbered_without_gaps(graph: LogicalGraph) -> None:
    plan = compile_graph(graph)
    assert [superstep.level for superstep in plan.supersteps] == list(
        range(len(plan.supersteps))
    )
    assert [number for step in plan.supersteps for number in step.chains] == list(
        range(len(plan.chains))
    )
    for superstep in plan.supersteps:
        tasks = [
            plan.chains[number].first_task + index
            for number in superstep.chains
            for index in range(plan.chains[number].parallelism)
        ]
        assert tasks == list(range(superstep.task_count))


@given(sound_graphs())
def test_equal_graphs_compile_to_equal_plans(graph: LogicalGraph) -> None:
    copy = LogicalGraph(
        JobId(str(graph.job)), tuple(map(replace, graph.nodes)), graph.edges
    )
    assert compile_graph(graph) == compile_graph(copy)
