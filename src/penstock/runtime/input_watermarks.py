"""Input watermarks between epochs: kept in the manifest by producer, read back by input. Pure.

A program may change between two runs. An input is the same if the same output of the same
operator feeds it, wherever it stands among the others; a new one starts where its operator
stands, so that the operator's own watermark does not go back.
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock.core.ids import OperatorId
from penstock.graph.logical import Edge, LogicalGraph
from penstock.operators.watermarks import event_time_of
from penstock.state.protocol.records import CheckpointManifest, InputWatermark


def known_inputs(
    graph: LogicalGraph, manifest: CheckpointManifest | None
) -> dict[OperatorId, tuple[InputWatermark, ...]]:
    """Return how far each input of each operator has come as of a checkpoint."""
    stored = {
        entry.operator: entry.input_watermarks
        for entry in (() if manifest is None else manifest.operators)
    }
    return {
        node.operator: _match(
            graph.edges_into(node.operator), stored.get(node.operator, ())
        )
        for node in graph.nodes
    }


def label_inputs(
    graph: LogicalGraph, operator: OperatorId, inputs: Sequence[InputWatermark]
) -> tuple[InputWatermark, ...]:
    """Return an operator's watermarks with the producers they are found again by."""
    edges = graph.edges_into(operator)
    return tuple(
        replace(known, producer=_producer_of(edge))
        for known, edge in zip(inputs, edges, strict=True)
    )


def _match(
    edges: Sequence[Edge], stored: Sequence[InputWatermark]
) -> tuple[InputWatermark, ...]:
    if not stored:
        return (InputWatermark(),) * len(edges)
    if all(not known.producer for known in stored) and len(stored) == len(edges):
        return tuple(stored)
    by_producer = {known.producer: known for known in stored}
    reached = event_time_of(stored)
    fresh = InputWatermark(None if reached is None else reached.micros)
    return tuple(
        replace(by_producer.get(_producer_of(edge), fresh), producer="") for edge in edges
    )


def _producer_of(edge: Edge) -> str:
    return f"{edge.source}.{edge.output}"
