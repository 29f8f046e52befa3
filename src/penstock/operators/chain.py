"""The chain loop: one epoch of the operators of one subtask.

    batches (or the source runs) → for each operator, in topological order:
        watermark → timers → tick → close → handle_checkpoint → tables are written
        → the watermark goes to its consumers

What an operator emits is processed by its successors at once. It has finished its whole
epoch, `handle_checkpoint` included, before the first of them merges its watermarks: so the
barrier is aligned by construction, and no row can come behind a watermark or a checkpoint.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa

from penstock.core.ids import OperatorId
from penstock.core.signals import MAX_EVENT_TIME, Watermark
from penstock.graph.logical import Edge
from penstock.operators.chained_operator import ChainedOperator
from penstock.operators.nodes import EpochTerms, OperatorReport
from penstock.operators.source_node import SourceNode

ChainNode: TypeAlias = SourceNode | ChainedOperator
Spoken: TypeAlias = dict[tuple[str, int], Watermark | None]
"""What each input of each operator was told in this epoch, by operator and input."""


class ChainInput(Protocol):
    """What comes from other chains. Watermarks are known when the batches are exhausted."""

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        """Return the rows for each operator's input, in order per producer."""
        ...

    def watermarks(self) -> Mapping[tuple[str, int], Watermark | None]:
        """Return what all producers of each input together have reached."""
        ...


class NoInput:
    """The input of a chain that begins with a source."""

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        """Return nothing."""
        return iter(())

    def watermarks(self) -> Mapping[tuple[str, int], Watermark | None]:
        """Return nothing."""
        return {}


def chain_processing(
    nodes: Sequence[ChainNode],
    links: Sequence[Edge],
    source: ChainInput,
    terms: EpochTerms,
) -> tuple[list[OperatorReport], dict[OperatorId, Watermark | None]]:
    """Run an epoch that all nodes have begun; return their reports and last watermarks."""
    ports = {n.task.operator: n for n in nodes if isinstance(n, ChainedOperator)}
    for operator, index, batch in source.batches():
        ports[operator].process(index, batch)
    spoken: Spoken = dict(source.watermarks())
    passed_on: dict[OperatorId, Watermark | None] = {}
    reports = []
    for node in nodes:
        if isinstance(node, SourceNode):
            watermark = run_source(node, terms)
        else:
            watermark = run_operator(node, spoken, terms)
        operator = node.task.operator
        passed_on[operator] = watermark
        for link in links:
            if link.source == operator:
                spoken[link.target, link.input_index] = watermark
        reports.append(node.report())
    return reports, passed_on


def run_source(node: SourceNode, terms: EpochTerms) -> Watermark | None:
    """Let a source read its share of the epoch and write its offsets."""
    node.run(terms)
    node.checkpoint(terms.barrier, None)
    return node.watermark()


def run_operator(
    node: ChainedOperator,
    spoken: Mapping[tuple[str, int], Watermark | None],
    terms: EpochTerms,
) -> Watermark | None:
    """End the epoch of one operator whose rows are complete; return its own watermark."""
    operator, count = node.task.operator, len(node.node.inputs)
    told = [spoken.get((operator, index)) for index in range(count)]
    if node.had_ended:
        node.rest(told)
        node.write(terms)
        return MAX_EVENT_TIME
    watermark = node.advance(told)
    node.fire_timers(terms)
    node.tick(terms)
    node.close(terms)
    node.write(terms)
    return watermark
