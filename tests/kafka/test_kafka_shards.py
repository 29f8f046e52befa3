"""Tests epochs of several transactions: who dies between them, who reads between them."""

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.catalog import default_registry
from penstock.connectors.kafka.output_records import KEY, RecordColumns
from penstock.connectors.kafka.sink import KafkaSink, KafkaSinkConfig
from penstock.connectors.kafka.staging import shards_of
from penstock.graph.logical import OperatorSpec
from penstock.state.storage.memory import MemoryStore
from penstock.testing import CUT, CrashError, Fault, FaultMode, LocalJob, ScriptedSource
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_faults import MakeCall, WatchedClients
from tests.builders.kafka_output import Record, an_output, read_output
from tests.builders.kafka_topics import wait_until
from tests.builders.servers import a_topic

SHARDS = 3
PER_EPOCH = 60
PUBLISHED = Fault(FaultMode.CRASH_AFTER, 1, "create", "*/epochs/0000000001.record")
"""A death behind the publication of the first epoch, and before its commit."""


def just_call(name: str, call: Callable[[], Any]) -> Any:
    del name
    return call()


def shard_of(key: bytes) -> int:
    """Return the shard that has the rows of a key if there are three."""
    records = pa.record_batch([pa.array([key], pa.large_binary())], [KEY])
    return int(shards_of(records, SHARDS, 0)[0])


class ShardedJob:
    """A job of three splits and two epochs; what lasts between its lives is in here."""

    def __init__(self, servers: str) -> None:
        self.servers, self.name = servers, a_topic("job")
        self.topic, self.markers = an_output(servers), a_topic("markers")
        self.store = MemoryStore()
        self.rows = [{"user": f"user-{n % 20}", "n": n} for n in range(2 * PER_EPOCH)]

    def run(
        self,
        *faults: Fault,
        parallelism: int,
        shards: int | None = None,
        make: MakeCall = just_call,
    ) -> pen.JobStatus:
        """Run one life of the job, in which `make` makes the calls to Kafka."""
        registry = default_registry(load_plugins=False)
        clients = WatchedClients(self.servers, make)
        registry.add("watched", KafkaSinkConfig, lambda config: KafkaSink(config, clients))
        config = KafkaSinkConfig(
            self.servers,
            self.topic,
            columns=RecordColumns(key=("user",)),
            shards=shards,
            marker_topic=self.markers,
        )
        script: dict[str, list[Any]] = {
            str(split): [
                *(self.rows[split:PER_EPOCH:3], CUT),
                *(self.rows[PER_EPOCH + split :: 3], CUT),
            ]
            for split in range(3)
        }
        p = pen.Pipeline(self.name, registry=registry)
        sink = OperatorSpec("watched", config.to_operator_spec().config)
        p.read("rows", ScriptedSource(script)).write("out", sink)
        job = LocalJob(p, store=self.store, registry=registry)
        return job.run(*faults, parallelism=parallelism)

    def records(self, isolation: str = "read_committed") -> list[Record]:
        return read_output(self.servers, self.topic, isolation=isolation)

    def marked(self) -> dict[int, list[int]]:
        """Return by epoch the partitions with a marker of it, one for each shard."""
        found: dict[int, list[int]] = defaultdict(list)
        for record in read_output(self.servers, self.markers):
            found[json.loads(record.value or b"")["epoch"]].append(record.partition)
        return found


@pytest.fixture
def job(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> ShardedJob:
    monkeypatch.setattr(KafkaSink, "small_bytes", 0)
    return ShardedJob(kafka.bootstrap)


def numbers(records: Iterable[Record]) -> list[int]:
    return sorted(json.loads(record.value or b"")["n"] for record in records)


class Dying:
    """A process that dies at its nth commit of a transaction; from then on it makes no call."""

    def __init__(self, at: int) -> None:
        self._left, self._is_dead = at, False

    def make(self, name: str, call: Callable[[], Any]) -> Any:
        self._left -= name == "commit_transaction"
        self._is_dead |= self._left == 0
        if self._is_dead:
            raise CrashError("killed at a call to Kafka")
        return call()


@pytest.mark.parametrize("committed", [0, 1])
@pytest.mark.parametrize(
    ("before", "after"), [(3, None), (None, 2)], ids=["none given", "fewer given"]
)
def test_pending_epoch_is_committed_by_the_shards_it_was_staged_for(
    job: ShardedJob, before: int | None, after: int | None, committed: int
) -> None:
    # Shards of the new number would have other rows: behind a marker of the old ones they would
    # be missing, and in a shard without a marker they would come twice.
    faults = [] if committed else [PUBLISHED]
    with pytest.raises(CrashError):
        job.run(*faults, parallelism=3, shards=before, make=Dying(committed + 1).make)
    # A broker answers a commit before it shows it.
    if committed:
        wait_until(lambda: len(job.marked()[1]) == committed)
    wait_until(
        lambda: len({shard_of(each.key or b"") for each in job.records()}) == committed
    )
    status = job.run(parallelism=1, shards=after)
    assert status.phase is pen.JobPhase.FINISHED
    wait_until(lambda: len(job.records()) >= 2 * PER_EPOCH)
    assert numbers(job.records()) == list(range(2 * PER_EPOCH))
    wait_until(lambda: len(job.marked()[2]) >= (after or 1))
    marked = job.marked()
    assert sorted(marked[1]) == [1, 2, 3]
    assert sorted(marked[2]) == [*range(1, (after or 1) + 1)]


class Watching:
    """Readers of a job's topic, who look while its commits are held, and all the time."""

    def __init__(self, job: ShardedJob) -> None:
        self._job = job
        # Which partition a key gets is the same in each topic of as many.
        other = ShardedJob(job.servers)
        other.run(parallelism=3, shards=SHARDS)
        wait_until(lambda: len(other.records()) == 2 * PER_EPOCH)
        self._sizes = Counter(map(part_of, other.records()))
        self.commits = 0
        self.error: AssertionError | None = None
        self._is_over = threading.Event()

    def look(self, isolation: str = "read_committed") -> set[tuple[int, int]]:
        """Check that of each part all is there or nothing; return the shards that are whole."""
        found = Counter(map(part_of, self._job.records(isolation)))
        if isolation == "read_committed":
            assert {part: self._sizes[part] for part in found} == found
        missing = {part[:2] for part in self._sizes if found[part] < self._sizes[part]}
        return {part[:2] for part in self._sizes} - missing

    def hold(self, name: str, call: Callable[[], Any]) -> Any:
        """Make a call; a commit waits for readers who look what is there before and after it."""
        if name != "commit_transaction":
            return call()
        # All rows of this shard are on the broker, and nobody is shown one of them.
        wait_until(lambda: len(self.look("read_uncommitted")) > self.commits)
        shown = {part_of(record)[:2] for record in self._job.records()}
        assert len(shown) == self.commits
        answer = call()
        self.commits += 1
        # A broker shows the partitions of a transaction one by one.
        wait_until(lambda: len(self.look()) == self.commits)
        return answer

    def look_on(self) -> None:
        """Look all the time, until it is over."""
        while not self._is_over.is_set():
            try:
                self.look()
            except AssertionError as error:
                self.error = error
                return

    def end(self) -> None:
        self._is_over.set()


def part_of(record: Record) -> tuple[int, int, int]:
    """Return epoch, shard and partition of a record: what is shown at one instant."""
    n = json.loads(record.value or b"")["n"]
    return n // PER_EPOCH, shard_of(record.key or b""), record.partition


def test_reader_of_what_is_committed_sees_a_shard_whole_or_not_at_all(
    job: ShardedJob,
) -> None:
    watching = Watching(job)
    reader = threading.Thread(target=watching.look_on)
    reader.start()
    try:
        job.run(parallelism=3, shards=SHARDS, make=watching.hold)
    finally:
        watching.end()
        reader.join(30)
    assert watching.error is None
    assert watching.commits == 2 * SHARDS
    assert len(watching.look()) == 2 * SHARDS
    assert numbers(job.records()) == list(range(2 * PER_EPOCH))
