"""Small jobs on a clock that stands still: numbered rows, their instants, lists to collect them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.connectors.memory import ListSinkSpec, list_sink
from penstock.core.clock import new_token
from penstock.core.schema import StreamSchema
from penstock.operators.collector import ArrowCollector
from penstock.operators.context import OperatorContext
from penstock.operators.operator import ArrowOperator

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_COLUMNS: dict[str, Any] = {"n": pa.int64(), "at": pa.timestamp("us")}
NUMBERED = StreamSchema(pa.schema({"n": pa.int64()}))
TIMED = StreamSchema(pa.schema(_COLUMNS), "at")


def a_row(n: int, second: int) -> dict[str, Any]:
    """Return a numbered row of that second of event time."""
    return {"n": n, "at": _EPOCH + timedelta(seconds=second)}


def numbered(*numbers: int) -> list[dict[str, int]]:
    """Return rows without an instant."""
    return [{"n": n} for n in numbers]


def a_list() -> ListSinkSpec:
    """Return a sink whose list nobody else knows."""
    return list_sink(f"list-{new_token()}")


def numbers_in(out: ListSinkSpec) -> list[int]:
    """Return the numbers that were collected, sorted."""
    return sorted(row["n"] for row in out.rows())


def instants_of(batch: pa.RecordBatch) -> list[int]:
    """Return the event times of rows, in microseconds."""
    instants: Any = batch.column("at").cast(pa.int64())
    return [int(micros) for micros in instants.to_numpy()]


class CountLate(ArrowOperator):
    """Passes rows on, and counts those the watermark had passed before they came."""

    def name(self) -> str:
        return "count late"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        passed = ctx.previous_watermark
        if passed is not None:
            ctx.count("late", sum(at < passed.micros for at in instants_of(batch)))
        collector.collect(batch)
