"""PartitionReader: reads ranges of partitions with one consumer, which is kept between epochs.

How it works: partitions are assigned at explicit offsets; there is no subscription and nothing
is committed. The consumer fetches ahead on a thread of its own, so records behind the end of a
range arrive too. Where there are many, they are *held* for the next epoch, which usually goes on
where this one ended; only if it begins elsewhere is the partition assigned again, which costs a
round trip and what was fetched ahead. Where there are few, nothing is fetched between epochs.

A range is done when a record at or behind its end has come, or when the consumer says that it
is at the end of the partition and that is at or behind the end of the range. The offsets in
between may have no record: markers of transactions, aborted and compacted records.

*Silence* is measured by what is awaited. Records behind a range, and of partitions that only
stay assigned, are no sign that those are coming which the epoch reads:

    nothing awaited for 3 s     it is looked whether the topics are still there
    for 12 s                    the partitions are placed anew
    for 25 s                    the epoch ends with what has come, and fails if that is nothing
    a partition is mute         it is given up, so that the next epoch places it anew; and if it
                                is mute again, that opens another consumer
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import methodcaller
from typing import Any

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.connectors.kafka.fetched import Fetch, Range
from penstock.connectors.kafka.positions import Partition
from penstock.connectors.kafka.records import Piece
from penstock.errors import ExternalError, PenstockError

MESSAGES_PER_CALL = 400
"""How many messages one call takes: few, as they are looked at while they are in the cache."""
MOST_LEFT_ALONE = 10_000
"""How many records behind a range are left where they are until an epoch wants them."""
_POLL_SECONDS = 0.02
"""How long a call waits for messages; it returns earlier if as many came as are awaited."""
_STALLED_SECONDS = 3.0
"""How long nothing may come before it is looked whether the topics are still there."""
_ANEW_SECONDS = 12.0
"""How long nothing may come before the brokers are asked anew. What is under way is dropped
then, so a slow line must have brought it by now: see `fetch.max.bytes`."""
_PATIENCE_SECONDS = 25.0
"""How long nothing may come before the epoch ends, or fails if nothing came at all."""
_partition_of, _topic_of = map(methodcaller, ("partition", "topic"))
_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")
_GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")
_log = logging.getLogger(__name__)

_OPTIONS = {
    "enable_partition_eof": True,
    "enable_auto_commit": False,
    "enable_auto_offset_store": False,
    "auto_offset_reset": "error",
    "isolation_level": "read_committed",
    "allow_auto_create_topics": False,
}
"""What reading ranges rests on."""
OWN_OPTIONS = frozenset({name.replace("_", ".") for name in _OPTIONS})
"""The options that are the reader's own."""
_TUNED = {
    # How long a fetch waits at the end of a partition. It is also how long it takes to learn
    # that the rest of a range has no records, and to begin elsewhere.
    "fetch.wait.max.ms": 50,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 5,
    # Of one partition, and of all in one answer: small enough for a line of 1 MB/s.
    "fetch.message.max.bytes": 1 << 20,
    "fetch.max.bytes": 8 << 20,
    # More would be fetched sooner than it is used, and leave the cache meanwhile.
    "queued.min.messages": 20_000,
    "socket.receive.buffer.bytes": 1 << 20,
    "reconnect.backoff.max.ms": 1_000,
}


class PartitionReader:
    """Reads ranges. Used by one thread; after an error it is closed and opens anew."""

    def __init__(self, clients: KafkaClients, kinds: Collection[str] = ()) -> None:
        """Make a reader; `kinds` is what to gather of records besides values and offsets."""
        self._clients = clients
        self._kinds = tuple(kinds)
        self._consumer: Any = None
        self._fetches: dict[Partition, Fetch] = {}
        self._reports = Reports()
        self._mute: set[Partition] = set()
        """Partitions that gave nothing in the last epoch that awaited any of them."""

    def read(
        self,
        ranges: Mapping[Partition, Range],
        *,
        kept: Sequence[Partition] = (),
        on_gone: Callable[[Partition, int], int],
        on_stall: Callable[[], None],
        is_late: Callable[[], bool] = lambda: False,
    ) -> Iterator[Piece]:
        """Yield the records of the ranges, in order within each partition.

        `kept` are partitions without rows in this epoch that stay assigned. `on_gone` is
        called with a partition and the offset that the brokers do not hold; it returns the
        one to go on at, or raises. `on_stall` is called when nothing comes; it may raise.
        Once `is_late` says so, what has come of each partition is all there is. So it is after
        a long silence; a warning names the partitions that are mute.
        """
        try:
            self._assign(ranges, kept)
            yield from self._read(dict(ranges), on_gone, on_stall, is_late)
        except GeneratorExit:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the consumer; the next epoch opens another."""
        consumer, self._consumer = self._consumer, None
        self._fetches.clear()
        if consumer is not None:
            consumer.close()

    def _read(
        self,
        pending: dict[Partition, Range],
        on_gone: Callable[[Partition, int], int],
        on_stall: Callable[[], None],
        is_late: Callable[[], bool],
    ) -> Iterator[Piece]:
        quiet_since = looked_at = asked_at = time.monotonic()
        has_given = is_silent = False
        awaited = self._count_awaited(pending)
        while True:
            late = is_silent or is_late()
            for piece in self._hand_out(pending, late=late):
                has_given = True
                yield piece
            # As long as nothing came at all, there is nothing to go on from: it is waited for
            # until that counts as a failure.
            if not pending or (late and has_given):
                self._rest(pending)
                self._leave(pending, is_silent=is_silent)
                return
            if is_silent:
                raise self._silent(pending)
            self._place(
                {
                    partition: replace(self._fetches[partition])
                    for partition in pending
                    if self._fetches[partition].can_be_resumed
                }
            )
            messages = self._consumer.consume(
                min(awaited, MESSAGES_PER_CALL), _POLL_SECONDS
            )
            if messages:
                self._reports.note_answer()
            now = time.monotonic()
            self._sort(messages, pending, on_gone, on_stall)
            # Python would look for garbage among these and the next ones, which takes a tenth
            # of the time: it does once there are 700 objects more than before.
            del messages
            before, awaited = awaited, self._count_awaited(pending)
            if awaited < before:
                quiet_since = looked_at = asked_at = now
            elif now - quiet_since >= _PATIENCE_SECONDS:
                is_silent = True
            elif now - asked_at >= _ANEW_SECONDS:
                asked_at = now
                self._place({each: replace(self._fetches[each]) for each in pending})
            elif now - looked_at >= _STALLED_SECONDS:
                looked_at = now
                on_stall()

    def _count_awaited(self, pending: Mapping[Partition, Range]) -> int:
        """Return how many offsets of the ranges are neither here nor passed over."""
        return sum(
            # One that waits for its turn may be ahead.
            max(0, each.end - self._fetches[partition].fetched)
            for partition, each in pending.items()
        )

    def _hand_out(self, pending: dict[Partition, Range], *, late: bool) -> Iterator[Piece]:
        """Yield what there is, and take partitions from `pending` that are done.

        It is one partition after the other, in the order of the plan: a replay gives the rows
        in the same order, whichever records come first.
        """
        for partition in list(pending):
            fetch = self._fetches[partition]
            if fetch.fetched < fetch.end and not fetch.is_large and not late:
                return
            before, chunks = fetch.handed, fetch.take()
            is_done = fetch.handed == fetch.end
            if is_done:
                del pending[partition]
            if is_done or fetch.handed > before:
                self._mute.discard(partition)
                yield Piece(partition, chunks, fetch.handed)
            if not is_done and not late:
                return

    def _sort(
        self,
        messages: list[Any],
        pending: Collection[Partition],
        on_gone: Callable[[Partition, int], int],
        on_stall: Callable[[], None],
    ) -> None:
        """Take messages, by partition, and what they tell."""
        failed: list[Any] = []
        # The methods of the class: a fourth of what it takes to call them by name.
        if messages and any(map(type(messages[0]).error, messages)):
            failed = [message for message in messages if message.error() is not None]
            messages = [message for message in messages if message.error() is None]
        for partition, run in self._by_partition(messages):
            fetch = self._fetches.get(partition)
            # What was fetched before a partition was given up may still come.
            if fetch is None or fetch.is_paused:
                continue
            fetch.add(run, self._kinds)
            if fetch.holds_much:
                self._pause(partition)
        for partition, told in groupby(failed, _full_name_of):
            self._handle(partition, list(told), pending, on_gone, on_stall)

    def _by_partition(
        self, messages: list[Any]
    ) -> Iterator[tuple[Partition, Sequence[Any]]]:
        """Yield runs of messages of the same partition."""
        if not messages:
            return
        first = Partition(messages[0].topic(), messages[0].partition())
        numbers = set(map(type(messages[0]).partition, messages))
        is_one_topic = len({partition.topic for partition in self._fetches}) == 1
        if is_one_topic and first in self._fetches and len(numbers) == 1:
            yield first, messages
            return
        for topic, of_topic in groupby(messages, _topic_of):
            for number, run in groupby(of_topic, _partition_of):
                yield Partition(topic, number), list(run)

    def _handle(
        self,
        partition: Partition,
        failed: Sequence[Any],
        pending: Collection[Partition],
        on_gone: Callable[[Partition, int], int],
        on_stall: Callable[[], None],
    ) -> None:
        """Note the end of a partition, and deal with its errors."""
        fetch = self._fetches.get(partition)
        # Of a partition that is paused messages were dropped: its end tells nothing.
        if fetch is None or fetch.is_paused:
            return
        for message in failed:
            error = message.error()
            if error.name() == "_PARTITION_EOF":
                fetch.fetched = max(fetch.fetched, message.offset())
            elif error.name() in _GONE:
                if partition in pending and fetch.fetched < fetch.end:
                    # Behind the end nothing is passed over: whether that is gone, too, is asked
                    # when it is planned, and another leader may hold it then.
                    fetch.fetched = min(on_gone(partition, fetch.fetched), fetch.end)
                if partition in pending and fetch.fetched < fetch.end:
                    self._place({partition: replace(fetch)})
                else:
                    self._pause(partition)
                return  # what follows was told of before
            else:
                on_stall()  # tells if the topic is another one
                from confluent_kafka import KafkaException

                failure = KafkaException(error)
                raise _failure_of(partition, failure) from failure

    def _assign(self, ranges: Mapping[Partition, Range], kept: Sequence[Partition]) -> None:
        """Have the consumer read what is wanted, from where it is wanted, and nothing else."""
        if self._consumer is None:
            self._reports = Reports()
            self._consumer = self._clients.consumer(self._reports, _TUNED, **_OPTIONS)
        self._give_up(self._fetches.keys() - ranges.keys() - set(kept))
        self._mute &= ranges.keys() | set(kept)
        anew: dict[Partition, Fetch] = {}
        for partition, wanted in ranges.items():
            known = self._fetches.get(partition)
            if known is None or not known.can_go_on(wanted):
                anew[partition] = Fetch(wanted.start, wanted.start, wanted.end)
            else:
                known.begin(wanted.end)
        self._place(anew)

    def _rest(self, pending: Collection[Partition]) -> None:
        """Stop fetching ahead where little is there to fetch, and nothing of this epoch is left.

        A consumer at the end of a partition would ask again for each record that comes, a
        thousand times a second, for as long as the next epoch is not there. And that may be
        given to another process.
        """
        few = []
        for partition, fetch in self._fetches.items():
            if partition in pending:
                continue
            # What the last fetch told: -1001 if there was none.
            known = self._consumer.get_watermark_offsets(_to_client(partition), cached=True)
            if known is None or known[1] - fetch.handed < MOST_LEFT_ALONE:
                few.append(partition)
        self._give_up(few)

    def _leave(self, pending: Mapping[Partition, Range], *, is_silent: bool) -> None:
        """Have the next epoch ask anew for partitions that gave nothing, and say which.

        A late epoch may leave partitions behind that are only slow: what is under way of them
        stays so.
        """
        mute = {
            partition
            for partition, each in pending.items()
            if is_silent or self._fetches[partition].handed == each.start
        }
        news = mute - self._mute
        if news:
            _log.warning(
                "nothing comes of %s: the epoch ends without it. It is asked for again in every "
                "epoch, and event time waits for it. Can this machine reach its leader?%s",
                _name(news),
                self._reports,
            )
        if mute & self._mute:
            self.close()
        else:
            self._give_up(mute)
        self._mute |= mute

    def _place(self, fetches: Mapping[Partition, Fetch]) -> None:
        """Have partitions fetched from where it is said; what was fetched ahead is dropped."""
        if not fetches:
            return
        self._give_up(self._fetches.keys() & fetches.keys())
        self._consumer.incremental_assign(
            [_to_client(partition, fetch.fetched) for partition, fetch in fetches.items()]
        )
        for partition, fetch in fetches.items():
            fetch.is_paused = False
            self._fetches[partition] = fetch

    def _pause(self, partition: Partition) -> None:
        """Have nothing more come of a partition before an epoch awaits it."""
        self._consumer.pause([_to_client(partition)])
        self._fetches[partition].is_paused = True

    def _give_up(self, partitions: Collection[Partition]) -> None:
        if not partitions:
            return
        dropped = {partition: self._fetches.pop(partition) for partition in partitions}
        paused = [_to_client(each) for each, fetch in dropped.items() if fetch.is_paused]
        if paused:
            # They would stay paused if they are assigned anew.
            self._consumer.resume(paused)
        self._consumer.incremental_unassign([_to_client(each) for each in dropped])

    def _silent(self, pending: Mapping[Partition, Range]) -> PenstockError:
        first = min(pending)
        awaited = self._fetches[first].fetched
        silence = TimeoutError(
            f"no broker gave offset {awaited} in {_PATIENCE_SECONDS:g} s"
        )
        doing = f"{first.split} cannot be read at {self._clients.servers}"
        return to_error(silence, doing, self._reports)


def _name(partitions: Collection[Partition]) -> str:
    """Return the names of partitions, of many only the first."""
    names = [each.split for each in sorted(partitions)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _failure_of(partition: Partition, failure: Exception) -> PenstockError:
    """Return what a failure means that is told of a partition whose topic is there."""
    doing, error = f"{partition.split} cannot be read", failure.args[0]
    if error.name() in _UNKNOWN:
        # A new partition is not known to all brokers at once.
        return ExternalError(f"{doing}: {error}", kafka_error=error.name())
    return to_error(failure, doing)


def _full_name_of(message: Any) -> Partition:
    return Partition(message.topic(), message.partition())


def _to_client(partition: Partition, offset: int | None = None) -> Any:
    from confluent_kafka import TopicPartition

    if offset is None:
        return TopicPartition(partition.topic, partition.number)
    return TopicPartition(partition.topic, partition.number, offset)
