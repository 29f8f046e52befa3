"""The settings of a Nexmark source, and everything that can be wrong with them. Pure.

The sequence of Nexmark events: which number is a person, an auction or a bid, and whose.

Events come in groups that repeat one pattern: `persons`, then `auctions`, then `bids`. Split
k of K takes the groups g with `g % K == k`, whole, so that every split has all kinds in the
same proportions and all splits move through event time together. Pure.

    group     0                1                2                3
    number    0 1 … 4 5 … 49   50 51 … 54 … 99  100 …            150 …
    kind      P A A A B … B    P A A A B … B    P A A A B … B    P A A A B … B
    split     0 (of 2)         1                0                1

The columns of Nexmark's persons, auctions and bids, and of the stream that has them all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

import numpy as np
import pyarrow as pa

from penstock.connectors.nexmark.draws import Numbers
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.errors import ErrorCode, UserError, did_you_mean


class EventKind(StrEnum):
    """Which events of the sequence a source emits."""

    ALL = "all"
    PERSONS = "persons"
    AUCTIONS = "auctions"
    BIDS = "bids"


@dataclass(frozen=True, slots=True)
class EventSequence:
    """The pattern of a group, and what of it a source emits."""

    persons: int
    auctions: int
    bids: int
    kind: EventKind

    @property
    def group_size(self) -> int:
        """How many events a group has."""
        return self.persons + self.auctions + self.bids

    @property
    def emitted(self) -> range:
        """The positions in a group that are emitted."""
        first_bid = self.persons + self.auctions
        match self.kind:
            case EventKind.ALL:
                return range(self.group_size)
            case EventKind.PERSONS:
                return range(self.persons)
            case EventKind.AUCTIONS:
                return range(self.persons, first_bid)
            case EventKind.BIDS:
                return range(first_bid, self.group_size)

    def rows_below(self, number: int, index: int, split_count: int) -> int:
        """Return how many rows a split emits of the events before `number`."""
        group_count, rest = divmod(number, self.group_size)
        whole = max(0, -(-(group_count - index) // split_count))
        rows = whole * len(self.emitted)
        if group_count % split_count == index:
            rows += min(max(0, rest - self.emitted.start), len(self.emitted))
        return rows

    def numbers(self, index: int, split_count: int, start: int, end: int) -> Numbers:
        """Return the event numbers of the rows `[start, end)` of a split."""
        rows = np.arange(start, end, dtype=np.int64)
        groups: Numbers = rows // len(self.emitted)
        positions = rows - groups * len(self.emitted) + self.emitted.start
        return (groups * split_count + index) * self.group_size + positions


TIME_COLUMN = "date_time"
_INSTANT = pa.timestamp("us")


def _required(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])


PERSON = _required(
    id=pa.int64(),
    name=pa.string(),
    email=pa.string(),
    credit_card=pa.string(),
    city=pa.string(),
    state=pa.string(),
    date_time=_INSTANT,
    extra=pa.string(),
)
AUCTION = _required(
    id=pa.int64(),
    item_name=pa.string(),
    description=pa.string(),
    initial_bid=pa.int64(),
    reserve=pa.int64(),
    date_time=_INSTANT,
    expires=_INSTANT,
    seller=pa.int64(),
    category=pa.int64(),
    extra=pa.string(),
)
BID = _required(
    auction=pa.int64(),
    bidder=pa.int64(),
    price=pa.int64(),
    channel=pa.string(),
    url=pa.string(),
    date_time=_INSTANT,
    extra=pa.string(),
)


def _struct(schema: pa.Schema) -> pa.StructType:
    """Return the columns as one nullable value: of a row that is null all fields are."""
    return pa.struct([pa.field(field.name, field.type) for field in schema])


EVENT = pa.schema(
    [
        pa.field("event_type", pa.int32(), nullable=False),
        pa.field("person", _struct(PERSON)),
        pa.field("auction", _struct(AUCTION)),
        pa.field("bid", _struct(BID)),
        pa.field(TIME_COLUMN, _INSTANT, nullable=False),
    ]
)
"""`event_type` is 0 for a person, 1 for an auction, 2 for a bid, as in the benchmark's SQL."""

SCHEMAS = {
    EventKind.ALL: StreamSchema(EVENT, TIME_COLUMN),
    EventKind.PERSONS: StreamSchema(PERSON, TIME_COLUMN),
    EventKind.AUCTIONS: StreamSchema(AUCTION, TIME_COLUMN),
    EventKind.BIDS: StreamSchema(BID, TIME_COLUMN),
}


def select_columns(stream: StreamSchema, columns: Sequence[str] | None) -> StreamSchema:
    """Return the stream with some columns, in that order; without its time it has none."""
    if columns is None:
        return stream
    chosen = pa.schema([stream.schema.field(name) for name in columns])
    return StreamSchema(chosen, TIME_COLUMN if TIME_COLUMN in columns else None)


LARGEST_POPULATION = 1 << 31
"""Draws are made of 32 bits."""


@dataclass(frozen=True, slots=True)
class NexmarkConfig:
    """The config of kind "nexmark"; see `nexmark` for what the settings mean."""

    events: int | None = None
    rate: float | None = None
    seed: int = 0
    kind: str = "all"
    splits: int = 1
    start_micros: int = 0
    gap_nanos: int = 100_000
    disorder_micros: int = 0
    proportions: tuple[int, ...] = (1, 3, 46)
    auctions: int | None = None
    bidders: int | None = None
    hot_auction_ratio: int = 2
    hot_bidder_ratio: int = 4
    hot_seller_ratio: int = 4
    in_flight_auctions: int = 100
    active_people: int = 1_000
    columns: tuple[str, ...] | None = None

    @property
    def sequence(self) -> EventSequence:
        """The events in their order; the config is known to be sound."""
        persons, auctions, bids = self.proportions
        return EventSequence(persons, auctions, bids, EventKind(self.kind))

    def micros_of(self, event_count: int) -> int:
        """Return how much event time so many events take."""
        return event_count * self.gap_nanos // 1_000


def check_config(config: NexmarkConfig, *further: str) -> None:
    """Refuse settings that cannot work, and name all of them at once."""
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
    for name, least, most in (
        ("events", 0, MAX_MICROS),
        ("seed", 0, MAX_MICROS),
        ("splits", 1, LARGEST_POPULATION),
        ("auctions", 1, LARGEST_POPULATION),
        ("bidders", 1, LARGEST_POPULATION),
        ("hot_auction_ratio", 1, LARGEST_POPULATION),
        ("hot_bidder_ratio", 1, LARGEST_POPULATION),
        ("hot_seller_ratio", 1, LARGEST_POPULATION),
        ("in_flight_auctions", 0, LARGEST_POPULATION // 2),
        ("active_people", 1, LARGEST_POPULATION // 2),
    ):
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            yield f"{name} is {value}: it must be between {least} and {most}"


def _kind_problems(config: NexmarkConfig) -> Iterator[str]:
    kinds = [str(kind) for kind in EventKind]
    if config.kind not in kinds:
        yield (
            f"kind is {config.kind!r}{did_you_mean(config.kind, kinds)}: it must be one of "
            f"{', '.join(kinds)}"
        )
        return
    yield from _proportion_problems(config)
    known = SCHEMAS[EventKind(config.kind)].schema.names
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
    earliest = config.start_micros - config.disorder_micros
    if earliest < -MAX_MICROS:
        yield "start is too early: event times begin 292,000 years before 1970"
    if config.gap_nanos < 0 or not 0 <= config.disorder_micros < 1 << 32:
        yield "gap must not be negative, and disorder must be between 0 and 71 minutes"
    elif config.start_micros + config.micros_of(config.events or 0) > MAX_MICROS:
        yield "gap is too long for so many events: event times end 292,000 years after 1970"
