"""Graphs that cannot run, by what is wrong with them; what they are told is kept beside them."""

from dataclasses import replace

import pyarrow as pa

from penstock.core.ids import JobId
from penstock.core.schema import StreamSchema
from penstock.graph.logical import LATE, MAIN, Exchange, LogicalGraph, Node, WatermarkSpec
from tests.builders.graphs import (
    AT,
    BY_USER,
    CLICKS,
    a_graph,
    a_node,
    an_edge,
    schema_of,
    with_edges,
    with_node,
)


def _with(graph: LogicalGraph, operator: str, **changes: object) -> LogicalGraph:
    node: Node = replace(graph.node(operator), **changes)  # type: ignore[arg-type]
    return with_node(graph, node)


def _emitting(schema: pa.Schema, *, time_column: str | None = "at") -> LogicalGraph:
    """Return a source that emits other rows than its keyed consumer wants."""
    stream = StreamSchema(schema, time_column)
    return _with(a_graph("read -k> count"), "read", outputs={MAIN: stream})


_READ_MAP = a_graph("read -> map")
_SEQUENTIAL = replace(CLICKS, time_column=None)

BROKEN: dict[str, LogicalGraph] = {
    "empty": LogicalGraph(JobId("clicks"), ()),
    "cycle": a_graph("read -> a", "a -> b", "b -> a", "b -> write"),
    "two-cycles": a_graph("a -> a", "x -> y", "y -> x"),
    "duplicate-names": replace(_READ_MAP, nodes=(*_READ_MAP.nodes, a_node("map"))),
    "unknown-source": with_edges(_READ_MAP, [an_edge("raed", "map")]),
    "unknown-target": with_edges(_READ_MAP, [an_edge("read", "mapp")]),
    "unknown-on-both-ends": with_edges(_READ_MAP, [an_edge("wind", "rain")]),
    "unknown-output": with_edges(
        a_graph("read -> map", "map -> write"), [an_edge("map", "write", output=LATE)]
    ),
    "output-of-a-sink": with_edges(
        _with(a_graph("read -> sink", "read -> map"), "sink", outputs={}),
        [an_edge("sink", "map")],
    ),
    "unknown-input": with_edges(_READ_MAP, [an_edge("read", "map", input_index=1)]),
    "negative-input": with_edges(_READ_MAP, [an_edge("read", "map", input_index=-1)]),
    "input-of-a-source": with_edges(_READ_MAP, [an_edge("map", "read")]),
    "input-without-an-edge": _with(_READ_MAP, "map", inputs=(CLICKS, CLICKS)),
    "input-with-two-edges": with_edges(
        a_graph("read -> map", "other -> b"),
        [
            an_edge("other", "map"),
        ],
    ),
    "the-same-edge-twice": with_edges(_READ_MAP, _READ_MAP.edges),
    "forward-between-different-parallelism": a_graph(
        "read -> map", parallelism={"read": 2, "map": 3}
    ),
    "by-key-without-key-columns": _with(
        a_graph("read -k> count"), "count", inputs=(CLICKS,)
    ),
    "key-column-missing": _emitting(schema_of(usr=pa.string(), page=pa.int64(), at=AT)),
    "key-column-of-another-type": _emitting(
        schema_of(user=pa.int64(), page=pa.int64(), at=AT)
    ),
    "incompatible-schemas": _emitting(
        schema_of(
            user=pa.string(),
            page=pa.float64(),
            at=AT,
            referrer=pa.string(),
        )
    ),
    "other-layout": _emitting(schema_of(user=pa.large_string(), page=pa.int64(), at=AT)),
    "other-time-column": _emitting(CLICKS.arrow, time_column=None),
    "parallelism-zero": a_graph("read -k> count", parallelism={"read": 0, "count": -1}),
    "parallelism-too-large": a_graph("read -k> count", parallelism={"count": 1_000_001}),
    "parallelism-of-the-wrong-type": _with(_READ_MAP, "map", parallelism=True),
    "watermark-without-a-time-column": _with(
        _with(_READ_MAP, "read", outputs={MAIN: _SEQUENTIAL}, watermark=WatermarkSpec()),
        "map",
        inputs=(_SEQUENTIAL,),
    ),
    "watermark-on-an-operator-with-inputs": _with(
        _READ_MAP, "map", watermark=WatermarkSpec()
    ),
    "negative-delay": _with(_READ_MAP, "read", watermark=WatermarkSpec(delay_micros=-1)),
    "idle-timeout-of-nothing": _with(
        _READ_MAP, "read", watermark=WatermarkSpec(idle_timeout_micros=0)
    ),
    "source-without-an-output": LogicalGraph(
        JobId("clicks"), (replace(a_node("read", input_count=0), outputs={}),)
    ),
    "many-problems": with_edges(
        replace(
            a_graph("read -> map", "map -> loop", "loop -> map", parallelism={"loop": 2}),
            nodes=(
                replace(
                    a_node("read", input_count=0),
                    parallelism=0,
                    watermark=WatermarkSpec(delay_micros=-5),
                ),
                replace(a_node("map"), inputs=(BY_USER, CLICKS, CLICKS)),
                a_node("loop", parallelism=2),
            ),
        ),
        [an_edge("reed", "loop"), an_edge("loop", "map", exchange=Exchange.BY_KEY)],
    ),
}
