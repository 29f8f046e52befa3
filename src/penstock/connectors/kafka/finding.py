"""PartitionFinder: which partitions are read, where each begins, and what brokers hold of them.

The driver asks it before every epoch. What a partition that is known goes on from is in the
state; where a new one begins is decided here, once in a run, and is in the state when the first
epoch with it counts.

A partition that does not answer, such as one that no broker leads, *waits*: it keeps its state,
nothing is known about its rows, and the others are read. Calls that ask for it take as long as
the client waits, so from then on it is asked for by calls of its own, whose answers are looked
at before the next epoch:

    it does not answer beside others that do      it waits, and a warning names it
    its own call is answered                      it is asked for with the others again
    none of those that are asked for answers      the epoch fails, to be tried again
    no epoch of the job has counted yet           likewise: all begin where `Start` says
"""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.connectors.kafka.offset_calls import HeldCall
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

_NOTHING_ASKED = HeldCall({}, {})
_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The partitions that have not ended, at some moment."""

    offsets: dict[str, PartitionOffset]
    """The position of each, by split."""
    held: dict[str, Held]
    """What is held of those that answer."""
    has_unbegun: bool
    """Whether new partitions, which are not among these, do not answer."""

    @property
    def waiting(self) -> tuple[str, ...]:
        """The splits that have a position and do not answer."""
        return tuple(sorted(self.offsets.keys() - self.held.keys()))


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
        self._waiting: set[Partition] = set()
        self._call = _NOTHING_ASKED
        """Asks for partitions that wait."""

    def begin_at(self, start: Start) -> None:
        """Begin elsewhere than the config says, if that is news."""
        if start != self._start:
            self._start, self._starts, self._has_begun = start, {}, False

    def release(self) -> None:
        """Forget the calls of a connection that is closed."""
        self._waiting, self._call = set(), _NOTHING_ASKED

    def look(self, known: Mapping[str, SplitState], now_micros: int) -> Found:
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
                f"{self._selection} matches no topic at {self._topics.calls.servers}, so there is "
                "nothing to read: correct it, or leave end= out to wait for topics",
                code=ErrorCode.INVALID_CONFIG,
            )
        asked = [*map(Partition.of_split, open_), *fresh]
        with self._topics.telling_of_deletion(open_):
            # In the first epoch none is left out: later it would not begin where it should.
            held = self._ask(asked) if known else self._topics.calls.held(asked)
        begun = [each for each in fresh if each.split in held]
        open_ |= self._begin(begun, found, held, is_first=not (known or self._has_begun))
        self._has_begun = True
        return Found(open_, held, has_unbegun=len(begun) < len(fresh))

    def _ask(self, partitions: Collection[Partition]) -> dict[str, Held]:
        """Return what is held of the partitions that answer; fail if none of them does."""
        self._waiting &= set(partitions)
        self._look_at_answers()
        asked = [each for each in partitions if each not in self._waiting]
        if not asked:
            # Nothing is left to go on with.
            asked = list(partitions)
        held, failed = self._topics.calls.find_held(asked)
        if failed and not held:
            raise next(iter(failed.values()))
        self._waiting = (self._waiting | failed.keys()) - {
            each for each in asked if each.split in held
        }
        if failed:
            error = next(iter(failed.values()))
            _log.warning(
                "%s. Until %s can be read, the other partitions are, and event time waits",
                error.message,
                ", ".join(sorted(each.split for each in failed)),
            )
        return held

    def _look_at_answers(self) -> None:
        """Wake partitions up that answer again, and ask for those that do not. Does not wait."""
        if not self._waiting or not self._call.is_done:
            return
        call, self._call = self._call, _NOTHING_ASKED
        held, failed = self._topics.calls.answers_to(call)
        awake = {
            each
            for each in self._waiting
            # What is forbidden by now is refused when it is asked for with the others.
            if each.split in held or isinstance(failed.get(each), UserError)
        }
        self._waiting -= awake
        if awake:
            names = ", ".join(sorted(each.split for each in awake))
            _log.info("brokers tell the offsets of %s again", names)
        if self._waiting:
            self._topics.calls.look_for_leaders(self._waiting)
            self._call = self._topics.calls.ask_held(self._waiting)

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
