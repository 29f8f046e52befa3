"""Graphs as bytes: round trips, equal bytes for equal graphs, and clear refusals."""

from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import JobId, OperatorId
from penstock.errors import CorruptStateError, ErrorCode, GraphError
from penstock.graph.codec import decode_graph, encode_graph, fingerprint_of
from penstock.graph.logical import (
    BAD,
    LATE,
    MAIN,
    Exchange,
    LogicalGraph,
    Node,
    OperatorSpec,
    Plain,
    UserFunction,
    WatermarkSpec,
)
from tests.builders.graphs import BY_USER, CLICKS, a_graph, an_edge, sound_graphs

functions = st.builds(UserFunction, st.text(max_size=8), st.binary(max_size=8))
plain_values: st.SearchStrategy[Plain] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | functions,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
configs = st.dictionaries(st.text(max_size=6), plain_values, max_size=4)


def with_config(config: dict[str, Any]) -> LogicalGraph:
    node = Node(OperatorId("read"), OperatorSpec("list", config), outputs={MAIN: CLICKS})
    return LogicalGraph(JobId("clicks"), (node,))


def types_of(value: Any) -> Any:
    """Return the types at every depth: `1 == True` must not pass as a round trip."""
    if isinstance(value, tuple):
        return tuple(map(types_of, value))
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    return type(value)


@given(configs)
def test_a_config_comes_back_with_the_same_values_and_types(config: dict[str, Any]) -> None:
    back = decode_graph(encode_graph(with_config(config))).nodes[0].spec.config
    assert back == config
    assert types_of(dict(back)) == types_of(config)


@given(sound_graphs())
def test_a_graph_comes_back_as_it_was(graph: LogicalGraph) -> None:
    assert decode_graph(encode_graph(graph)) == graph


def test_side_outputs_watermarks_ports_and_keys_come_back() -> None:
    read = Node(
        OperatorId("read"),
        OperatorSpec("list"),
        parallelism=2,
        outputs={MAIN: CLICKS, BAD: CLICKS, LATE: CLICKS},
        watermark=WatermarkSpec(delay_micros=5, idle_timeout_micros=7),
    )
    count = Node(OperatorId("count"), OperatorSpec("process"), inputs=(BY_USER, CLICKS))
    edges = (
        an_edge("read", "count", exchange=Exchange.BY_KEY, output=BAD),
        an_edge("read", "count", exchange=Exchange.BROADCAST, input_index=1),
    )
    graph = LogicalGraph(JobId("clicks"), (read, count), edges)
    back = decode_graph(encode_graph(graph))
    assert back == graph
    assert isinstance(back.job, JobId)
    assert isinstance(back.nodes[0].operator, OperatorId)
    assert back.edges[0].exchange is Exchange.BY_KEY


def test_metadata_of_columns_comes_back() -> None:
    stream = replace(CLICKS, arrow=CLICKS.arrow.with_metadata({b"unit": b"pages"}))
    graph = LogicalGraph(
        JobId("clicks"),
        (Node(OperatorId("read"), OperatorSpec("list"), outputs={MAIN: stream}),),
    )
    back = decode_graph(encode_graph(graph)).nodes[0].outputs[MAIN]
    assert back.arrow.equals(stream.arrow, check_metadata=True)


@given(configs, st.randoms(use_true_random=False))
def test_the_order_and_class_of_mappings_do_not_change_the_bytes(
    config: dict[str, Any], random: Any
) -> None:
    keys = list(config)
    random.shuffle(keys)
    shuffled = {key: config[key] for key in keys}
    frozen = MappingProxyType(shuffled)
    expected = encode_graph(with_config(config))
    assert encode_graph(with_config(shuffled)) == expected
    assert encode_graph(with_config({"nested": frozen})) == encode_graph(
        with_config({"nested": config})
    )


def test_the_order_of_outputs_does_not_change_the_fingerprint() -> None:
    outputs = {MAIN: CLICKS, LATE: BY_USER}
    node = Node(OperatorId("read"), OperatorSpec("list"), outputs=outputs)
    turned = replace(node, outputs=dict(reversed(outputs.items())))
    prints = {fingerprint_of(LogicalGraph(JobId("a"), (each,))) for each in (node, turned)}
    assert len(prints) == 1


@given(sound_graphs())
def test_a_graph_that_came_back_has_the_same_bytes_and_fingerprint(
    graph: LogicalGraph,
) -> None:
    back = decode_graph(encode_graph(graph))
    assert encode_graph(back) == encode_graph(graph)
    assert fingerprint_of(back) == fingerprint_of(graph)
    assert len(fingerprint_of(graph)) == 16


def test_every_part_of_a_graph_changes_its_fingerprint() -> None:
    graph = a_graph("read -> map")
    first, last = graph.nodes
    variants = [
        graph,
        replace(graph, job=JobId("other")),
        replace(graph, nodes=(last, first)),
        replace(graph, edges=()),
        replace(graph, nodes=(replace(first, parallelism=2), last)),
        replace(graph, nodes=(replace(first, watermark=WatermarkSpec()), last)),
        replace(graph, nodes=(first, replace(last, inputs=(BY_USER,)))),
        replace(graph, nodes=(replace(first, spec=OperatorSpec("list")), last)),
        replace(graph, nodes=(replace(first, spec=OperatorSpec("noop", {"a": 1})), last)),
        replace(graph, nodes=(replace(first, spec=OperatorSpec("noop", {"a": 1.0})), last)),
        replace(graph, edges=(an_edge("read", "map", exchange=Exchange.REBALANCE),)),
        replace(graph, edges=(an_edge("read", "map", output=LATE),)),
    ]
    assert len({fingerprint_of(variant) for variant in variants}) == len(variants)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            {"limit": {1, 2}},
            "'limit' in the config of operator 'read' is {1, 2}, of type set",
        ),
        ({"rows": [1]}, "'rows' in the config of operator 'read' is [1], of type list"),
        (
            {"rows": (1, ({2},))},
            "item 0 of item 1 of 'rows' in the config of operator 'read'",
        ),
        ({"by": {"a": {1: 2}}}, "'a' of 'by' in the config of operator 'read' is {1: 2}"),
        (
            {"count": 2**64},
            "'count' in the config of operator 'read' is 18446744073709551616",
        ),
    ],
)
def test_a_config_that_is_not_plain_names_the_place(
    config: dict[str, Any], named: str
) -> None:
    with pytest.raises(GraphError) as raised:
        encode_graph(with_config(config))
    assert raised.value.message.startswith(named)
    assert raised.value.code is ErrorCode.INVALID_CONFIG


def test_a_secret_that_is_not_plain_is_not_shown() -> None:
    for value in (["hunter2"], ({"hunter2"},)):
        options: Any = {"store_options": {"secret_access_key": value}}
        with pytest.raises(GraphError, match="'secret_access_key' of") as raised:
            encode_graph(with_config(options))
        assert "hunter2" not in raised.value.message


@given(st.binary(max_size=64))
def test_bytes_that_are_no_graph_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="are not a graph"):
        decode_graph(data)


@given(st.data())
def test_damaged_bytes_give_a_graph_or_a_clear_error(data: st.DataObject) -> None:
    whole = bytearray(encode_graph(a_graph("read -> map", "map -k> count")))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptStateError):
        assert isinstance(decode_graph(bytes(whole)), LogicalGraph)


def test_a_graph_of_a_later_format_asks_for_that_version() -> None:
    raw = msgspec.msgpack.decode(encode_graph(a_graph("read -> map")))
    newer = msgspec.msgpack.encode({**raw, "format": 2})
    with pytest.raises(
        CorruptStateError, match="has format 2, this version reads 1"
    ) as raised:
        decode_graph(newer)
    assert raised.value.code is ErrorCode.NEWER_PROTOCOL


def test_an_extension_of_something_else_is_refused() -> None:
    raw = msgspec.msgpack.decode(encode_graph(with_config({})))
    raw["graph"]["nodes"][0]["spec"]["config"] = {"odd": msgspec.msgpack.Ext(9, b"")}
    with pytest.raises(CorruptStateError, match="unknown extension 9"):
        decode_graph(msgspec.msgpack.encode(raw))
