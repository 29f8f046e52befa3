"""Explanations of pipelines: the plan as text, the graph as a drawing, both in notebooks.

An explanation is text that notebooks show as a table. Nothing here runs anything, and a
pipeline with mistakes is shown as the list of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Literal, TypeAlias

from penstock.api.graph_builder import GraphBuilder
from penstock.core.ids import OperatorId
from penstock.errors import ErrorCode, PenstockError, UserError, did_you_mean
from penstock.graph.logical import MAIN, LogicalGraph
from penstock.graph.render import render, to_json, to_mermaid
from penstock.operators.operator import DisplayableOperator
from penstock.runtime.plan.physical import compile_graph, describe_plan

Format: TypeAlias = Literal["text", "mermaid", "json"]
_FORMATS = ("text", "mermaid", "json")


class Explanation(str):
    """What `explain` returns: a text, which notebooks show by its HTML."""

    __slots__ = ("_html",)

    _html: str

    def __new__(cls, text: str, html: str) -> "Explanation":
        """Keep the HTML beside the text."""
        made = super().__new__(cls, text)
        made._html = html
        return made

    def _repr_html_(self) -> str:
        return self._html

    def __reduce__(self) -> tuple[type["Explanation"], tuple[str, str]]:
        """Return both forms, so that it can be pickled."""
        return Explanation, (str(self), self._html)


def explain(builder: GraphBuilder, wanted: Format) -> Explanation:
    """Return how a pipeline will run; see `Pipeline.explain`."""
    if wanted not in _FORMATS:
        raise UserError(
            f"a pipeline cannot be explained as {wanted!r}{did_you_mean(wanted, _FORMATS)}",
            code=ErrorCode.INVALID_CONFIG,
        )
    graph, displays = builder.graph(), builder.displays
    if wanted == "text":
        shown = "".join(f"  {name}: {shown}\n" for name, shown in displays.items())
        plan = describe_plan(compile_graph(graph))
        text = f"job {builder.job}\n{plan}operators\n{shown}"
        return Explanation(text, _to_html(graph, displays, plan))
    rendered = render(graph, {name: shown.fields for name, shown in displays.items()})
    if wanted == "json":
        text = to_json(rendered)
        return Explanation(text, f"<pre>{escape(text)}</pre>")
    text = to_mermaid(rendered)
    return Explanation(text, f'<pre class="mermaid">{escape(text)}</pre>')


def explain_as_html(builder: GraphBuilder) -> str:
    """Return a pipeline as HTML, or what is wrong with it: showing it never raises."""
    try:
        return explain(builder, "text")._repr_html_()
    except PenstockError as error:
        return f"<b>{escape(builder.job)}</b><pre>{escape(str(error))}</pre>"


def _to_html(
    graph: LogicalGraph, displays: Mapping[OperatorId, DisplayableOperator], plan: str
) -> str:
    rows = []
    for node in graph.nodes:
        inputs = [
            edge.source if edge.output == MAIN else f"{edge.source} ({edge.output})"
            for edge in graph.edges
            if edge.target == node.operator
        ]
        stream = node.outputs.get(MAIN)
        columns = [] if stream is None else [f"{f.name}: {f.type}" for f in stream.arrow]
        rows.append(
            (
                str(node.operator),
                str(displays[node.operator]),
                str(node.parallelism),
                ", ".join(inputs),
                ", ".join(columns),
            )
        )
    heading = ("step", "what", "subtasks", "reads", "columns")
    return (
        f"<b>{escape(graph.job)}</b>{table(heading, rows)}"
        f"<details><summary>supersteps</summary><pre>{escape(plan)}</pre></details>"
    )


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text as a table of HTML."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
