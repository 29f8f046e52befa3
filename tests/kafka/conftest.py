"""Where tests of Kafka's source run: on one broker, and on three."""

import pytest

from scripts.servers.kafka import KafkaCluster

_PLACES = [
    pytest.param("kafka", marks=pytest.mark.kafka, id="one-broker"),
    pytest.param(
        "kafka_cluster", marks=[pytest.mark.kafka, pytest.mark.slow], id="three-brokers"
    ),
]


@pytest.fixture(params=_PLACES)
def brokers(request: pytest.FixtureRequest) -> KafkaCluster:
    """A cluster with a copy of each partition on every broker."""
    cluster: KafkaCluster = request.getfixturevalue(request.param)
    return cluster
