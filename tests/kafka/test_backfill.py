"""Reprocessing on real systems: a topic kept in a Delta table, and a job that reads both anew."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import ErrorCode, UserError
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic

START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {"n": int, "at": pl.Datetime("us", "UTC")}


def produce(topic: TestTopic, numbers: range) -> None:
    for partition in range(2):
        rows = [
            {"n": n, "at": (START + timedelta(minutes=n)).isoformat()}
            for n in numbers
            if n % 2 == partition
        ]
        topic.produce([json.dumps(row).encode() for row in rows], partition=partition)


def live(topic: TestTopic, **options: Any) -> Any:
    return pen.kafka(
        topic.name,
        servers=topic.servers,
        schema=COLUMNS,
        metadata=["partition", "offset"],
        end="latest",
        **options,
    )


def keep(topic: TestTopic, folder: Path) -> None:
    """Run the job that keeps what is in the topic; it goes on where it was."""
    pipeline = pen.Pipeline("keeper")
    rows = pipeline.read("rows", live(topic))
    rows.write("out", pen.delta(str(folder / "lake")))
    pipeline.run_in_process(folder / "checkpoints")


def per_hour(name: str, source: Any, folder: Path) -> Counter[datetime]:
    """Run a job that counts rows per hour, and return what it has written."""
    pipeline = pen.Pipeline(name)
    rows = pipeline.read("rows", source, event_time="at")
    counted = rows.window("per-hour", pen.tumbling("1h")).aggregate(rows=pen.count())
    counted.write("out", pen.files(folder / f"results-of-{name}", format="parquet"))
    pipeline.run_in_process(folder / "checkpoints")
    found: Counter[datetime] = Counter()
    for row in pen.read_committed(folder / f"results-of-{name}").to_pylist():
        assert row["window_start"] not in found
        found[row["window_start"]] = row["rows"]
    return found


def test_a_fresh_job_reads_table_and_topic_and_is_compared_with_the_old_one(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = TestTopic.create(kafka.bootstrap, partitions=2)
    produce(topic, range(300))
    keep(topic, tmp_path)
    # The topic forgets, goes on, and the old job sees what is left of it.
    for partition in range(2):
        topic.remove_before(100, partition)
    produce(topic, range(300, 400))
    old = per_hour("old", live(topic), tmp_path)
    both = pen.concat_sources(
        history=pen.delta(str(tmp_path / "lake")),
        live=live(topic, start="after-history"),
        order_by="at",
    )
    new = per_hour("new", both, tmp_path)
    assert sum(new.values()) == 400
    # Where both have whole hours they agree, so the readers can be switched at any of them.
    whole = sorted(old)[1:]
    assert [old[hour] for hour in whole] == [new[hour] for hour in whole]
    topic.delete()


def test_a_gap_between_table_and_topic_stops_the_job(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = TestTopic.create(kafka.bootstrap, partitions=2)
    produce(topic, range(40))
    keep(topic, tmp_path)
    produce(topic, range(40, 80))
    topic.remove_before(25, 1)
    both = pen.concat_sources(
        history=pen.delta(str(tmp_path / "lake")), live=live(topic, start="after-history")
    )
    with pytest.raises(UserError, match="does not hold the hand-over point") as failure:
        per_hour("new", both, tmp_path)
    assert failure.value.code == ErrorCode.INPUT_LOST
    assert f"{topic.name}/1 begins at 25 and the point is 20" in str(failure.value)
    topic.delete()


def test_a_topic_that_there_is_not_is_noticed_before_history_is_read(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = TestTopic.create(kafka.bootstrap, partitions=2)
    produce(topic, range(10))
    keep(topic, tmp_path)
    wrong = TestTopic(topic.servers, f"no-{new_token()}")
    both = pen.concat_sources(
        history=pen.delta(str(tmp_path / "lake")), live=live(wrong, start="after-history")
    )
    pipeline = pen.Pipeline("p")
    pipeline.read("rows", both).write("out", pen.blackhole())
    (problem,) = pipeline.check("memory:").problems
    assert wrong.name in problem.message
    topic.delete()
