"""Topics for tests of Kafka's connectors: made, filled, emptied and deleted by one object."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

from confluent_kafka import (
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from tests.builders.servers import a_topic

_admin: Any = kafka_admin
"""Its types are public, but are not marked so."""


def wait_until(is_so: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is so, which takes a moment on a server."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to be so in time"
        time.sleep(0.02)


def done(futures: Any) -> list[Any]:
    """Wait for all answers of a call of the admin client."""
    return [future.result(30) for future in futures.values()]


@dataclass(frozen=True)
class TestTopic:
    """One topic of a broker."""

    __test__ = False

    servers: str
    name: str

    @classmethod
    def create(
        cls,
        servers: str,
        *,
        partitions: int = 1,
        copies: int = 1,
        name: str | None = None,
        **settings: str,
    ) -> Self:
        """Make a topic; settings have underscores for dots."""
        topic = cls(servers, name or a_topic())
        topic.make(partitions, copies, **settings)
        return topic

    def make(self, partitions: int = 1, copies: int = 1, **settings: str) -> None:
        """Make the topic, also one that was deleted."""
        given = {name.replace("_", "."): value for name, value in settings.items()}
        # Tests write records with timestamps of old, which retention would remove.
        config = {"retention.ms": "-1", **given}
        wanted = _admin.NewTopic(self.name, partitions, copies, config=config)
        done(self.admin.create_topics([wanted]))
        for partition in range(partitions):
            wait_until(partial(self._has_leader, partition))

    def make_again(self) -> None:
        """Delete the topic, and make another one of the same name."""
        self.delete()

        def is_made() -> bool:
            try:
                self.make()
            except KafkaException:  # the brokers are still deleting the old one
                return False
            return True

        wait_until(is_made)

    def configure(self, **settings: str) -> None:
        """Change settings of the topic; they have underscores for dots."""
        resource = _admin.ConfigResource(_admin.ConfigResource.Type.TOPIC, self.name)
        for name, value in settings.items():
            resource.add_incremental_config(
                _admin.ConfigEntry(
                    name.replace("_", "."),
                    value,
                    incremental_operation=_admin.AlterConfigOpType.SET,
                )
            )
        done(self.admin.incremental_alter_configs([resource]))

    def _has_leader(self, partition: int) -> bool:
        try:
            return self.end(partition) >= 0
        except KafkaException:
            return False

    @property
    def _plain(self) -> dict[str, Any]:
        # A topic that was deleted must not come back because somebody asks about it.
        return {"bootstrap.servers": self.servers, "allow.auto.create.topics": False}

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self._plain)

    @cached_property
    def producer(self) -> Producer:
        return Producer({**self._plain, "linger.ms": 0})

    def produce(
        self,
        values: Iterable[bytes | None],
        partition: int = 0,
        key: Callable[[int], bytes | None] = lambda _: None,
        **options: Any,
    ) -> None:
        """Write records, in order, and wait until they are there."""
        self._send(self.producer, values, partition, key, options)

    def produce_dealt(
        self, rows: Iterable[Any], numbers: Iterable[int], partitions: int
    ) -> None:
        """Write rows as JSON, each to the partition that its number says."""
        dealt = [*zip(rows, numbers, strict=True)]
        for partition in range(partitions):
            values = [
                json.dumps(row, default=lambda time: time.isoformat()).encode()
                for row, number in dealt
                if number % partitions == partition
            ]
            self.produce(values, partition)

    def transact(
        self, values: Sequence[bytes], partition: int = 0, *, commits: bool = True
    ) -> None:
        """Write records in one transaction, which leaves a marker behind them."""
        producer = self._transactional
        producer.begin_transaction()
        self._send(producer, values, partition, lambda _: None, {})
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()

    def open_transaction(self, values: Sequence[bytes], partition: int = 0) -> Producer:
        """Write records in a transaction that is left open; whoever gets it ends it."""
        producer = self._new_transactional(f"{self.name}-open")
        producer.begin_transaction()
        self._send(producer, values, partition, lambda _: None, {})
        return producer

    def first(self, partition: int = 0) -> int:
        """Return the first offset that the brokers hold."""
        return self._offset(partition, _admin.OffsetSpec.earliest())

    def end(self, partition: int = 0) -> int:
        """Return the last stable offset."""
        return self._offset(partition, _admin.OffsetSpec.latest())

    def _offset(self, partition: int, which: Any) -> int:
        asked = {TopicPartition(self.name, partition): which}
        level = IsolationLevel.READ_COMMITTED
        (found,) = done(self.admin.list_offsets(asked, isolation_level=level))
        return int(found.offset)

    def remove_before(self, offset: int, partition: int = 0) -> None:
        """Delete the records before an offset, as retention does."""
        done(self.admin.delete_records([TopicPartition(self.name, partition, offset)]))

    def add_partitions(self, count: int) -> None:
        """Have so many partitions in all."""
        done(self.admin.create_partitions([_admin.NewPartitions(self.name, count)]))

    def delete(self) -> None:
        """Delete the topic."""
        done(self.admin.delete_topics([self.name]))

    @property
    def topic_id(self) -> str:
        (found,) = done(self.admin.describe_topics(TopicCollection([self.name])))
        return str(found.topic_id)

    @cached_property
    def _transactional(self) -> Producer:
        return self._new_transactional(self.name)

    def _new_transactional(self, transactional_id: str) -> Producer:
        producer = Producer({**self._plain, "transactional.id": transactional_id})
        producer.init_transactions(30)
        return producer

    def _send(
        self,
        producer: Producer,
        values: Iterable[bytes | None],
        partition: int,
        key: Callable[[int], bytes | None],
        options: Any,
    ) -> None:
        failures: list[Any] = []

        def note(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for number, value in enumerate(values):
            producer.produce(
                self.name,
                value,
                key(number),
                partition=partition,
                on_delivery=note,
                **options,
            )
        assert producer.flush(60) == 0
        assert not failures, failures
