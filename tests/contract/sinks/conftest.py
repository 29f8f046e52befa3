"""Every sink that the contract suite is run on, each with an empty output of its own."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from penstock.connectors.kafka.sink import KafkaSink
from tests.contract.sinks.delta_sink import DeltaUnderTest, MergedDeltaUnderTest
from tests.contract.sinks.kafka_sinks import KafkaUnderTest, RepeatingKafkaUnderTest
from tests.contract.sinks.shipped_sinks import (
    FilesUnderTest,
    ListUnderTest,
    StdoutUnderTest,
)
from tests.contract.sinks.sink_under_test import SinkUnderTest

MakeSink = Callable[[], SinkUnderTest]
"""Makes a sink under test on a new output, as often as a test wants."""


def _files(request: pytest.FixtureRequest) -> SinkUnderTest:
    return FilesUnderTest()


def _partitioned_files(request: pytest.FixtureRequest) -> SinkUnderTest:
    return FilesUnderTest(partition_by=["word"], format="jsonl")


def _sized_files(request: pytest.FixtureRequest) -> SinkUnderTest:
    return FilesUnderTest(min_bytes=1)


def _delayed_files(request: pytest.FixtureRequest) -> SinkUnderTest:
    return FilesUnderTest(
        visible_after=timedelta(microseconds=2), partition_by=["word"], format="jsonl"
    )


def _patient_files(request: pytest.FixtureRequest) -> SinkUnderTest:
    return FilesUnderTest(visible_after="1h")


def _lists(request: pytest.FixtureRequest) -> SinkUnderTest:
    return ListUnderTest()


def _stdout(request: pytest.FixtureRequest) -> SinkUnderTest:
    return StdoutUnderTest(request.getfixturevalue("monkeypatch"))


def _delta(request: pytest.FixtureRequest) -> SinkUnderTest:
    return DeltaUnderTest(request.getfixturevalue("tmp_path"), partition_by=["word"])


def _kafka(request: pytest.FixtureRequest) -> SinkUnderTest:
    return KafkaUnderTest(request.getfixturevalue("kafka").bootstrap)


def _sharded_kafka(request: pytest.FixtureRequest) -> SinkUnderTest:
    # Epochs are staged in objects, and are several transactions, as large ones are.
    request.getfixturevalue("monkeypatch").setattr(KafkaSink, "small_bytes", 0)
    return KafkaUnderTest(request.getfixturevalue("kafka").bootstrap)


def _waiting_delta(request: pytest.FixtureRequest) -> SinkUnderTest:
    return DeltaUnderTest(
        request.getfixturevalue("tmp_path"), visible_after=timedelta(microseconds=2)
    )


def _merged_delta(request: pytest.FixtureRequest) -> SinkUnderTest:
    return MergedDeltaUnderTest(request.getfixturevalue("tmp_path"))


def _repeating_kafka(request: pytest.FixtureRequest) -> SinkUnderTest:
    return RepeatingKafkaUnderTest(request.getfixturevalue("kafka").bootstrap)


KINDS: dict[str, Callable[[pytest.FixtureRequest], SinkUnderTest]] = {
    "files": _files,
    "files-partitioned": _partitioned_files,
    "files-by-size": _sized_files,
    "files-by-delay": _delayed_files,
    "files-at-the-end": _patient_files,
    "list": _lists,
    "stdout": _stdout,
    "delta": _delta,
    "delta-waiting": _waiting_delta,
    "delta-merged": _merged_delta,
    "kafka": _kafka,
    "kafka-sharded": _sharded_kafka,
    "kafka-at-least-once": _repeating_kafka,
}
"""By name. One that needs a server takes its fixture from the request, which may skip."""


_MARKS = {name: pytest.mark.kafka for name in KINDS if name.startswith("kafka")}


@pytest.fixture(params=[pytest.param(name, marks=_MARKS.get(name, ())) for name in KINDS])
def make_sink(request: pytest.FixtureRequest) -> MakeSink:
    return lambda: KINDS[request.param](request)
