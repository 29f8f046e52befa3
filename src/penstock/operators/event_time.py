"""Derives watermarks from event times: those of a source's splits, and those of a generator.

| a split that | has the watermark |
|---|---|
| has rows up to T | `T - delay`: no row before that instant follows |
| has had no row yet | none: the watermark of all stays unknown |
| has had no row for the idle timeout | idle: it is left out |
| has ended | none: it is ignored, except in the epoch where the subtask's last split ends: then its last watermark is sent |

When all known splits of a source have ended, its watermark is the highest of theirs, however
they were dealt to subtasks. The driver tells it, and the end of data does (see
`runtime.plan.epoch_plan`).

Time without rows is measured in the processing time of epochs, from the epoch in which the
split was first known. The watermark of all splits is the lowest, as `core.watermark` has it. It
may fall when an idle split wakes up: the node that sends it on must not send less than before.

**The generator.** A stream may be made of partitions, named by a column, that are each in order
but for some delay: then each has its own watermark, and the stream's is the lowest. Without
such a column the rows that one subtask gets are one partition. A table holds, per value of the
column, the latest event time, when it came, and the subtask that got it. The subtask that got
the last rows of a partition, modulo the parallelism, sends the partition's watermark:

    rows at 2 of 3 ── rescale to 2 ──> 0 of 2 repeats its watermark ── rows at 1 ──> 1 of 2

So after a rescale, or when a partition moves, one subtask holds the watermark at what the
partition had reached until its rows are seen again, at whichever subtask; in that epoch both
send it, from the next one on only the new subtask. The watermark can neither run ahead of a
partition nor wait for a subtask that will never get it. A subtask without a partition is idle.
A partition that goes silent for good holds the watermark for good, unless there is an idle
timeout.

Without a column the inputs of the subtasks are different partitions, and a rescale ends them:
the new subtasks begin without a row. A subtask that never had a row is idle at once, or after
the idle timeout if there is one.

At the end of data every subtask tells how far the furthest of all partitions came, also of those
that a rescale or another column has ended.

A subtask may send a lower watermark than before: when an idle partition wakes up, or when one
comes from another subtask. It must not send more than its partitions have reached; later
operators keep the highest merged watermark of all subtasks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.core.arrow_types import is_bytes, relay, stored_type
from penstock.core.schema import StreamSchema
from penstock.core.watermark import (
    IDLE,
    MAX_EVENT_TIME,
    MAX_MICROS,
    MIN_MICROS,
    EventTime,
    Watermark,
)
from penstock.errors import SchemaError, did_you_mean
from penstock.graph.logical import WatermarkSpec
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.splits import SplitState
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.specs import TableSpec, global_table


def watermark_of_splits(
    states: Mapping[Any, "SplitState | PartitionState"],
    spec: WatermarkSpec,
    now_micros: int,
) -> Watermark | None:
    """Return the watermark of all splits together: None while one has none yet.

    It is idle if all splits have ended: the caller decides whether that is the end of data.
    """
    lowest: int | None = None
    for state in states.values():
        if state.ended or _is_idle(state, spec, now_micros):
            continue
        latest = state.max_event_time_micros
        if latest is None:
            return None
        lowest = latest if lowest is None else min(latest, lowest)
    return IDLE if lowest is None else _to_event_time(lowest, spec)


def slowest_split(
    states: Mapping[str, SplitState], spec: WatermarkSpec, now_micros: int
) -> str | None:
    """Return the split that holds the watermark back; None if all have ended or are idle."""
    holding = [
        (state.max_event_time_micros is not None, state.max_event_time_micros or 0, name)
        for name, state in states.items()
        if not state.ended and not _is_idle(state, spec, now_micros)
    ]
    return min(holding)[2] if holding else None


def watermark_of_ended(
    states: Mapping[str, SplitState], spec: WatermarkSpec
) -> EventTime | None:
    """Return the highest watermark of a source's splits if all have ended; None else.

    None also if none of them had a row with an event time.
    """
    if not all(state.ended for state in states.values()):
        return None
    reached = last_watermark(states.values(), spec)
    return reached if isinstance(reached, EventTime) else None


def last_watermark(
    ended: Iterable[SplitState], spec: WatermarkSpec, before_micros: int | None = None
) -> Watermark:
    """Return the highest watermark of splits that have ended, for the epoch in which all have.

    Without it event time would not advance in a source that reads each split in one epoch.
    `before_micros` is the latest event time of splits that had ended in earlier epochs.
    """
    latest = [s.max_event_time_micros for s in ended if s.max_event_time_micros is not None]
    if not latest:
        return IDLE
    if before_micros is not None:
        latest.append(before_micros)
    return _to_event_time(max(latest), spec)


def next_idle_micros(
    states: Mapping[Any, "SplitState | PartitionState"],
    spec: WatermarkSpec,
    now_micros: int,
) -> int | None:
    """Return when the next split becomes idle if no rows come; None if none will."""
    timeout = spec.idle_timeout_micros
    if timeout is None:
        return None
    due = [
        state.last_active_micros + timeout
        for state in states.values()
        if not state.ended
        and state.last_active_micros is not None
        and not _is_idle(state, spec, now_micros)
    ]
    return min(due, default=None)


def is_nearly_idle(
    state: "SplitState", spec: WatermarkSpec | None, now_micros: int
) -> bool:
    """Return whether a split that is busy must be noted as such, or it would become idle.

    To note it more often would change the state of a job in which nothing happens.
    """
    since, timeout = state.last_active_micros, None
    if spec is not None:
        timeout = spec.idle_timeout_micros
    return since is not None and timeout is not None and 2 * (now_micros - since) >= timeout


def _is_idle(
    state: "SplitState | PartitionState", spec: WatermarkSpec, now_micros: int
) -> bool:
    since, timeout = state.last_active_micros, spec.idle_timeout_micros
    return since is not None and timeout is not None and now_micros - since >= timeout


def _to_event_time(latest_micros: int, spec: WatermarkSpec) -> EventTime:
    # The largest instant means the end of all data, which no row may announce.
    reached = min(latest_micros - spec.delay_micros, MAX_MICROS - 1)
    return EventTime(max(reached, MIN_MICROS))


WATERMARKS_TABLE = "penstock.watermarks"

_Key: TypeAlias = tuple[str, str | None]
"""A partition: its scope, which is the name of the column, and its value there as text."""
_INPUT = "input"
"""The scope of partitions if there is no column: each subtask is one, named by `_own_name`."""
_OUTDATED: _Key = ("outdated", None)
"""Stands for all partitions that were dropped: how far the furthest of them had come."""


class PartitionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a partition has come. Stored as msgpack; new fields need defaults."""

    max_event_time_micros: int | None = None
    last_active_micros: int | None = None
    """The processing time of the last epoch that had rows of it."""
    subtask: int = 0
    """The subtask that got these rows."""
    ended: ClassVar[bool] = False
    """A partition may always have further rows."""


@dataclass(frozen=True, slots=True)
class WatermarkConfig(OperatorConfig):
    """The config of operators that derive watermarks from rows."""

    kind: ClassVar[str] = "watermark"

    delay_micros: int = 0
    idle_timeout_micros: int | None = None
    partition_column: str | None = None
    time_column: str | None = None
    """The column of event times; None for the one that the input declares."""

    def __post_init__(self) -> None:
        if self.delay_micros < 0:
            raise ValueError("'delay_micros' must not be negative")
        if self.idle_timeout_micros is not None and self.idle_timeout_micros <= 0:
            raise ValueError("'idle_timeout_micros' must be positive, or None for never")

    @override
    def shown(self) -> Mapping[str, str]:
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) for name, value in known.items() if value is not None}

    @property
    def rule(self) -> WatermarkSpec:
        """How a partition's watermark follows from its rows."""
        return WatermarkSpec(self.delay_micros, self.idle_timeout_micros)


class WatermarkGenerator(Configured[WatermarkConfig], ArrowOperator):
    """Passes rows on and sends the watermark that follows from their event times.

    The watermarks of its input are ignored, except for the end of all data.
    """

    def __init__(self, config: WatermarkConfig) -> None:
        super().__init__(config)
        column = config.partition_column
        self._scope = _INPUT if column is None else f"column {column}"
        self._latest: dict[str | None, int] = {}
        """The latest event time per partition in this epoch; empty between epochs."""

    @override
    def generates_watermarks(self) -> bool:
        """Return True: its watermarks come from rows, whether its input has any or not."""
        return True

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return the input with its time column; a missing column is refused."""
        stream, names = inputs[0], inputs[0].arrow.names
        problems = [
            f"its {role} {name!r} is not a column{did_you_mean(name, names)}"
            for role, name in (
                ("time column", self.config.time_column),
                ("partition column", self.config.partition_column),
            )
            if name is not None and name not in names
        ]
        if self.config.time_column is None and stream.time_column is None:
            problems.append("its input has no event time: name the time column")
        if not problems:
            problems = self._partition_problems(stream)
        if problems:
            raise SchemaError(
                f"{self.display()} does not fit its input: " + "; ".join(problems)
            )
        return self._timed(stream)

    def _partition_problems(self, stream: StreamSchema) -> list[str]:
        column = self.config.partition_column
        if column is None:
            return []
        kind = stream.arrow.field(column).type
        try:
            _latest_by(pa.nulls(0, kind), np.array([], np.int64))
        except pa.ArrowException:
            problem = (
                f"its partition column {column!r} has the type {kind}, whose values have no "
                "names: take one of text, bytes, numbers or times"
            )
            return [problem]
        return []

    @override
    def tables(self) -> Sequence[TableSpec]:
        return [global_table(WATERMARKS_TABLE, _Key, PartitionState)]

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Note the latest event time of every partition, and pass the rows on."""
        for name, micros in self._latest_of(batch, ctx).items():
            self._latest[name] = max(micros, self._latest.get(name, micros))
        collector.collect(batch)

    def _latest_of(
        self, batch: pa.RecordBatch, ctx: OperatorContext
    ) -> dict[str | None, int]:
        stream, column = self._timed(ctx.inputs[0]), self.config.partition_column
        is_timed = batch.column(str(stream.time_column)).is_valid()
        # Operators that need event times decide what happens to rows without one.
        timed = batch.filter(is_timed) if is_timed.false_count else batch
        if not timed.num_rows:
            return {}
        times = stream.event_times_of(timed)
        if column is None:
            return {_own_name(ctx): int(times.max())}
        return _latest_by(timed.column(column), times)

    @override
    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        """Store how far the partitions came; return how far those of this subtask have come."""
        view = ctx.get_global_keyed_state(WATERMARKS_TABLE)
        known: dict[_Key, PartitionState] = dict(view.items())
        subtask, own_name = ctx.task.subtask, _own_name(ctx)
        if subtask.index == 0:
            self._drop_outdated(known, subtask.parallelism, view)
        for key, state in self._seen(known, ctx).items():
            view.insert(key, state)
            known[key] = state
        self._latest = {}
        own = {
            (scope, name): entry
            for (scope, name), entry in known.items()
            if scope == self._scope
            and entry.subtask % subtask.parallelism == subtask.index
            and (scope != _INPUT or name == own_name)
        }
        now, rule = ctx.processing_time_micros, self.config.rule
        wake_up = next_idle_micros(own, rule, now)
        if wake_up is not None:
            ctx.wake_at(wake_up)
        if watermark == MAX_EVENT_TIME:
            reached = _latest_in(known.values())
            end = None if reached is None else _to_event_time(reached, rule).micros
            return EventTime(MAX_MICROS, end)
        return watermark_of_splits(own, rule, now)

    def _drop_outdated(
        self,
        known: Mapping[_Key, PartitionState],
        parallelism: int,
        view: GlobalKeyedView[Any, Any],
    ) -> None:
        """Drop partitions of another column, or of inputs at another parallelism."""
        outdated = [
            (scope, name)
            for scope, name in known
            if scope != self._scope
            or (scope == _INPUT and not str(name).endswith(f"/{parallelism}"))
        ]
        if not set(outdated) - {_OUTDATED}:
            return
        for key in outdated:
            view.remove(key)
        view.insert(_OUTDATED, PartitionState(_latest_in(known[key] for key in outdated)))

    def _timed(self, stream: StreamSchema) -> StreamSchema:
        column = self.config.time_column
        return stream if column is None else replace(stream, time_column=column)

    def _seen(
        self, known: Mapping[_Key, PartitionState], ctx: OperatorContext
    ) -> dict[_Key, PartitionState]:
        """Return the state of the partitions whose rows came in this epoch."""
        now, index = ctx.processing_time_micros, ctx.task.subtask.index
        changed: dict[_Key, PartitionState] = {}
        first = (_INPUT, _own_name(ctx))
        is_waiting = self._scope == _INPUT and self.config.idle_timeout_micros is not None
        if is_waiting and first not in known:
            changed[first] = PartitionState(None, now, index)
        for name, latest in self._latest.items():
            before = known.get((self._scope, name), PartitionState()).max_event_time_micros
            micros = latest if before is None else max(before, latest)
            changed[self._scope, name] = PartitionState(micros, now, index)
        return changed


def _latest_in(partitions: Iterable[PartitionState]) -> int | None:
    times = (state.max_event_time_micros for state in partitions)
    return max((micros for micros in times if micros is not None), default=None)


def _own_name(ctx: OperatorContext) -> str:
    subtask = ctx.task.subtask
    return f"{subtask.index}/{subtask.parallelism}"


def _latest_by(column: Any, times: Any) -> dict[str | None, int]:
    """Return the latest of the times per value of a column, values as text."""
    # A dictionary may hold values that no row has, twice the same, and null in two ways.
    plain = relay(column, stored_type(column.type))
    encoded = pc.dictionary_encode(plain, null_encoding="encode")
    names = _names_of(encoded.dictionary)
    latest = np.full(len(names), np.iinfo(np.int64).min)
    np.maximum.at(latest, encoded.indices.to_numpy(), times)
    return dict(zip(names, latest.tolist(), strict=True))


_NOT_TEXT = "\0"
"""Begins the name of a partition whose value is bytes that are no text, followed by these."""


def _names_of(values: Any) -> list[str | None]:
    """Return values as text, each value as another one."""
    if not (is_bytes(values.type) or pa.types.is_fixed_size_binary(values.type)):
        named: list[str | None] = values.cast(pa.string()).to_pylist()
        return named
    return [None if value is None else _name_of(value) for value in values.to_pylist()]


def _name_of(value: bytes) -> str:
    try:
        name = value.decode()
    except UnicodeDecodeError:
        name = _NOT_TEXT
    return _NOT_TEXT + value.hex() if name.startswith(_NOT_TEXT) else name
