"""Operators under test as nodes of a graph: what each one takes and gives."""

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from penstock.core.ids import OperatorId
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import MAIN, Edge, Node, OperatorSpec
from penstock.operators.operator import ArrowOperator
from penstock.operators.process import process_spec
from penstock.operators.registry import Registry

OperatorLike: TypeAlias = ArrowOperator | OperatorSpec
"""An operator, or the spec of a built-in or plugged-in one."""
StreamLike: TypeAlias = StreamSchema | pa.Schema


def to_streams(
    inputs: Sequence[StreamLike], key: str | Sequence[str], time_column: str | None
) -> tuple[StreamSchema, ...]:
    """Return the inputs with their roles; key and time column are for plain schemas."""
    if not inputs:
        raise UserError(
            "an operator under test needs the schema of each of its inputs",
            code=ErrorCode.INVALID_GRAPH,
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    return tuple(
        stream
        if isinstance(stream, StreamSchema)
        else StreamSchema(stream, time_column, keys)
        for stream in inputs
    )


def chain_of(
    operators: OperatorLike | Sequence[OperatorLike],
    inputs: Sequence[StreamSchema],
    parallelism: int,
    registry: Registry,
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Return a chain: the first operator takes `inputs`, every other one what comes before.

    One operator is named `operator`, those of a chain `operator-1`, `operator-2` and so on.
    """
    listed = (
        [operators]
        if isinstance(operators, ArrowOperator | OperatorSpec)
        else list(operators)
    )
    nodes: list[Node] = []
    edges: list[Edge] = []
    streams = tuple(inputs)
    for number, operator in enumerate(listed, start=1):
        name = OperatorId("operator" if len(listed) == 1 else f"operator-{number}")
        node = _node(name, operator, streams, parallelism, registry)
        if nodes:
            edges.append(Edge(nodes[-1].operator, name))
        nodes.append(node)
        if number < len(listed):
            streams = (_main_of(node),)
    if not nodes:
        raise UserError("there is no operator to test", code=ErrorCode.INVALID_GRAPH)
    return tuple(nodes), tuple(edges)


def _node(
    name: OperatorId,
    operator: OperatorLike,
    inputs: tuple[StreamSchema, ...],
    parallelism: int,
    registry: Registry,
) -> Node:
    spec = operator if isinstance(operator, OperatorSpec) else process_spec(operator)
    built = registry.construct(spec).operator
    if not isinstance(built, ArrowOperator):
        raise UserError(
            f"{built.name()!r} is a source: test it with SourceHarness",
            code=ErrorCode.INVALID_GRAPH,
        )
    main = built.output_schema(inputs)
    outputs = {} if main is None else {MAIN: main}
    return Node(
        name,
        spec,
        parallelism=parallelism,
        inputs=inputs,
        outputs={**outputs, **built.side_outputs(inputs)},
    )


def _main_of(node: Node) -> StreamSchema:
    if MAIN not in node.outputs:
        raise UserError(
            f"{node.operator!r} is a sink: no operator can follow it",
            code=ErrorCode.INVALID_GRAPH,
        )
    return node.outputs[MAIN].keyed_by()
