"""Small real operators to try the test kit on: a few of them break the rules on purpose."""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, EndOfData, Stop
from penstock.graph.logical import LATE
from penstock.operators.context import ArrowCollector, CommitContext, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.timers import DueTimers
from penstock.state.tables.specs import TableSpec, TimeDomain, global_table, keyed_table


def schema_of(**types: Any) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


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


class HiddenTotals(ArrowOperator):
    """The same, but in an attribute, where it does not belong."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}

    def name(self) -> str:
        return "hidden totals"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        for row in sums_of(batch).to_pylist():
            user = row["user"]
            self._totals[user] = self._totals.get(user, 0) + row["n"]
            after = {"user": user, "n": self._totals[user]}
            collector.collect(pa.RecordBatch.from_pylist([after], TOTALS))


class BothSides(ArrowOperator):
    """Says of which input rows come."""

    def name(self) -> str:
        return "both sides"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        return StreamSchema(schema_of(side=pa.int64(), rows=pa.int64()))

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        raise NotImplementedError

    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        assert total_inputs == 2
        row = {"side": index, "rows": batch.num_rows}
        schema = ctx.outputs["main"].schema
        collector.collect(pa.RecordBatch.from_pylist([row], schema))


class Reminders(ArrowOperator):
    """Sets a timer ten seconds behind every row, by one clock, and emits it when due."""

    def __init__(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        self._domain = domain

    def name(self) -> str:
        return "reminders"

    def timers(self) -> Collection[TimeDomain]:
        return [self._domain]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        ten = 10_000_000
        if self._domain is TimeDomain.EVENT_TIME:
            at = ctx.inputs[0].event_times_of(batch)
            ctx.event_timers.set(batch, pa.array(at + ten))
        else:
            ctx.processing_timers.set(batch, ctx.processing_time_micros + ten)

    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        at: Any = due.due_micros.view(pa.timestamp("us"))
        collector.collect(
            pa.RecordBatch.from_arrays([due.keys.column("user"), at], schema=TIMED)
        )


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


class Heartbeats(ArrowOperator):
    """Emits a row at every tick, and when it is closed."""

    def name(self) -> str:
        return "heartbeats"

    def tick_interval(self) -> timedelta:
        return timedelta(seconds=5)

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        return None

    def handle_tick(
        self, tick: int, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._say("tick", collector)

    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._say(type(final).__name__, collector)

    def _say(self, what: str, collector: ArrowCollector) -> None:
        collector.collect(pa.RecordBatch.from_pylist([{"user": what, "n": 1}], CLICKS))


COMMITTED: dict[str, dict[int, list[str]]] = {}
"""What `Ledger`s of a name committed, by epoch: outside of the job, as a real sink's target."""


class Ledger(ArrowOperator):
    """A sink that stages users and commits them by epoch, so that repeating changes nothing."""

    def __init__(self, ledger: str) -> None:
        self._ledger = ledger
        self._users: list[str] = []

    def name(self) -> str:
        return "ledger"

    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        return None

    def tables(self) -> Sequence[TableSpec]:
        return [global_table("staged", str, bytes, uses_two_phase_commit=True)]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        self._users += map(str, batch.column("user").to_pylist())

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        users, self._users = self._users, []
        if users:
            ctx.insert_committing_data("staged", ",".join(users).encode())

    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        users = b",".join(
            data for _, data in sorted(commit_data["staged"].items())
        ).decode()
        COMMITTED.setdefault(self._ledger, {})[int(epoch)] = users.split(",")


class Refuses(ArrowOperator):
    """Raises at a row of user `bad`."""

    def name(self) -> str:
        return "refuses"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        if "bad" in batch.column("user").to_pylist():
            raise ValueError("a bad row")
        collector.collect(batch)
