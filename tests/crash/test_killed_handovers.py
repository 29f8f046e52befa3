"""kill -9 at random moments while a job reads history, hands over, and reads a topic."""

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
from tests.contract.sources.concat_sources import PARTITIONS, write_placed
from tests.contract.sources.source_under_test import EPOCH, row_of

KILLS = by_profile(default=3, ci=3, nightly=31)
"""As many before the hand-over as behind it, and one in the middle."""
HISTORY_ROWS = KILLS * 80
ROWS = 2 * HISTORY_ROWS + 240
"""Far more than are read before the last kill, so that it finds a job at work."""
FILES = 8


def write_rows(topic: TestTopic, folder: Path) -> None:
    """Write all rows into the topic, and the first of them into files."""
    rows = [
        {**row_of(n), "kafka_partition": n % PARTITIONS, "kafka_offset": n // PARTITIONS}
        for n in range(ROWS)
    ]
    (folder / "old").mkdir()
    share = HISTORY_ROWS // FILES
    for start in range(0, HISTORY_ROWS, share):
        write_placed(folder / "old", rows[start : start + share])
    for partition in range(PARTITIONS):
        values = [
            json.dumps(row_of(n), default=str).encode()
            for n in range(partition, ROWS, PARTITIONS)
        ]
        topic.produce(values, partition=partition)


def read_numbers(folder: Path) -> list[int]:
    # An open store: a folder that nobody has written to is no mistake here.
    table = pen.read_committed(open_store(folder / "out"))
    return sorted(row["n"] for row in table.to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("handover", ["offsets", "time"])
def test_killed_anywhere_it_reads_every_row_once(
    kafka: KafkaCluster, tmp_path: Path, handover: str
) -> None:
    topic = TestTopic.create(kafka.bootstrap, partitions=PARTITIONS)
    write_rows(topic, tmp_path)
    # By time the last rows of history are left to the topic.
    of_history = HISTORY_ROWS if handover == "offsets" else HISTORY_ROWS - 7
    point = int(EPOCH.timestamp()) + of_history
    dice = random.Random()  # any moment must do

    def start() -> "subprocess.Popen[bytes]":
        how = handover if handover == "offsets" else str(point)
        arguments = [topic.servers, topic.name, str(tmp_path), str(dice.randint(1, 3)), how]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.killed_handover_program", *arguments],
            stderr=subprocess.PIPE,
        )

    for kill in range(KILLS):
        # Some are killed while they read history, one as soon as all of it is read and the
        # hand-over is under way, some behind it.
        upto = 2 * (kill + 1) * of_history // (KILLS + 1)
        process, deadline = start(), time.monotonic() + 120
        while process.poll() is None and len(read_numbers(tmp_path)) < upto:
            assert time.monotonic() < deadline
        process.kill()
        _, errors = process.communicate()
        assert process.returncode == -9, errors.decode()
        numbers = read_numbers(tmp_path)
        assert len(set(numbers)) == len(numbers)
    last = start()
    _, errors = last.communicate(timeout=250)
    assert last.returncode == 0, errors.decode()
    assert read_numbers(tmp_path) == list(range(ROWS))
    topic.delete()
