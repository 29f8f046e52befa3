"""The Nexmark source: generates the persons, auctions and bids of an online auction site.

The events of one seed are one endless sequence, the same in every run, on every machine and
for any number of splits. What an event holds follows from its number alone, so epochs can be
run again and splits read anywhere. `rows` computes what the events hold.

    bids = pipeline.read("bids", pen.nexmark(1_000_000, kind="bids", splits=4))
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from math import isfinite

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.impulse import CountedSource, micros_of, read_micros
from penstock.connectors.nexmark.draws import EventKind
from penstock.connectors.nexmark.rows import SCHEMAS, TIME_COLUMN, NexmarkConfig, make_batch
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec
from penstock.operators.operator import DisplayableOperator

KIND = "nexmark"
_START = datetime(2015, 7, 15, tzinfo=UTC)
"""The start of event time in the standard benchmark."""
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
    selects which are emitted: "persons", "auctions", "bids", or "all" as rows of `event_type`
    (0, 1, 2), `person`, `auction`, `bid` (structs, two of them null) and `date_time`.
    `events`, `rate` and `gap` count all events whatever the kind, so sources of one seed
    that differ in their kind fit together. `columns` names those to emit.

    The first event happens at `start`, the following ones every `gap`; by default the gap
    follows from the rate, or is 100 microseconds. Events are up to `disorder` earlier than
    that, so read them with this watermark_delay. Time in which the job did not run counts for the
    rate: the job catches up.

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
    gap_nanos = round(1_000_000_000 / rate) if rate and rate > 0 else _GAP_NANOS
    if gap is not None:
        gap_nanos = read_micros(gap, "gap", problems) * 1_000
    config = NexmarkConfig(
        events=events,
        rate=rate,
        seed=seed,
        kind=str(kind),
        splits=splits,
        start_micros=micros_of(start),
        gap_nanos=gap_nanos,
        disorder_micros=read_micros(disorder, "disorder", problems),
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
    return OperatorSpec(KIND, asdict(config))


def check_config(config: NexmarkConfig, *further: str) -> None:
    """Refuse settings that cannot work, with all problems at once."""
    problems = [
        *further,
        *_number_problems(config),
        *_kind_problems(config),
        *_time_problems(config),
    ]
    if problems:
        raise UserError(
            f"a Nexmark source cannot be made so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
        )


def _number_problems(config: NexmarkConfig) -> Iterator[str]:
    if config.rate is not None and not (config.rate > 0 and isfinite(config.rate)):
        yield f"rate is {config.rate}: it must be more than 0 events a second"
    for option in fields(config):
        value, bounds = getattr(config, option.name), option.metadata.get("bounds")
        if bounds and value is not None and not bounds[0] <= value <= bounds[1]:
            yield f"{option.name} is {value}: it must be between {bounds[0]} and {bounds[1]}"


def _kind_problems(config: NexmarkConfig) -> Iterator[str]:
    kinds = [str(kind) for kind in EventKind]
    if config.kind not in kinds:
        yield (
            f"kind is {config.kind!r}{did_you_mean(config.kind, kinds)}: it must be one of "
            f"{', '.join(kinds)}"
        )
        return
    yield from _proportion_problems(config)
    known = SCHEMAS[EventKind(config.kind)].arrow.names
    for name in config.columns or ():
        if name not in known:
            yield (
                f"{name!r} in columns is not a column of {config.kind}"
                f"{did_you_mean(name, known)}"
            )
    if config.columns == ():
        yield "columns is empty: name at least one"


def _proportion_problems(config: NexmarkConfig) -> Iterator[str]:
    shown = " : ".join(str(part) for part in config.proportions)
    if len(config.proportions) != 3:
        yield f"proportions are {shown}: there must be three, of persons, auctions and bids"
        return
    if min(config.proportions) < 0 or not 0 < sum(config.proportions) <= 1_000_000:
        yield (
            f"proportions are {shown}: none may be negative, and together they must be "
            "between 1 and 1000000"
        )
        return
    persons, auctions, bids = config.proportions
    if not config.sequence.emitted:
        yield f"kind is {config.kind!r}, but proportions {shown} have none of them"
    if bids and not auctions and config.auctions is None:
        yield f"proportions {shown} have bids without auctions: say how many by auctions"
    if (bids or auctions) and not persons and config.bidders is None:
        yield f"proportions {shown} have no persons: say how many there are by bidders"


def _time_problems(config: NexmarkConfig) -> Iterator[str]:
    span_micros = (config.events or 0) * config.gap_nanos // 1_000
    if config.start_micros - config.disorder_micros < -MAX_MICROS:
        yield "start is too early: event times begin 292,000 years before 1970"
    if config.gap_nanos < 0 or not 0 <= config.disorder_micros < 1 << 32:
        yield "gap must not be negative, and disorder must be between 0 and 71 minutes"
    elif config.start_micros + span_micros > MAX_MICROS:
        yield "gap is too long for so many events: event times end 292,000 years after 1970"


class NexmarkSource(CountedSource):
    """Generates events. The offset of a split is how many rows it has emitted."""

    def __init__(self, config: NexmarkConfig) -> None:
        check_config(config)
        super().__init__(config.events, config.rate, config.splits)
        self._config = config
        self._sequence = config.sequence
        self._stream = SCHEMAS[EventKind(config.kind)]
        if config.columns is not None:
            chosen = pa.schema([self._stream.arrow.field(name) for name in config.columns])
            time_column = TIME_COLUMN if TIME_COLUMN in config.columns else None
            self._stream = StreamSchema(chosen, time_column)
        self._row_bytes: int | None = None

    @override
    def name(self) -> str:
        return KIND

    @override
    def display(self) -> DisplayableOperator:
        names = ("events", "rate", "seed", "kind", "splits")
        shown = {name: getattr(self._config, name) for name in names}
        facts = {name: str(value) for name, value in shown.items() if value is not None}
        return DisplayableOperator(KIND, facts)

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def rows_below(self, number: int, index: int, split_count: int) -> int:
        return self._sequence.rows_below(number, index, split_count)

    @override
    def make_rows(
        self, index: int, split_count: int, start: int, end: int
    ) -> pa.RecordBatch:
        numbers = self._sequence.numbers(index, split_count, start, end)
        return make_batch(self._config, numbers, self._stream.arrow)

    @override
    def row_bytes(self) -> int:
        if self._row_bytes is None:
            sample = self.make_rows(0, 1, 0, _SAMPLE_ROWS)
            self._row_bytes = max(1, sample.nbytes // _SAMPLE_ROWS)
        return self._row_bytes
