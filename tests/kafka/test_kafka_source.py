"""Tests where reading of Kafka begins, what it finds while it runs, and what it tells."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

import penstock as pen
from penstock.api.in_process import run_in_process
from penstock.connectors.kafka import fetched, reading
from penstock.core.clock import SystemClock
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.errors import ExternalError, UserError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.testing import SourceHarness
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic, done, wait_until
from tests.builders.servers import a_topic


@pytest.fixture
def topic(brokers: KafkaCluster) -> TestTopic:
    return a_topic_of(brokers, partitions=2)


def a_topic_of(brokers: KafkaCluster, **options: Any) -> TestTopic:
    return TestTopic.create(brokers.bootstrap, copies=len(brokers.ports), **options)


def numbered(*numbers: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in numbers]


def spec(topic: TestTopic, **options: Any) -> Any:
    made = pen.kafka(topic.name, servers=topic.servers, schema={"n": int}, **options)
    return made.source_spec()


def numbers(harness: SourceHarness) -> list[int]:
    return sorted(row["n"] for row in harness.rows())


def read_from(topic: TestTopic, start: Any, **options: Any) -> list[int]:
    with SourceHarness(spec(topic, start=start, end="latest", **options)) as harness:
        harness.read_all()
        return numbers(harness)


def commit(topic: TestTopic, group: str, offsets: dict[int, int]) -> None:
    rows = [TopicPartition(topic.name, n, at) for n, at in offsets.items()]
    request = [ConsumerGroupTopicPartitions(group, rows)]

    def is_taken() -> bool:
        # A broker that has just started may not lead the group yet, and says so per partition.
        (answer,) = done(topic.admin.alter_consumer_group_offsets(request))
        return not any(each.error for each in answer.topic_partitions)

    wait_until(is_taken)


def committed(topic: TestTopic, group: str) -> dict[int, int]:
    request = [ConsumerGroupTopicPartitions(group)]
    (answer,) = done(topic.admin.list_consumer_group_offsets(request))
    return {each.partition: each.offset for each in answer.topic_partitions}


# ---- where it begins


def test_reading_begins_at_the_earliest_record_or_at_offsets(topic: TestTopic) -> None:
    topic.produce(numbered(1, 2, 3))
    topic.produce(numbered(11, 12), partition=1)
    assert read_from(topic, "earliest") == [1, 2, 3, 11, 12]
    assert read_from(topic, {0: 2, 1: 0}) == [3, 11, 12]
    assert read_from(topic, {topic.name: {0: 3, 1: 1}}) == [12]


def test_reading_begins_at_a_time(topic: TestTopic) -> None:
    topic.produce(numbered(1), timestamp=1_000)
    topic.produce(numbered(2), timestamp=2_000)
    topic.produce(numbered(11), partition=1, timestamp=1_500)
    assert read_from(topic, datetime.fromtimestamp(1.5, UTC)) == [2, 11]
    # A partition without such a record begins with what comes.
    assert read_from(topic, datetime.fromtimestamp(1.75, UTC)) == [2]


def test_reading_begins_with_what_comes(topic: TestTopic) -> None:
    topic.produce(numbered(1, 2))
    with SourceHarness(spec(topic, start="latest")) as harness:
        harness.read()
        topic.produce(numbered(3))
        topic.produce(numbered(4), partition=1)
        harness.close()  # where it began is in the state, also without a row
        harness.read()
        assert numbers(harness) == [3, 4]


def test_reading_goes_on_where_a_group_has_come(topic: TestTopic) -> None:
    topic.produce(numbered(1, 2, 3))
    topic.produce(numbered(11, 12), partition=1)
    group = a_topic("group")
    commit(topic, group, {0: 2})
    # A partition of which the group has committed nothing is read whole.
    assert read_from(topic, f"group:{group}") == [3, 11, 12]
    with pytest.raises(UserError, match="has no committed offsets"):
        read_from(topic, "group:nobody")


def test_a_group_that_is_ahead_of_an_open_transaction_is_waited_for(
    topic: TestTopic,
) -> None:
    topic.produce(numbered(1))
    opened = topic.open_transaction(numbered(2))
    group = a_topic("group")
    commit(topic, group, {0: 2, 1: 0})
    with SourceHarness(spec(topic, start=f"group:{group}")) as harness:
        with pytest.raises(ExternalError, match="a transaction is open"):
            harness.read()
        opened.commit_transaction(30)
        topic.produce(numbered(3))
        wait_until(lambda: topic.end() == 4)
        harness.read()
        assert numbers(harness) == [3]


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({0: 0}, "/1 has none"),
        ({0: 0, 1: 0, 2: 0}, "/2 is unknown"),
        ({0: 5, 1: 0}, "says offset 5 .* which ends at 1"),
    ],
)
def test_offsets_that_are_not_there_are_refused(
    topic: TestTopic, start: dict[int, int], says: str
) -> None:
    topic.produce(numbered(1))
    with pytest.raises(UserError, match=says):
        read_from(topic, start)


# ---- what it finds while it runs


def test_new_partitions_are_read_from_their_first_record(topic: TestTopic) -> None:
    with SourceHarness(spec(topic, start="latest"), parallelism=2) as harness:
        harness.read()
        topic.add_partitions(4)
        wait_until(lambda: _produces(topic, 3))
        harness.read()
        assert numbers(harness) == [1]
        assert len(harness.splits) == 4


def _produces(topic: TestTopic, partition: int) -> bool:
    fresh = TestTopic(topic.servers, topic.name)  # asks the brokers for partitions anew
    try:
        fresh.produce(numbered(1), partition=partition)
    except Exception:  # noqa: BLE001 (the brokers have not heard of the partition)
        return False
    return True


def test_new_topics_of_a_pattern_are_read_from_their_first_record(
    brokers: KafkaCluster,
) -> None:
    family = a_topic("family")
    source = pen.kafka(
        pattern=f"{family}-.*", servers=brokers.bootstrap, schema={"n": int}, start="latest"
    )
    with SourceHarness(source.source_spec()) as harness:
        assert harness.read().rows() == []
        first = a_topic_of(brokers, name=f"{family}-a")
        a_topic_of(brokers, name=f"other-{family}").produce(numbered(99))
        first.produce(numbered(1))
        harness.advance("10s")
        harness.read()
        second = a_topic_of(brokers, name=f"{family}-b", partitions=2)
        second.produce(numbered(2), partition=1)
        harness.advance("10s")
        harness.read()
        assert numbers(harness) == [1, 2]
        assert set(harness.splits) == {f"{family}-{name}" for name in ("a/0", "b/0", "b/1")}


def test_a_pattern_that_matches_nothing_has_no_end(brokers: KafkaCluster) -> None:
    source = pen.kafka(
        pattern=a_topic("nothing"), servers=brokers.bootstrap, format="text", end="latest"
    )
    with (
        pytest.raises(UserError, match="matches no topic"),
        SourceHarness(source.source_spec()) as harness,
    ):
        harness.read()


def test_several_topics_are_one_stream(brokers: KafkaCluster, topic: TestTopic) -> None:
    other = a_topic_of(brokers, partitions=2)
    topic.produce(numbered(1), partition=1)
    other.produce(numbered(2), partition=1)
    source = pen.kafka(
        [topic.name, other.name],
        servers=topic.servers,
        schema={"n": int},
        metadata=["topic"],
        end="latest",
    )
    with SourceHarness(source.source_spec()) as harness:
        harness.read_all()
        found = {row["n"]: row["kafka_topic"] for row in harness.rows()}
    assert found == {1: topic.name, 2: other.name}


# ---- what it tells


def test_metadata_of_records(topic: TestTopic) -> None:
    topic.produce(
        numbered(1), 1, lambda _: b"k", timestamp=1_234, headers=[("a", b"x"), ("a", None)]
    )
    kinds: Any = ["key", "headers", "timestamp", "topic", "partition", "offset"]
    with SourceHarness(spec(topic, metadata=kinds)) as harness:
        harness.read()
        (row,) = harness.rows()
    assert row == {
        "n": 1,
        "kafka_key": b"k",
        "kafka_headers": [{"name": "a", "value": b"x"}, {"name": "a", "value": None}],
        "kafka_timestamp": datetime.fromtimestamp(1.234, UTC),
        "kafka_topic": topic.name,
        "kafka_partition": 1,
        "kafka_offset": 0,
    }


def test_metadata_stay_with_their_rows_where_records_are_bad_or_tombstones(
    topic: TestTopic,
) -> None:
    topic.produce([*numbered(0), b"?", None, *numbered(3)], key=lambda n: b"%d" % n)
    kinds: Any = ["key", "offset"]
    options: Any = {"metadata": kinds, "on_bad": "divert", "end": "latest"}
    with SourceHarness(spec(topic, **options)) as harness:
        harness.read_all()
        rows = [(row["n"], row["kafka_key"], row["kafka_offset"]) for row in harness.rows()]
        assert rows == [(0, b"0", 0), (3, b"3", 3)]


def test_bad_records_are_set_aside_as_they_were(topic: TestTopic) -> None:
    headers = [("trace", b"7")]
    topic.produce(numbered(1), 1)
    topic.produce([b"{oops"], 1, lambda _: b"k", timestamp=99, headers=headers)
    with SourceHarness(spec(topic, on_bad="divert", end="latest")) as harness:
        harness.read_all()
        (bad,) = harness.rows(pen.BAD)
    assert bad.pop("error")
    assert bad == {
        "value": b"{oops",
        "key": b"k",
        "headers": [{"name": "trace", "value": b"7"}],
        "timestamp": datetime.fromtimestamp(0.099, UTC),
        "topic": topic.name,
        "partition": 1,
        "offset": 1,
    }


def test_a_bad_record_is_named(topic: TestTopic) -> None:
    topic.produce([*numbered(1), b"{oops"])
    says = f"offset 1 of {topic.name}/0 cannot be read.*It is '{{oops'"
    with pytest.raises(UserError, match=says):
        read_from(topic, "earliest")


def test_upserts_are_read_by_their_keys(topic: TestTopic) -> None:
    topic.produce([b'{"n": 1, "s": "a"}', None], key=lambda _: b'{"n": 1}')
    source = pen.kafka(
        topic.name,
        servers=topic.servers,
        format="upsert",
        schema={"n": int, "s": str},
        format_options={"key": ["n"]},
        end="latest",
    )
    with SourceHarness(source.source_spec()) as harness:
        harness.read_all()
        assert [row["deleted"] for row in harness.rows()] == [False, True]


def test_the_status_tells_the_lag(topic: TestTopic) -> None:
    began = SystemClock().now_micros()
    sent_millis = began // 1_000 - 3_600_000
    # The age of what is left follows from the record before it, not from the latest one.
    topic.produce(numbered(*range(10)), timestamp=sent_millis)
    topic.produce(numbered(*range(10, 30)), timestamp=sent_millis + 60_000)
    seen: list[tuple[int | None, int | None]] = []

    def note(status: pen.JobStatus) -> None:
        reading = [each for each in status.operators if each.operator == "in"]
        seen.extend((each.lag_rows, each.lag_micros) for each in reading)

    pipeline = pen.Pipeline("lag")
    source = pen.kafka(topic.name, servers=topic.servers, schema={"n": int}, end="latest")
    pipeline.read("in", source).write("out", pen.blackhole())
    settings = DriverSettings(budget=SourceBudget(rows=10), adapts_budget=False)
    options = RunOptions(checkpoint="memory:", on_status=note, settings=settings)
    run_in_process(pipeline.graph(), pipeline.registry, options)
    assert seen[-1] == (0, 0)
    assert (20, None) in seen
    (age,) = {micros for rows, micros in seen if rows == 10 and micros is not None}
    assert began <= age + sent_millis * 1_000 <= SystemClock().now_micros()
    now = datetime.fromtimestamp(sent_millis / 1_000 + 75, UTC)
    with SourceHarness(spec(topic), budget=SourceBudget(rows=10), now=now) as harness:
        harness.read()
        planner = harness._session.planner
        (lag,) = planner.plan(harness.clock.now_micros(), None).lags.values()
        assert (lag.rows, lag.micros) == (10, 75_000_000)


def test_an_epoch_is_planned_only_for_something_to_read_or_to_store(
    topic: TestTopic,
) -> None:
    topic.produce(numbered(1))
    with SourceHarness(spec(topic), parallelism=2) as harness:

        def planned() -> list[str]:
            harness.advance("1s")
            reading = harness._session.planner.plan(harness.clock.now_micros(), None)
            (parts,) = reading.assignments.values()
            return [split.name for part in parts for split in part.splits]

        both = [f"{topic.name}/0", f"{topic.name}/1"]
        assert planned() == both
        harness.read()
        assert planned() == []
        # With rows in one of them both are, so that each stays with its subtask.
        topic.produce(numbered(2), partition=1)
        assert planned() == both
        harness.read()
        assert planned() == []
        topic.add_partitions(3)
        wait_until(lambda: len(planned()) == 3)
        harness.read()
        assert planned() == []
        harness.close()
        assert numbers(harness) == [1, 2]


def test_positions_of_committed_epochs_are_written_to_a_group(topic: TestTopic) -> None:
    topic.produce(numbered(1, 2, 3))
    topic.produce(numbered(4), partition=1)
    group = a_topic("lag")
    with SourceHarness(spec(topic, commit_group=group)) as harness:
        harness.read()
        wait_until(lambda: committed(topic, group) == {0: 3, 1: 1})
        # They are for people alone: where somebody moved them, the job does not go.
        commit(topic, group, {0: 0, 1: 0})
        harness.close()
        harness.read()
        assert numbers(harness) == [1, 2, 3, 4]
        wait_until(lambda: committed(topic, group) == {0: 3, 1: 1})


def test_positions_of_the_last_epoch_of_a_job_are_written_to_a_group(
    topic: TestTopic,
) -> None:
    topic.produce(numbered(1, 2, 3))
    topic.produce(numbered(4), partition=1)
    group, p = a_topic("group"), pen.Pipeline("ends")
    source = pen.kafka(
        topic.name,
        servers=topic.servers,
        schema={"n": int},
        end="latest",
        commit_group=group,
    )
    p.read("rows", source).write("out", pen.blackhole())
    p.run_in_process("memory:")
    assert committed(topic, group) == {0: 3, 1: 1}


def test_records_that_are_larger_than_thought_end_an_epoch_early(
    topic: TestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MESSAGES_PER_CALL", 2)
    monkeypatch.setattr(fetched, "BYTES_PER_PIECE", 100_000)
    topic.produce([b'{"n": %d, "filler": "%b"}' % (n, b"x" * 40_000) for n in range(50)])
    budget = SourceBudget(size_bytes=100_000)
    with SourceHarness(spec(topic), budget=budget) as harness:
        counts: list[int] = []
        while sum(counts) < 50:
            before = len(harness.rows())
            harness.read()
            counts.append(len(harness.rows()) - before)
        # A hundred were planned, as nothing was known of their size.
        assert 1 <= counts[0] <= 20
        assert counts[1] <= 3
        assert numbers(harness) == [*range(50)]


def test_a_compacted_topic_warns_at_start(
    brokers: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = a_topic_of(brokers, cleanup_policy="compact,delete")
    with caplog.at_level(logging.WARNING), SourceHarness(spec(topic)) as harness:
        harness.read()
        harness.read()
    warnings = [text for text in caplog.messages if "is compacted" in text]
    assert len(warnings) == 1
    assert topic.name in warnings[0]


def test_an_idle_partition_holds_event_time_back_no_longer_than_its_timeout(
    topic: TestTopic,
) -> None:
    schema = StreamSchema(pa.schema([("at", pa.timestamp("us", "UTC"))]), "at")
    source = pen.kafka(topic.name, servers=topic.servers, schema=schema)
    topic.produce([b'{"at": "1970-01-01T00:01:00Z"}'])
    topic.produce([b'{"at": "1970-01-01T00:00:30Z"}'], partition=1)
    with SourceHarness(source.source_spec(), idle_timeout="10s") as harness:
        assert harness.read().watermark == EventTime(30_000_000)
        topic.produce([b'{"at": "1970-01-01T00:02:00Z"}'])
        harness.advance("9s")
        assert harness.read().watermark == EventTime(30_000_000)
        harness.advance("1s")
        assert harness.read().watermark == EventTime(120_000_000)
