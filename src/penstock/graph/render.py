"""How a graph is shown: as plain values, as JSON, and as a Mermaid flow chart.

Pure. `explain`, the command line and the console all draw from one `RenderedGraph`. User
functions are shown by name, and bytes by their number, never by their content. Credentials of
URLs and stores are hidden.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from penstock.errors import hide_secrets
from penstock.graph.logical import (
    MAIN,
    Edge,
    Exchange,
    LogicalGraph,
    Node,
    Plain,
    UserFunction,
    hide_in_config,
)

_LONGEST_TEXT = 80
_ENTITIES = str.maketrans(
    {"#": "#35;", "&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;"}
)


@dataclass(frozen=True, slots=True)
class RenderedStream:
    """The columns of a stream with their types as text, and their roles."""

    columns: Mapping[str, str]
    time_column: str | None
    key_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RenderedOperator:
    """One box of the drawing."""

    name: str
    kind: str
    parallelism: int
    facts: Mapping[str, str]
    """The parts of its config that are shown, as short text."""
    outputs: Mapping[str, RenderedStream]


@dataclass(frozen=True, slots=True)
class RenderedEdge:
    """One arrow of the drawing."""

    source: str
    output: str
    target: str
    input_index: int
    exchange: str
    key_columns: tuple[str, ...]
    """The columns that rows are sent by; empty unless the exchange is by key."""


@dataclass(frozen=True, slots=True)
class RenderedGraph:
    """A graph as it is drawn: text and numbers only."""

    job: str
    operators: tuple[RenderedOperator, ...]
    edges: tuple[RenderedEdge, ...]


def render(
    graph: LogicalGraph, facts: Mapping[str, Mapping[str, str]] | None = None
) -> RenderedGraph:
    """Return what to draw; `facts` of an operator are shown instead of its config.

    A graph with mistakes can be drawn, too.
    """
    known = facts or {}
    operators = [_render_node(node, known.get(node.operator)) for node in graph.nodes]
    edges = [_render_edge(graph, edge) for edge in graph.edges]
    return RenderedGraph(str(graph.job), tuple(operators), tuple(edges))


def to_json(rendered: RenderedGraph) -> str:
    """Return a drawing as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(rendered), indent=2).decode()


def to_mermaid(rendered: RenderedGraph) -> str:
    """Return a drawing as a Mermaid flow chart, from left to right."""
    numbers: dict[str, int] = {}
    lines = ["flowchart LR"]
    for number, operator in enumerate(rendered.operators):
        numbers.setdefault(operator.name, number)
        title = f"{operator.name} x{operator.parallelism}"
        facts = [f"{key}={value}" for key, value in operator.facts.items()]
        label = "<br/>".join(map(_escape, [title, operator.kind, *facts]))
        lines.append(f'    n{number}["{label}"]')
    for edge in rendered.edges:
        if edge.source in numbers and edge.target in numbers:
            arrow = "-->" if edge.exchange == Exchange.FORWARD else "==>"
            if label := _escape(_describe_edge(edge)):
                arrow += f'|"{label}"|'
            lines.append(f"    n{numbers[edge.source]} {arrow} n{numbers[edge.target]}")
    return "".join(f"{line}\n" for line in lines)


def _render_node(node: Node, facts: Mapping[str, str] | None) -> RenderedOperator:
    if facts is None:
        config = hide_in_config(node.spec.config)
        facts = {key: _to_text(value) for key, value in config.items()}
    outputs = {}
    for name, stream in node.outputs.items():
        columns = {field.name: str(field.type) for field in stream.arrow}
        outputs[name] = RenderedStream(columns, stream.time_column, stream.key_columns)
    shown = {key: _cut(hide_secrets(text, key)) for key, text in facts.items()}
    return RenderedOperator(
        str(node.operator), node.spec.kind, node.parallelism, shown, outputs
    )


def _render_edge(graph: LogicalGraph, edge: Edge) -> RenderedEdge:
    keys: tuple[str, ...] = ()
    if edge.exchange is Exchange.BY_KEY:
        # The graph may have mistakes, so the input may not exist.
        inputs = [node.inputs for node in graph.nodes if node.operator == edge.target]
        if inputs and 0 <= edge.input_index < len(inputs[0]):
            keys = inputs[0][edge.input_index].key_columns
    source, target = str(edge.source), str(edge.target)
    return RenderedEdge(
        source, edge.output, target, edge.input_index, str(edge.exchange), keys
    )


def _describe_edge(edge: RenderedEdge) -> str:
    """Return what is not ordinary: a side output, another input than the first, an exchange."""
    parts = []
    if edge.output != MAIN:
        parts.append(edge.output)
    if edge.exchange != Exchange.FORWARD:
        keys = f"({', '.join(edge.key_columns)})" if edge.key_columns else ""
        parts.append(f"{edge.exchange}{keys}")
    if edge.input_index:
        parts.append(f"input {edge.input_index}")
    return ", ".join(parts)


def _to_text(value: Plain) -> str:
    match value:
        case UserFunction(name, _):
            return name
        case bytes():
            return f"{len(value)} bytes"
        case str():
            return value
        case tuple():
            return ", ".join(map(_to_text, value))
        case Mapping():
            return ", ".join(f"{key}: {_to_text(item)}" for key, item in value.items())
        case None | bool() | int() | float():
            return str(value)


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else line[: _LONGEST_TEXT - 1] + "…"


def _escape(text: str) -> str:
    """Return text that Mermaid shows as it is, inside quotes."""
    return text.translate(_ENTITIES)
