"""Sends records to a topic: slices of a batch at a time, and says which record was refused.

The client library takes records one by one, or as a list of dictionaries, which costs half as
much and has room for key and value only. So plain records go as lists, others one by one. How
many wait in memory is bounded here: if the library's own queue overflowed in the middle of a
list, later records would overtake.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.connectors.kafka.client import to_error
from penstock.connectors.kafka.output_records import (
    HEADERS,
    KEY,
    PARTITION,
    TIMESTAMP,
    VALUE,
)
from penstock.connectors.kafka.output_topics import OutputTopic
from penstock.errors import ErrorCode, ExternalError, PenstockError, UserError

SLICE_ROWS = 10_000
SLICE_BYTES = 8 << 20
_SLICES_WAITING = 4
"""How many slices may wait to be sent before the next one is made."""
_LARGEST_BYTES = 1_000_000_000
"""The most that the client library sends as one record."""
_ANY_PARTITION = -1
_NOW = 0

_REFUSED = {
    "MSG_SIZE_TOO_LARGE": "it is larger than the topic takes: raise max.message.bytes of the "
    "topic, or send less",
    "INVALID_TIMESTAMP": "the topic does not take its timestamp: change "
    "message.timestamp.after.max.ms or message.timestamp.before.max.ms of the topic, or leave "
    "timestamp= out",
    "INVALID_RECORD": "the topic does not take it: a compacted topic wants keys",
    "_UNKNOWN_PARTITION": "there is no such partition: correct the column that partition= names",
}

OWN_OPTIONS = frozenset(
    {
        "batch.size",
        "delivery.report.only.error",
        "enable.idempotence",
        "message.max.bytes",
        "partitioner",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""The options that are the sink's own: what a user gave would do nothing."""


def producer_options(topic: OutputTopic, partitioner: str) -> dict[str, Any]:
    """Return the options of a producer for a topic."""
    most = topic.max_message_bytes
    return {
        "partitioner": partitioner,
        # The limit of the topic may be raised while the producer is kept: the broker knows it.
        "message_max_bytes": _LARGEST_BYTES,
        # A whole batch of records must not be larger than the topic takes.
        "batch_size": min(1_000_000, most),
        "delivery_report_only_error": True,
        # How many records wait is bounded by `RecordSender`, to less than these.
        "queue_buffering_max_messages": 10 * SLICE_ROWS,
        "queue_buffering_max_kbytes": 1 << 20,
    }


class RecordRefusedError(Exception):
    """A record was not taken; `reason` is an error of the client library."""

    def __init__(self, topic: str, reason: Any, key: bytes | None) -> None:
        super().__init__(reason)
        self.topic, self.reason, self.key = topic, reason, key

    def to_error(self) -> PenstockError:
        """Return what it means to a user."""
        shown = "without a key" if self.key is None else f"with the key {self.key[:80]!r}"
        doing = f"a record {shown} could not be written to {self.topic!r}"
        why = _REFUSED.get(self.reason.name())
        if why is not None:
            return UserError(
                f"{doing}: {why} ({self.reason.str()})",
                code=ErrorCode.VALUE_OUT_OF_RANGE,
                topic=self.topic,
                kafka_error=self.reason.name(),
            )
        return to_error(self, doing)


class RecordSender:
    """Sends records through one producer. Used by one thread, as long as the producer."""

    def __init__(self, producer: Any, topic: str, *, timeout_s: float) -> None:
        self._producer = producer
        self._topic = topic
        self._timeout_s = timeout_s
        self._failed: tuple[Any, bytes | None] | None = None

    def send(self, records: Iterable[pa.RecordBatch]) -> int:
        """Hand records to the library, in their order; return how many."""
        sent = 0
        for batch in records:
            for piece in _slices(batch):
                self._wait_for_room(_full_rows(piece) * _SLICES_WAITING)
                if piece.schema.names == [KEY, VALUE]:
                    self._send_list(piece)
                else:
                    self._send_each(piece)
                sent += piece.num_rows
        return sent

    def flush(self) -> None:
        """Return when all records are acknowledged; raise `RecordRefusedError` if one was not taken."""
        # Not by polling: this sends at once what the library gathers.
        self._producer.flush(self._timeout_s)
        self._wait_for_room(0)

    def check(self) -> None:
        """Raise `RecordRefusedError` if a record was not taken."""
        if self._failed is not None:
            raise RecordRefusedError(self._topic, *self._failed)

    def _note(self, error: Any, message: Any) -> None:
        """Keep the first failure: this is called for failures only."""
        if error is not None and self._failed is None:
            self._failed = error, message.key()

    def _send_list(self, piece: pa.RecordBatch) -> None:
        keys, values = (column.to_pylist() for column in piece.columns)
        messages = [
            {"key": key, "value": value} for key, value in zip(keys, values, strict=True)
        ]
        count = self._producer.produce_batch(self._topic, messages, on_delivery=self._note)
        if count < len(messages):
            bad: Any = next(message for message in messages if "_error" in message)
            raise RecordRefusedError(self._topic, bad["_error"], bad["key"])

    def _send_each(self, piece: pa.RecordBatch) -> None:
        from confluent_kafka import KafkaException

        produce, topic, note = self._producer.produce, self._topic, self._note
        for key, value, headers, timestamp, partition in _rows(piece):
            try:
                produce(
                    topic,
                    value,
                    key,
                    partition=partition,
                    headers=headers,
                    timestamp=timestamp,
                    on_delivery=note,
                )
            except KafkaException as error:
                raise RecordRefusedError(topic, error.args[0], key) from error

    def _wait_for_room(self, most: int) -> None:
        """Wait until at most so many records wait; some must get away meanwhile."""
        waiting, deadline = len(self._producer), time.monotonic() + self._timeout_s
        while True:
            self._producer.poll(0 if len(self._producer) <= most else 0.01)
            self.check()
            left = len(self._producer)
            if left <= most:
                return
            if left < waiting:
                waiting, deadline = left, time.monotonic() + self._timeout_s
            if time.monotonic() > deadline:
                raise ExternalError(
                    f"records for {self._topic!r} do not get through: {left} wait, and none was "
                    f"acknowledged for {self._timeout_s:g} s"
                )


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield pieces of about the same size: few rows, and few bytes."""
    pieces = max(1, -(-batch.nbytes // SLICE_BYTES), -(-batch.num_rows // SLICE_ROWS))
    step = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _full_rows(piece: pa.RecordBatch) -> int:
    """Return how many such records a whole slice has, however few are in this one."""
    return max(1, min(SLICE_ROWS, SLICE_BYTES * piece.num_rows // max(1, piece.nbytes)))


def _rows(piece: pa.RecordBatch) -> Iterator[tuple[Any, Any, Any, int, int]]:
    """Yield the parts of each record, with what the library takes for their absence."""
    count, names = piece.num_rows, piece.schema.names
    keys, values = piece.column(KEY).to_pylist(), piece.column(VALUE).to_pylist()
    headers: list[Any] = [None] * count
    if HEADERS in names:
        headers = [
            [(pair["name"], pair["value"]) for pair in pairs] if pairs else None
            for pairs in piece.column(HEADERS).to_pylist()
        ]
    timestamps: list[Any] = [_NOW] * count
    if TIMESTAMP in names:
        timestamps = piece.column(TIMESTAMP).fill_null(_NOW).to_pylist()
    partitions: list[Any] = [_ANY_PARTITION] * count
    if PARTITION in names:
        partitions = piece.column(PARTITION).fill_null(_ANY_PARTITION).to_pylist()
    return zip(keys, values, headers, timestamps, partitions, strict=True)
