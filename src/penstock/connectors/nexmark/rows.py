"""The rows of Nexmark: computes the columns of persons, auctions and bids.

Rows are computed a batch of events at a time, without a loop over rows, and only the wanted
columns. Names, places, prices, references and the sizes of rows are those of the standard
generator. References need no memory of earlier events: how many people and auctions there are
follows from the number of the event.

    a bid's auction    1 in `hot_auction_ratio`: any of the last `in_flight_auctions` ones;
                       otherwise the first one of the latest hundred
    a bid's bidder     1 in `hot_bidder_ratio`: any of the last `active_people`;
                       otherwise the second one of the latest hundred
    a seller           1 in `hot_seller_ratio`: any of the last `active_people`;
                       otherwise the first one of the latest hundred
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.connectors.nexmark.draws import (
    Bits,
    EventKind,
    EventSequence,
    Numbers,
    Purpose,
    draw,
    high,
    low,
    scale,
    text_pool,
    to_prices,
    write_texts,
)
from penstock.core.hash_kernels import Hashes
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS

LARGEST_POPULATION = 1 << 31
"""The most people or auctions to choose from: a draw has 32 bits."""


def _between(least: int, most: int, *, default: Any) -> Any:
    """Declare an option that is a number of `[least, most]`."""
    return field(default=default, metadata={"bounds": (least, most)})


@dataclass(frozen=True, slots=True)
class NexmarkConfig:
    """The config of operator kind "nexmark"; `nexmark` says what the options mean.

    It is no `OperatorConfig`, because `kind` is one of its options.
    """

    events: int | None = _between(0, MAX_MICROS, default=None)
    rate: float | None = None
    seed: int = _between(0, MAX_MICROS, default=0)
    kind: str = "all"
    splits: int = _between(1, LARGEST_POPULATION, default=1)
    start_micros: int = 0
    gap_nanos: int = 100_000
    disorder_micros: int = 0
    proportions: tuple[int, ...] = (1, 3, 46)
    auctions: int | None = _between(1, LARGEST_POPULATION, default=None)
    bidders: int | None = _between(1, LARGEST_POPULATION, default=None)
    hot_auction_ratio: int = _between(1, LARGEST_POPULATION, default=2)
    hot_bidder_ratio: int = _between(1, LARGEST_POPULATION, default=4)
    hot_seller_ratio: int = _between(1, LARGEST_POPULATION, default=4)
    in_flight_auctions: int = _between(0, LARGEST_POPULATION // 2, default=100)
    active_people: int = _between(1, LARGEST_POPULATION // 2, default=1_000)
    columns: tuple[str, ...] | None = None

    @property
    def sequence(self) -> EventSequence:
        """The events in their order, for a config that `check_config` has accepted."""
        persons, auctions, bids = self.proportions
        return EventSequence(persons, auctions, bids, EventKind(self.kind))


FIRST_ID = 1_000
"""The first id of people and of auctions."""
ID_LEAD = 10
"""How many later ids a reference may choose from, as if events had been swapped."""
_HOT_GROUP = 100


class EventBatch:
    """Some events of one kind: what their columns are computed from. Lives for one batch."""

    def __init__(self, config: NexmarkConfig, numbers: Numbers) -> None:
        self.config = config
        self.numbers = numbers
        group_size = sum(config.proportions)
        self._groups: Numbers = numbers // group_size
        self._positions: Numbers = numbers - self._groups * group_size
        self._words: dict[Purpose, Hashes] = {}

    def words(self, purpose: Purpose) -> Hashes:
        """Return 64 random bits for each event; they are computed once."""
        words = self._words.get(purpose)
        if words is None:
            words = self._words[purpose] = draw(self.config.seed, purpose, self.numbers)
        return words

    def instants(self) -> Numbers:
        """Return each event's time in microseconds. Disorder only makes events earlier."""
        config = self.config
        times = self.spans(self.numbers) + config.start_micros
        if config.disorder_micros:
            times -= scale(high(self.words(Purpose.ARRIVAL)), config.disorder_micros)
        return times

    def spans(self, event_counts: Numbers) -> Numbers:
        """Return how much event time so many events take, in microseconds."""
        whole, rest = divmod(self.config.gap_nanos, 1_000)
        spans: Numbers = event_counts * whole
        return spans + event_counts * rest // 1_000 if rest else spans

    def person_ids(self) -> Numbers:
        """Return the ids of persons."""
        return self._groups * self.config.proportions[0] + self._positions + FIRST_ID

    def auction_ids(self) -> Numbers:
        """Return the ids of auctions."""
        persons, auctions, _ = self.config.proportions
        return self._groups * auctions + self._positions + (FIRST_ID - persons)

    def bid_auctions(self) -> Numbers:
        """Return the auctions that bids are for."""
        bits = high(self.words(Purpose.REFERENCES))
        if self.config.auctions is not None:
            return scale(bits, self.config.auctions) + FIRST_ID
        per_group = self.config.proportions[1]
        # The last auction, from 0, that each event's group creates.
        last = self._groups * per_group + (per_group - 1)
        first = np.maximum(last - self.config.in_flight_auctions, 0)
        cold = first + scale(bits, last - first + (1 + ID_LEAD))
        is_hot = scale(high(self.words(Purpose.HOTNESS)), self.config.hot_auction_ratio) > 0
        return np.where(is_hot, last // _HOT_GROUP * _HOT_GROUP, cold) + FIRST_ID

    def bidders(self) -> Numbers:
        """Return the ids of the people that bid."""
        hotness = low(self.words(Purpose.HOTNESS))
        return self._people(hotness, self.config.hot_bidder_ratio, hot_index=1)

    def sellers(self) -> Numbers:
        """Return the ids of the people that sell."""
        hotness = high(self.words(Purpose.HOTNESS))
        return self._people(hotness, self.config.hot_seller_ratio, hot_index=0)

    def _people(self, hotness: Bits, ratio: int, *, hot_index: int) -> Numbers:
        bits = low(self.words(Purpose.REFERENCES))
        if self.config.bidders is not None:
            return scale(bits, self.config.bidders) + FIRST_ID
        per_group = self.config.proportions[0]
        # The last person, from 0, that each event's group creates.
        last = self._groups * per_group + (per_group - 1)
        active = np.minimum(last + 1, self.config.active_people)
        cold = last + 1 - active + scale(bits, active + ID_LEAD)
        hot = last // _HOT_GROUP * _HOT_GROUP + hot_index
        return np.where(scale(hotness, ratio) > 0, hot, cold) + FIRST_ID


_Array: TypeAlias = "pa.Array[Any]"
_Column: TypeAlias = tuple[pa.DataType, Callable[[EventBatch], _Array]]
"""A column's type, and what makes its values."""

TIME_COLUMN = "date_time"
_INSTANT = pa.timestamp("us")
_FIRST_CATEGORY_ID, _CATEGORIES = 10, 5
_CHANNELS = 10_000
_URL = "https://www.nexmark.com/item.htm?query=1"
_MILLISECOND = 1_000
_LARGEST_BOUND = (1 << 32) - 1
_STATES = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES = pa.array(
    [
        "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond",
        "Seattle", "Kent", "Cheyenne",
    ]
)  # fmt: skip
_FIRST_NAMES = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter",
    "Walter",
)  # fmt: skip
_LAST_NAMES = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
)  # fmt: skip
_NAMES = pa.array([" ".join(names) for names in product(_FIRST_NAMES, _LAST_NAMES)])


def _numbers(make: Callable[[EventBatch], Numbers]) -> _Column:
    return pa.int64(), lambda events: pa.array(make(events))


def _instants(make: Callable[[EventBatch], Numbers]) -> _Column:
    return _INSTANT, lambda events: pa.array(make(events)).view(_INSTANT)


def _texts(purpose: Purpose, template: str) -> _Column:
    return pa.string(), lambda events: write_texts(
        events.config.seed, purpose, events.numbers, template
    )


def _picks(
    pool: "_Array | int", purpose: Purpose, half: Callable[[Hashes], Bits] = high
) -> _Column:
    """Declare a column of texts from a pool; a number means letters of this mean length."""

    def make(events: EventBatch) -> _Array:
        texts = text_pool(pool) if isinstance(pool, int) else pool
        return texts.take(scale(half(events.words(purpose)), len(texts)))

    return pa.string(), make


def _channels(hot: Sequence[str], prefix: str) -> _Column:
    """Declare a column of texts of the hot channels, or of a prefix and a number."""

    @cache
    def make_pool() -> _Array:
        return pa.array([*hot, *(f"{prefix}{n}" for n in range(_CHANNELS))])

    def make(events: EventBatch) -> _Array:
        # Every second bid uses one of the hot channels, which are the first of the pool.
        cold = scale(low(events.words(Purpose.AMOUNTS)), 2 * _CHANNELS)
        places = np.where(cold < _CHANNELS, cold + len(hot), cold % len(hot))
        return make_pool().take(places)

    return pa.string(), make


def _prices(events: EventBatch) -> Numbers:
    return to_prices(high(events.words(Purpose.AMOUNTS)))


def _reserves(events: EventBatch) -> Numbers:
    return _prices(events) + to_prices(low(events.words(Purpose.AMOUNTS)))


def _expires(events: EventBatch) -> Numbers:
    """Return when auctions expire: when about `in_flight_auctions` more have begun."""
    config = events.config
    ahead = config.in_flight_auctions * sum(config.proportions) // config.proportions[1]
    bound = min(max(1, 2 * ahead), _LARGEST_BOUND)
    lengths = scale(low(events.words(Purpose.CATEGORY)), bound)
    return events.instants() + _MILLISECOND + events.spans(lengths)


def _categories(events: EventBatch) -> Numbers:
    return scale(high(events.words(Purpose.CATEGORY)), _CATEGORIES) + _FIRST_CATEGORY_ID


_COLUMNS: dict[EventKind, dict[str, _Column]] = {
    EventKind.PERSONS: {
        "id": _numbers(EventBatch.person_ids),
        "name": _picks(_NAMES, Purpose.NAMES),
        "email": _texts(Purpose.EMAIL, "???????@?????.com"),
        "credit_card": _texts(Purpose.CREDIT_CARD, "#### #### #### ####"),
        "city": _picks(_CITIES, Purpose.PLACES),
        "state": _picks(_STATES, Purpose.PLACES, low),
        "date_time": _instants(EventBatch.instants),
        "extra": _picks(120, Purpose.ARRIVAL, low),
    },
    EventKind.AUCTIONS: {
        "id": _numbers(EventBatch.auction_ids),
        "item_name": _texts(Purpose.ITEM_NAME, "?" * 20),
        "description": _picks(80, Purpose.DESCRIPTION),
        "initial_bid": _numbers(_prices),
        "reserve": _numbers(_reserves),
        "date_time": _instants(EventBatch.instants),
        "expires": _instants(_expires),
        "seller": _numbers(EventBatch.sellers),
        "category": _numbers(_categories),
        "extra": _picks(350, Purpose.ARRIVAL, low),
    },
    EventKind.BIDS: {
        "auction": _numbers(EventBatch.bid_auctions),
        "bidder": _numbers(EventBatch.bidders),
        "price": _numbers(_prices),
        "channel": _channels(("Google", "Facebook", "Baidu", "Apple"), "channel-"),
        "url": _channels([_URL] * 4, f"{_URL}&channel_id="),
        "date_time": _instants(EventBatch.instants),
        "extra": _picks(68, Purpose.ARRIVAL, low),
    },
}
"""The paddings make a person about 200 bytes, an auction 500 and a bid, as numbers, 100."""

_NAMES_OF_KINDS = {
    "person": EventKind.PERSONS,
    "auction": EventKind.AUCTIONS,
    "bid": EventKind.BIDS,
}
"""What the columns of the mixed stream hold, in the order of `event_type`."""


def _fields_of(kind: EventKind, *, nullable: bool) -> "list[pa.Field[Any]]":
    columns = _COLUMNS[kind].items()
    return [pa.field(name, column, nullable=nullable) for name, (column, _) in columns]


_EVENT = [
    pa.field("event_type", pa.int32(), nullable=False),
    # The fields of a struct are null where the struct is, so they must be nullable.
    *(
        pa.field(name, pa.struct(_fields_of(kind, nullable=True)))
        for name, kind in _NAMES_OF_KINDS.items()
    ),
    pa.field(TIME_COLUMN, _INSTANT, nullable=False),
]
SCHEMAS = {
    EventKind.ALL: StreamSchema(pa.schema(_EVENT), TIME_COLUMN),
    **{
        kind: StreamSchema(pa.schema(_fields_of(kind, nullable=False)), TIME_COLUMN)
        for kind in _COLUMNS
    },
}
"""What is emitted. `event_type` is 0 for a person, 1 for an auction, 2 for a bid, as in the
benchmark's SQL; of the columns person, auction and bid two are null."""


def make_batch(
    config: NexmarkConfig, numbers: Numbers, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the rows of some events; all of them are of the config's kind."""
    if config.kind == EventKind.ALL:
        return _make_mixed(config, numbers, schema)
    return _make_plain(EventKind(config.kind), config, numbers, schema)


def _make_plain(
    kind: EventKind, config: NexmarkConfig, numbers: Numbers, schema: pa.Schema
) -> pa.RecordBatch:
    events = EventBatch(config, numbers)
    columns = [_COLUMNS[kind][name][1](events) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _make_mixed(
    config: NexmarkConfig, numbers: Numbers, schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows of all kinds: each is made by itself, then put where its events are."""
    persons, auctions, _ = config.proportions
    positions = numbers % sum(config.proportions)
    types = (positions >= persons).astype(np.int32) + (positions >= persons + auctions)
    times = pa.array(EventBatch(config, numbers).instants()).view(_INSTANT)
    columns: dict[str, _Array] = {"event_type": pa.array(types), TIME_COLUMN: times}
    for type_number, (name, kind) in enumerate(_NAMES_OF_KINDS.items()):
        if name in schema.names:
            is_kind = types == type_number
            rows = _make_plain(kind, config, numbers[is_kind], SCHEMAS[kind].arrow)
            places: Any = pa.array(np.cumsum(is_kind) - 1, mask=~is_kind)
            structs = rows.to_struct_array().take(places)
            columns[name] = structs.cast(schema.field(name).type)
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in schema.names], schema=schema
    )
