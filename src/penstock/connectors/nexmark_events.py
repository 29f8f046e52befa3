"""Nexmark events by number: when they happen, and whom and what they refer to.

References follow the standard generator, which needs no memory of what was generated: the
number of an event tells how many people and auctions there are by then.

    a bid's auction    1 in `hot_auction_ratio`: any of the last `in_flight_auctions` ones;
                       otherwise the first one of the latest hundred
    a bid's bidder     1 in `hot_bidder_ratio`: any of the last `active_people`;
                       otherwise the second one of the latest hundred
    a seller           1 in `hot_seller_ratio`: any of the last `active_people`;
                       otherwise the first one of the latest hundred
"""

import numpy as np
import pyarrow as pa

from penstock.connectors.nexmark_config import NexmarkConfig
from penstock.connectors.nexmark_draws import (
    Bits,
    Numbers,
    Purpose,
    draw,
    high,
    low,
    scale,
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
