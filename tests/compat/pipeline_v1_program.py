"""The job that wrote the checkpoint of a whole pipeline. Frozen: the state is that of these steps.

All three windows, an updating aggregate with a time to live, timers by both clocks, an async
function, files in and files out. Tumbling windows are behind the async function, so calls
without an answer hold their watermark back.

What it gives does not depend on how rows are cut into epochs, if there are some in the first
half, nor on how many subtasks there are. So every run of it, however often stopped and
rescaled, ends with the same rows. Only the changelog of the aggregate differs: `final_rows`
folds it and keeps what has expired.
"""

import asyncio
import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

import penstock as pen
from penstock.operators import (
    ArrowCollector,
    ArrowOperator,
    DueTimers,
    EndOfData,
    OperatorContext,
    Stop,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.storage.urls import open_store
from tests.builders.aggregated_rows import fold, paired

JOB = "pipeline-v1"
SECOND = 1_000_000
MINUTE = 60 * SECOND
CLOCK_START = 1_704_067_200 * SECOND
"""When the clock of the first run starts: 2024-01-01, as the first row's event time does."""
PANE = 4 * MINUTE
STATE = (
    ("rows", "penstock.splits"),
    ("looked-up", "penstock.calls"),
    ("hot", "panes"),
    ("busy", "panes"),
    ("visits", "sessions"),
    ("visits", "wake-ups"),
    ("spent", "partials"),
    ("spent", "penstock.event-timers"),
    ("reminders", "panes"),
    ("reminders", "totals"),
    ("reminders", "due"),
    ("reminders", "seen"),
    ("reminders", "penstock.event-timers"),
    ("reminders", "penstock.processing-timers"),
)
"""The tables that must hold rows where the job was stopped, each with its operator."""
SINKS = (
    "answers",
    "unanswerable",
    "hot-out",
    "late",
    "busy-out",
    "visits-out",
    "spent-out",
    "reminders-out",
)
UNANSWERED = (90, 97, 124, 139)
"""The numbers whose calls take long, and for ever while the service is not up."""
READ = frozenset({*range(101), *range(120, 140)})
"""The numbers of the rows that were read when the job was stopped."""
ANSWERED = READ - {*UNANSWERED}
UNKNOWN = 25
"""Calls with a multiple of this number fail."""
LATE_NUMBERS = (401, 402, 403)

Row: TypeAlias = dict[str, Any]


def schema_of(**columns: Any) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


ROWS = schema_of(
    number=pa.int64(),
    user=pa.string(),
    shop=pa.string(),
    price=pa.int64(),
    at=pa.timestamp("us"),
)
REMINDERS = schema_of(kind=pa.string(), user=pa.string(), due=pa.int64(), count=pa.int64())
PANES = schema_of(user=pa.string(), end=pa.timestamp("us"), count=pa.int64())
TOTALS = schema_of(user=pa.string(), total=pa.int64())


def batch_of(rows: Iterable[Row], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def integers(column: Any) -> list[int]:
    """Instants as microseconds."""
    return list(column.cast(pa.int64()).to_pylist())


class Reminders(ArrowOperator):
    """Uses every kind of table and both clocks; `kind` says what a row is.

    | kind       | a row per                           | comes                           |
    |------------|-------------------------------------|---------------------------------|
    | "pane"     | user and four minutes               | by an event-time timer          |
    | "reminder" | row whose number is a multiple of 3 | by a processing-time timer      |
    | "total"    | user                                | at the end, of the keyed table  |
    | "seen"     | user                                | at the end, of the global table |
    """

    def name(self) -> str:
        return "reminders"

    def output_schema(self, inputs: Sequence[pen.StreamSchema]) -> pen.StreamSchema:
        return pen.StreamSchema(REMINDERS)

    def tables(self) -> Sequence[Any]:
        return [
            time_keyed_table("panes", PANES, key_columns=["user"], time_column="end"),
            keyed_table("totals", TOTALS, key_columns=["user"]),
            keyed_table("due", REMINDERS, key_columns=["user", "due"], routed_by=["user"]),
            global_table("seen", str, int),
        ]

    def timers(self) -> Collection[pen.TimeDomain]:
        return [pen.TimeDomain.EVENT_TIME, pen.TimeDomain.PROCESSING_TIME]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._count(batch, ctx)
        rows = batch.to_pylist()
        instants = integers(batch.column("at"))
        passed = ctx.previous_watermark
        ends = [at // PANE * PANE + PANE for at in instants]
        panes = batch_of(
            (
                {"user": row["user"], "end": end, "count": 1}
                for row, end in zip(rows, ends, strict=True)
                if passed is None or end > passed.micros
            ),
            PANES,
        )
        if panes.num_rows:
            ctx.get_time_keyed_state("panes").insert(panes, panes.column("end"))
            ctx.event_timers.set(panes, panes.column("end").cast(pa.int64()))
        for row in rows:
            if row["number"] % 3 == 0:
                self._remind(row, ctx)

    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        users = due.keys.column("user").to_pylist()
        fired = list(zip(users, due.due_micros.to_pylist(), strict=True))
        if due.domain is pen.TimeDomain.PROCESSING_TIME:
            keys = batch_of(({"user": user, "due": at} for user, at in fired), REMINDERS)
            table = ctx.get_keyed_state("due")
            collector.collect(table.get(keys).rows)
            table.delete(keys)
            return
        counts: dict[tuple[Any, Any], int] = {}
        rows = ctx.get_time_keyed_state("panes").rows()
        ends = integers(rows.column("end"))
        for row, end in zip(rows.to_pylist(), ends, strict=True):
            key = row["user"], end
            counts[key] = counts.get(key, 0) + row["count"]
        collector.collect(
            batch_of(
                (
                    {"kind": "pane", "user": user, "due": end, "count": counts[user, end]}
                    for user, end in fired
                ),
                REMINDERS,
            )
        )

    def on_close(
        self,
        final: Stop | EndOfData,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        if isinstance(final, Stop):
            return
        found = [
            {"kind": "total", "user": row["user"], "due": 0, "count": row["total"]}
            for batch in ctx.get_keyed_state("totals").scan()
            for row in batch.to_pylist()
        ]
        if ctx.task.subtask.index == 0:
            found += [
                {"kind": "seen", "user": user, "due": 0, "count": count}
                for user, count in ctx.get_global_keyed_state("seen").items()
            ]
        collector.collect(batch_of(found, REMINDERS))

    def _count(self, batch: pa.RecordBatch, ctx: OperatorContext) -> None:
        seen = ctx.get_global_keyed_state("seen")
        totals = ctx.get_keyed_state("totals")
        for row in batch.to_pylist():
            user = row["user"]
            seen.insert(user, (seen.get(user) or 0) + 1)
            known = totals.get(batch_of([{"user": user}], TOTALS)).rows.to_pylist()[0]
            total = (known["total"] or 0) + row["price"]
            totals.put(batch_of([{"user": user, "total": total}], TOTALS))

    def _remind(self, row: Row, ctx: OperatorContext) -> None:
        """Set a timer for an instant that the row alone decides, whenever it is read."""
        due = CLOCK_START + (1 + row["number"] % 10) * 10 * MINUTE + row["number"]
        reminder = {"kind": "reminder", "user": row["user"], "due": due}
        kept = batch_of([{**reminder, "count": row["number"]}], REMINDERS)
        ctx.get_keyed_state("due").put(kept)
        ctx.processing_timers.set(kept, due)


def lookup(is_up: bool, asked: Collection[int]) -> Any:
    """Return the async function: a service that is slow for some, and may not be up for them.

    It answers otherwise to those that were `asked` before: who has an answer in the state
    must not ask again.
    """

    async def ask(number: int) -> str:
        if number in asked:
            return "asked again"
        if number % UNKNOWN == 0:
            raise ValueError("the service does not know this number")
        if number in UNANSWERED:
            await asyncio.sleep(0.2 if is_up else 3600)
        return f"answer-{number * 7}"

    return ask


def build(
    inputs: str,
    outputs: str | Path,
    *,
    parallelism: int = 2,
    moved_from: str | None = None,
    is_up: bool = True,
    goes_on: bool = False,
) -> pen.Pipeline:
    """Build the job: it reads JSON lines of a folder, and writes to folders below another."""

    def out(name: str, form: Any, **options: Any) -> Any:
        # What is flushed to the disk says nothing here, and takes most of the time.
        quickly = {"durable": False}
        return pen.files(f"{outputs}/{name}", form, store_options=quickly, **options)

    pipeline = pen.Pipeline(JOB, parallelism=parallelism)
    source = pen.files(
        f"{inputs}/*.jsonl", schema=ROWS, in_time_order=True, moved_from=moved_from
    )
    rows = pipeline.read("rows", source, event_time="at", watermark_delay="1m")
    answers = rows.udf(
        "looked-up",
        pen.async_udf(
            lookup(is_up, ANSWERED if goes_on else ()),
            returns=pa.string(),
            inputs=["number"],
            name="lookup",
            output="answer",
            on_bad="divert",
            # So short that an epoch hardly waits for answers: whoever is slow holds the
            # watermark back over many epochs.
            drain="1us",
        ),
    )
    answers.select("number", "user", "answer", "at").write(
        "answers", out("answers", "jsonl")
    )
    bad = answers.side_output(pen.BAD).select("number", "user", "shop")
    bad.write("unanswerable", out("unanswerable", "jsonl"))

    hot = answers.key_by("shop").window("hot", pen.tumbling("5m"))
    hot_rows = hot.aggregate(
        n=pen.count(),
        total=pen.sum("price"),
        mean=pen.avg("price"),
        last=pen.last("answer"),
    )
    hot_rows.write("hot-out", out("hot-out", "parquet", partition_by=["shop"]))
    hot_rows.side_output(pen.LATE).write("late", out("late", "parquet"))

    busy = rows.key_by("user").window("busy", pen.sliding("10m", "2m"))
    busy.aggregate(
        n=pen.count(), highest=pen.max("price"), shops=pen.count_distinct("shop")
    ).write("busy-out", out("busy-out", "jsonl"))

    visits = rows.key_by("user", "shop").window("visits", pen.session("3m"))
    visits.aggregate(
        n=pen.count(), lowest=pen.min("price"), spread=pen.stddev("price")
    ).write("visits-out", out("visits-out", "parquet"))

    spent = rows.key_by("user").aggregate(
        "spent", ttl="12m", total=pen.sum("price"), n=pen.count(), first=pen.first("number")
    )
    spent.write("spent-out", out("spent-out", "parquet"))

    reminders = rows.key_by("user").process("reminders", Reminders())
    reminders.write("reminders-out", out("reminders-out", "jsonl", partition_by=["kind"]))
    return pipeline


def input_rows() -> list[Row]:
    """Return what the job reads: an hour of rows in order of time, but for some seconds.

    "early" and "middle" are not seen again and expire, "middle" not before the stop; "back"
    has expired when it comes again. Three rows at the end are an hour late.
    """
    found = []
    for number in range(240):
        user = f"user-{(number * number + 3 * number) % 7}"
        if 10 <= number < 15:
            user = "early"
        elif 66 <= number <= 86 and number % 4 == 2:
            user = "middle"
        elif number in (18, 96):
            user = "back"
        seconds = number * 15 + number * 7 % 5 * 6
        found.append(_row(number, user, seconds))
    found[220:220] = [_row(number, "user-0", number - 400) for number in LATE_NUMBERS]
    return found


def _row(number: int, user: str, seconds: int) -> Row:
    shop = ("north", "south", "harbour")[number * number % 11 % 3]
    at = f"2024-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return {
        "number": number,
        "user": user,
        "shop": shop,
        "price": number * 37 % 101,
        "at": at,
    }


def final_rows(outputs: str | Path) -> dict[str, list[Row]]:
    """Return what was committed by sink, in an order and a form that JSON keeps.

    The changelog is folded; what has expired in it is kept apart.
    """
    found: dict[str, list[Row]] = {}
    for sink in SINKS:
        rows: list[Row] = pen.read_committed(open_store(f"{outputs}/{sink}")).to_pylist()
        if sink == "spent-out":
            changes = list(paired(rows, ["user"]))
            found["spent-expired"] = _comparable(
                {"user": row["user"], **row["before"]}
                for row in changes
                if row["op"] == "delete"
            )
            table = fold(changes, ["user"])
            rows = [{"user": user, **row} for (user,), row in table.items()]
        found[sink] = _comparable(rows)
    return found


def _comparable(rows: Iterable[Row]) -> list[Row]:
    """Return rows in order; the last digits of fractions depend on the order of adding."""
    plain = [
        {
            name: round(value, 9) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    texts = sorted(json.dumps(row, default=datetime.isoformat) for row in plain)
    return [json.loads(text) for text in texts]
