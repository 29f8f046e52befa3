"""Converts what tests give to operators (rows, instants, operators), and holds their output.

Rows are columns, dictionaries, batches or frames. Timestamps may be written as text, and a
misspelt column is an error, not a null. Instants are text, `datetime`s, microseconds or
watermarks. Operators are instances or specs, and become the nodes of a chain.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.catalog import default_registry
from penstock.core.batch import to_batches, to_rows
from penstock.core.ids import JobId, OperatorId
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime, Idle, Watermark
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import MAIN, Edge, LogicalGraph, Node, OperatorSpec
from penstock.operators.operator import ArrowOperator, SourceFinishType
from penstock.operators.registry import Registry
from penstock.operators.user_functions import process_spec

GivenRows: TypeAlias = Any
"""Rows as operators may emit them (`RowsLike`), or a list of such parts."""


def rows_to_batches(rows: GivenRows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows as non-empty batches of a schema.

    >>> schema = pa.schema({"user": pa.string(), "n": pa.int64()})
    >>> rows_to_batches({"user": ["a"], "n": [1]}, schema)[0].to_pylist()
    [{'user': 'a', 'n': 1}]
    >>> rows_to_batches([{"user": "a", "n": 1}], schema)[0].to_pylist()
    [{'user': 'a', 'n': 1}]
    """
    is_row = [isinstance(row, Mapping) for row in rows] if isinstance(rows, list) else []
    if not all(is_row):
        return [batch for part in rows for batch in rows_to_batches(part, schema)]
    return to_batches(rows, schema)


class Emitted:
    """Rows by output, in order of epoch, then subtask, then emission."""

    def __init__(self, outputs: Mapping[str, StreamSchema]) -> None:
        self._outputs = outputs
        self._batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in outputs}

    def rows(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output as dictionaries."""
        return [row for batch in self.batches(output) for row in to_rows(batch)]

    def batches(self, output: str = MAIN) -> list[pa.RecordBatch]:
        """Return the rows of an output as they were emitted."""
        if output not in self._outputs:
            known = ", ".join(map(repr, self._outputs)) or "none: it is a sink"
            raise UserError(
                f"there is no output {output!r}{did_you_mean(output, self._outputs)}; there "
                f"is: {known}",
                code=ErrorCode.UNKNOWN_OUTPUT,
                output=output,
            )
        return list(self._batches[output])

    def table(self, output: str = MAIN) -> pa.Table:
        """Return the rows of an output as one table."""
        batches = self.batches(output)
        return pa.Table.from_batches(batches, self._outputs[output].arrow)

    def take(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output and forget them."""
        rows = self.rows(output)
        self._batches[output] = []
        return rows

    def add(self, output: str, batch: pa.RecordBatch) -> None:
        """Add rows that were emitted."""
        self._batches[output].append(batch)

    def extend(self, other: "Emitted") -> None:
        """Add all rows of another one."""
        for output, batches in other._batches.items():  # noqa: SLF001 (of the same class)
            self._batches[output] += batches


@dataclass(slots=True)
class EpochOutput:
    """The output of one epoch of operators under test."""

    epoch: int
    emitted: Emitted
    watermark: Watermark | None
    """The watermark of the last operator, merged over its subtasks."""
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """What `ctx.count` counted, over all operators and subtasks."""
    wake_up_micros: int | None = None
    """When the operators want to run again even if no data comes."""
    finish: SourceFinishType | None = None
    """The stop that a source requested; None to go on."""

    def rows(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output as dictionaries."""
        return self.emitted.rows(output)

    def batches(self, output: str = MAIN) -> list[pa.RecordBatch]:
        """Return the rows of an output as they were emitted."""
        return self.emitted.batches(output)

    def table(self, output: str = MAIN) -> pa.Table:
        """Return the rows of an output as one table."""
        return self.emitted.table(output)


InstantLike: TypeAlias = str | datetime | int | EventTime
"""An instant, such as the text "2026-01-01T00:00:10", which is UTC without a zone of its own."""

WatermarkLike: TypeAlias = InstantLike | Idle | None
"""An instant, `IDLE`, or None for an input that has no watermark yet."""

START = "2026-01-01"
"""The instant at which the clock of a harness starts."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_instant(instant: InstantLike) -> int:
    """Return an instant in microseconds since 1970-01-01 UTC.

    >>> to_instant("1970-01-01T00:00:10")
    10000000
    """
    if isinstance(instant, EventTime):
        return instant.micros
    if isinstance(instant, int) and not isinstance(instant, bool):
        return EventTime(instant).micros
    given: Any = instant
    try:
        given = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{instant!r} is not an instant: write '2026-01-01T00:00:10', a datetime, or "
            "whole microseconds since 1970-01-01 UTC",
            code=ErrorCode.INVALID_NUMBER,
            value=repr(instant),
        ) from error
    aware: datetime = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def to_watermark(watermark: WatermarkLike) -> Watermark | None:
    """Return a watermark as operators get it.

    >>> to_watermark("1970-01-01T00:00:10")
    EventTime(micros=10000000)
    """
    if watermark is None or isinstance(watermark, Idle):
        return watermark
    return EventTime(to_instant(watermark))


OperatorLike: TypeAlias = ArrowOperator | OperatorSpec
"""An operator, or the spec of a built-in or plugged-in one."""
StreamLike: TypeAlias = StreamSchema | pa.Schema


def chain_of(
    job: JobId,
    operators: OperatorLike | Sequence[OperatorLike],
    inputs: tuple[StreamSchema, ...],
    parallelism: int,
    registry: Registry,
) -> LogicalGraph:
    """Return a chain: the first operator takes `inputs`, every other one the output before it.

    One operator is named `operator`, those of a chain `operator-1`, `operator-2` and so on.
    """
    if isinstance(operators, ArrowOperator | OperatorSpec):
        operators = [operators]
    nodes: list[Node] = []
    for number, operator in enumerate(operators, start=1):
        name = OperatorId("operator" if len(operators) == 1 else f"operator-{number}")
        if nodes and MAIN not in nodes[-1].outputs:
            raise UserError(
                f"{nodes[-1].operator!r} is a sink: no operator can follow it",
                code=ErrorCode.INVALID_GRAPH,
            )
        if nodes:
            inputs = (nodes[-1].outputs[MAIN].keyed_by(),)
        nodes.append(_node(name, operator, inputs, parallelism, registry))
    if not nodes:
        raise UserError("there is no operator to test", code=ErrorCode.INVALID_GRAPH)
    edges = (Edge(before.operator, node.operator) for before, node in pairwise(nodes))
    return LogicalGraph(job, tuple(nodes), tuple(edges))


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
    return Node(name, spec, parallelism, inputs, outputs | dict(built.side_outputs(inputs)))


shared_registry = cache(default_registry)
"""Returns the registry of all tests of this process; filling one takes milliseconds."""
