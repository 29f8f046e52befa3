"""Operators whose output tells whether every row counted exactly once, and a sink for it.

What they emit does not depend on how rows are cut into batches and epochs, nor on the order
between producers. So whatever failed on the way, the output of a job is a plain computation
over its input, and a row that counted twice or not at all shows.

The sink keeps a book of what was committed to it, and a test can make its commits fail.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.connectors.memory import StagingSink, staged_tables
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, EndOfData, Stop
from penstock.graph.logical import BAD, LATE
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    OperatorContext,
    SourceCollector,
    SourceContext,
)
from penstock.operators.operator import ArrowOperator, SourceOperator
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.operators.timers import DueTimers
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from tests.builders.graphs import schema_of

SECOND = 1_000_000


ROWS = schema_of(user=pa.string(), number=pa.int64(), at=pa.timestamp("us", tz="UTC"))
"""What sources read: `number` is unique, and negative in a bad row."""
COUNTS = schema_of(user=pa.string(), count=pa.int64())
PANES = schema_of(user=pa.string(), end=pa.timestamp("us"), count=pa.int64())
REMINDERS = schema_of(user=pa.string(), due=pa.int64(), number=pa.int64())
LATE_BY_MICROS = 25 * SECOND
WINDOW_MICROS = 10 * SECOND


def batch_of(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def integers(column: Any) -> list[int]:
    """Return numbers, or instants as microseconds."""
    return list(column.cast(pa.int64()).to_pylist())


class RunningCount(ArrowOperator):
    """Emits for every row the how-manieth of its key it is: 1, 2, 3, … without gap or repeat.

    It counts in memory, too. That is allowed, because it is the same as what is in the table
    as long as the runtime forgets an instance whose epoch did not count.
    """

    def __init__(self, key: str = "user") -> None:
        self._key = key
        self._known: dict[str, int] = {}

    def name(self) -> str:
        return "running-count"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(COUNTS)

    def tables(self) -> Sequence[TableSpec]:
        return [keyed_table("counts", COUNTS, key_columns=["user"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        table = ctx.get_keyed_state("counts")
        users = [str(key) for key in batch.column(self._key).to_pylist()]
        wanted = sorted({*users} - {*self._known})
        if wanted:
            keys = batch_of([{"user": user} for user in wanted], COUNTS)
            found = table.get(keys).rows.column("count").to_pylist()
            self._known |= {
                user: count or 0 for user, count in zip(wanted, found, strict=True)
            }
        emitted = []
        for user in users:
            self._known[user] += 1
            emitted.append({"user": user, "count": self._known[user]})
        rows = batch_of(emitted, COUNTS)
        table.put(rows)
        collector.collect(rows)


class WindowCount(ArrowOperator):
    """Counts rows by user and window of ten seconds, by event-time timers.

    Bad rows and late rows go to side outputs, late ones by the watermark before the epoch.
    """

    def name(self) -> str:
        return "window-count"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(PANES)

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        return {BAD: StreamSchema(ROWS), LATE: StreamSchema(ROWS)}

    def tables(self) -> Sequence[TableSpec]:
        return [time_keyed_table("panes", PANES, key_columns=["user"], time_column="end")]

    def timers(self) -> Collection[TimeDomain]:
        return [TimeDomain.EVENT_TIME]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        passed = ctx.previous_watermark
        rows = batch.to_pylist()
        instants = integers(batch.column("at"))
        counted, bad, late = [], [], []
        for row, at in zip(rows, instants, strict=True):
            end = at // WINDOW_MICROS * WINDOW_MICROS + WINDOW_MICROS
            if row["number"] < 0:
                bad.append(row)
            elif passed is not None and end <= passed.micros:
                late.append(row)
            else:
                counted.append({"user": row["user"], "end": end, "count": 1})
        collector.collect(batch_of(bad, ROWS), BAD)
        collector.collect(batch_of(late, ROWS), LATE)
        panes = batch_of(counted, PANES)
        ctx.get_time_keyed_state("panes").insert(panes, panes.column("end"))
        ctx.event_timers.set(panes, panes.column("end").cast(pa.int64()))

    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        kept: Counter[tuple[str, int]] = Counter()
        rows = ctx.get_time_keyed_state("panes").rows()
        ends = integers(rows.column("end"))
        for row, end in zip(rows.to_pylist(), ends, strict=True):
            kept[row["user"], end] += row["count"]
        users = map(str, due.keys.column("user").to_pylist())
        fired = zip(users, integers(due.due_micros), strict=True)
        collector.collect(
            batch_of(
                [{"user": u, "end": end, "count": kept[u, end]} for u, end in fired], PANES
            )
        )


class Stamp(ArrowOperator):
    """Passes rows on, and counts them in a global table of which each subtask has a key."""

    def name(self) -> str:
        return "stamp"

    def tables(self) -> Sequence[TableSpec]:
        return [global_table("passed", str, int)]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        table = ctx.get_global_keyed_state("passed")
        subtask = str(ctx.task.subtask.index)
        table.insert(subtask, (table.get(subtask) or 0) + batch.num_rows)
        collector.collect(batch)


class Announce(ArrowOperator):
    """Passes input 0 on. Of input 1, which is broadcast, each row is passed on by one subtask.

    It holds the announcements back until the barrier.
    """

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []

    def name(self) -> str:
        return "announce"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        collector.collect(batch)

    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        if index == 0:
            self.process_batch(batch, ctx, collector)
            return
        subtask = ctx.task.subtask
        self._waiting += [
            {"user": f"all-{row['user']}", "count": row["number"]}
            for row in batch.to_pylist()
            if row["number"] % subtask.parallelism == subtask.index
        ]

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        waiting, self._waiting = self._waiting, []
        collector.collect(batch_of(waiting, COUNTS))


class Remind(ArrowOperator):
    """Emits every row twice: with the next tick, and 25 s after its time by a timer.

    Timers and ticks are by processing time. What no tick has flushed is emitted at the end.
    """

    def name(self) -> str:
        return "remind"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(REMINDERS)

    def tables(self) -> Sequence[TableSpec]:
        return [global_table("buffered", int, str)]

    def timers(self) -> Collection[TimeDomain]:
        return [TimeDomain.PROCESSING_TIME]

    def tick_interval(self) -> timedelta:
        return timedelta(seconds=7)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        instants = integers(batch.column("at"))
        users = batch.column("user").to_pylist()
        for user, at in zip(users, instants, strict=True):
            ctx.get_global_keyed_state("buffered").insert(at, user)
        due = pa.array([at + LATE_BY_MICROS for at in instants], pa.int64())
        ctx.processing_timers.set(batch, due)

    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        users = map(str, due.keys.column("user").to_pylist())
        fired = zip(users, integers(due.due_micros), strict=True)
        rows = [{"user": user, "due": micros, "number": 1} for user, micros in fired]
        collector.collect(batch_of(rows, REMINDERS))

    def handle_tick(
        self, tick: int, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        # All subtasks see the whole table; the one that owns a row by its number flushes it.
        subtask = ctx.task.subtask
        table = ctx.get_global_keyed_state("buffered")
        for at, user in [*table.items()]:
            if at // SECOND % subtask.parallelism == subtask.index:
                table.remove(at)
                rows = [{"user": user, "due": at, "number": 0}]
                collector.collect(batch_of(rows, REMINDERS))

    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self.handle_tick(0, ctx, collector)


class PacedSource(SourceOperator):
    """Has row number i from second 10 * i on, by the clock; ends when all reminders are due."""

    def __init__(self, row_count: int, *, start_micros: int) -> None:
        self._row_count = row_count
        self._start_micros = start_micros

    def name(self) -> str:
        return "paced"

    def output_schema(self) -> StreamSchema:
        return StreamSchema(ROWS)

    def poll_interval(self) -> timedelta:
        return timedelta(seconds=5)

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"user": f"u{i % 3}", "number": i, "at": self._start_micros + 10 * i * SECOND}
            for i in range(self._row_count)
        ]

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        state = known.get("all", SplitState())
        if state.ended:
            return SourcePlan((), is_complete=True)
        start = int(state.offset or 0)
        there = (now_micros - self._start_micros) // (10 * SECOND) + 1
        end = min(self._row_count, there)
        last = self._start_micros + 10 * self._row_count * SECOND + LATE_BY_MICROS
        if end <= start and now_micros < last:
            # Known but not read: the split rests.
            return SourcePlan((), is_complete=False)
        until = end if now_micros < last else None
        return SourcePlan((SplitPlan("all", start, until),), is_complete=True)

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        (split,) = ctx.splits
        end = self._row_count if split.end is None else split.end
        start = split.start or 0
        if end > start:
            collector.collect(batch_of(self.rows()[start:end], ROWS))
        ctx.advance("all", max(start, end))
        if split.end is None:
            ctx.end_split("all")


CommitHook: TypeAlias = Callable[[str, int], None]
"""Called with "before" or "after" the effect, and the epoch."""


@dataclass
class Book:
    """The outside world of one job: survives all of its drivers."""

    commits: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    """By operator and epoch: the rows, in order of subtask."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Every call of `handle_commit`, repeated ones too."""
    hook: CommitHook | None = None

    def rows(self, operator: str) -> list[dict[str, Any]]:
        """Return what was committed, sorted so that two runs can be compared."""
        found = [
            row
            for (name, _), rows in self.commits.items()
            if name == operator
            for row in rows
        ]
        return sorted(found, key=repr)

    def output(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of every sink."""
        return {name: self.rows(name) for name in sorted({n for n, _ in self.commits})}


_BOOKS: dict[str, Book] = {}


def open_book(name: str) -> Book:
    """Begin an empty book; sinks find it by its name."""
    book = _BOOKS[name] = Book()
    return book


class BookSink(StagingSink):
    """Writes an epoch's rows into a book; a repeated commit must be of the same rows."""

    def __init__(self, book: str) -> None:
        super().__init__()
        self._book = book

    def name(self) -> str:
        return "book"

    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        book = _BOOKS[self._book]
        entry = (str(ctx.task.operator), int(epoch))
        book.calls.append(entry)
        if book.hook is not None:
            book.hook("before", epoch)
        tables = staged_tables(commit_data)
        rows = tuple(row for table in tables for row in table.to_pylist())
        known = book.commits.setdefault(entry, rows)
        if known != rows:
            raise AssertionError(f"{entry} was committed twice, with different rows")
        if book.hook is not None:
            book.hook("after", epoch)
