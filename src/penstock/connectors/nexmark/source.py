"""The Nexmark source: an online auction's persons, auctions and bids, as many as asked for.

The events of one seed are one endless sequence, the same in every run, on every machine and
for any number of splits. What an event holds follows from its number alone, so epochs can be
run again and splits read anywhere. The files beside this one say what is in the rows.

    bids = pipeline.read("bids", ps.nexmark(1_000_000, kind="bids", splits=4))
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.impulse import CountedSplits
from penstock.connectors.nexmark.config import (
    SCHEMAS,
    EventKind,
    NexmarkConfig,
    check_config,
    select_columns,
)
from penstock.connectors.nexmark.rows import make_batch
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.errors import UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.collector import SourceCollector
from penstock.operators.context import SourceContext
from penstock.operators.operator import DisplayableOperator
from penstock.operators.registry import ConstructedOperator, OperatorConstructor, Registry
from penstock.operators.source import SourceOperator, SourcePlan
from penstock.operators.splits import SourceBudget, SplitState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_START = datetime(2015, 7, 15, tzinfo=UTC)
"""When the benchmark's auctions have always begun."""
_GAP_NANOS = 100_000
_SAMPLE_ROWS = 128


def nexmark(
    events: int | None = None,
    *,
    rate: float | None = None,
    seed: int = 0,
    kind: str = "all",
    splits: int = 1,
    start: datetime = _START,
    gap: DurationLike | None = None,
    disorder: DurationLike = 0,
    proportions: Sequence[int] = (1, 3, 46),
    auctions: int | None = None,
    bidders: int | None = None,
    hot_auction_ratio: int = 2,
    hot_bidder_ratio: int = 4,
    hot_seller_ratio: int = 4,
    in_flight_auctions: int = 100,
    active_people: int = 1_000,
    columns: Sequence[str] | None = None,
) -> OperatorSpec:
    """Generate the first `events` of an auction site (or all), `rate` a second (or at once).

    Of 50 events one is a person, three are auctions and 46 are bids: `proportions`. `kind`
    says which are emitted: "persons", "auctions", "bids", or "all" as rows of `event_type`
    (0, 1, 2), `person`, `auction`, `bid` (structs, two of them null) and `date_time`.
    `events`, `rate` and `gap` count all events whatever the kind, so sources of one seed
    that differ in their kind fit together. `columns` leaves out what nobody needs.

    The first event happens at `start`, the following ones every `gap`: unless given, by the
    rate, or 100 microseconds. Events are up to `disorder` earlier than that, so read them
    with this lateness. Time without the job running counts for the rate: it catches up.

    Bids prefer hot auctions and bidders, auctions hot sellers: all but 1 in `hot_…_ratio`.
    The others are among the last `in_flight_auctions` and `active_people`, and up to ten
    yet to come. `auctions` and `bidders` choose evenly from so many instead. Ten million
    bids and no other events, 100,000 a second, by a million people on 100,000 auctions:

    >>> source = nexmark(
    ...     10_000_000,
    ...     kind="bids",
    ...     proportions=(0, 0, 1),
    ...     gap="10us",
    ...     disorder="200ms",
    ...     auctions=100_000,
    ...     bidders=1_000_000,
    ...     columns=["auction", "bidder", "price", "date_time"],
    ... )
    """
    problems: list[str] = []
    zoned = start if start.tzinfo else start.replace(tzinfo=UTC)
    config = NexmarkConfig(
        events=events,
        rate=rate,
        seed=seed,
        kind=str(kind),
        splits=splits,
        start_micros=(zoned - _EPOCH) // timedelta(microseconds=1),
        gap_nanos=_gap_nanos(gap, rate, problems),
        disorder_micros=_read_micros(disorder, "disorder", problems),
        proportions=tuple(proportions),
        auctions=auctions,
        bidders=bidders,
        hot_auction_ratio=hot_auction_ratio,
        hot_bidder_ratio=hot_bidder_ratio,
        hot_seller_ratio=hot_seller_ratio,
        in_flight_auctions=in_flight_auctions,
        active_people=active_people,
        columns=None if columns is None else tuple(columns),
    )
    check_config(config, *problems)
    return OperatorSpec("nexmark", asdict(config))


def _gap_nanos(gap: DurationLike | None, rate: float | None, problems: list[str]) -> int:
    if gap is not None:
        return _read_micros(gap, "gap", problems) * 1_000
    return round(1_000_000_000 / rate) if rate and rate > 0 else _GAP_NANOS


def _read_micros(duration: DurationLike, name: str, problems: list[str]) -> int:
    try:
        return to_micros(duration, name)
    except UserError as error:
        problems.append(f"{name} is {duration}: {error.message}")
        return 0


class NexmarkSource(SourceOperator):
    """Generates events. The offset of a split is how many rows it has emitted."""

    def __init__(self, config: NexmarkConfig) -> None:
        self._config = config
        self._sequence = config.sequence
        self._splits = CountedSplits(
            config.events, config.rate, config.splits, self._sequence.rows_below
        )
        self._stream = select_columns(SCHEMAS[EventKind(config.kind)], config.columns)
        self._row_bytes: int | None = None

    @override
    def name(self) -> str:
        return "nexmark"

    @override
    def display(self) -> DisplayableOperator:
        shown = {
            "events": self._config.events,
            "rate": self._config.rate,
            "seed": self._config.seed,
            "kind": self._config.kind,
            "splits": self._config.splits,
        }
        facts = {name: str(value) for name, value in shown.items() if value is not None}
        return DisplayableOperator("nexmark", facts)

    @override
    def output_schema(self) -> StreamSchema:
        """Return the columns of the kind, as far as they are wanted."""
        return self._stream

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Let every split go as far as events, rate and its share of the budget allow."""
        if self._row_bytes is None:
            sample = self._rows(0, 1, 0, _SAMPLE_ROWS)
            self._row_bytes = max(1, sample.nbytes // _SAMPLE_ROWS)
        return self._splits.plan(known, budget, now_micros, row_bytes=self._row_bytes)

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        self._splits.run(ctx, collector, self._rows)

    def _rows(self, index: int, split_count: int, start: int, end: int) -> pa.RecordBatch:
        numbers = self._sequence.numbers(index, split_count, start, end)
        return make_batch(self._config, numbers, self._stream.schema)


class NexmarkConstructor(OperatorConstructor[NexmarkConfig]):
    """Builds Nexmark sources."""

    config_type = NexmarkConfig

    @override
    def with_config(self, config: NexmarkConfig, registry: Registry) -> ConstructedOperator:
        check_config(config)
        return ConstructedOperator(NexmarkSource(config))
