"""The order of a graph's operators: producers first, and the cycles that make it impossible. Pure.

Ties are broken by the graph's own order of nodes, so equal graphs are ordered equally. Edges
that name an unknown operator are left out: `validate` reports them.
"""

import heapq
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from penstock.core.ids import OperatorId
from penstock.graph.logical import LogicalGraph


def topological_order(graph: LogicalGraph) -> tuple[OperatorId, ...]:
    """Return the operators, each behind all its producers; those behind a cycle are left out."""
    operators = list(dict.fromkeys(node.operator for node in graph.nodes))
    positions = {operator: index for index, operator in enumerate(operators)}
    consumers: dict[OperatorId, list[OperatorId]] = {operator: [] for operator in operators}
    waiting_for = dict.fromkeys(operators, 0)
    for edge in graph.edges:
        if edge.source in positions and edge.target in positions:
            consumers[edge.source].append(edge.target)
            waiting_for[edge.target] += 1
    ready = [positions[operator] for operator in operators if not waiting_for[operator]]
    order: list[OperatorId] = []
    while ready:
        operator = operators[heapq.heappop(ready)]
        order.append(operator)
        for consumer in consumers[operator]:
            waiting_for[consumer] -= 1
            if not waiting_for[consumer]:
                heapq.heappush(ready, positions[consumer])
    return tuple(order)


def find_cycles(graph: LogicalGraph) -> list[tuple[OperatorId, ...]]:
    """Return cycles that share no operator: without their operators none is left.

    A cycle starts at its operator that comes first in the graph, and follows the edges.
    """
    producers: dict[OperatorId, list[OperatorId]] = {
        node.operator: [] for node in graph.nodes
    }
    positions = {operator: index for index, operator in enumerate(producers)}
    for edge in graph.edges:
        if edge.source in positions and edge.target in positions:
            producers[edge.target].append(edge.source)
    cycles = []
    while cycle := _find_cycle(producers):
        turn = cycle.index(min(cycle, key=positions.__getitem__))
        cycles.append((*cycle[turn:], *cycle[:turn]))
        for operator in cycle:
            del producers[operator]
        for known in producers.values():
            known[:] = [operator for operator in known if operator in producers]
    return sorted(cycles, key=lambda cycle: positions[cycle[0]])


def _find_cycle(producers: Mapping[OperatorId, list[OperatorId]]) -> list[OperatorId]:
    try:
        TopologicalSorter(producers).prepare()
    except CycleError as error:
        cycle: list[OperatorId] = error.args[1]
        return cycle[:-1]
    return []
