"""Tests records and topics that vanish: before a start, while a job runs, and in mid-epoch."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import override

import penstock as pen
from penstock.connectors.kafka.source import KafkaSource, KafkaSourceConfig
from penstock.core.clock import SystemClock
from penstock.errors import PenstockError, UserError
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceBudget
from penstock.testing import Amnesia, SourceHarness
from penstock.testing.given import shared_registry
from scripts.servers.kafka import KafkaCluster
from tests.builders.kafka_topics import TestTopic, wait_until


@pytest.fixture
def topic(brokers: KafkaCluster) -> TestTopic:
    return TestTopic.create(brokers.bootstrap, copies=len(brokers.ports))


FIX = (
    "give the step another name, so that it begins anew where start= says (and pass "
    "allow_dropped_state=True once, which drops the positions of the old one)"
)
"""`test_kafka_fixes.py` shows that this helps."""


def numbered(first: int, stop: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in range(first, stop)]


def spec(topic: TestTopic, **options: Any) -> Any:
    made = pen.kafka(topic.name, servers=topic.servers, schema={"n": int}, **options)
    return made.source_spec()


def numbers(harness: SourceHarness) -> list[int]:
    return sorted(row["n"] for row in harness.rows())


def lost(harness: SourceHarness) -> int:
    (state,) = harness.splits.values()
    return int(state.offset[-1])


def test_offsets_that_retention_removed_stop_the_job_with_the_fix(topic: TestTopic) -> None:
    topic.produce(numbered(0, 10))
    with SourceHarness(spec(topic)) as harness:
        harness.read(rows=3)
        topic.remove_before(5)
        says = f"offsets 3 to 4 of {topic.name}/0 were removed.*on_lost='continue'"
        with pytest.raises(UserError, match=says) as failure:
            harness.read()
        assert failure.value.code == "input-lost"
        harness.close()
        # A new start is refused before it changes anything.
        with pytest.raises(UserError, match=says):
            harness.read()


def test_a_job_that_is_told_so_goes_on_and_counts(
    topic: TestTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic.produce(numbered(0, 10))
    with SourceHarness(spec(topic, on_lost="continue")) as harness:
        harness.read(rows=3)
        topic.remove_before(5)
        with caplog.at_level(logging.WARNING):
            harness.read()
        assert numbers(harness) == [0, 1, 2, 5, 6, 7, 8, 9]
        assert lost(harness) == 2
        assert any("offsets 3 to 4" in text for text in caplog.messages)


def test_the_status_counts_what_was_lost(topic: TestTopic) -> None:
    topic.produce(numbered(0, 10))
    topic.remove_before(4)
    source = pen.kafka(
        topic.name,
        servers=topic.servers,
        schema={"n": int},
        start={0: 1},
        end="latest",
        on_lost="continue",
    )
    pipeline = pen.Pipeline("lost")
    pipeline.read("in", source).write("out", pen.blackhole())
    status = pipeline.run_in_process("memory:")
    (counted,) = [each for each in status.operators if each.operator == "in"]
    assert counted.counters["lost_offsets"] == 3
    assert counted.rows_taken == 6


class Interrupted(KafkaSource):
    """A source to whose topic something happens after each plan, before it is read."""

    def __init__(self, config: KafkaSourceConfig, events: list[Callable[[], None]]) -> None:
        super().__init__(config)
        self._events = events

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        if self._events:
            self._events.pop(0)()
        super().run(ctx, collector)


def interrupted(events: list[Callable[[], None]]) -> Registry:
    registry = Registry()
    kind = KafkaSourceConfig
    registry.add(kind.kind, kind, lambda config: Interrupted(config, events))
    return registry


def remake(topic: TestTopic, count: int) -> None:
    topic.make_again()
    topic.produce(numbered(100, 100 + count))


def test_offsets_that_vanish_between_planning_and_reading_stop_the_job(
    topic: TestTopic,
) -> None:
    topic.produce(numbered(0, 10))
    registry = interrupted([lambda: topic.remove_before(5)])
    with (
        SourceHarness(spec(topic), registry=registry) as harness,
        pytest.raises(UserError, match=r"offsets 0 to 4 of .* were removed"),
    ):
        harness.read()


def test_offsets_that_vanish_between_planning_and_reading_are_counted(
    topic: TestTopic,
) -> None:
    topic.produce(numbered(0, 10))
    # In the second epoch all of the range is gone.
    registry = interrupted(
        [lambda: topic.remove_before(4), lambda: topic.remove_before(10)]
    )
    with SourceHarness(
        spec(topic, on_lost="continue"),
        registry=registry,
        budget=SourceBudget(rows=6),
        amnesia=Amnesia.OPERATORS,  # else the second range is in memory by then
    ) as harness:
        harness.read()
        assert numbers(harness) == [4, 5]
        assert lost(harness) == 4
        harness.read()
        topic.produce(numbered(10, 12))
        harness.read()
        assert numbers(harness) == [4, 5, 10, 11]
        assert lost(harness) == 8


def test_a_topic_that_was_made_again_stops_the_job(topic: TestTopic) -> None:
    topic.produce(numbered(0, 3))
    with SourceHarness(spec(topic)) as harness:
        harness.read()
        remake(topic, 10)
        with pytest.raises(UserError, match="was deleted and made again") as failure:
            _read_until_it_is_known(harness)
        assert failure.value.code == "input-changed"
        assert f"To read the new one, {FIX}" in failure.value.message
        harness.close()
        with pytest.raises(UserError, match="was deleted and made again"):
            harness.read()


def test_a_topic_that_is_made_again_in_mid_epoch_gives_no_row(topic: TestTopic) -> None:
    topic.produce(numbered(0, 3))
    registry = interrupted([lambda: remake(topic, 10)])
    with SourceHarness(spec(topic), registry=registry) as harness:
        with pytest.raises(UserError, match="was deleted"):
            harness.read()
        assert harness.rows() == []


def test_a_topic_that_was_deleted_stops_the_job(topic: TestTopic) -> None:
    topic.produce(numbered(0, 3))
    with SourceHarness(spec(topic)) as harness:
        harness.read()
        topic.delete()
        with pytest.raises(UserError, match=f"{topic.name}.*was deleted") as failure:
            _read_until_it_is_known(harness)
        assert failure.value.code == "input-changed"
        assert f"Create it again, and {FIX}" in failure.value.message


def _read_until_it_is_known(harness: SourceHarness) -> None:
    """Read until an error; brokers hear of it one after the other."""
    wait_until(lambda: bool(harness.read()) and False)


@pytest.mark.slow
@pytest.mark.timeout(40)
def test_what_brokers_remove_by_age_is_told_and_counted(topic: TestTopic) -> None:
    topic.produce(numbered(0, 10))
    with (
        SourceHarness(spec(topic)) as strict,
        SourceHarness(spec(topic, on_lost="continue")) as lenient,
    ):
        strict.read(rows=3)
        lenient.read(rows=3)
        # From here on the brokers remove what is older than a second, a segment at a time.
        topic.configure(retention_ms="1000", segment_ms="500")
        wait_until(lambda: topic.first() == 10)
        soon = SystemClock().now_micros() // 1_000 + 1_800_000  # not to be removed as well
        topic.produce(numbered(10, 13), timestamp=soon)
        with pytest.raises(UserError, match="offsets 3 to 9 of") as failure:
            strict.read()
        assert failure.value.code == "input-lost"
        lenient.read()
        assert numbers(lenient) == [0, 1, 2, 10, 11, 12]
        assert lost(lenient) == 7


def test_losses_are_no_news_to_those_who_wait(topic: TestTopic) -> None:
    topic.produce(numbered(0, 3))
    with SourceHarness(spec(topic)) as harness:
        harness.read()
        topic.remove_before(3)
        harness.read()
        topic.produce(numbered(3, 5))
        harness.read()
        assert numbers(harness) == [0, 1, 2, 3, 4]


def test_a_topic_that_is_not_named_any_longer_is_missed(topic: TestTopic) -> None:
    topic.produce(numbered(0, 3))
    known: Any = None
    with SourceHarness(spec(topic)) as harness:
        harness.read()
        known = harness.splits
    other = pen.kafka("other", servers=topic.servers, schema={"n": int}).source_spec()
    made = shared_registry().construct(other).operator
    assert isinstance(made, SourceOperator)
    with pytest.raises(PenstockError, match="has read the topic"):
        made.check_splits(known)
    made.release()
