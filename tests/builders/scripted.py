"""Operators and sources that do what a test tells them, hook by hook, and log every call."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.core.clock import DurationLike
from penstock.core.ids import OperatorId
from penstock.core.schema import StreamSchema
from penstock.graph.logical import MAIN, Edge, Exchange, Node, OperatorSpec, WatermarkSpec
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import (
    ArrowOperator,
    SourceFinishType,
    SourceOperator,
)
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.state.tables.specs import TableSpec, TimeDomain

_COLUMNS: dict[str, pa.DataType] = {
    "user": pa.string(),
    "n": pa.int64(),
    "at": pa.timestamp("us"),
}
SCHEMA = pa.schema(_COLUMNS)
PLAIN = StreamSchema(SCHEMA, "at")
BY_USER = PLAIN.keyed_by("user")


def rows(*numbers: int, user: str = "u") -> pa.RecordBatch:
    """Return a batch with a row per number; `at` is the number, too."""
    listed = [{"user": user, "n": number, "at": number} for number in numbers]
    return pa.RecordBatch.from_pylist(listed, schema=SCHEMA)


def numbers_in(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [row["n"] for batch in batches for row in batch.to_pylist()]


Hook: TypeAlias = Callable[..., Any]
"""Called with what the hook of an operator gets, in the same order, without `self`."""
Call: TypeAlias = tuple[str, str]
"""Operator and hook."""


@dataclass
class Log:
    """What was called in which order, over all operators of a test."""

    calls: list[Call] = field(default_factory=list)

    def note(self, operator: str, hook: str) -> None:
        self.calls.append((operator, hook))

    def of(self, operator: str) -> list[str]:
        return [hook for name, hook in self.calls if name == operator]

    def take(self) -> list[Call]:
        calls, self.calls = self.calls, []
        return calls

    def take_of(self, operator: str) -> list[str]:
        return [hook for name, hook in self.take() if name == operator]


def _hook(name: str, tell: Callable[..., str] | None = None, default: Any = None) -> Any:
    """Return a method that notes its call, then does what the test gave for it."""

    def method(self: "Scripted | ScriptedSource", *arguments: Any) -> Any:
        said = "" if tell is None else f" {tell(*arguments)}"
        self.log.note(self.label, f"{name}{said}")
        wanted = self.hooks.get(name, default)
        return None if wanted is None else wanted(*arguments)

    return method


class Scripted(ArrowOperator):
    """Passes rows on unless told otherwise. `hooks` replace what a hook does."""

    def __init__(
        self,
        label: str = "op",
        log: Log | None = None,
        *,
        tables: Sequence[TableSpec] = (),
        timers: Collection[TimeDomain] = (),
        tick: DurationLike | None = None,
        generates_watermarks: bool = False,
        is_sink: bool = False,
        **hooks: Hook,
    ) -> None:
        self.label = label
        self.log = log or Log()
        self.hooks = hooks
        self._tables = tables
        self._timers = timers
        self._tick = tick
        self._generates = generates_watermarks
        self._is_sink = is_sink

    def name(self) -> str:
        return "scripted"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema | None:
        return None if self._is_sink else inputs[0]

    def tables(self) -> Sequence[TableSpec]:
        return self._tables

    def timers(self) -> Collection[TimeDomain]:
        return self._timers

    def tick_interval(self) -> DurationLike | None:
        return self._tick

    def generates_watermarks(self) -> bool:
        return self._generates

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self.log.note(self.label, "process_batch")
        hook = self.hooks.get("process_batch")
        if hook is not None:
            hook(batch, ctx, collector)
        elif not self._is_sink:
            collector.collect(batch)

    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        hook = self.hooks.get("process_batch_index")
        if hook is None:
            super().process_batch_index(index, total_inputs, batch, ctx, collector)
        else:
            self.log.note(self.label, f"process_batch_index {index} of {total_inputs}")
            hook(index, total_inputs, batch, ctx, collector)

    on_start = _hook("on_start")
    handle_watermark = _hook("handle_watermark", default=lambda watermark, *_: watermark)
    handle_timers = _hook("handle_timers")
    handle_tick = _hook("handle_tick")
    on_close = _hook("on_close", lambda final, *_: type(final).__name__)
    handle_checkpoint = _hook("handle_checkpoint")
    plan_commit = _hook("plan_commit", default=lambda *_: ())
    handle_commit_part = _hook("handle_commit_part")
    handle_commit = _hook("handle_commit")
    release = _hook("release")


class ScriptedSource(SourceOperator):
    """A source whose hooks a test gives; without any it has nothing to read and goes on."""

    def __init__(
        self,
        label: str = "read",
        log: Log | None = None,
        *,
        stream: StreamSchema = PLAIN,
        poll: timedelta = timedelta(seconds=10),
        **hooks: Hook,
    ) -> None:
        self.label = label
        self.log = log or Log()
        self.hooks = hooks
        self._stream = stream
        self._poll = poll

    def name(self) -> str:
        return "scripted source"

    def output_schema(self) -> StreamSchema:
        return self._stream

    def poll_interval(self) -> timedelta:
        return self._poll

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        plan = self.hooks.get("plan_splits", super().plan_splits)
        return plan(known, budget, now_micros)  # type: ignore[no-any-return] # as the test gave it

    on_start = _hook("on_start")
    run = _hook("run")
    on_close = _hook("on_close")
    release = _hook("release")


class NumberedSource(ScriptedSource):
    """Reads splits of numbered rows, each from its offset, up to so many rows an epoch."""

    def __init__(
        self,
        splits: Mapping[str, Sequence[int]],
        *,
        per_epoch: int = 2,
        label: str = "read",
        log: Log | None = None,
        is_complete: bool = True,
    ) -> None:
        super().__init__(label, log)
        self._splits = splits
        self._per_epoch = per_epoch
        self._is_complete = is_complete

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        plans, has_more = [], False
        for name, listed in self._splits.items():
            state = known.get(name, SplitState())
            start = state.offset or 0
            if not state.ended:
                end = min(start + self._per_epoch, len(listed))
                plans.append(SplitPlan(name, start, end, weight=end - start))
                has_more |= end < len(listed)
        return SourcePlan(tuple(plans), is_complete=self._is_complete, has_more=has_more)

    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        self.log.note(self.label, "run")
        for split in ctx.splits:
            listed = self._splits[split.name]
            if split.end > split.start:
                part = rows(*listed[split.start : split.end], user=split.name)
                collector.collect(part, split=split.name)
                ctx.advance(split.name, split.end)
            if split.end == len(listed):
                ctx.end_split(split.name)
        return None


@dataclass(frozen=True, slots=True)
class GivenConfig:
    """Names one of the parts a test gave."""

    part: str


class Parts:
    """A registry of what a test gives: operators are built here, without pickling them."""

    def __init__(self) -> None:
        self._parts: dict[str, Callable[[], ArrowOperator | SourceOperator]] = {}
        self.registry = Registry()
        self.registry.add("given", GivenConfig, lambda config: self._parts[config.part]())

    def node(
        self,
        operator: str,
        build: Callable[[], ArrowOperator | SourceOperator],
        *inputs: StreamSchema,
        side_outputs: Mapping[str, StreamSchema] | None = None,
        parallelism: int = 1,
        watermark: WatermarkSpec | None = None,
    ) -> Node:
        """Add a part, and return the node of a graph that it is built for."""
        self._parts[operator] = build
        made = build()
        if isinstance(made, SourceOperator):
            main: StreamSchema | None = made.output_schema()
        else:
            main = made.output_schema(inputs)
        return Node(
            OperatorId(operator),
            OperatorSpec("given", {"part": operator}),
            parallelism=parallelism,
            inputs=inputs,
            outputs=({} if main is None else {MAIN: main}) | dict(side_outputs or {}),
            watermark=watermark,
        )


def link(
    source: str,
    target: str,
    *,
    index: int = 0,
    output: str = MAIN,
    exchange: Exchange = Exchange.FORWARD,
) -> Edge:
    return Edge(OperatorId(source), OperatorId(target), output, index, exchange)
