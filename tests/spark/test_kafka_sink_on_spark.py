"""The Kafka sink's commits as jobs of Spark: a worker dies at its commit, and no row is doubled."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typing_extensions import override

import penstock as pen
from penstock.connectors.kafka.client import KafkaClients, Reports
from penstock.connectors.kafka.output_records import RecordColumns
from penstock.connectors.kafka.sink import KafkaSink, KafkaSinkConfig
from penstock.core.ids import Epoch
from penstock.operators.context import CommitContext, CommitPart
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.spark.running import run_on_spark
from scripts.servers.kafka import KafkaCluster
from tests.builders.commit_parts import AS_A_JOB
from tests.builders.kafka_output import an_output, read_output
from tests.builders.spark_session import shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


class DyingClients(KafkaClients):
    """Makes producers of which the first that commits kills its process, once."""

    __slots__ = ("_mark", "_moment")
    _mark: Path
    _moment: str

    def __init__(self, servers: str, mark: Path, moment: str) -> None:
        super().__init__(servers)
        object.__setattr__(self, "_mark", mark)
        object.__setattr__(self, "_moment", moment)

    def __reduce__(self) -> Any:
        return DyingClients, (self.servers, self._mark, self._moment)

    @override
    def producer(self, on_report: Reports | None = None, **options: Any) -> Any:
        return _Dying(super().producer(on_report, **options), self._mark, self._moment)


class _Dying:
    def __init__(self, producer: Any, mark: Path, moment: str) -> None:
        self._producer, self._mark, self._moment = producer, mark, moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def commit_transaction(self, timeout: float) -> None:
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            self._producer.commit_transaction(timeout)
            return
        self._producer.flush(timeout)
        if self._moment == "after":
            self._producer.commit_transaction(timeout)
        os.kill(os.getpid(), signal.SIGKILL)


class ShardedSink(KafkaSink):
    """Stages every epoch in objects, and commits it by a job of tasks, as a large one."""

    small_bytes = 0

    @override
    def plan_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> Sequence[CommitPart]:
        parts = super().plan_commit(epoch, commit_data, ctx)
        return [replace(part, size_bytes=AS_A_JOB) for part in parts]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_worker_that_dies_at_its_commit_loses_and_doubles_nothing(
    kafka: KafkaCluster, tmp_path: Path, moment: str
) -> None:
    topic, mark = an_output(kafka.bootstrap), tmp_path / "died"
    clients = DyingClients(kafka.bootstrap, mark, moment)
    config = KafkaSinkConfig(kafka.bootstrap, topic, columns=RecordColumns(key=("key",)))
    pipeline = pen.Pipeline(f"numbers-{moment}", parallelism=2)
    numbers = pipeline.read("numbers", pen.impulse(count=1_000, splits=2, step="1ms"))
    keyed = numbers.with_columns(key=pl.col("counter") % 10)
    keyed.write("out", ShardedSink(config, clients))
    options = RunOptions(checkpoint=str(tmp_path / "checkpoint"), session=shared_session())
    status = run_on_spark(pipeline.graph(), pipeline.registry, options)
    assert mark.exists()
    assert (status.restarts, status.torn_epochs) == (0, 0)
    records = read_output(kafka.bootstrap, topic)
    found = [json.loads(record.value or b"")["counter"] for record in records]
    assert sorted(found) == [*range(1_000)]
    for key in range(10):
        mine = [n for n, record in zip(found, records, strict=True) if n % 10 == key]
        assert mine == sorted(mine)
