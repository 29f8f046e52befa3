"""`impulse`, a source that counts, and CountedSource, the base of sources that make their rows.

Row number c of an impulse, over all splits, has `counter` c, goes to split `c % splits` and has
the event time `start + c * step`, so the rows are the same in every run.

Row r of a split of a `CountedSource` is always the same row. The offset of a split is how many
rows it has emitted, and the processing time at which the source was started. The driver plans
how far each split counts, by count, rate and budget; a run reads exactly that, so a second run
of an epoch gives the same rows. The first epoch fixes the number of splits: it is part of
their names, and later runs keep it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState

_BATCH_ROWS = 65_536
_UNLIMITED = 1 << 62


class CountedSource(SourceOperator):
    """A source that makes its rows; row r of a split is always the same row."""

    def __init__(self, count: int | None, rate: float | None, splits: int) -> None:
        self._count = count
        """How many numbers there are; None for no end."""
        self._rate = rate
        """How many numbers come per second since the first epoch; None for no limit."""
        self._split_count = splits

    @abstractmethod
    def rows_below(self, number: int, index: int, split_count: int) -> int:
        """Return how many rows a split has among the numbers before `number`."""

    @abstractmethod
    def make_rows(
        self, index: int, split_count: int, start: int, end: int
    ) -> pa.RecordBatch:
        """Return the rows `[start, end)` of a split."""

    @abstractmethod
    def row_bytes(self) -> int:
        """Return about how many bytes a row takes, at least 1."""

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Plan every split as far as count, rate and its share of the budget allow.

        The first epoch names all splits, even those that have nothing to do yet: so their
        number is in the state from then on.
        """
        split_count = next((_parse(name)[1] for name in known), self._split_count)
        affordable = min(budget.rows, budget.size_bytes // self.row_bytes())
        share = max(1, affordable // split_count)
        plans = []
        has_more = False
        for index in range(split_count):
            name = f"{index}-of-{split_count}"
            state = known.get(name, SplitState())
            if state.ended:
                continue
            done, since = (0, now_micros) if state.offset is None else state.offset
            limits = [] if self._count is None else [self._count]
            if self._rate is not None:
                limits.append(int(self._rate * max(0, now_micros - since) / 1_000_000))
            due = self.rows_below(min(limits), index, split_count) if limits else _UNLIMITED
            end = max(done, min(done + share, due))
            has_more |= end < due
            if end > done or state.offset is None or self._is_last(index, split_count, end):
                plans.append(SplitPlan(name, (done, since), (end, since), end - done))
        return SourcePlan(tuple(plans), is_complete=True, has_more=has_more)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Count as planned; a split ends with its last row."""
        for split in ctx.splits:
            index, split_count = _parse(split.name)
            (done, since), (end, _) = split.start, split.end
            ctx.advance(split.name, (done, since))
            for start in range(done, end, _BATCH_ROWS):
                upto = min(start + _BATCH_ROWS, end)
                rows = self.make_rows(index, split_count, start, upto)
                collector.collect(rows, split=split.name)
                ctx.advance(split.name, (upto, since))
            if self._is_last(index, split_count, end):
                ctx.end_split(split.name)

    def _is_last(self, index: int, split_count: int, done: int) -> bool:
        count = self._count
        return count is not None and done >= self.rows_below(count, index, split_count)


def _parse(name: str) -> tuple[int, int]:
    index, _, split_count = name.partition("-of-")
    return int(index), int(split_count)


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

    The first row has the event time `start`, and each one `step` more than the one before; by
    default the step follows from the rate, or is a millisecond. Time in which the job did not
    run counts for the rate: the job catches up.
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
    step_micros = read_micros(step, "step", problems)
    if problems:
        raise UserError(
            f"an impulse source cannot count so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_NUMBER,
        )
    config = ImpulseConfig(count, rate, splits, micros_of(start), step_micros)
    return config.to_operator_spec()


def read_micros(duration: DurationLike, name: str, problems: list[str]) -> int:
    """Return an option in microseconds; one that is no duration is added to the problems."""
    try:
        return to_micros(duration, name)
    except UserError as error:
        problems.append(f"{name} is {duration}: {error.message}")
        return 0


def micros_of(start: datetime) -> int:
    """Return an instant in microseconds; one without a zone is in UTC."""
    zoned = start if start.tzinfo else start.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ImpulseConfig(OperatorConfig):
    """The config of kind "impulse"; see `impulse`."""

    kind: ClassVar[str] = "impulse"

    count: int | None = None
    rate: float | None = None
    splits: int = 1
    start_micros: int = 0
    step_micros: int = 1_000

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"count": self.count, "rate": self.rate, "splits": self.splits}
        return {name: str(value) for name, value in facts.items() if value is not None}


class ImpulseSource(Configured[ImpulseConfig], CountedSource):
    """Counts. The offset of a split is how many rows it has emitted."""

    def __init__(self, config: ImpulseConfig) -> None:
        CountedSource.__init__(self, config.count, config.rate, config.splits)
        self.config = config

    @override
    def output_schema(self) -> StreamSchema:
        return IMPULSES

    @override
    def rows_below(self, number: int, index: int, split_count: int) -> int:
        return max(0, -(-(number - index) // split_count))

    @override
    def make_rows(
        self, index: int, split_count: int, start: int, end: int
    ) -> pa.RecordBatch:
        counters = np.arange(start, end, dtype=np.int64) * split_count + index
        times = counters * self.config.step_micros + self.config.start_micros
        columns: list[pa.Array[Any]] = [
            pa.array(counters),
            pa.array(np.full(end - start, index, dtype=np.int32)),
            pa.array(times).view(pa.timestamp("us")),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=IMPULSES.arrow)

    @override
    def row_bytes(self) -> int:
        return _ROW_BYTES
