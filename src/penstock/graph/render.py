"""How a graph is shown: plain values for programs, JSON, and Mermaid for people. Pure.

`explain`, the command line and the console all draw from one `RenderedGraph`. Functions of
users appear by name; bytes by their size, never themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from penstock.core.schema import StreamSchema
from penstock.graph.logical import (
    MAIN,
    Edge,
    Exchange,
    LogicalGraph,
    Node,
    Plain,
    UserFunction,
)

_LONGEST_TEXT = 80


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
    """What is worth knowing of its config, as short text."""
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
    """What rows are sent by; empty unless the exchange is by key."""


@dataclass(frozen=True, slots=True)
class RenderedGraph:
    """A graph as it is drawn: text and numbers only."""

    job: str
    operators: tuple[RenderedOperator, ...]
    edges: tuple[RenderedEdge, ...]


def render(
    graph: LogicalGraph, facts: Mapping[str, Mapping[str, str]] | None = None
) -> RenderedGraph:
    """Return what to draw; `facts` by operator stand in for the text of its config.

    A graph need not be sound to be drawn.
    """
    known = facts or {}
    return RenderedGraph(
        job=str(graph.job),
        operators=tuple(
            _render_node(node, known.get(node.operator)) for node in graph.nodes
        ),
        edges=tuple(_render_edge(graph, edge) for edge in graph.edges),
    )


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
            label = _escape(_describe_edge(edge))
            ends = f"n{numbers[edge.source]}", f"n{numbers[edge.target]}"
            arrow = "-->" if edge.exchange == Exchange.FORWARD else "==>"
            lines.append(
                f'    {ends[0]} {arrow}|"{label}"| {ends[1]}'
                if label
                else f"    {ends[0]} {arrow} {ends[1]}"
            )
    return "".join(f"{line}\n" for line in lines)


def _render_node(node: Node, facts: Mapping[str, str] | None) -> RenderedOperator:
    if facts is None:
        facts = {key: _to_text(value) for key, value in node.spec.config.items()}
    return RenderedOperator(
        name=str(node.operator),
        kind=node.spec.kind,
        parallelism=node.parallelism,
        facts={key: _cut(text) for key, text in facts.items()},
        outputs={name: _render_stream(stream) for name, stream in node.outputs.items()},
    )


def _render_stream(stream: StreamSchema) -> RenderedStream:
    columns = {field.name: str(field.type) for field in stream.schema}
    return RenderedStream(columns, stream.time_column, stream.key_columns)


def _render_edge(graph: LogicalGraph, edge: Edge) -> RenderedEdge:
    keys: tuple[str, ...] = ()
    if edge.exchange is Exchange.BY_KEY:
        # A graph that is drawn to show what is wrong with it may lack the input.
        inputs = [node.inputs for node in graph.nodes if node.operator == edge.target]
        if inputs and 0 <= edge.input_index < len(inputs[0]):
            keys = inputs[0][edge.input_index].key_columns
    return RenderedEdge(
        source=str(edge.source),
        output=edge.output,
        target=str(edge.target),
        input_index=edge.input_index,
        exchange=str(edge.exchange),
        key_columns=keys,
    )


def _describe_edge(edge: RenderedEdge) -> str:
    """Say what is not ordinary: a side output, another input than the first, an exchange."""
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
    for character, entity in (
        ("#", "#35;"),
        ("&", "#amp;"),
        ('"', "#quot;"),
        ("<", "#lt;"),
        (">", "#gt;"),
    ):
        text = text.replace(character, entity)
    return text
