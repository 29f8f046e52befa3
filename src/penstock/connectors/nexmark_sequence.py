"""The sequence of Nexmark events: which number is a person, an auction or a bid, and whose.

Events come in groups that repeat one pattern: `persons`, then `auctions`, then `bids`. Split
k of K takes the groups g with `g % K == k`, whole, so that every split has all kinds in the
same proportions and all splits move through event time together. Pure.

    group     0                1                2                3
    number    0 1 … 4 5 … 49   50 51 … 54 … 99  100 …            150 …
    kind      P A A A B … B    P A A A B … B    P A A A B … B    P A A A B … B
    split     0 (of 2)         1                0                1
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from penstock.connectors.nexmark_draws import Numbers


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
