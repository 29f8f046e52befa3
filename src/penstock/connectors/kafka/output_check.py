"""Refuses at the start, or before rows are staged, what would later keep an epoch from its commit.

An acknowledged epoch must be committed, so nothing that the topic does not take may get into
one. The check of a start changes nothing, but for an id of a transaction that is never used.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.connectors.kafka.markers import marker_place, read_decided
from penstock.connectors.kafka.output_records import (
    KEY,
    PARTITION,
    TIMESTAMP,
    record_sizes,
)
from penstock.connectors.kafka.output_topics import OutputTopic, OutputTopics
from penstock.errors import ErrorCode, StateError, UserError
from penstock.operators.context import StartContext

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
    if topic.is_compacted and records.column(KEY).null_count:
        return (
            "one has no key, and the topic is compacted, which takes records with keys alone: "
            "pass key=, or leave rows out whose key is null"
        )
    if PARTITION in names:
        last: Any = pc.max(records.column(PARTITION))
        if last.is_valid and last.as_py() >= topic.partitions:
            return (
                f"partition= gives {last.as_py()}, and the topic has the partitions 0 to "
                f"{topic.partitions - 1}"
            )
    return _check_times(records, topic, now_ms) if TIMESTAMP in names else None


def _check_times(records: pa.RecordBatch, topic: OutputTopic, now_ms: int) -> str | None:
    """Return why the topic would not take the timestamp of one of the records, or None."""
    times: Any = records.column(TIMESTAMP)
    first, last = pc.min(times).as_py(), pc.max(times).as_py()
    if first is None:
        return None
    past, future = topic.past_millis, topic.future_millis
    if past is not None and now_ms - first > past * 9 // 10:
        taken = f"at most {past // 1000} s, of which a tenth is left for what waits for its commit"
        return _misdated(now_ms - first, "past", taken, "before")
    if future is not None and last - now_ms > future:
        return _misdated(last - now_ms, "future", f"at most {future // 1000} s", "after")
    return None


def _misdated(millis: int, where: str, taken: str, setting: str) -> str:
    return (
        f"timestamp= gives an instant {millis // 1000} s in the {where}, and the topic takes "
        f"{taken}: raise message.timestamp.{setting}.max.ms of the topic "
        "(message.timestamp.difference.max.ms before Kafka 3.6), or leave timestamp= out"
    )


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
            topics.check_markers(markers, shards + 1, like=topic)
            _check_transactions(clients, transactional_id, timeout_ms)
    finally:
        topics.close()


def check_markers_known(
    clients: KafkaClients, topics: OutputTopics, markers: str, ctx: StartContext
) -> None:
    """Refuse a start whose checkpoints are older than what was committed; changes nothing.

    Somebody has put old checkpoints back. Epochs would get numbers for the second time, with
    other records, and be taken for committed.
    """
    partitions = topics.partitions_of(markers) or 0
    identity = str(ctx.identity)
    places = [
        marker_place(markers, ctx.task, identity, shard) for shard in range(partitions)
    ]
    # In this order: a driver that still runs acknowledges an epoch before it commits it.
    marked = read_decided(clients, places, timeout_s=_SECONDS) if places else 0
    last = ctx.read_last_epoch() if marked else 0
    if marked > last:
        job, step = str(ctx.task.job), str(ctx.task.operator)
        raise StateError(
            f"step {step!r} of job {job!r} has committed epoch {marked}, as the marker topic "
            f"{markers!r} tells, and the checkpoints know none after {last}: older ones were put "
            "back in their place. Nothing was changed. Name the checkpoints that belong to the "
            "topic; or give the step another name, which writes rows of the epochs after "
            f"{last} a second time",
            code=ErrorCode.FOREIGN_OBJECT,
            operator=step,
        )


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
