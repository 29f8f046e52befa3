"""Small real operators to try the test kit on: a few of them break the rules on purpose."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import StreamSchema
from penstock.graph.logical import LATE
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.timers import DueTimers
from penstock.state.tables.specs import TableSpec, TimeDomain, global_table, keyed_table
from tests.builders.graphs import schema_of
from tests.builders.scripted import Scripted

CLICKS = schema_of(user=pa.string(), n=pa.int64())
TIMED = schema_of(user=pa.string(), at=pa.timestamp("us"))
TOTALS = CLICKS


def sums_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add up `n` by user."""
    summed = (
        pa.Table.from_batches([batch])
        .group_by("user", use_threads=False)
        .aggregate([("n", "sum")])
    )
    columns: list[Any] = [summed.column("user"), summed.column("n_sum")]
    table = pa.table(columns, schema=TOTALS)
    return table.combine_chunks().to_batches()[0]


class Totals(ArrowOperator):
    """Keeps a total per user in a table and emits the new one of every user it saw."""

    def name(self) -> str:
        return "totals"

    def tables(self) -> Sequence[TableSpec]:
        return [keyed_table("totals", TOTALS, key_columns=["user"])]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        view = ctx.get_keyed_state("totals")
        sums = sums_of(batch)
        before: Any = view.get(sums).rows.column("n")
        now: Any = pc.add(sums.column("n"), pc.fill_null(before, 0))
        after = pa.RecordBatch.from_arrays([sums.column("user"), now], schema=TOTALS)
        view.put(after)
        collector.collect(after)


def hidden_totals() -> Scripted:
    """Return an operator that does the same, but in memory, where it does not belong."""
    totals: dict[str, int] = {}

    def add(batch: pa.RecordBatch, _: object, collector: ArrowCollector) -> None:
        for row in sums_of(batch).to_pylist():
            user = row["user"]
            totals[user] = totals.get(user, 0) + row["n"]
            after = {"user": user, "n": totals[user]}
            collector.collect(pa.RecordBatch.from_pylist([after], TOTALS))

    return Scripted(process_batch=add)


class BothSides(Scripted):
    """Says of which input rows come."""

    def __init__(self) -> None:
        super().__init__(process_batch_index=self._say)

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(schema_of(side=pa.int64(), rows=pa.int64()))

    def _say(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        assert total_inputs == 2
        row = {"side": index, "rows": batch.num_rows}
        schema = ctx.outputs["main"].arrow
        collector.collect(pa.RecordBatch.from_pylist([row], schema))


def reminders(domain: TimeDomain = TimeDomain.EVENT_TIME) -> Scripted:
    """Return an operator that sets a timer ten seconds behind each row and emits it when due."""

    def set_timers(batch: pa.RecordBatch, ctx: OperatorContext, *_: object) -> None:
        ten = 10_000_000
        if domain is TimeDomain.EVENT_TIME:
            at = ctx.inputs[0].event_times_of(batch)
            ctx.event_timers.set(batch, pa.array(at + ten))
        else:
            ctx.processing_timers.set(batch, ctx.processing_time_micros + ten)

    def emit(due: DueTimers, _: object, collector: ArrowCollector) -> None:
        at: Any = due.due_micros.view(pa.timestamp("us"))
        columns = [due.keys.column("user"), at]
        collector.collect(pa.RecordBatch.from_arrays(columns, schema=TIMED))

    return Scripted(timers=[domain], process_batch=set_timers, handle_timers=emit)


class LateFilter(ArrowOperator):
    """Sends rows that came behind the watermark to the side output."""

    def name(self) -> str:
        return "late filter"

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        return {LATE: inputs[0]}

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        before = ctx.previous_watermark
        floor = -(1 << 63) if before is None else before.micros
        is_late = pa.array(ctx.inputs[0].event_times_of(batch) < floor)
        ctx.count("late", is_late.true_count)
        collector.collect(batch.filter(pc.invert(is_late)))
        collector.collect(batch.filter(is_late), LATE)


def heartbeats() -> Scripted:
    """Return an operator that emits a row at every tick, and when it is closed."""

    def say(cause: object, _: object, collector: ArrowCollector) -> None:
        what = "tick" if isinstance(cause, int) else type(cause).__name__
        collector.collect(pa.RecordBatch.from_pylist([{"user": what, "n": 1}], CLICKS))

    return Scripted(
        tick=timedelta(seconds=5),
        process_batch=lambda *_: None,
        handle_tick=say,
        on_close=say,
    )


COMMITTED: dict[str, dict[int, list[str]]] = {}
"""What ledgers of a name committed, by epoch: outside of the job, as a real sink's target."""


def ledger(name: str) -> Scripted:
    """Return a sink that stages users and commits them by epoch; repeating changes nothing."""
    users: list[str] = []

    def take(batch: pa.RecordBatch, *_: object) -> None:
        users.extend(map(str, batch.column("user").to_pylist()))

    def stage(_: object, ctx: OperatorContext, *__: object) -> None:
        if users:
            ctx.insert_committing_data("staged", ",".join(users).encode())
        users.clear()

    return Scripted(
        is_sink=True,
        tables=[global_table("staged", str, bytes, uses_two_phase_commit=True)],
        process_batch=take,
        handle_checkpoint=stage,
        handle_commit=partial(_commit, name),
    )


def _commit(
    name: str, epoch: int, commit_data: Mapping[str, Mapping[int, bytes]], _: object
) -> None:
    # Pickled by its name, and so it finds COMMITTED, of which functions within others get a copy.
    users = b",".join(data for _, data in sorted(commit_data["staged"].items())).decode()
    COMMITTED.setdefault(name, {})[int(epoch)] = users.split(",")


def refuses() -> Scripted:
    """Return an operator that raises at a row of user `bad`."""

    def check(batch: pa.RecordBatch, _: object, collector: ArrowCollector) -> None:
        if "bad" in batch.column("user").to_pylist():
            raise ValueError("a bad row")
        collector.collect(batch)

    return Scripted(process_batch=check)
