"""Operators and sources that break the rules, each in its own way; what they are told is kept."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_EVENT_TIME, EventTime
from penstock.errors import ExternalError
from penstock.graph.logical import WatermarkSpec
from penstock.operators.context import (
    ArrowCollector,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.splits import SourcePlan, SplitPlan
from penstock.state.tables.specs import TimeDomain, global_table, keyed_table
from tests.builders.scripted import (
    BY_USER,
    PLAIN,
    SCHEMA,
    NumberedSource,
    Scripted,
    ScriptedSource,
    rows,
)


@dataclass(frozen=True)
class BadPart:
    """A job `read → op → write` in which one part is bad."""

    operator: Callable[[], ArrowOperator] = Scripted
    source: Callable[[], SourceOperator] = field(
        default=lambda: NumberedSource({"s": range(4)})
    )
    stream: StreamSchema = PLAIN
    """What the operator reads."""
    watermark: WatermarkSpec | None = None


def _process(function: Callable[..., Any], **options: Any) -> BadPart:
    """Return an operator that does something with the first batch."""
    return BadPart(lambda: Scripted(process_batch=function, **options))


def _hook(**hooks: Any) -> BadPart:
    return BadPart(lambda: Scripted(**hooks))


def _reads(function: Callable[..., Any], **options: Any) -> BadPart:
    return BadPart(source=lambda: ScriptedSource(run=function, **options))


def _raise(batch: pa.RecordBatch, *_: object) -> None:
    raise ValueError(f"{batch.num_rows} rows are too many")


def _outage(*_: object) -> None:
    raise ExternalError("the price service does not answer")


def _other_columns(batch: object, ctx: object, collector: ArrowCollector) -> None:
    collector.collect(pa.record_batch({"usr": ["a"], "n": [1.5]}))


def _no_rows(batch: object, ctx: object, collector: ArrowCollector) -> None:
    collector.collect(["a"])


def _unknown_output(batch: pa.RecordBatch, ctx: object, collector: ArrowCollector) -> None:
    collector.collect(batch, "late")


class EmitsFromAThread(Scripted):
    """Emits when its epoch is over."""

    def handle_checkpoint(self, barrier: Any, ctx: Any, collector: ArrowCollector) -> None:
        collector.close()
        failures: list[Exception] = []

        def emit() -> None:
            try:
                collector.collect(rows(1))
            except Exception as error:  # noqa: BLE001 (raised again below)
                failures.append(error)

        thread = threading.Thread(target=emit)
        thread.start()
        thread.join()
        raise failures[0]


def _undeclared_table(batch: object, ctx: OperatorContext, *_: object) -> None:
    ctx.get_keyed_state("cuonts")


def _wrong_kind(batch: object, ctx: OperatorContext, *_: object) -> None:
    ctx.get_keyed_state("counts")


def _wrong_columns(batch: object, ctx: OperatorContext, *_: object) -> None:
    ctx.get_keyed_state("counts").put(pa.record_batch({"user": ["a"], "m": [1]}))


def _undeclared_timers(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
    ctx.event_timers.set(batch, 5)


def _timers_of_the_other_clock(
    batch: pa.RecordBatch, ctx: OperatorContext, *_: object
) -> None:
    ctx.processing_timers.set(batch, 5)


def _event_times(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
    ctx.inputs[0].event_times_of(batch)


def _commits_nowhere(barrier: object, ctx: OperatorContext, *_: object) -> None:
    ctx.insert_committing_data("staged", b"x")


def _back_in_time(watermark: object, ctx: OperatorContext, *_: object) -> EventTime:
    return EventTime(2 - int(ctx.epoch))


def _no_such_item(*_: object) -> None:
    raise IndexError("list index out of range")


def _lacks_its_time_column(ctx: SourceContext, collector: SourceCollector) -> None:
    collector.collect(rows(1).drop_columns(["at"]))


def _unknown_split(ctx: SourceContext, collector: SourceCollector) -> None:
    collector.collect(rows(1), split="file-2")


def _advances_unknown(ctx: SourceContext, collector: SourceCollector) -> None:
    ctx.advance("file-2", 1)


def _says_no_split(ctx: SourceContext, collector: SourceCollector) -> None:
    collector.collect(rows(1))


def _two_files(*_: object) -> SourcePlan:
    return SourcePlan((SplitPlan("file-0"), SplitPlan("file-1")), is_complete=True)


def _spins(ctx: SourceContext, collector: SourceCollector) -> None:
    while True:
        ctx.advance(ctx.splits[0].name, 0)


def _emits_for_ever(ctx: SourceContext, collector: SourceCollector) -> None:
    while True:
        collector.collect(rows(1))


def _fails_to_list(*_: object) -> SourcePlan:
    raise FileNotFoundError("no such folder: /data")


def _plans_twice(*_: object) -> SourcePlan:
    return SourcePlan((SplitPlan("file-0"), SplitPlan("file-0", 5)), is_complete=True)


COUNTS = global_table("counts", str, int)
KEYED = keyed_table("counts", SCHEMA, key_columns=["user"])
UNTIMED = StreamSchema(SCHEMA)

BAD: dict[str, BadPart] = {
    "raises": _process(_raise),
    "raises-in-on-start": _hook(on_start=lambda ctx: 1 // 0),
    "raises-in-handle-checkpoint": _hook(handle_checkpoint=_no_such_item),
    "reports-an-outage": _process(_outage),
    "emits-other-columns": _process(_other_columns),
    "emits-what-is-no-batch": _process(_no_rows),
    "emits-to-an-unknown-output": _process(_unknown_output),
    "emits-after-its-epoch": BadPart(EmitsFromAThread),
    "uses-an-undeclared-table": _process(_undeclared_table, tables=[COUNTS]),
    "uses-a-table-as-another-kind": _process(_wrong_kind, tables=[COUNTS]),
    "writes-other-columns-to-a-table": _process(_wrong_columns, tables=[KEYED]),
    "stages-without-a-two-phase-table": _hook(handle_checkpoint=_commits_nowhere),
    "sets-undeclared-timers": _process(_undeclared_timers),
    "sets-timers-of-the-other-clock": BadPart(
        lambda: Scripted(
            timers=[TimeDomain.EVENT_TIME], process_batch=_timers_of_the_other_clock
        ),
        stream=BY_USER,
    ),
    "sets-timers-without-a-key": _hook(timers=[TimeDomain.EVENT_TIME]),
    "asks-for-event-times-nobody-declared": BadPart(
        lambda: Scripted(process_batch=_event_times),
        source=lambda: ScriptedSource(
            stream=UNTIMED, run=lambda ctx, collector: collector.collect(rows(1))
        ),
        stream=UNTIMED,
    ),
    "goes-back-in-time": BadPart(
        lambda: Scripted(handle_watermark=_back_in_time),
        watermark=WatermarkSpec(),
    ),
    "returns-the-last-watermark": BadPart(
        lambda: Scripted(handle_watermark=lambda *_: MAX_EVENT_TIME),
        watermark=WatermarkSpec(),
    ),
    "returns-no-watermark": BadPart(
        lambda: Scripted(handle_watermark=lambda *_: 5), watermark=WatermarkSpec()
    ),
    "wants-ticks-without-pause": _hook(tick=timedelta(0)),
    "reads-rows-without-the-time-column": _reads(_lacks_its_time_column),
    "reads-an-unknown-split": _reads(_unknown_split, plan_splits=_two_files),
    "advances-an-unknown-split": _reads(_advances_unknown, plan_splits=_two_files),
    "does-not-say-which-split": _reads(_says_no_split, plan_splits=_two_files),
    "returns-nonsense-from-run": _reads(lambda *_: "done"),
    "spins": _reads(_spins),
    "emits-for-ever": _reads(_emits_for_ever),
    "cannot-plan": _reads(_spins, plan_splits=_fails_to_list),
    "plans-a-split-twice": _reads(_spins, plan_splits=_plans_twice),
    "plans-nothing-at-all": _reads(_spins, plan_splits=lambda *_: None),
    "plans-with-names-only": _reads(
        _spins,
        plan_splits=lambda *_: SourcePlan(("file-0",), is_complete=True),  # type: ignore[arg-type]
    ),
}
