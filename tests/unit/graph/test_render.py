"""Drawings of graphs: what is shown, what is never shown, and how it is quoted."""

import json
from dataclasses import replace

from hypothesis import given

from penstock.core.ids import JobId, OperatorId
from penstock.graph.logical import (
    LATE,
    MAIN,
    Exchange,
    LogicalGraph,
    Node,
    OperatorSpec,
    Plain,
    UserFunction,
)
from penstock.graph.render import RenderedEdge, render, to_json, to_mermaid
from tests.builders.graphs import (
    BY_USER,
    CLICKS,
    a_graph,
    an_edge,
    sound_graphs,
    with_edges,
)


def shop() -> LogicalGraph:
    read = Node(
        OperatorId("read"),
        OperatorSpec("list", {"batch": b"\x00" * 20, "rate": 5}),
        parallelism=2,
        outputs={MAIN: CLICKS, LATE: CLICKS},
    )
    count = Node(
        OperatorId("count"),
        OperatorSpec("process", {"operator": UserFunction("Counter", b"secret")}),
        inputs=(BY_USER, CLICKS),
        outputs={MAIN: BY_USER},
    )
    edges = (
        an_edge("read", "count", exchange=Exchange.BY_KEY),
        an_edge("read", "count", exchange=Exchange.BROADCAST, output=LATE, input_index=1),
    )
    return LogicalGraph(JobId("shop"), (read, count), edges)


def test_operators_show_kind_parallelism_and_config_as_text() -> None:
    read, count = render(shop()).operators
    assert (read.name, read.kind, read.parallelism) == ("read", "list", 2)
    assert read.facts == {"batch": "20 bytes", "rate": "5"}
    assert count.facts == {"operator": "Counter"}


def test_edges_show_their_exchange_and_the_key_they_are_sent_by() -> None:
    assert render(shop()).edges == (
        RenderedEdge("read", MAIN, "count", 0, "by-key", ("user",)),
        RenderedEdge("read", LATE, "count", 1, "broadcast", ()),
    )


def test_streams_show_columns_time_and_key() -> None:
    stream = render(shop()).operators[1].outputs[MAIN]
    assert stream.columns == {
        "user": "string",
        "page": "int64",
        "at": "timestamp[us, tz=UTC]",
    }
    assert (stream.time_column, stream.key_columns) == ("at", ("user",))


def test_json_holds_the_whole_drawing_and_no_bytes_of_functions() -> None:
    text = to_json(render(shop()))
    assert "secret" not in text
    drawn = json.loads(text)
    assert drawn["job"] == "shop"
    assert [operator["name"] for operator in drawn["operators"]] == ["read", "count"]
    assert drawn["edges"][0] == {
        "source": "read",
        "output": "main",
        "target": "count",
        "input_index": 0,
        "exchange": "by-key",
        "key_columns": ["user"],
    }


def test_mermaid_draws_boxes_and_labelled_arrows() -> None:
    assert to_mermaid(render(shop())) == (
        "flowchart LR\n"
        '    n0["read x2<br/>list<br/>batch=20 bytes<br/>rate=5"]\n'
        '    n1["count x1<br/>process<br/>operator=Counter"]\n'
        '    n0 ==>|"by-key(user)"| n1\n'
        '    n0 ==>|"late, broadcast, input 1"| n1\n'
    )


def test_forward_edges_are_plain_arrows_and_names_like_end_are_safe() -> None:
    assert to_mermaid(render(a_graph("read -> end"))) == (
        'flowchart LR\n    n0["read x1<br/>noop"]\n    n1["end x1<br/>noop"]\n    n0 --> n1\n'
    )


def test_facts_given_by_operators_stand_in_for_their_config() -> None:
    rendered = render(shop(), {"read": {"predicate": 'col("a") > #1 & <b>'}})
    assert rendered.operators[0].facts == {"predicate": 'col("a") > #1 & <b>'}
    assert "predicate=col(#quot;a#quot;) #gt; #35;1 #amp; #lt;b#gt;" in to_mermaid(rendered)


def test_long_and_many_lined_facts_are_cut_to_one_short_line() -> None:
    rendered = render(shop(), {"read": {"sql": "select\n  " + "x" * 200}})
    fact = rendered.operators[0].facts["sql"]
    assert fact.startswith("select xxx")
    assert fact.endswith("…")
    assert len(fact) == 80


def test_nested_configs_are_shown_on_one_line() -> None:
    config: dict[str, Plain] = {
        "columns": ("a", "b"),
        "types": {"a": 1, "b": None},
        "functions": (UserFunction("f", b""), b"123"),
    }
    node = Node(OperatorId("read"), OperatorSpec("list", config), outputs={MAIN: CLICKS})
    (operator,) = render(LogicalGraph(JobId("shop"), (node,))).operators
    assert operator.facts == {
        "columns": "a, b",
        "types": "a: 1, b: None",
        "functions": "f, 3 bytes",
    }


def test_a_graph_that_cannot_run_is_drawn_without_its_dangling_edges() -> None:
    graph = with_edges(
        a_graph("read -> map"), [an_edge("read", "mapp", exchange=Exchange.BY_KEY)]
    )
    rendered = render(graph)
    assert rendered.edges[1].key_columns == ()
    assert to_mermaid(rendered).count("-->") == 1
    assert to_mermaid(rendered).count("==>") == 0


@given(sound_graphs())
def test_every_operator_and_edge_is_drawn_once(graph: LogicalGraph) -> None:
    rendered = render(replace(graph))
    assert [operator.name for operator in rendered.operators] == [
        node.operator for node in graph.nodes
    ]
    lines = to_mermaid(rendered).splitlines()
    assert len(lines) == 1 + len(graph.nodes) + len(graph.edges)
