"""kill -9 at random moments while a topic of transactions is read."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock as pen
from penstock.state.storage.urls import open_store
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic
from tests.builders.profile import by_profile

PROGRAM = Path(__file__).with_name("killed_reader_program.py")
PARTITIONS = 3


def start(topic: TestTopic, folder: Path, parallelism: int) -> "subprocess.Popen[bytes]":
    arguments = [topic.servers, topic.name, str(folder), str(parallelism)]
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stderr=subprocess.PIPE
    )


def fill(topic: TestTopic, count: int) -> None:
    """Write numbers, some in transactions, between others that are aborted."""
    rows = [json.dumps({"n": n}).encode() for n in range(count)]
    for first in range(0, count, 150):
        part, number = rows[first : first + 150], first // 150
        topic.transact(part[:100], number % PARTITIONS)
        topic.transact(part[:30], number % PARTITIONS, commits=False)
        topic.produce(part[100:], (number + 1) % PARTITIONS)


@pytest.mark.slow
def test_killed_and_resumed_it_reads_every_record_once(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    kills = by_profile(2, 2, 30)
    dice = random.Random()  # any moment must do
    topic = TestTopic.create(kafka.bootstrap, partitions=PARTITIONS)
    count = 1_500 + 1_500 * kills
    fill(topic, count)
    out = open_store(str(tmp_path / "out"))
    killed = 0
    for _ in range(kills):
        process = start(topic, tmp_path, dice.choice([1, 2, 3]))
        before = len(pen.committed_files(out))
        while process.poll() is None and len(pen.committed_files(out)) == before:
            time.sleep(0.002)
        time.sleep(dice.random() * 0.1)
        killed += process.poll() is None
        process.kill()
        process.communicate()
    last = start(topic, tmp_path, 2)
    _, errors = last.communicate(timeout=200)
    assert last.returncode == 0, errors.decode()
    assert killed, "the program ended before it could be killed: give it more rows"
    read = [row["n"] for row in pen.read_committed(out).to_pylist()]
    assert sorted(read) == list(range(count))
