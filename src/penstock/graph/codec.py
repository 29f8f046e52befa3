"""Graphs ↔ bytes: msgpack, the same bytes for graphs that are built alike.

The bytes travel to executors and name a graph by their checksum. Functions of users pass
through in the form they were pickled in; nothing is unpickled here. A config's types count:
`1`, `1.0` and `True` are different values.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.core.ids import JobId, OperatorId, checksum_of
from penstock.core.schema import StreamSchema
from penstock.errors import CorruptStateError, ErrorCode, GraphError, PenstockError
from penstock.graph.logical import (
    Edge,
    Exchange,
    LogicalGraph,
    Node,
    OperatorSpec,
    Plain,
    UserFunction,
    WatermarkSpec,
)

_FORMAT = 1
_USER_FUNCTION = 1
"""The number of the msgpack extension that holds one."""


class _WireFunction(msgspec.Struct, array_like=True):
    name: str
    pickled: bytes


class _WireWatermark(msgspec.Struct, array_like=True):
    lateness_micros: int
    idle_timeout_micros: int | None


class _WireNode(msgspec.Struct):
    operator: str
    kind: str
    config: dict[str, Any]
    parallelism: int
    inputs: list[bytes]
    outputs: list[tuple[str, bytes]]
    watermark: _WireWatermark | None


class _WireEdge(msgspec.Struct):
    source: str
    target: str
    output: str
    input_index: int
    exchange: Exchange


class _WireGraph(msgspec.Struct):
    format: int
    job: str
    nodes: list[_WireNode]
    edges: list[_WireEdge]


def _read_extension(code: int, data: memoryview) -> UserFunction:
    if code != _USER_FUNCTION:
        raise ValueError(f"unknown extension {code}")
    wire = msgspec.msgpack.decode(data, type=_WireFunction)
    return UserFunction(wire.name, wire.pickled)


_ENCODER = msgspec.msgpack.Encoder(order="sorted")
_DECODER = msgspec.msgpack.Decoder(_WireGraph, ext_hook=_read_extension)


def encode_graph(graph: LogicalGraph) -> bytes:
    """Return a graph as bytes; a config that holds more than plain values is an error."""
    nodes = [_to_wire(node) for node in graph.nodes]
    edges = [
        _WireEdge(
            str(edge.source),
            str(edge.target),
            edge.output,
            edge.input_index,
            edge.exchange,
        )
        for edge in graph.edges
    ]
    return _ENCODER.encode(_WireGraph(_FORMAT, str(graph.job), nodes, edges))


def decode_graph(data: bytes) -> LogicalGraph:
    """Return the graph that `encode_graph` wrote."""
    try:
        wire = _DECODER.decode(data)
        if wire.format == _FORMAT:
            return LogicalGraph(
                JobId(wire.job),
                tuple(_from_wire(node) for node in wire.nodes),
                tuple(
                    Edge(
                        OperatorId(edge.source),
                        OperatorId(edge.target),
                        edge.output,
                        edge.input_index,
                        edge.exchange,
                    )
                    for edge in wire.edges
                ),
            )
    except (msgspec.MsgspecError, ValueError, PenstockError) as error:
        raise CorruptStateError(
            f"{len(data)} bytes are not a graph ({error}): they were damaged or written by "
            "something else",
            code=ErrorCode.UNDECODABLE,
        ) from error
    raise CorruptStateError(
        f"a graph has format {wire.format}, this version reads {_FORMAT}: run the version of "
        "Penstock that wrote it",
        code=ErrorCode.NEWER_PROTOCOL,
    )


def fingerprint_of(graph: LogicalGraph) -> str:
    """Return 16 hex digits that tell this graph from others."""
    return f"{checksum_of(encode_graph(graph)):016x}"


def _to_wire(node: Node) -> _WireNode:
    config = {
        key: _to_plain(value, f"{key!r} in the config of operator {node.operator!r}")
        for key, value in node.spec.config.items()
    }
    watermark = node.watermark
    wire_watermark = None
    if watermark is not None:
        wire_watermark = _WireWatermark(
            watermark.lateness_micros, watermark.idle_timeout_micros
        )
    return _WireNode(
        operator=str(node.operator),
        kind=node.spec.kind,
        config=config,
        parallelism=node.parallelism,
        inputs=[stream.to_bytes() for stream in node.inputs],
        # Mappings are equal in any order, so the bytes must not depend on it.
        outputs=[(name, node.outputs[name].to_bytes()) for name in sorted(node.outputs)],
        watermark=wire_watermark,
    )


def _from_wire(wire: _WireNode) -> Node:
    watermark = None
    if wire.watermark is not None:
        watermark = WatermarkSpec(
            wire.watermark.lateness_micros, wire.watermark.idle_timeout_micros
        )
    config = {key: _from_plain(value) for key, value in wire.config.items()}
    return Node(
        OperatorId(wire.operator),
        OperatorSpec(wire.kind, config),
        parallelism=wire.parallelism,
        inputs=tuple(map(StreamSchema.from_bytes, wire.inputs)),
        outputs={name: StreamSchema.from_bytes(data) for name, data in wire.outputs},
        watermark=watermark,
    )


def _to_plain(value: Plain, where: str) -> Any:
    match value:
        case UserFunction(name, pickled):
            wire = _ENCODER.encode(_WireFunction(name, pickled))
            return msgspec.msgpack.Ext(_USER_FUNCTION, wire)
        case None | bool() | float() | bytes():
            return value
        case str():
            return str(value)
        case int() if -(1 << 63) <= value < 1 << 64:
            return int(value)
        case tuple():
            return [
                _to_plain(item, f"item {index} of {where}")
                for index, item in enumerate(value)
            ]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {
                key: _to_plain(item, f"{key!r} of {where}") for key, item in value.items()
            }
    raise GraphError(
        f"{where} is {value!r}, of type {type(value).__name__}: use None, booleans, whole "
        "numbers of 64 bits, floats, text, bytes, functions, tuples, or mappings with text as "
        "keys",
        code=ErrorCode.INVALID_CONFIG,
    )


def _from_plain(value: Any) -> Plain:
    if isinstance(value, list):
        return tuple(map(_from_plain, value))
    if isinstance(value, dict):
        return {key: _from_plain(item) for key, item in value.items()}
    plain: Plain = value
    return plain
