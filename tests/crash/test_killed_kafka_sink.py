"""kill -9 at random moments while a topic is written, with a reader at work all the time."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_output import Record, an_output, read_output
from tests.builders.profile import by_profile
from tests.crash.killed_kafka_program import KEYS

PROGRAM = Path(__file__).with_name("killed_kafka_program.py")
KILLS = by_profile(default=5, ci=5, nightly=50)


class Victim:
    """The program on one topic and one folder of checkpoints, started again and again."""

    def __init__(self, servers: str, folder: Path, rows: int, copies: int = 1) -> None:
        self.servers, self.folder, self.rows = servers, folder, rows
        self.topic = an_output(servers, copies=copies)
        self.dice = random.Random()  # any moment must do

    def start(self) -> "subprocess.Popen[bytes]":
        size = self.dice.choice(["small", "large"])
        parallelism = str(self.dice.choice([1, 2, 3]))
        command = [
            self.servers,
            self.topic,
            str(self.folder),
            parallelism,
            size,
            str(self.rows),
        ]
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *command], stderr=subprocess.PIPE
        )

    def kill_while_it_writes(self) -> bool:
        """Run it until it has written something, and a moment longer; tell whether it ran."""
        before, process = len(self.read()), self.start()
        deadline = time.monotonic() + 120
        while process.poll() is None and len(self.read()) == before:
            assert time.monotonic() < deadline
        time.sleep(self.dice.random() * 0.2)
        is_running = process.poll() is None
        process.kill()
        _, errors = process.communicate()
        assert is_running or process.returncode == 0, errors.decode()
        return is_running

    def find_leader(self) -> int:
        """Return the broker that leads a partition of the markers, or of the topic itself."""
        topic = self.dice.choice([self.topic, f"penstock.markers.job-of-{self.topic}.out"])
        admin = AdminClient({"bootstrap.servers": self.servers})
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions
        return int(self.dice.choice([*found.values()]).leader)

    def finish(self) -> None:
        last = self.start()
        _, errors = last.communicate(timeout=250)
        assert last.returncode == 0, errors.decode()

    def check(self) -> None:
        """Every row is there."""
        assert sorted(map(_number, self.read())) == list(range(self.rows))

    def read(self) -> list[Record]:
        """Read what is committed; nothing is there twice, and each key is in order."""
        records = read_output(self.servers, self.topic)
        numbers = [_number(record) for record in records]
        assert len(set(numbers)) == len(numbers)
        for key in range(KEYS):
            mine = [_number(each) for each in records if each.key == b"%d" % key]
            assert mine == sorted(mine)
        return records


def _number(record: Record) -> int:
    return int(json.loads(record.value or b"")["counter"])


@pytest.mark.slow
def test_killed_and_rescaled_it_writes_every_row_once_and_in_order(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    victim = Victim(kafka.bootstrap, tmp_path, KILLS * 1_600)
    killed = sum(victim.kill_while_it_writes() for _ in range(KILLS))
    assert killed == KILLS, "the program ended before it could be killed: give it more rows"
    victim.finish()
    victim.check()


@pytest.mark.slow
def test_brokers_that_die_while_it_commits_lose_and_double_nothing(
    kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    deaths = by_profile(1, 1, 9)
    victim = Victim(kafka_cluster.bootstrap, tmp_path, deaths * 2_000, copies=3)
    for _ in range(deaths):
        before, process = len(victim.read()), victim.start()
        deadline = time.monotonic() + 120
        while process.poll() is None and len(victim.read()) == before:
            assert time.monotonic() < deadline
        kafka_cluster.kill_broker(victim.find_leader())
        written = len(victim.read())
        while process.poll() is None and len(victim.read()) == written:
            assert time.monotonic() < deadline
        process.kill()
        process.communicate()
        kafka_cluster.start_all()
    victim.finish()
    victim.check()
