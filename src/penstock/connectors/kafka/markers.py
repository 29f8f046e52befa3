"""Markers: records that say which epoch of a shard was committed last, in the same transaction.

    marker topic   compacted, a partition per shard
    key            {job}/{identity}/{step}/{shard}
    value          {"epoch": 7, …}

Whoever finds a marker of an epoch, or of a later one, knows that the epoch's records are in the
topic. That it finds none proves nothing unless it has called `init_transactions` before: until
then another attempt may be about to commit.

Reading goes up to the *high watermark*. The last stable offset, which a client that reads only
what is committed is told as the end, lies before any open transaction of the partition. Another
job that shares the topic may have one, and a marker of this sink behind it. So the end is asked
for by a client that reads everything, and the reader waits until it has come that far.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.connectors.kafka.client import KafkaClients, to_error
from penstock.connectors.kafka.positions import MARKERS
from penstock.core.ids import TaskInfo
from penstock.errors import CorruptStateError, ErrorCode, ExternalError

TAIL = 64
"""How many offsets before the end are looked at first; a marker takes two."""


class Marker(msgspec.Struct, frozen=True):
    """The value of a marker."""

    epoch: int
    topic: str
    """Where the records of the transaction are, for people."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class MarkerPlace:
    """Where the markers of one shard are. Pure."""

    topic: str
    partition: int
    key: bytes


def marker_topic_of(task: TaskInfo) -> str:
    """Return the marker topic of a sink, unless the user names another.

    A name of Kafka has at most 249 characters. Of a longer one the end of both names is cut:
    sinks that then share a topic wait for each other, and confuse nothing.
    """
    return f"{MARKERS}{task.job[:110]}.{task.operator[:110]}"


def marker_place(topic: str, task: TaskInfo, identity: str, shard: int) -> MarkerPlace:
    """Return where the markers of a shard are."""
    return MarkerPlace(
        topic, shard, f"{task.job}/{identity}/{task.operator}/{shard}".encode()
    )


def transactional_id(task: TaskInfo, identity: str, shard: int) -> str:
    """Return the id that all attempts at a shard share, of this job alone."""
    return f"penstock.{task.job}.{task.operator}.{identity}.{shard}"


def encode_marker(epoch: int, topic: str) -> bytes:
    """Return the value of a marker."""
    return msgspec.json.encode(Marker(epoch, topic))


def last_epoch_of(records: Iterable[tuple[bytes | None, bytes | None]], key: bytes) -> int:
    """Return the highest epoch that markers of this key tell; 0 if there is none. Pure."""
    last = 0
    for found, value in records:
        if found != key or value is None:
            continue
        try:
            marker = msgspec.json.decode(value, type=Marker)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptStateError(
                f"the marker topic holds a record with the key {key!r} that is no marker: "
                f"{error}. Something else writes to the topic: keep it away",
                code=ErrorCode.UNDECODABLE,
            ) from error
        last = max(last, marker.epoch)
    return last


def read_marker(
    clients: KafkaClients,
    place: MarkerPlace,
    *,
    timeout_s: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Return the last epoch that is marked as committed; 0 if there is none.

    The newest markers are at the end, so reading begins a little before it, and further back
    only if there is none of this key.
    """
    from confluent_kafka import KafkaException

    plain = clients.consumer(isolation_level="read_uncommitted")
    try:
        first, end = plain.get_watermark_offsets(_to_client(place), timeout=timeout_s)
    except KafkaException as error:
        raise to_error(error, _doing(place)) from error
    finally:
        plain.close()
    if first >= end:
        return 0
    reader = _open_reader(clients)
    try:
        return _find_last(reader, place, (first, end), monotonic() + timeout_s, monotonic)
    finally:
        reader.close()


def read_decided(
    clients: KafkaClients, places: Iterable[MarkerPlace], *, timeout_s: float
) -> int:
    """Return the last epoch that one of these places is known to have; 0 if there is none.

    It waits for no transaction that is open: another marker may follow.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + timeout_s
    reader = _open_reader(clients)
    last = 0
    try:
        for place in places:
            try:
                held = reader.get_watermark_offsets(_to_client(place), timeout=timeout_s)
            except KafkaException as error:
                raise to_error(error, _doing(place)) from error
            if held[0] < held[1]:
                found = _find_last(reader, place, held, deadline, time.monotonic)
                last = max(last, found)
    finally:
        reader.close()
    return last


def _open_reader(clients: KafkaClients) -> Any:
    return clients.consumer(
        isolation_level="read_committed",
        enable_partition_eof=True,
        fetch_wait_max_ms=10,
        auto_offset_reset="earliest",
    )


def _find_last(
    reader: Any,
    place: MarkerPlace,
    held: tuple[int, int],
    deadline: float,
    monotonic: Callable[[], float],
) -> int:
    """Return the last epoch among the offsets that a partition holds; 0 if there is none."""
    from confluent_kafka import KafkaException

    (first, end), length = held, TAIL
    while True:
        start = max(first, end - length)
        try:
            reader.assign([_to_client(place, start)])
            records = _read_to(reader, end, deadline, monotonic, _doing(place))
            last = last_epoch_of(records, place.key)
        except KafkaException as error:
            raise to_error(error, _doing(place)) from error
        if last or start <= first:
            return last
        length *= 16


def _doing(place: MarkerPlace) -> str:
    return f"the markers in partition {place.partition} of {place.topic!r} cannot be read"


def _to_client(place: MarkerPlace, offset: int = 0) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(place.topic, place.partition, offset)


def _read_to(
    reader: Any, end: int, deadline: float, monotonic: Callable[[], float], doing: str
) -> Iterable[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of what is committed, until everything before `end` was seen."""
    from confluent_kafka import KafkaException

    while True:
        message = reader.poll(0.5)
        if message is None:
            if monotonic() > deadline:
                raise ExternalError(
                    f"{doing}: its end was not reached in time. Another transaction may be open "
                    "there"
                )
            continue
        error = message.error()
        if error is None:
            yield message.key(), message.value()
            if message.offset() + 1 >= end:
                return
        elif error.name() == "_PARTITION_EOF":
            # The end of what is committed so far; behind the last record there are offsets of
            # the transactions themselves.
            if message.offset() >= end:
                return
        elif not error.retriable():
            raise KafkaException(error)
