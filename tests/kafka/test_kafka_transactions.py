"""Tests that a shard of an epoch is committed once, whoever tries at the same time, on a broker."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as kafka_admin

from penstock.connectors.kafka import transactions
from penstock.connectors.kafka.client import KafkaClients
from penstock.connectors.kafka.markers import (
    MarkerPlace,
    encode_marker,
    read_marker,
)
from penstock.connectors.kafka.output_records import KEY, VALUE
from penstock.connectors.kafka.output_topics import OutputTopic, OutputTopics
from penstock.connectors.kafka.producing import (
    RecordRefusedError,
    RecordSender,
    producer_options,
)
from penstock.connectors.kafka.transactions import ShardCommit, ShardTransactions
from penstock.core.clock import new_token
from penstock.errors import ExternalError, UserError
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_faults import (
    ANSWERED_LATER,
    ANSWERS,
    MARKER_READS,
    WatchedClients,
)
from tests.builders.kafka_output import an_output, read_output
from tests.builders.servers import a_topic

_admin: Any = kafka_admin
"""Its types are public, but are not marked so."""


class Shard:
    """One shard of a sink on a topic of its own, and everybody who commits it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.clients = KafkaClients(servers)
        self.topic, self.markers = an_output(servers), a_topic("markers")
        self.name = f"shard-{new_token()}"
        self.place = MarkerPlace(self.markers, 1, self.name.encode())
        OutputTopics(self.clients).ensure_markers(self.markers, 2)

    def committer(
        self, clients: KafkaClients | None = None, *, timeout_ms: int = 60_000
    ) -> ShardTransactions:
        options = producer_options(OutputTopic(3), "murmur2_random")
        return ShardTransactions(clients or self.clients, options, timeout_ms=timeout_ms)

    def asked(self, epoch: int, *, is_large: bool = False) -> ShardCommit:
        return ShardCommit(self.name, self.topic, self.place, epoch, is_large)

    def values(self) -> list[bytes]:
        found = [record.value for record in read_output(self.servers, self.topic)]
        return sorted(value for value in found if value is not None)


@pytest.fixture
def shard(kafka: KafkaCluster) -> Shard:
    return Shard(kafka.bootstrap)


Read = Callable[[], Iterator[pa.RecordBatch]]


def rows(epoch: int, count: int = 3) -> Read:
    return lambda: iter(
        [_batch([(b"%d" % n, b"%d-%d" % (epoch, n)) for n in range(count)])]
    )


def _batch(records: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    columns = [pa.array([r[place] for r in records], pa.large_binary()) for place in (0, 1)]
    return pa.record_batch(columns, ["key", "value"])


def values_of(*epochs: int, count: int = 3) -> list[bytes]:
    return sorted(b"%d-%d" % (epoch, n) for epoch in epochs for n in range(count))


def test_epoch_is_committed_once_by_whomever(shard: Shard) -> None:
    first, second = shard.committer(), shard.committer()
    assert first.commit(shard.asked(1), rows(1)) == 3
    assert first.commit(shard.asked(1), rows(1)) is None
    assert second.commit(shard.asked(1), rows(1)) is None
    assert second.commit(shard.asked(2), rows(2)) == 3
    assert first.commit(shard.asked(2), rows(2)) is None
    assert shard.values() == values_of(1, 2)


@pytest.mark.parametrize("is_large", [False, True])
def test_kept_producer_that_was_shut_out_goes_on_by_the_long_way(
    shard: Shard, is_large: bool
) -> None:
    first, second = shard.committer(), shard.committer()
    first.commit(shard.asked(1), rows(1))
    second.commit(shard.asked(2), rows(2))
    assert first.commit(shard.asked(3, is_large=is_large), rows(3)) == 3
    assert second.commit(shard.asked(3), rows(3)) is None
    assert shard.values() == values_of(1, 2, 3)


def test_zombie_that_wakes_in_the_middle_of_its_records_commits_nothing(
    shard: Shard,
) -> None:
    zombie, successor = shard.committer(), shard.committer()

    def rows_and_takeover() -> Iterator[pa.RecordBatch]:
        yield _batch([(b"a", b"1-0")])
        assert successor.commit(shard.asked(1), rows(1)) == 3
        yield _batch([(b"b", b"1-1"), (b"c", b"1-2")])

    assert zombie.commit(shard.asked(1), rows_and_takeover) is None
    assert shard.values() == values_of(1)
    assert successor.commit(shard.asked(2), rows(2)) == 3


def test_zombie_that_wakes_before_its_commit_commits_nothing(shard: Shard) -> None:
    zombie, successor = shard.committer(), shard.committer()
    zombie.commit(shard.asked(1), rows(1))

    def rows_then_takeover() -> Iterator[pa.RecordBatch]:
        yield from rows(2)()
        successor.commit(shard.asked(2), rows(2))
        successor.commit(shard.asked(3), rows(3))

    assert zombie.commit(shard.asked(2), rows_then_takeover) is None
    assert shard.values() == values_of(1, 2, 3)


STEPS = (
    *("init_transactions", "get_watermark_offsets", "begin_transaction"),
    *("produce", "produce_batch", "commit_transaction"),
)
"""The calls of a commit, in their order."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("has_committed", [False, True], ids=["new", "kept"])
def test_attempt_that_is_overtaken_before_any_call_doubles_nothing(
    shard: Shard, step: str, has_committed: bool
) -> None:
    successor, asleep_at = shard.committer(), [] if has_committed else [step]

    def overtake(name: str, call: Callable[[], Any]) -> Any:
        if asleep_at == [name]:
            asleep_at.clear()
            assert successor.commit(shard.asked(2), rows(2)) == 3
        return call()

    attempt = shard.committer(WatchedClients(shard.servers, overtake))
    if has_committed:
        attempt.commit(shard.asked(1), rows(1))
        asleep_at.append(step)
    attempt.commit(shard.asked(2), rows(2))
    if asleep_at:  # one that is kept need not make this call
        assert has_committed
        assert successor.commit(shard.asked(2), rows(2)) is None
    assert shard.values() == values_of(*([1, 2] if has_committed else [2]))


class Losing:
    """Loses the answer to the first call of a name, which was carried out or was not."""

    def __init__(self, name: str, is_done: bool) -> None:
        self._name, self._is_done = name, is_done
        self.lost: list[str] = []

    def make(self, name: str, call: Callable[[], Any]) -> Any:
        if name == self._name and not self.lost:
            self.lost.append(name)
            if self._is_done:
                call()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))
        return call()


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("step", STEPS)
def test_call_without_an_answer_is_made_again_or_decided_by_the_marker(
    shard: Shard, step: str, is_done: bool
) -> None:
    lose = Losing(step, is_done)
    attempt = shard.committer(WatchedClients(shard.servers, lose.make))
    with suppress(ExternalError):
        attempt.commit(shard.asked(1), rows(1))
    assert lose.lost
    attempt.commit(shard.asked(1), rows(1))
    assert attempt.commit(shard.asked(2), rows(2)) == 3
    assert shard.values() == values_of(1, 2)


def test_attempts_at_the_same_time_write_the_records_once(shard: Shard) -> None:
    count, done, failed = 20_000, [], []

    def attempt() -> None:
        try:
            done.append(shard.committer().commit(shard.asked(1), rows(1, count)))
        except ExternalError as error:
            failed.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert sorted(done, key=bool) == [None, None, count]
    assert shard.values() == values_of(1, count=count)


def test_attempt_that_was_shut_out_waits_for_one_that_takes_long(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_CALL_SECONDS", 1.0)
    monkeypatch.setattr(transactions, "_LEAST_PATIENCE_SECONDS", 20.0)
    is_open, done = threading.Event(), []

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from rows(1)()
        is_open.set()
        time.sleep(4)

    def succeed() -> None:
        done.append(shard.committer().commit(shard.asked(1), slowly))

    successor = threading.Thread(target=succeed)

    def overtaken() -> Iterator[pa.RecordBatch]:
        successor.start()
        assert is_open.wait(30)
        yield from rows(1)()

    assert shard.committer().commit(shard.asked(1), overtaken) is None
    successor.join(30)
    assert done == [3]
    assert shard.values() == values_of(1)


def test_attempt_that_died_leaves_nothing_behind(shard: Shard) -> None:
    class Killed(BaseException):
        pass

    def die() -> Iterator[pa.RecordBatch]:
        yield from rows(1)()
        raise Killed

    producer = shard.clients.producer(transactional_id=shard.name)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(shard.topic, b"of the dead")
    producer.produce(shard.markers, encode_marker(1, shard.topic), shard.name, partition=1)
    producer.flush(30)
    assert shard.committer().commit(shard.asked(1), rows(1)) == 3
    with pytest.raises(Killed):
        shard.committer().commit(shard.asked(2), die)
    assert shard.committer().commit(shard.asked(2), rows(2)) == 3
    assert shard.values() == values_of(1, 2)


def test_marker_behind_an_open_transaction_of_others_is_waited_for(shard: Shard) -> None:
    committer = shard.committer()
    committer.commit(shard.asked(1), rows(1))
    other = shard.clients.producer(transactional_id=f"other-{shard.name}")
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(shard.markers, b"{}", b"other", partition=1)
    other.flush(30)
    # The marker lies behind the record of the other, which hides it until its transaction ends.
    assert committer.commit(shard.asked(2), rows(2)) == 3
    ended = threading.Timer(0.5, other.commit_transaction)

    def end_while_it_reads(name: str, call: Callable[[], Any]) -> Any:
        answer = call()
        if name == "get_watermark_offsets":
            ended.start()
        return answer

    successor = shard.committer(WatchedClients(shard.servers, end_while_it_reads))
    assert successor.commit(shard.asked(2), rows(2)) is None
    ended.join()
    assert shard.values() == values_of(1, 2)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
def test_marker_that_cannot_be_read_is_not_taken_for_none(
    shard: Shard, is_done: bool
) -> None:
    shard.committer().commit(shard.asked(1), rows(1))
    lose = Losing("consumer.poll", is_done)
    attempt = shard.committer(WatchedClients(shard.servers, lose.make, MARKER_READS))
    with pytest.raises(ExternalError, match="markers in partition 1"):
        attempt.commit(shard.asked(1), rows(1))
    assert attempt.commit(shard.asked(1), rows(1)) is None
    assert shard.values() == values_of(1)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("name", [*ANSWERED_LATER[:3], *ANSWERS[:3]])
def test_marker_topic_is_made_however_an_answer_is_lost(
    kafka: KafkaCluster, name: str, is_done: bool
) -> None:
    markers, lose = a_topic("markers"), Losing(name, is_done)
    watched = WatchedClients(kafka.bootstrap, lose.make, (*ANSWERED_LATER, *ANSWERS))
    topics = OutputTopics(watched)
    for partitions in (1, 3):  # it is made, then it gets more partitions
        for _ in range(2):  # one that finds the topic asks for its settings, too
            with suppress(ExternalError):
                topics.ensure_markers(markers, partitions)
        topics.ensure_markers(markers, partitions)
        assert topics.partitions_of(markers) == partitions
    assert lose.lost
    assert topics.settings_of(markers)["cleanup.policy"] == "compact"


def test_marker_is_found_far_before_the_end(shard: Shard) -> None:
    other = shard.clients.producer(linger_ms=5)
    shard.committer().commit(shard.asked(5), rows(5))
    for _ in range(2_000):
        other.produce(shard.markers, encode_marker(99, "x"), b"another job", partition=1)
    other.flush(30)
    assert read_marker(shard.clients, shard.place, timeout_s=30) == 5


def test_record_that_is_too_large_names_its_key(shard: Shard) -> None:
    big = lambda: iter([_batch([(b"big one", b"x" * 2_000_000)])])  # noqa: E731 (a function of one line, built in place)
    committer = shard.committer()
    with pytest.raises(UserError, match=r"b'big one'.*max\.message\.bytes"):
        committer.commit(shard.asked(1), big)
    assert committer.commit(shard.asked(1), rows(1)) == 3
    assert shard.values() == values_of(1)


def test_limit_that_is_raised_holds_for_a_kept_producer(kafka: KafkaCluster) -> None:
    topic = an_output(kafka.bootstrap, 1, max_message_bytes="2000")
    clients = KafkaClients(kafka.bootstrap)
    facts = OutputTopics(clients).describe(topic)
    assert facts is not None
    producer = clients.producer(**producer_options(facts, "murmur2_random"))
    sender = RecordSender(producer, topic, timeout_s=30)
    value = pa.array([b"x" * 20_000], pa.binary())
    large = pa.RecordBatch.from_arrays(
        [pa.nulls(1, pa.binary()), value], names=[KEY, VALUE]
    )
    sender.send([large])
    with pytest.raises(RecordRefusedError):
        sender.flush()
    raised = _admin.ConfigEntry(
        "max.message.bytes", "90000", incremental_operation=_admin.AlterConfigOpType.SET
    )
    resource = _admin.ConfigResource(_admin.ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(raised)
    admin = clients.admin()
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
    RecordSender(producer, topic, timeout_s=30).send([large])
    assert producer.flush(30) == 0
    assert len(read_output(kafka.bootstrap, topic)) == 1


def test_transaction_that_takes_too_long_says_so(shard: Shard) -> None:
    committer, plain = shard.committer(timeout_ms=1_000), shard.clients.producer()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(1, 30)()
        deadline = time.monotonic() + 30
        while (
            len(read_output(shard.servers, shard.topic, isolation="read_uncommitted")) < 30
        ):
            assert time.monotonic() < deadline
        for partition in range(3):
            plain.produce(shard.topic, b"seen", partition=partition)
        plain.flush(30)
        # What others write is not seen before the broker has ended the transaction.
        while shard.values() != [b"seen"] * 3:
            assert time.monotonic() < deadline
        yield from rows(1)()

    with pytest.raises(ExternalError, match="transaction_timeout"):
        committer.commit(shard.asked(1), slow)
    assert shard.committer().commit(shard.asked(1), rows(1)) == 3
    assert shard.values() == [*values_of(1), *[b"seen"] * 3]
