"""What a sink has written to a topic, as a reader of committed records sees it."""

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from tests.builders.servers import a_topic

_admin: Any = kafka_admin
"""Its types are public, but are not marked so."""


@dataclass(frozen=True)
class Record:
    """A record that was read back."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp_ms: int


def an_output(
    servers: str, partitions: int = 3, *, copies: int = 1, **settings: str
) -> str:
    """Make a topic to write to; settings have underscores for dots."""
    name = a_topic("out")
    config = {key.replace("_", "."): value for key, value in settings.items()}
    wanted = _admin.NewTopic(name, partitions, copies, config=config)
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([wanted]).values():
        future.result(30)
    deadline = time.monotonic() + 30
    while admin.list_topics(name, 30).topics[name].error is not None:
        assert time.monotonic() < deadline
    return name


def read_output(
    servers: str, topic: str, *, isolation: str = "read_committed"
) -> list[Record]:
    """Return all records of a topic, those of a partition in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads-output",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        deadline = time.monotonic() + 30
        while (known := consumer.list_topics(topic, 30).topics[topic]).error is not None:
            # A topic that was just made is not known to all brokers at once.
            assert time.monotonic() < deadline, known.error
        waiting = set(known.partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in waiting])
        records = []
        while waiting:
            for message in consumer.consume(10_000, 0.02):
                error = message.error()
                if error is None:
                    records.append(_to_record(message))
                elif error.name() == "_PARTITION_EOF":
                    waiting.discard(message.partition())
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def _to_record(message: Any) -> Record:
    return Record(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers(),
        message.timestamp()[1],
    )
