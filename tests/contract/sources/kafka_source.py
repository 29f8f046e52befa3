"""Kafka in the contract suite of sources: a topic of three partitions for each source."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
from typing_extensions import override

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from tests.builders.kafka_topics import TestTopic
from tests.contract.sources.built_in_sources import drifted
from tests.contract.sources.source_under_test import (
    SCHEMA,
    Drift,
    SourceUnderTest,
    row_of,
)

_PARTITIONS = 3


class KafkaUnderTest(SourceUnderTest):
    """JSON in a topic; a row's number tells its partition."""

    name = "kafka"

    def __init__(self, folder: Path, topic: TestTopic) -> None:
        super().__init__(folder)
        self.topic = topic
        self._is_open = True

    @override
    @classmethod
    def make(cls, folder: Path, request: pytest.FixtureRequest) -> Self:
        servers = request.getfixturevalue("kafka").bootstrap
        return cls(folder, TestTopic.create(servers, partitions=_PARTITIONS))

    @override
    def write(self, numbers: Sequence[int]) -> None:
        self.topic.produce_dealt([row_of(n) for n in numbers], numbers, _PARTITIONS)

    @override
    def write_bad(self, count: int) -> None:
        for number in range(count):
            self.topic.produce([b"{no row}"], partition=number % _PARTITIONS)

    @override
    def write_drifted(self, numbers: Sequence[int], drift: Drift) -> None:
        self.topic.produce_dealt(drifted(numbers, drift), numbers, _PARTITIONS)

    @override
    def spec(self, *, follows: bool, diverts_bad: bool = False) -> OperatorSpec:
        return pen.kafka(
            self.topic.name,
            servers=self.topic.servers,
            schema=StreamSchema(SCHEMA, time_column="at"),
            end=None if follows else "latest",
            on_bad="divert" if diverts_bad else "fail",
        ).source_spec()

    @override
    def order_group(self, number: int) -> int:
        return number % _PARTITIONS

    @override
    def close(self) -> None:
        if self._is_open:
            self.topic.delete()
        self._is_open = False
