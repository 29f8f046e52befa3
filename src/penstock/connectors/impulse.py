"""A source that counts: rows with a counter and an event time, as many or as fast as asked.

Row number c of all splits together has `counter` c, goes to split `c % splits` and has the
event time `start + c * step`, so the rows are the same in every run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.counted_splits import CountedSplits
from penstock.core.duration import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.collector import SourceCollector
from penstock.operators.context import SourceContext
from penstock.operators.display import DisplayableOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.source import SourceOperator, SourcePlan
from penstock.operators.splits import SourceBudget, SplitState

IMPULSES = StreamSchema(
    pa.schema(
        [
            pa.field("counter", pa.int64(), nullable=False),
            pa.field("split", pa.int32(), nullable=False),
            pa.field("ts", pa.timestamp("us"), nullable=False),
        ]
    ),
    time_column="ts",
)

_ROW_BYTES = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def impulse(
    count: int | None = None,
    *,
    rate: float | None = None,
    splits: int = 1,
    start: datetime = _EPOCH,
    step: DurationLike | None = None,
) -> OperatorSpec:
    """Count up to `count` (or for ever), `rate` rows a second (or as fast as possible).

    The first row happens at `start`, the following ones every `step`: unless given, by the
    rate, or a millisecond. Time without the job running counts for the rate: it catches up.
    """
    problems = [
        f"{name} is {value}: it must be {bound}"
        for name, value, bound, is_wrong in (
            ("count", count, "at least 0", count is not None and count < 0),
            ("rate", rate, "more than 0 rows a second", rate is not None and rate <= 0),
            ("splits", splits, "at least 1", splits < 1),
        )
        if is_wrong
    ]
    if step is None:
        step = timedelta(seconds=1 / rate) if rate and rate > 0 else "1ms"
    step_micros = 0
    try:
        step_micros = to_micros(step, "step")
    except UserError as error:
        problems.append(f"step is {step}: {error.message}")
    if problems:
        raise UserError(
            f"an impulse source cannot count so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_NUMBER,
        )
    zoned = start if start.tzinfo else start.replace(tzinfo=UTC)
    return OperatorSpec(
        "impulse",
        {
            "count": count,
            "rate": rate,
            "splits": splits,
            "start_micros": (zoned - _EPOCH) // timedelta(microseconds=1),
            "step_micros": step_micros,
        },
    )


@dataclass(frozen=True, slots=True)
class ImpulseConfig:
    """The config of kind "impulse"."""

    count: int | None = None
    rate: float | None = None
    splits: int = 1
    start_micros: int = 0
    step_micros: int = 1_000


class ImpulseSource(SourceOperator):
    """Counts. The offset of a split is how many rows it has emitted."""

    def __init__(self, config: ImpulseConfig) -> None:
        self._config = config
        self._splits = CountedSplits(config.count, config.rate, config.splits, _rows_below)

    def name(self) -> str:
        """Return the kind."""
        return "impulse"

    def display(self) -> DisplayableOperator:
        """Show how far and how fast it counts."""
        known = {"count": self._config.count, "rate": self._config.rate}
        facts = {name: str(value) for name, value in known.items() if value is not None}
        return DisplayableOperator("impulse", {**facts, "splits": str(self._config.splits)})

    def output_schema(self) -> StreamSchema:
        """Return counter, split and event time."""
        return IMPULSES

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Let every split count as far as count, rate and its share of the budget allow."""
        return self._splits.plan(known, budget, now_micros, row_bytes=_ROW_BYTES)

    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Count as planned."""
        self._splits.run(ctx, collector, self._rows)

    def _rows(self, index: int, split_count: int, start: int, end: int) -> pa.RecordBatch:
        counters = np.arange(start, end, dtype=np.int64) * split_count + index
        times = counters * self._config.step_micros + self._config.start_micros
        columns: list[pa.Array[Any]] = [
            pa.array(counters),
            pa.array(np.full(end - start, index, dtype=np.int32)),
            pa.array(times).view(pa.timestamp("us")),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=IMPULSES.schema)


def _rows_below(counter: int, index: int, split_count: int) -> int:
    """Return how many counters below `counter` go to a split."""
    return max(0, -(-(counter - index) // split_count))


class ImpulseConstructor(OperatorConstructor[ImpulseConfig]):
    """Builds impulse sources."""

    config_type = ImpulseConfig

    def with_config(self, config: ImpulseConfig, registry: Registry) -> ConstructedOperator:
        """Take the config over."""
        del registry
        return ConstructedOperator(ImpulseSource(config))
