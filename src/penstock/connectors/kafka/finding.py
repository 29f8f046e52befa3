"""PartitionFinder: which partitions are read, where each begins, and what brokers hold of them.

The driver asks it before every epoch. What a partition that is known goes on from is in the
state; where a new one begins is decided here, once in a run, and is in the state when the first
epoch with it counts.
"""

import logging
from collections.abc import Mapping

from penstock.connectors.kafka.positions import (
    Held,
    Partition,
    PartitionOffset,
    Selection,
    Start,
    check_decided,
    check_point,
)
from penstock.connectors.kafka.topics import Topic, Topics
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SplitState

_log = logging.getLogger(__name__)


class PartitionFinder:
    """Finds the partitions of one source. It lives as long as the driver's instance of that."""

    def __init__(
        self,
        topics: Topics,
        selection: Selection,
        start: Start,
        *,
        ends_at_latest: bool,
        discover_micros: int,
        continues_after_loss: bool,
    ) -> None:
        """Find partitions of `selection`; the rest is as the source's config has it."""
        self._topics = topics
        self._selection = selection
        self._given = self._start = start
        self._ends_at_latest = ends_at_latest
        self._discover_micros = discover_micros
        self._continues_after_loss = continues_after_loss
        self._names: tuple[str, ...] | None = None
        self._listed_at_micros = 0
        self._starts: dict[str, PartitionOffset] = {}
        """Where partitions begin that were found and of which no epoch has counted yet."""
        self._has_begun = False
        """Whether partitions that are found are new ones, which begin at their first offset."""

    def begin_at(self, start: Start) -> None:
        """Begin elsewhere than the config says, if that is news."""
        if start != self._start:
            self._start, self._starts, self._has_begun = start, {}, False

    def look(
        self, known: Mapping[str, SplitState], now_micros: int
    ) -> tuple[dict[str, PartitionOffset], dict[str, Held]]:
        """Return the positions of all partitions that have not ended, and what is held of them."""
        stored = {name: PartitionOffset(*state.offset) for name, state in known.items()}
        open_ = {name: each for name, each in stored.items() if not known[name].ended}
        found = self._topics.check_ids(open_)
        fresh: list[Partition] = []
        if not (self._ends_at_latest and known):
            found |= self._find_new(found, now_micros)
            fresh = [
                partition
                for topic in found.values()
                for partition in (Partition(topic.name, each) for each in topic.partitions)
                if partition.split not in stored
            ]
        if self._ends_at_latest and not (known or fresh):
            raise UserError(
                f"{self._selection} matches no topic at {self._topics.servers}, so there is "
                "nothing to read: correct it, or leave end= out to wait for topics",
                code=ErrorCode.INVALID_CONFIG,
            )
        asked = [*map(Partition.of_split, open_), *fresh]
        with self._topics.telling_of_deletion(open_):
            held = self._topics.held(asked)
        open_ |= self._begin(fresh, found, held, is_first=not (known or self._has_begun))
        self._has_begun = True
        return open_, held

    def _find_new(self, found: Mapping[str, Topic], now_micros: int) -> dict[str, Topic]:
        """Return the topics that are read besides those in `found`."""
        since = now_micros - self._listed_at_micros
        if self._names is None or not 0 <= since < self._discover_micros:
            self._names = self._topics.find(self._selection)
            self._listed_at_micros = now_micros
        asked = [name for name in self._names if name not in found]
        more = self._topics.describe(asked)
        if self._selection.pattern is None:
            for name in asked:
                if name not in more:
                    raise self._topics.missing(name)
        return more

    def _begin(
        self,
        fresh: list[Partition],
        topics: Mapping[str, Topic],
        held: Mapping[str, Held],
        *,
        is_first: bool,
    ) -> dict[str, PartitionOffset]:
        """Return where partitions begin. What was decided once in this run stays so."""
        wanted = [each for each in fresh if each.split not in self._starts]
        starts = {each.split: held[each.split].first for each in wanted}
        if is_first and wanted:
            starts = self._topics.starts(self._start, wanted, held)
            check_decided(self._start, starts, held)
            if self._start is not self._given:
                self._check_point(starts, held)
            if self._start.reads_all:
                starts = {split: held[split].first for split in starts}
        for each in wanted:
            end = held[each.split].end if self._ends_at_latest else None
            at = starts[each.split]
            if not 0 <= at <= held[each.split].end:
                raise UserError(
                    f"start= says offset {at} for {each.split}, which ends at "
                    f"{held[each.split].end}: give one that is there, or 'latest'",
                    code=ErrorCode.INVALID_CONFIG,
                    split=each.split,
                )
            topic_id = topics[each.topic].topic_id
            self._starts[each.split] = PartitionOffset(topic_id, at, end=end)
        return {each.split: self._starts[each.split] for each in fresh}

    def _check_point(self, starts: Mapping[str, int], held: Mapping[str, Held]) -> None:
        """Refuse a hand-over point that is not held, unless the user accepts the loss."""
        try:
            check_point(self._start, starts, held)
        except UserError as error:
            if error.code != ErrorCode.INPUT_LOST or not self._continues_after_loss:
                raise
            _log.warning("%s. The job goes on with what is left", error.message)
