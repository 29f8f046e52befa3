"""A cluster in memory, and its client: records of partitions come as dice, or a test, please.

What it does is what `tests/kafka/test_kafka_ranges.py` sees brokers do.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.kafka.positions import Partition
from penstock.connectors.kafka.reading import PartitionReader


@dataclass(frozen=True)
class Error:
    code: str

    def name(self) -> str:
        return self.code


@dataclass(frozen=True)
class Message:
    """A message as the client library gives it."""

    partition_: Partition
    offset_: int
    error_: Error | None = None

    def topic(self) -> str:
        return self.partition_.topic

    def partition(self) -> int:
        return self.partition_.number

    def offset(self) -> int:
        return self.offset_

    def error(self) -> Error | None:
        return self.error_

    def value(self) -> bytes:
        return b"%d" % self.offset_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.offset_ * 10

    def __len__(self) -> int:
        return len(self.value())


@dataclass
class Log:
    """A cluster and its clients: some offsets of each partition have records."""

    records: Mapping[Partition, Sequence[int]]
    ends: Mapping[Partition, int]
    dice: random.Random
    servers: str = "memory"
    first: list[Message] = field(default_factory=list)
    """What the first call gives, if it is not left to the dice."""
    positions: dict[Partition, int] = field(default_factory=dict)
    paused: set[Partition] = field(default_factory=set)
    told: set[Partition] = field(default_factory=set)
    """Partitions whose end was told since a record came."""

    def consumer(self, *_: Any, **__: Any) -> "Log":
        return self

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        for each in partitions:
            key = Partition(each.topic, each.partition)
            assert key not in self.positions
            self.positions[key] = each.offset
            self.told.discard(key)

    def incremental_unassign(self, partitions: Sequence[Any]) -> None:
        for each in partitions:
            del self.positions[Partition(each.topic, each.partition)]

    def pause(self, partitions: Sequence[Any]) -> None:
        self.paused |= {Partition(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: Sequence[Any]) -> None:
        self.paused -= {Partition(each.topic, each.partition) for each in partitions}

    def get_watermark_offsets(self, place: Any, *, cached: bool) -> tuple[int, int] | None:
        assert cached
        end = self.ends[Partition(place.topic, place.partition)]
        return self.dice.choice([(0, end), (0, end), (0, end), (-1001, -1001), None])

    def close(self) -> None:
        self.positions.clear()

    def consume(self, count: int, _: float) -> list[Message]:
        """Return messages of partitions in any order, and now and then fewer than there are."""
        if self.first:
            found, self.first = self.first, []
            self.positions |= {each.partition_: each.offset_ + 1 for each in found}
            return found
        found = []
        keys = 3 * [key for key in self.positions if key not in self.paused]
        self.dice.shuffle(keys)
        for key in keys:
            room = count - len(found)
            most = self.dice.randint(0, room) if room else 0
            rest = [at for at in self.records[key] if at >= self.positions[key]]
            found += [Message(key, at) for at in rest[:most]]
            if rest[:most]:
                self.positions[key] = (
                    rest[most - 1] + 1 if most <= len(rest) else rest[-1] + 1
                )
                self.told.discard(key)
            if len(found) < count and len(rest) <= most and key not in self.told:
                self.told.add(key)
                self.positions[key] = max(self.positions[key], self.ends[key])
                found.append(Message(key, self.ends[key], Error("_PARTITION_EOF")))
        return found


class Knowing(random.Random):
    """Dice that know the ends of partitions."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def reader_of(log: Log) -> PartitionReader:
    """Return a reader of a stand-in for Kafka's client."""
    client: Any = log
    return PartitionReader(client)
