"""Sources and operators of the test kit: ScriptedSource, and the parts around a harness.

`ScriptedSource` plays a script: rows, and what happens between them.

    ScriptedSource([
        {"user": "a", "n": 1},         a row; a list of rows, a batch or a frame come together
        CUT,                           the epoch ends here
        PAUSE("5s"),                   nothing comes for so much processing time
        ABORT,                         the process dies here, once
        EOF,                           this run of the job ends here; the next one goes on
        {"user": "b", "n": 2},
    ])

The end of data follows the last step. A dictionary of scripts by split name makes a source of
several splits; they are read side by side.

How it works. The offset of a split is the number of its next step. A process-wide set holds
the `ABORT`s that have happened, so a restart in the same process skips them. A split at an
`EOF` is not read until another run of the job starts. When all splits are at an `EOF` or have
ended, the source requests a graceful stop.

A harness puts its operators between parts of its own, see `surround`:

    input-0 → given-0 → (operators under test) → output-0
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
from typing_extensions import override

from penstock.core.clock import DurationLike, new_token, to_micros
from penstock.core.ids import OperatorId, Token
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_EVENT_TIME, Watermark
from penstock.errors import ErrorCode, InternalError, UserError
from penstock.graph.logical import MAIN, Edge, Exchange, LogicalGraph, Node, OperatorSpec
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import (
    ONLY_SPLIT,
    ArrowOperator,
    SourceFinishType,
    SourceOperator,
)
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.testing.faults import CrashError
from penstock.testing.given import GivenRows, rows_to_batches

_IDLE_POLL = timedelta(milliseconds=100)
_STOP = "stop"
"""The end of a planned split that only requests the stop of the run."""

_ABORTED: set[tuple[Token, str, int]] = set()
"""The aborts that have happened in this process: source, split, step."""


class Mark(Enum):
    """A step of a script that is neither rows nor a pause."""

    EOF = "eof"
    """This run of the job ends gracefully; the next one goes on behind."""
    ABORT = "abort"
    """The process dies of a `CrashError` that nothing catches, once per process."""
    CUT = "cut"
    """The epoch ends."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Give nothing for a while of processing time."""

    micros: int


EOF = Mark.EOF
ABORT = Mark.ABORT
CUT = Mark.CUT


def PAUSE(duration: DurationLike) -> Pause:  # noqa: N802 (reads like the other steps)
    """Give nothing for so long, such as "5s"."""
    return Pause(to_micros(duration, "pause"))


Marker: TypeAlias = Mark | Pause
Step: TypeAlias = pa.RecordBatch | Marker
Script: TypeAlias = Iterable[GivenRows | Marker]


class ScriptedSource(SourceOperator):
    """Plays a script per split; the docstring of the module lists the steps."""

    def __init__(
        self,
        script: Script | Mapping[str, Script],
        schema: StreamSchema | pa.Schema | None = None,
        *,
        time_column: str | None = None,
    ) -> None:
        """Take the schema from the rows unless it is given."""
        scripts = script if isinstance(script, Mapping) else {ONLY_SPLIT: script}
        listed = {name: list(steps) for name, steps in scripts.items()}
        if not isinstance(schema, StreamSchema):
            columns = _infer(listed.values()) if schema is None else schema
            schema = StreamSchema(columns, time_column)
        self._stream = schema
        self._steps = {
            name: tuple(_step(step, schema.arrow) for step in steps)
            for name, steps in listed.items()
        }
        self._token = new_token()
        self._passed: dict[str, int] | None = None
        """The EOF at which each split was when this run began; None before the run."""
        self._poll = _IDLE_POLL

    @override
    def name(self) -> str:
        return "scripted source"

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def poll_interval(self) -> timedelta:
        """Return how long the shortest pause still takes."""
        return self._poll

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Plan every split up to its next marker."""
        if self._passed is None:
            self._passed = {name: _offset(state)[0] for name, state in known.items()}
        plans: list[SplitPlan] = []
        at_eof: list[SplitPlan] = []
        waits: list[int] = []
        for name, steps in self._steps.items():
            state = known.get(name, SplitState())
            start, until = _offset(state)
            if state.ended:
                continue
            if until > now_micros:
                waits.append(until - now_micros)
                continue
            if start < len(steps) and steps[start] is EOF:
                if self._passed.get(name) != start:
                    at_eof.append(SplitPlan(name, start, _STOP))
                    continue
                start += 1
            plans.append(SplitPlan(name, start, _end(steps, start, budget.rows)))
        self._poll = timedelta(microseconds=min(waits)) if waits else _IDLE_POLL
        if not plans and not waits:
            plans = at_eof
        return SourcePlan(tuple(plans), is_complete=True, has_more=bool(plans))

    @override
    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        """Play the planned steps of each split."""
        finish: SourceFinishType | None = None
        for split in ctx.splits:
            if split.end == _STOP:
                finish = SourceFinishType.GRACEFUL
                continue
            steps = self._steps[split.name]
            for number in range(split.start, split.end):
                step = steps[number]
                offset: Any = number + 1
                if isinstance(step, pa.RecordBatch):
                    collector.collect(step, split=split.name)
                elif isinstance(step, Pause):
                    offset = [number + 1, ctx.processing_time_micros + step.micros]
                elif step is ABORT:
                    self._abort_once(split.name, number)
                ctx.advance(split.name, offset)
            if split.end == len(steps):
                ctx.end_split(split.name)
        return finish

    def _abort_once(self, split: str, number: int) -> None:
        abort = (self._token, split, number)
        if abort not in _ABORTED:
            _ABORTED.add(abort)
            raise CrashError(f"the script of split {split!r} aborts at step {number}")


def _offset(state: SplitState) -> tuple[int, int]:
    """Return a split's next step, and until when it pauses before."""
    offset = state.offset
    if isinstance(offset, Sequence):
        return int(offset[0]), int(offset[1])
    return offset or 0, 0


def _end(steps: Sequence[Step], start: int, rows: int) -> int:
    """Return where an epoch that starts at a step ends: at a marker, or after enough rows."""
    for number in range(start, len(steps)):
        step = steps[number]
        if isinstance(step, pa.RecordBatch):
            rows -= step.num_rows
            if rows <= 0:
                return number + 1
        elif step is CUT or isinstance(step, Pause):
            return number + 1
        elif step is EOF:
            return number
    return len(steps)


def _step(step: Any, schema: pa.Schema) -> Step:
    if isinstance(step, Marker):
        return step
    batches = rows_to_batches([step] if isinstance(step, Mapping) else step, schema)
    if len(batches) != 1:
        raise UserError(
            f"a step of a script holds {len(batches)} batches: give rows that make one",
            code=ErrorCode.INVALID_CONFIG,
        )
    return batches[0]


def _infer(scripts: Iterable[Sequence[Any]]) -> pa.Schema:
    """Take the schema from the first batch, table or frame, else from all dictionaries."""
    rows: list[Any] = []
    for step in (step for steps in scripts for step in steps):
        if isinstance(step, Marker):
            continue
        if not isinstance(step, Mapping | Sequence):
            arrow = step.to_arrow() if hasattr(step, "to_arrow") else step
            schema: pa.Schema = arrow.schema
            return schema
        rows += [step] if isinstance(step, Mapping) else step
    if not rows:
        raise UserError(
            "a script without rows needs a schema: pass schema=pa.schema([...])",
            code=ErrorCode.INVALID_CONFIG,
        )
    return pa.Table.from_pylist(rows).schema


Builder: TypeAlias = Callable[[], ArrowOperator | SourceOperator]
Keep: TypeAlias = Callable[[str, pa.RecordBatch], None]
"""Called with the name of an output and a batch that it emitted."""


@dataclass(slots=True)
class GivenInput:
    """The rows of an epoch and the watermark for one input of an operator under test."""

    stream: StreamSchema
    exchange: Exchange = Exchange.FORWARD
    watermark: Watermark | None = None
    batches: list[pa.RecordBatch] = field(default_factory=list)
    """The rows of the epoch that runs."""


def surround(
    graph: LogicalGraph, inputs: Sequence[GivenInput], keep: Keep
) -> tuple[LogicalGraph, dict[str, Builder]]:
    """Put parts around the operators under test; return the graph, and their builders by kind.

    A source and an operator that emits the rows are put before each input: a source alone
    could not emit them, because sources do not read in the last epoch of a run. An output that
    no operator reads goes to a part that keeps its rows.
    """
    nodes: list[Node] = []
    edges: list[Edge] = []
    parts: dict[str, Builder] = {}
    for number, given in enumerate(inputs):
        source, feed = OperatorId(f"input-{number}"), OperatorId(f"given-{number}")
        stream = given.stream.keyed_by()
        nodes += [
            Node(source, OperatorSpec(source), outputs={MAIN: stream}),
            Node(feed, OperatorSpec(feed), inputs=(stream,), outputs={MAIN: stream}),
        ]
        edges += [
            Edge(source, feed),
            Edge(feed, graph.nodes[0].operator, MAIN, number, given.exchange),
        ]
        parts |= {source: partial(_InputSource, given), feed: partial(_InputRows, given)}
    nodes += graph.nodes
    edges += graph.edges
    read = {(edge.source, edge.output) for edge in edges}
    left = [
        (node, output)
        for node in graph.nodes
        for output in node.outputs
        if (node.operator, output) not in read
    ]
    for number, (node, output) in enumerate(left):
        kept, stream = OperatorId(f"output-{number}"), node.outputs[output]
        nodes.append(Node(kept, OperatorSpec(kept), node.parallelism, (stream,)))
        edges.append(Edge(node.operator, kept, output))
        parts[kept] = partial(_Kept, output, keep)
    return LogicalGraph(graph.job, tuple(nodes), tuple(edges)), parts


class _InputSource(SourceOperator):
    """A source without splits, which ends with its input."""

    def __init__(self, given: GivenInput) -> None:
        self._given = given

    @override
    def name(self) -> str:
        return "harness input"

    @override
    def output_schema(self) -> StreamSchema:
        return self._given.stream

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        return SourcePlan((), is_complete=self._given.watermark == MAX_EVENT_TIME)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        raise InternalError("a source without splits was run")


class _InputRows(ArrowOperator):
    """Emits the given rows of the epoch, then the given watermark."""

    def __init__(self, given: GivenInput) -> None:
        self._given = given

    @override
    def name(self) -> str:
        return "harness rows"

    @override
    def generates_watermarks(self) -> bool:
        return True

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        raise InternalError("a source without splits emitted rows")

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        for batch in self._given.batches:
            collector.collect(batch)
        return self._given.watermark


class _Kept(ArrowOperator):
    """Keeps what one output of the operators under test emits."""

    def __init__(self, output: str, keep: Keep) -> None:
        self._output = output
        self._keep = keep

    @override
    def name(self) -> str:
        return "harness output"

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        return None

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._keep(self._output, batch)
