"""ConcatSource: a source that reads history to its end, then hands over to the live side.

How it works: a split `#handover` is open as long as history is read. When history has no split
left, one epoch ends it, and its offset then is the point: where the live side begins. The same
epoch begins the live side. So whether the hand-over has happened, and where, is decided by the
state alone, in one step with the rows, and a process that dies on either side of it goes on there.
From then on history is not asked for anything; its splits are forgotten, and its files may go.

Event time: a source whose splits have all ended has come as far as the furthest of them. Here the
live side follows, and may be behind that, so `#handover` holds the watermark where all of history
was when its last epoch began. It does not hold it back before: it follows history's own splits.
The live side's splits are not known before the hand-over, so they hold nothing back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.history.handover import (
    DEFAULT_SKEW_MICROS,
    Handover,
    find_ends,
    keep_history,
    keep_live,
    merge_ends,
    resolve,
)
from penstock.connectors.history.planning import (
    HANDOVER,
    check_bounded,
    find_ends_of_all,
    find_point,
    plan_history,
    plan_live,
    refuse_others,
)
from penstock.connectors.history.sides import (
    HISTORY,
    LIVE,
    SideCollector,
    SideContext,
    ends_of,
    inner_states,
    is_folded,
    is_read,
)
from penstock.core.batch import find_differences
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import MAIN, OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import (
    DisplayableOperator,
    SourceFinishType,
    SourceOperator,
)
from penstock.operators.registry import Configured, OperatorConfig, Registry
from penstock.operators.splits import SourceBudget, SourcePlan, SplitState, have_ended
from penstock.state.tables.specs import TableSpec


@runtime_checkable
class LiveSource(Protocol):
    """What a source has that can begin at a point."""

    def begin_at(self, handover: Handover) -> None:
        """Begin splits of which no epoch has counted at this point, from this call on.

        `check_splits` and `plan_splits` then refuse a point that the source does not hold any
        longer. It is called on the driver, whenever the point is known.
        """


@dataclass(frozen=True, slots=True, repr=False)
class ConcatSourceConfig(OperatorConfig):
    """The config of kind "concat_source"."""

    kind: ClassVar[str] = "concat_source"

    history: Mapping[str, Any]
    """The kind and the config of the side that is read first."""
    live: Mapping[str, Any]
    handover: Handover


class ConcatSource(Configured[ConcatSourceConfig], SourceOperator):
    """Reads history, then live. It owns an instance of each."""

    def __init__(self, registry: Registry, config: ConcatSourceConfig) -> None:
        super().__init__(config)
        self._history = build_side(registry, config.history)
        self._live = build_side(registry, config.live)
        self._stream = common_schema(
            self._history.output_schema(), self._live.output_schema()
        )
        self._handover = resolve(config.handover, self._stream.arrow)
        if not isinstance(self._live, LiveSource):
            _check_plain_live(self._live, self._handover)
        self._is_live = False
        """Whether the last plan was one of the live side."""

    # ---- what it declares

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def side_outputs(self) -> Mapping[str, StreamSchema]:
        """Return the side outputs of both; one that both have gets the columns of both."""
        return merge_outputs(self._history.side_outputs(), self._live.side_outputs())

    @override
    def tables(self) -> list[TableSpec]:
        return [*self._history.tables(), *self._live.tables()]

    @override
    def is_rewindable(self) -> bool:
        return self._history.is_rewindable() and self._live.is_rewindable()

    @override
    def has_keys_in_several_splits(self) -> bool:
        sides = (self._history, self._live)
        return any(side.has_keys_in_several_splits() for side in sides)

    @override
    def poll_interval(self) -> DurationLike:
        side = self._live if self._is_live else self._history
        return side.poll_interval()

    @override
    def idle_timeout(self) -> DurationLike | None:
        return self._live.idle_timeout()

    @override
    def display(self) -> DisplayableOperator:
        point = self._handover
        at = f"{point.kind}: {point.by}" if point.kind == "time" else point.kind
        sides = {"history": str(self._history.display()), "live": str(self._live.display())}
        return DisplayableOperator(self.name(), {**sides, "handover": at})

    # ---- on the driver

    @override
    def check_splits(self, known: Mapping[str, SplitState]) -> None:
        """Let the side that is to be read look at its splits, and live at a point that is given.

        Live is looked for in any case: a wrong address must not be noticed after hours.
        """
        refuse_others(known, self._handover)
        handed_over = find_point(known)
        if handed_over is None:
            self._history.check_splits(inner_states(known, HISTORY))
        if handed_over is not None or self._handover.kind != "columns":
            # The point of columns is not known before history was read.
            self._begin_live(handed_over)
        self._live.check_splits(inner_states(known, LIVE))

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Plan history as long as it has rows, then the live side."""
        refuse_others(known, self._handover)
        handed_over = find_point(known)
        self._is_live = handed_over is not None
        if handed_over is None:
            states = inner_states(known, HISTORY)
            plan = self._history.plan_splits(states, budget, now_micros)
            check_bounded(plan)
            if plan.splits or not have_ended(states, is_complete=True):
                return plan_history(plan, known)
            handed_over = find_ends_of_all(known)
            self._is_live = True
        self._begin_live(handed_over)
        plan = self._live.plan_splits(inner_states(known, LIVE), budget, now_micros)
        return plan_live(plan, known, handed_over)

    @override
    def on_committed(self, known: Mapping[str, SplitState]) -> None:
        self._history.on_committed(inner_states(known, HISTORY))
        self._live.on_committed(inner_states(known, LIVE))

    def _begin_live(self, ends: Mapping[str, int] | None) -> None:
        """Tell the live side where to begin; `ends` is the point that history's rows gave."""
        handover = self._handover
        if handover.kind == "columns":
            handover = replace(handover, offsets=dict(ends or {}))
        if isinstance(self._live, LiveSource):
            self._live.begin_at(handover)

    # ---- in tasks

    @override
    def on_start(self, ctx: SourceContext) -> None:
        self._history.on_start(SideContext(ctx, HISTORY))
        self._live.on_start(SideContext(ctx, LIVE))

    @override
    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        """Read the side that was planned."""
        point = next((split for split in ctx.splits if split.name == HANDOVER), None)
        if point is not None:
            hold_micros, ends, is_last = point.end
            ctx.advance(HANDOVER, (list(self._handover.identity), ends))
            if hold_micros is not None:
                ctx.note_event_time(HANDOVER, hold_micros)
            if is_last:
                ctx.end_split(HANDOVER)
        for split in filter(is_folded, ctx.splits):
            ctx.advance(split.name, (ctx.split_state(split.name).offset[0], {}))
        finishes = [
            self._run_side(ctx, collector, prefix)
            for prefix in (HISTORY, LIVE)
            if any(is_read(split, prefix) for split in ctx.splits)
        ]
        return next((finish for finish in finishes if finish is not None), None)

    def _run_side(
        self, ctx: SourceContext, collector: SourceCollector, prefix: str
    ) -> SourceFinishType | None:
        side = self._history if prefix == HISTORY else self._live
        ends: dict[str, dict[str, int]] | None = None
        if prefix == HISTORY:
            ends = {
                name.removeprefix(prefix): ends_of(state)
                for name, state in ctx.split_states.items()
                if name.startswith(prefix)
            }
        context = SideContext(ctx, prefix, ends)
        outputs = {MAIN: side.output_schema(), **side.side_outputs()}

        def keep(rows: pa.RecordBatch, split: str) -> pa.RecordBatch:
            handover = self._handover
            if ends is None:
                return keep_live(rows, handover)
            if handover.kind == "columns":
                found = find_ends(rows, handover)
                ends[split] = merge_ends([ends.get(split, {}), found])
            return keep_history(rows, handover)

        passing = SideCollector(collector, context, prefix, outputs=outputs, keep=keep)
        finish = side.run(context, passing)
        if finish is not SourceFinishType.FINAL:
            return finish
        for split in context.splits:
            context.end_split(split.name)
        return None

    @override
    def on_close(self, ctx: SourceContext) -> None:
        self._history.on_close(SideContext(ctx, HISTORY))
        self._live.on_close(SideContext(ctx, LIVE))

    @override
    def can_skip_epochs(self) -> bool:
        return self._history.can_skip_epochs() and self._live.can_skip_epochs()

    @override
    def release(self) -> None:
        """Close the connections of both sides."""
        try:
            self._history.release()
        finally:
            self._live.release()


def build_side(registry: Registry, side: Mapping[str, Any]) -> SourceOperator:
    """Return the source that one side of a config describes."""
    made = registry.construct(OperatorSpec(side["kind"], side["config"])).operator
    if isinstance(made, SourceOperator):
        return made
    raise UserError(
        f"{made.name()!r} is no source, so it is no side of concat_sources: give what "
        "Pipeline.read takes",
        code=ErrorCode.INVALID_CONFIG,
    )


def _check_plain_live(live: SourceOperator, handover: Handover) -> None:
    """Refuse points and options for which the live side must be able to begin elsewhere."""
    problem = None
    if handover.kind != "time":
        problem = "has no offsets to begin at, as Kafka has: hand over at an instant, with at= and by="
    elif handover.skew_micros != DEFAULT_SKEW_MICROS:
        problem = "is read from its beginning, and skew= says from where Kafka is read: leave it out"
    if problem is not None:
        raise UserError(
            f"concat_sources: {live.name()!r} {problem}", code=ErrorCode.INVALID_CONFIG
        )


def common_schema(history: StreamSchema, live: StreamSchema) -> StreamSchema:
    """Return the columns that both sides have, in history's order; refuse other ones."""
    for name, side in (("history", history), ("live", live)):
        if side.is_changelog:
            raise SchemaError(
                f"concat_sources: {name} is a changelog, and a point between two sides would part "
                "a change from the row that it changes. Give rows that are only ever added, and "
                "make a table of them afterwards, with to_table, from_upserts or from_debezium"
            )
    problems = find_differences(live.arrow, history.arrow)
    if not problems:
        # What may silently become the other in one direction may not do so in both.
        problems = find_differences(history.arrow, live.arrow)
    if problems:
        raise SchemaError(
            "concat_sources: both sides must have the same columns. Those of live, compared "
            f"with history's: {'; '.join(problems)}. Say the columns of each with schema=; "
            "Kafka's own, such as partition and offset, are in metadata="
        )
    times = (history.time_column, live.time_column)
    if None not in times and times[0] != times[1]:
        raise SchemaError(
            f"concat_sources: the event time of history is {times[0]!r}, and that of live is "
            f"{times[1]!r}: give both the same, with time_column= or in schema=. Files that do not "
            "say theirs are read in the order of by=, which is then their event time"
        )
    fields = [
        field.with_nullable(field.nullable or live.arrow.field(field.name).nullable)
        for field in history.arrow
    ]
    return StreamSchema(pa.schema(fields), history.time_column or live.time_column)


def merge_outputs(
    history: Mapping[str, StreamSchema], live: Mapping[str, StreamSchema]
) -> dict[str, StreamSchema]:
    """Return the side outputs of two sources; one that both have gets the columns of both."""
    merged = {**live, **history}
    for name in history.keys() & live.keys():
        fields = {field.name: field for field in history[name].arrow}
        for field in live[name].arrow:
            before = fields.setdefault(field.name, field)
            if before.type != field.type:
                raise UserError(
                    f"both sides of concat_sources have the side output {name!r}, and its "
                    f"column {field.name!r} is {before.type} in the one and {field.type} in the "
                    "other",
                    code=ErrorCode.SCHEMA_MISMATCH,
                )
        nullable = [field.with_nullable(True) for field in fields.values()]  # noqa: FBT003 (Arrow's signature)
        merged[name] = StreamSchema(pa.schema(nullable))
    return merged
