"""Whether a graph can run: all its problems at once, each with its operator and its fix.

Pure. What operators declare beyond the graph (tables, timers, kinds and configs) is checked
when they are built.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from penstock.core.batch import find_differences
from penstock.core.ids import is_whole
from penstock.core.schema import StreamSchema
from penstock.errors import GraphError, did_you_mean
from penstock.graph.logical import MAIN, Edge, Exchange, LogicalGraph, Node, find_cycles

LARGEST_PARALLELISM = 1_000_000


def validate(graph: LogicalGraph) -> None:
    """Raise one `GraphError` that lists all problems of a graph, if it has any."""
    problems = find_problems(graph)
    if problems:
        raise GraphError(
            f"the graph of job {graph.job!r} cannot run:\n  " + "\n  ".join(problems),
            job=graph.job,
            problems=tuple(problems),
        )


def find_problems(graph: LogicalGraph) -> list[str]:
    """Return the problems that keep a graph from running, a line each."""
    if not graph.nodes:
        return ["it has no operators: read from a source and write to a sink"]
    nodes: dict[str, Node] = {}
    for node in graph.nodes:
        nodes.setdefault(node.operator, node)
    dangling = {edge: list(_dangling_ends(edge, nodes)) for edge in graph.edges}
    whole = [edge for edge in graph.edges if not dangling[edge]]
    return [
        *(
            f"operator {operator!r}: {count} operators have this name, and a name is the "
            "identity of state: give each its own"
            for operator, count in Counter(node.operator for node in graph.nodes).items()
            if count > 1
        ),
        *chain.from_iterable(_node_problems(node, nodes) for node in graph.nodes),
        *chain.from_iterable(dangling.values()),
        *_input_problems(graph, whole),
        *chain.from_iterable(
            _edge_problems(edge, nodes[edge.source], nodes[edge.target])
            for edge in dict.fromkeys(whole)
        ),
        *_cycle_problems(graph),
    ]


def _node_problems(node: Node, nodes: dict[str, Node]) -> Iterator[str]:
    if not _is_parallelism(node.parallelism):
        yield (
            f"operator {node.operator!r}: parallelism {node.parallelism!r} cannot work: use a "
            f"whole number from 1 to {LARGEST_PARALLELISM:,}"
        )
    if not node.inputs and MAIN not in node.outputs:
        yield (
            f"operator {node.operator!r}: it reads nothing and has no output {MAIN!r}: give a "
            "source its output, or connect the operator to one"
        )
    yield from _watermark_problems(node, nodes)


def _is_parallelism(value: object) -> bool:
    return is_whole(value) and 1 <= value <= LARGEST_PARALLELISM


def _watermark_problems(node: Node, nodes: dict[str, Node]) -> Iterator[str]:
    spec, name = node.watermark, node.operator
    if spec is None:
        return
    measured = nodes.get(spec.behind[-1], node) if spec.behind else node
    if node.inputs:
        yield (
            f"operator {name!r}: only a source makes watermarks from event times, and this "
            "one has inputs: move the watermark to its source"
        )
    elif MAIN in node.outputs and measured.outputs[MAIN].time_column is None:
        yield (
            f"operator {name!r}: its watermark follows event times, but its output has no "
            "time column: name one as event_time, or leave the watermark out"
        )
    if spec.delay_micros < 0:
        yield (
            f"operator {name!r}: a watermark delay of {spec.delay_micros} microseconds is "
            "negative: use 0 for rows in order, or more"
        )
    if spec.idle_timeout_micros is not None and spec.idle_timeout_micros <= 0:
        yield (
            f"operator {name!r}: an idle timeout of {spec.idle_timeout_micros} microseconds "
            "would make it idle always: use a positive one, or None for never"
        )


def _dangling_ends(edge: Edge, nodes: dict[str, Node]) -> Iterator[str]:
    source, target = nodes.get(edge.source), nodes.get(edge.target)
    if source is None:
        yield (
            f"edge {edge}: there is no operator {edge.source!r} to read from"
            f"{did_you_mean(edge.source, nodes)}"
        )
    elif edge.output not in source.outputs:
        yield (
            f"edge {edge}: operator {edge.source!r} has no output {edge.output!r}"
            f"{did_you_mean(edge.output, source.outputs)}"
        )
    if target is None:
        yield (
            f"edge {edge}: there is no operator {edge.target!r} to feed"
            f"{did_you_mean(edge.target, nodes)}"
        )
    elif not 0 <= edge.input_index < len(target.inputs):
        last = len(target.inputs) - 1
        known = "it is a source and has none" if last < 0 else "it has only input 0"
        yield (
            f"edge {edge}: operator {edge.target!r} has no input {edge.input_index}; "
            f"{known if last < 1 else f'it has the inputs 0 to {last}'}"
        )


def _input_problems(graph: LogicalGraph, whole: list[Edge]) -> Iterator[str]:
    feeding: dict[tuple[str, int], list[Edge]] = {}
    for edge in whole:
        feeding.setdefault((edge.target, edge.input_index), []).append(edge)
    for node in graph.nodes:
        for index in range(len(node.inputs)):
            edges = feeding.get((node.operator, index), [])
            if not edges:
                yield (
                    f"operator {node.operator!r}: no edge leads to its input {index}: connect "
                    "a stream to it"
                )
            elif len(edges) > 1:
                sources = ", ".join(repr(str(edge.source)) for edge in edges)
                yield (
                    f"operator {node.operator!r}: {len(edges)} edges lead to its input "
                    f"{index}, from {sources}: leave one out, or put a union between"
                )


def _edge_problems(edge: Edge, source: Node, target: Node) -> Iterator[str]:
    if (
        edge.exchange is Exchange.FORWARD
        and source.parallelism != target.parallelism
        and _is_parallelism(source.parallelism)
        and _is_parallelism(target.parallelism)
    ):
        yield (
            f"edge {edge}: a forward edge joins equal subtasks, but {edge.source!r} has "
            f"parallelism {source.parallelism} and {edge.target!r} has "
            f"{target.parallelism}: rebalance, or make them equal"
        )
    found, expected = source.outputs[edge.output], target.inputs[edge.input_index]
    if edge.exchange is Exchange.BY_KEY and not expected.key_columns:
        yield (
            f"edge {edge}: rows are sent by key, but input {edge.input_index} of "
            f"{edge.target!r} has no key columns: key the stream by some, or rebalance"
        )
    yield from _schema_problems(edge, found, expected)


def _schema_problems(
    edge: Edge, found: StreamSchema, expected: StreamSchema
) -> Iterator[str]:
    start = (
        f"edge {edge}: operator {edge.target!r} cannot read what {edge.source!r} emits: "
    )
    of_keys = tuple(f"column {key!r} " for key in expected.key_columns)
    differences = [
        f"key {difference}" if difference.startswith(of_keys) else difference
        for difference in find_differences(found.arrow, expected.arrow)
    ]
    if differences:
        yield (
            f"{start}{'; '.join(differences)}. Change what the one emits, or what the other "
            "declares"
        )
    elif not found.arrow.equals(expected.arrow):
        yield (
            f"{start}their columns differ in order, layout or nullability, and nothing "
            f"converts them on the way: declare the input exactly as the output\n"
            f"    emitted:  {_one_line(found.arrow)}\n"
            f"    expected: {_one_line(expected.arrow)}"
        )
    # A reader may pass over event time, as that of rows which are only looked up.
    if expected.time_column not in (found.time_column, None):
        yield (
            f"{start}the time column is {found.time_column!r}, expected "
            f"{expected.time_column!r}: name the same one on both sides"
        )


def _one_line(schema: pa.Schema) -> str:
    return ", ".join(
        f"{field.name}: {field.type}{'' if field.nullable else ' not null'}"
        for field in schema
    )


def _cycle_problems(graph: LogicalGraph) -> Iterator[str]:
    for cycle in find_cycles(graph):
        way = " → ".join(map(repr, map(str, (*cycle, cycle[0]))))
        yield (
            f"operators in a cycle: {way}. Rows only flow forwards: cut one of these edges, "
            "or write to a store and read from it"
        )
