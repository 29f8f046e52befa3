"""The rows of Nexmark: what the columns of persons, auctions and bids hold.

Vectorised, a batch of events at a time, and only the columns that are asked for. Names,
places, prices and the sizes of rows are those of the standard generator.

Nexmark events by number: when they happen, and whom and what they refer to.

References follow the standard generator, which needs no memory of what was generated: the
number of an event tells how many people and auctions there are by then.

    a bid's auction    1 in `hot_auction_ratio`: any of the last `in_flight_auctions` ones;
                       otherwise the first one of the latest hundred
    a bid's bidder     1 in `hot_bidder_ratio`: any of the last `active_people`;
                       otherwise the second one of the latest hundred
    a seller           1 in `hot_seller_ratio`: any of the last `active_people`;
                       otherwise the first one of the latest hundred
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.connectors.nexmark.config import SCHEMAS, EventKind, NexmarkConfig
from penstock.connectors.nexmark.draws import (
    Bits,
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

FIRST_ID = 1_000
"""Of people and of auctions."""
ID_LEAD = 10
"""References may be to so many ids that come later, as if events had been swapped."""
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

    def texts(self, purpose: Purpose, template: str) -> pa.StringArray:
        """Return a random text for each event."""
        return write_texts(self.config.seed, purpose, self.numbers, template)

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
        last = self._last_ids(self.config.proportions[1])
        first = np.maximum(last - self.config.in_flight_auctions, 0)
        cold = first + scale(bits, last - first + (1 + ID_LEAD))
        is_hot = scale(high(self.words(Purpose.HOTNESS)), self.config.hot_auction_ratio) > 0
        return np.where(is_hot, last // _HOT_GROUP * _HOT_GROUP, cold) + FIRST_ID

    def bidders(self) -> Numbers:
        """Return the people who bid."""
        hotness = low(self.words(Purpose.HOTNESS))
        return self._people(hotness, self.config.hot_bidder_ratio, hot_index=1)

    def sellers(self) -> Numbers:
        """Return the people whose auctions they are."""
        hotness = high(self.words(Purpose.HOTNESS))
        return self._people(hotness, self.config.hot_seller_ratio, hot_index=0)

    def _people(self, hotness: Bits, ratio: int, *, hot_index: int) -> Numbers:
        bits = low(self.words(Purpose.REFERENCES))
        if self.config.bidders is not None:
            return scale(bits, self.config.bidders) + FIRST_ID
        last = self._last_ids(self.config.proportions[0])
        active = np.minimum(last + 1, self.config.active_people)
        cold = last + 1 - active + scale(bits, active + ID_LEAD)
        hot = last // _HOT_GROUP * _HOT_GROUP + hot_index
        return np.where(scale(hotness, ratio) > 0, hot, cold) + FIRST_ID

    def _last_ids(self, per_group: int) -> Numbers:
        """Return the last id, from 0, that each event's group creates."""
        return self._groups * per_group + (per_group - 1)


_Array: TypeAlias = "pa.Array[Any]"
_Column: TypeAlias = Callable[[EventBatch], _Array]

_FIRST_CATEGORY_ID, _CATEGORIES = 10, 5
_CHANNELS = 10_000
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
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


def make_batch(
    config: NexmarkConfig, numbers: Numbers, schema: pa.Schema
) -> pa.RecordBatch:
    """Return the rows of some events; all of them are of the config's kind."""
    kind = EventKind(config.kind)
    if kind is EventKind.ALL:
        return _make_mixed(config, numbers, schema)
    return _make_plain(kind, config, numbers, schema)


def _make_plain(
    kind: EventKind, config: NexmarkConfig, numbers: Numbers, schema: pa.Schema
) -> pa.RecordBatch:
    events = EventBatch(config, numbers)
    columns = [_COLUMNS[kind][name](events) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _make_mixed(
    config: NexmarkConfig, numbers: Numbers, schema: pa.Schema
) -> pa.RecordBatch:
    """Return rows of all kinds: each is made by itself, then put where its events are."""
    persons, auctions, _ = config.proportions
    positions = numbers % sum(config.proportions)
    types = (positions >= persons).astype(np.int32) + (positions >= persons + auctions)
    columns: dict[str, _Array] = {
        "event_type": pa.array(types),
        "date_time": _date_time(EventBatch(config, numbers)),
    }
    for type_number, (name, kind) in enumerate(
        (
            ("person", EventKind.PERSONS),
            ("auction", EventKind.AUCTIONS),
            ("bid", EventKind.BIDS),
        )
    ):
        if name in schema.names:
            is_kind = types == type_number
            rows = _make_plain(kind, config, numbers[is_kind], SCHEMAS[kind].schema)
            columns[name] = _spread(rows, is_kind).cast(schema.field(name).type)
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in schema.names], schema=schema
    )


def _spread(rows: pa.RecordBatch, places: Any) -> _Array:
    """Return rows as structs where `places` is true, in order, and nulls elsewhere."""
    indices: Any = pa.array(np.cumsum(places) - 1, mask=~places)
    return rows.to_struct_array().take(indices)


def _date_time(events: EventBatch) -> _Array:
    return _to_instants(events.instants())


def _to_instants(micros: Numbers) -> _Array:
    return pa.array(micros).view(pa.timestamp("us"))


def _pick(pool: _Array, bits: Bits) -> _Array:
    return pool.take(scale(bits, len(pool)))


def _padding(mean_length: int) -> _Column:
    def make(events: EventBatch) -> _Array:
        return _pick(text_pool(mean_length), low(events.words(Purpose.ARRIVAL)))

    return make


def _initial_bids(events: EventBatch) -> Numbers:
    return to_prices(high(events.words(Purpose.AMOUNTS)))


def _reserves(events: EventBatch) -> Numbers:
    return _initial_bids(events) + to_prices(low(events.words(Purpose.AMOUNTS)))


def _expires(events: EventBatch) -> _Array:
    """Let auctions run until about `in_flight_auctions` more have begun."""
    config = events.config
    ahead = config.in_flight_auctions * sum(config.proportions) // config.proportions[1]
    bound = min(max(1, 2 * ahead), _LARGEST_BOUND)
    lengths = scale(low(events.words(Purpose.CATEGORY)), bound)
    return _to_instants(events.instants() + _MILLISECOND + events.spans(lengths))


def _categories(events: EventBatch) -> Numbers:
    return scale(high(events.words(Purpose.CATEGORY)), _CATEGORIES) + _FIRST_CATEGORY_ID


def _channel(names_or_urls: int) -> _Column:
    def make(events: EventBatch) -> _Array:
        bits = low(events.words(Purpose.AMOUNTS))
        # Every second bid comes through one of the hot channels, the first of the pool.
        cold = scale(bits, 2 * _CHANNELS)
        indices = np.where(cold < _CHANNELS, cold + len(_HOT_CHANNELS), cold % 4)
        return _channel_pools()[names_or_urls].take(indices)

    return make


@cache
def _channel_pools() -> tuple[_Array, _Array]:
    """Return the names of all channels and their addresses; the hot channels come first."""
    names = [*_HOT_CHANNELS, *(f"channel-{number}" for number in range(_CHANNELS))]
    urls = [_URL] * len(_HOT_CHANNELS)
    urls += [f"{_URL}&channel_id={number}" for number in range(_CHANNELS)]
    return pa.array(names), pa.array(urls)


def _numbers(make: Callable[[EventBatch], Numbers]) -> _Column:
    return lambda events: pa.array(make(events))


_COLUMNS: dict[EventKind, dict[str, _Column]] = {
    EventKind.PERSONS: {
        "id": _numbers(EventBatch.person_ids),
        "name": lambda events: _pick(_NAMES, high(events.words(Purpose.NAMES))),
        "email": lambda events: events.texts(Purpose.EMAIL, "???????@?????.com"),
        "credit_card": lambda events: events.texts(
            Purpose.CREDIT_CARD, "#### #### #### ####"
        ),
        "city": lambda events: _pick(_CITIES, high(events.words(Purpose.PLACES))),
        "state": lambda events: _pick(_STATES, low(events.words(Purpose.PLACES))),
        "date_time": _date_time,
        "extra": _padding(120),
    },
    EventKind.AUCTIONS: {
        "id": _numbers(EventBatch.auction_ids),
        "item_name": lambda events: events.texts(Purpose.ITEM_NAME, "?" * 20),
        "description": lambda events: _pick(
            text_pool(80), high(events.words(Purpose.DESCRIPTION))
        ),
        "initial_bid": _numbers(_initial_bids),
        "reserve": _numbers(_reserves),
        "date_time": _date_time,
        "expires": _expires,
        "seller": _numbers(EventBatch.sellers),
        "category": _numbers(_categories),
        "extra": _padding(350),
    },
    EventKind.BIDS: {
        "auction": _numbers(EventBatch.bid_auctions),
        "bidder": _numbers(EventBatch.bidders),
        "price": _numbers(lambda events: to_prices(high(events.words(Purpose.AMOUNTS)))),
        "channel": _channel(0),
        "url": _channel(1),
        "date_time": _date_time,
        "extra": _padding(68),
    },
}
"""The paddings make a person about 200 bytes, an auction 500 and a bid, as numbers, 100."""
