"""Refuses at the start, or before rows are staged, what would later keep an epoch from its commit.

An acknowledged epoch must be committed, so nothing that the topic does not take may get into
one. The check of a start changes nothing, but for an id of a transaction that is never used.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.connectors.kafka.output_records import (
    KEY,
    PARTITION,
    TIMESTAMP,
    record_sizes,
)
from penstock.connectors.kafka.output_topics import OutputTopic, OutputTopics
from penstock.errors import ErrorCode, UserError

_FRAME_BYTES = 128
"""What frames a batch of records in a topic."""
_SECONDS = 20.0


def check_records(records: pa.RecordBatch, topic: OutputTopic, now_ms: int) -> str | None:
    """Return why the topic would not take one of the records, or None. Pure."""
    sizes = record_sizes(records)
    row = int(sizes.argmax())
    size_bytes, limit = int(sizes[row]) + _FRAME_BYTES, topic.max_message_bytes
    if size_bytes > limit:
        key = records.column(KEY)[row].as_py()
        shown = "without a key" if key is None else f"with the key {key[:80]!r}"
        return (
            f"one {shown} takes {size_bytes} bytes, and the topic takes at most {limit}: raise "
            "max.message.bytes of the topic, or send less"
        )
    names = records.schema.names
    if PARTITION in names:
        last: Any = pc.max(records.column(PARTITION))
        if last.is_valid and last.as_py() >= topic.partitions:
            return (
                f"partition= gives {last.as_py()}, and the topic has the partitions 0 to "
                f"{topic.partitions - 1}"
            )
    if TIMESTAMP in names and topic.future_millis is not None:
        latest: Any = pc.max(records.column(TIMESTAMP))
        if latest.is_valid and latest.as_py() > now_ms + topic.future_millis:
            return (
                f"timestamp= gives an instant {(latest.as_py() - now_ms) // 1000} s in the "
                "future, and the topic takes at most "
                f"{topic.future_millis // 1000} s: raise message.timestamp.after.max.ms of the "
                "topic, or leave timestamp= out"
            )
    return None


def check_output_topic(
    clients: KafkaClients,
    topic: str,
    *,
    may_create: tuple[int, int] | None,
    markers: str | None,
    shards: int,
    transactional_id: str,
    timeout_ms: int,
) -> None:
    """Refuse a start whose records could not be written.

    `may_create` is the number of partitions and replicas of a topic that is absent; None if
    it must be there. `markers` is the marker topic, None if there are no transactions.
    """
    topics = OutputTopics(clients)
    try:
        if topics.wait_for(topic) is None:
            if may_create is None:
                raise UserError(
                    f"there is no topic {topic!r} at {clients.servers}: create it, or let the "
                    "sink do so, create_topic=True",
                    code=ErrorCode.INVALID_CONFIG,
                    topic=topic,
                )
            partitions, replication = may_create
            topics.create(
                topic, partitions=partitions, replication=replication, only_validate=True
            )
        if markers is not None:
            topics.check_markers(markers, shards + 1)
            _check_transactions(clients, transactional_id, timeout_ms)
    finally:
        topics.close()


def _check_transactions(clients: KafkaClients, name: str, timeout_ms: int) -> None:
    """Refuse a start without the permission for transactions, or where they do not work."""
    from confluent_kafka import KafkaException

    reports = Reports()
    producer = clients.producer(
        reports, transactional_id=name, transaction_timeout_ms=timeout_ms
    )
    try:
        producer.init_transactions(_SECONDS)
    except KafkaException as error:
        raise to_error(
            error,
            f"transactions do not work at {clients.servers}: a transactional.id such as "
            f"{name!r} cannot be used. Permissions are needed for all that begin with "
            "'penstock.', and as many brokers as transaction.state.log.min.isr says",
            reports,
        ) from error
