"""Graphs ↔ bytes: msgpack, with the same bytes for graphs built from the same values.

Pure. The bytes are sent to executors, and their checksum is the graph's fingerprint. User
functions stay in their pickled form; nothing is unpickled here. The types in a config count:
`1`, `1.0` and `True` are different values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.ids import checksum_of
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    GraphError,
    PenstockError,
    hide_secrets,
)
from penstock.graph.logical import LogicalGraph, Node, OperatorSpec, Plain, UserFunction

_FORMAT = 1
_USER_FUNCTION = 1
"""The number of the msgpack extension that holds a user function."""


@dataclass(frozen=True, slots=True)
class _WireSpec(OperatorSpec):
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _WireNode(Node):
    spec: _WireSpec


@dataclass(frozen=True, slots=True)
class _WireGraph(LogicalGraph):
    """A graph whose configs hold only values that msgpack has."""

    nodes: tuple[_WireNode, ...]


class _Wire(msgspec.Struct):
    format: int
    graph: _WireGraph


def _to_wire(value: Any) -> Any:
    """Return a value that msgspec cannot encode in a form that it can."""
    if isinstance(value, pa.Schema):
        return value.serialize().to_pybytes()
    return str(value) if isinstance(value, str) else dict(value)


def _from_wire(kind: type, value: Any) -> Any:
    if kind is not pa.Schema:
        return kind(value)
    try:
        return pa.ipc.read_schema(pa.py_buffer(value))
    except (pa.ArrowException, OSError, TypeError) as error:
        raise ValueError(f"a schema cannot be read ({error!r})") from error


def _read_extension(code: int, data: memoryview) -> UserFunction:
    if code != _USER_FUNCTION:
        raise ValueError(f"unknown extension {code}")
    return msgspec.msgpack.decode(data, type=UserFunction)


# Mappings are equal in any order, so the bytes must not depend on the order.
_ENCODER = msgspec.msgpack.Encoder(order="sorted", enc_hook=_to_wire)
_DECODER = msgspec.msgpack.Decoder(_Wire, dec_hook=_from_wire, ext_hook=_read_extension)


def encode_graph(graph: LogicalGraph) -> bytes:
    """Return a graph as bytes; a config that holds more than plain values is an error."""
    nodes = []
    for node in graph.nodes:
        config = {
            key: _to_plain(
                value, f"{key!r} in the config of operator {node.operator!r}", key
            )
            for key, value in node.spec.config.items()
        }
        nodes.append(replace(node, spec=OperatorSpec(node.spec.kind, config)))
    return _ENCODER.encode({"format": _FORMAT, "graph": replace(graph, nodes=tuple(nodes))})


def decode_graph(data: bytes) -> LogicalGraph:
    """Return the graph that `encode_graph` wrote."""
    try:
        wire = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, PenstockError) as error:
        raise CorruptStateError(
            f"{len(data)} bytes are not a graph ({error}): they were damaged or written by "
            "something else",
            code=ErrorCode.UNDECODABLE,
        ) from error
    if wire.format != _FORMAT:
        raise CorruptStateError(
            f"a graph has format {wire.format}, this version reads {_FORMAT}: run the version "
            "of Penstock that wrote it",
            code=ErrorCode.NEWER_PROTOCOL,
        )
    nodes = [
        Node(
            node.operator,
            OperatorSpec(node.spec.kind, _from_plain(node.spec.config)),
            node.parallelism,
            node.inputs,
            node.outputs,
            node.watermark,
        )
        for node in wire.graph.nodes
    ]
    return LogicalGraph(wire.graph.job, tuple(nodes), wire.graph.edges)


def fingerprint_of(graph: LogicalGraph) -> str:
    """Return 16 hex digits that differ between graphs."""
    return f"{checksum_of(encode_graph(graph)):016x}"


def _to_plain(value: Plain, where: str, name: str = "") -> Any:
    """Return a value as it is encoded; `name` is that of the option which holds it."""
    match value:
        case UserFunction():
            return msgspec.msgpack.Ext(_USER_FUNCTION, _ENCODER.encode(value))
        case None | bool() | float() | bytes():
            return value
        case str():
            return str(value)
        case int() if -(1 << 63) <= value < 1 << 64:
            return int(value)
        case tuple():
            return [
                _to_plain(item, f"item {index} of {where}", name)
                for index, item in enumerate(value)
            ]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {
                key: _to_plain(item, f"{key!r} of {where}", key)
                for key, item in value.items()
            }
    raise GraphError(
        f"{where} is {hide_secrets(repr(value), name)}, of type {type(value).__name__}: use None, "
        "booleans, whole numbers of 64 bits, floats, text, bytes, functions, tuples, or mappings "
        "with text as keys",
        code=ErrorCode.INVALID_CONFIG,
    )


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_plain, value))
    if isinstance(value, dict):
        return {key: _from_plain(item) for key, item in value.items()}
    return value
