"""Tests what the driver plans while some partitions do not answer, with an admin client in memory."""

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as kafka_admin
from typing_extensions import override

from penstock.connectors.kafka import offset_calls, topics
from penstock.connectors.kafka.positions import Partition, PartitionOffset, Selection, Start
from penstock.connectors.kafka.source import KafkaSource, KafkaSourceConfig
from penstock.errors import ExternalError, UserError
from penstock.operators.splits import SourceBudget, SourcePlan, SplitState

P, Q, NEW = (Partition("a", number) for number in range(3))
_admin: Any = kafka_admin
"""Its types are public, but are not marked so."""
_LATEST = _admin.OffsetSpec.latest()


@dataclass
class Cluster:
    """A cluster and its admin client. What a partition answers is what it holds, or an error."""

    held: dict[Partition, Any]
    asked: list[Partition] = field(default_factory=list)
    is_deleted_meanwhile: bool = False
    """Whether the topic goes away between the question for it and that for offsets."""
    servers: str = "memory"

    def admin(self, *_: Any) -> "Cluster":
        return self

    def poll(self, _: float) -> None:
        """Reports nothing."""

    def list_topics(self, **_: Any) -> None:
        """Tells nothing that is not known."""

    def describe_configs(self, *_: Any, **__: Any) -> dict[Any, Any]:
        return {}

    def describe_topics(self, _: Any, **__: Any) -> dict[str, "Future[Any]"]:
        if self.is_deleted_meanwhile and self.asked:
            future: Future[Any] = Future()
            future.set_exception(KafkaException(UNKNOWN))
            return {"a": future}
        numbers = [SimpleNamespace(id=each.number) for each in self.held]
        return {"a": _answered(SimpleNamespace(topic_id="id", partitions=numbers))}

    def list_offsets(self, asked: Mapping[Any, Any], **_: Any) -> dict[Any, "Future[Any]"]:
        self.asked += [Partition(each.topic, each.partition) for each in asked]
        return {each: self._answer(each, spec) for each, spec in asked.items()}

    def _answer(self, place: Any, spec: Any) -> "Future[Any]":
        held = self.held[Partition(place.topic, place.partition)]
        if isinstance(held, tuple):
            is_end = type(spec) is type(_LATEST) and spec._value == _LATEST._value
            return _answered(SimpleNamespace(offset=held[is_end]))
        if isinstance(held, int):
            return _answered(SimpleNamespace(offset=held))
        future: Future[Any] = Future()
        if isinstance(held, KafkaError):
            future.set_exception(KafkaException(held))
        return future


NO_LEADER = -1001
UNDER_WAY = None
TIMEOUT = KafkaError(KafkaError._TIMED_OUT)
NO_LEADERS = KafkaError(KafkaError._NOENT)
UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
FORBIDDEN = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def _answered(answer: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(answer)
    return future


class Config(KafkaSourceConfig):
    """A config whose clients are those of the cluster in memory."""

    __slots__ = ("_cluster",)
    _cluster: Cluster

    @property
    @override
    def clients(self) -> Any:
        return self._cluster


def source_of(cluster: Cluster, **options: Any) -> KafkaSource:
    config = Config("memory", Selection(("a",)), "text", **options)
    object.__setattr__(config, "_cluster", cluster)
    return KafkaSource(config)


def known(*partitions: Partition, at: int = 5) -> dict[str, SplitState]:
    """Return the states of partitions that were read up to an offset."""
    offset = tuple(PartitionOffset("id", at))
    return {each.split: SplitState(offset) for each in partitions}


def plan(source: KafkaSource, states: Mapping[str, SplitState]) -> SourcePlan:
    return source.plan_splits(states, SourceBudget(), 0)


def ranges(planned: SourcePlan) -> dict[str, tuple[int, int]]:
    return {each.name: (each.start[1], each.end[1]) for each in planned.splits}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was warned of since the last call."""
    found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_calls, "_SETTLING_SECONDS", 0.0)


@pytest.mark.parametrize("silence", [NO_LEADER, TIMEOUT])
def test_a_partition_that_does_not_answer_waits_while_the_others_are_read(
    silence: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster({P: (0, 9), Q: silence})
    source = source_of(cluster)
    for _ in range(3):
        planned = plan(source, known(P, Q))
        # It keeps its place and its state: it is planned, and nothing of it is read.
        assert ranges(planned) == {"a/0": (5, 9), "a/1": (5, 5)}
        assert planned.waiting == ("a/1",)
        assert planned.lag is not None
        assert planned.lag.micros is None
    (told,) = warnings(caplog)
    assert "a/1" in told
    cluster.held[Q] = (0, 7)
    plan(source, known(P, Q))  # its own call, which is under way, is answered late
    planned = plan(source, known(P, Q))
    assert ranges(planned) == {"a/0": (5, 9), "a/1": (5, 7)}
    assert planned.waiting == ()
    assert not warnings(caplog)


def test_a_partition_that_waits_is_asked_by_calls_that_nobody_waits_for() -> None:
    cluster = Cluster({P: (0, 9), Q: TIMEOUT})
    source = source_of(cluster)
    plan(source, known(P, Q))
    cluster.held[Q] = UNDER_WAY
    plan(source, known(P, Q))
    cluster.asked.clear()
    assert plan(source, known(P, Q)).waiting == ("a/1",)
    assert set(cluster.asked) == {P}


def test_no_answer_counts_neither_as_a_loss_nor_as_an_end() -> None:
    cluster = Cluster({P: (0, 5), Q: NO_LEADER})
    source = source_of(cluster)
    source.check_splits(known(P, Q))
    planned = plan(source, known(P, Q))
    # An epoch without news is not run, and the partition is not idle in one that is.
    assert planned.splits == ()
    assert planned.waiting == ("a/1",)
    assert not planned.is_complete
    cluster.held[Q] = (6, 9)
    plan(source, known(P, Q))
    with pytest.raises(UserError, match="offsets 5 to 5 of a/1 were removed"):
        plan(source, known(P, Q))


def test_if_none_answers_the_epoch_fails() -> None:
    cluster = Cluster({P: TIMEOUT, Q: NO_LEADER})
    source = source_of(cluster)
    with pytest.raises(ExternalError, match="cannot be read"):
        plan(source, known(P, Q))
    cluster.held[P] = (0, 9)
    assert plan(source, known(P, Q)).waiting == ("a/1",)
    cluster.held[P] = TIMEOUT
    with pytest.raises(ExternalError, match="a/0 cannot be read"):
        plan(source, known(P, Q))


def test_where_only_partitions_are_left_that_wait_the_epoch_fails() -> None:
    cluster = Cluster({P: (0, 9), Q: NO_LEADER})
    source = source_of(cluster, ends_at_latest=True)
    states = known(P, Q)
    assert plan(source, states).waiting == ("a/1",)
    states["a/0"] = SplitState(states["a/0"].offset, ended=True)
    with pytest.raises(ExternalError, match="a/1 cannot be read"):
        plan(source, states)


def test_the_first_epoch_leaves_no_partition_out() -> None:
    cluster = Cluster({P: (0, 9), Q: NO_LEADER})
    source = source_of(cluster, start=Start("latest"))
    with pytest.raises(ExternalError, match="a/1 cannot be read"):
        plan(source, {})
    cluster.held[Q] = (0, 7)
    assert ranges(plan(source, {})) == {"a/0": (9, 9), "a/1": (7, 7)}
    # Where they begin is decided and in no checkpoint yet.
    cluster.held[Q] = NO_LEADER
    with pytest.raises(ExternalError, match="a/1 cannot be read"):
        plan(source, {})


def test_a_new_partition_that_does_not_answer_holds_event_time_and_begins_later() -> None:
    cluster = Cluster({P: (0, 9), Q: (0, 9), NEW: NO_LEADER})
    source = source_of(cluster, start=Start("latest"))
    planned = plan(source, known(P, Q))
    assert ranges(planned) == {"a/0": (5, 9), "a/1": (5, 9)}
    assert planned.waiting == ()
    assert planned.holds_watermark
    cluster.held[NEW] = (3, 8)
    plan(source, known(P, Q))
    planned = plan(source, known(P, Q))
    assert ranges(planned)["a/2"] == (3, 8)
    assert not planned.holds_watermark


def test_what_is_forbidden_is_refused_whoever_else_answers() -> None:
    cluster = Cluster({P: (0, 9), Q: TIMEOUT})
    source = source_of(cluster)
    plan(source, known(P, Q))
    cluster.held[Q] = FORBIDDEN
    plan(source, known(P, Q))
    with pytest.raises(UserError, match="no permission"):
        plan(source, known(P, Q))


def test_a_topic_that_is_deleted_while_it_is_asked_for_is_told_from_one_without_leaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "_DELETED_SECONDS", 0.0)
    cluster = Cluster({P: NO_LEADERS, Q: NO_LEADERS})
    with pytest.raises(ExternalError, match="a/0 cannot be read"):
        plan(source_of(cluster), known(P, Q))
    cluster = Cluster({P: NO_LEADERS, Q: NO_LEADERS}, is_deleted_meanwhile=True)
    with pytest.raises(UserError, match="'a', which this job reads, was deleted"):
        plan(source_of(cluster), known(P, Q))


def test_a_source_that_is_released_asks_all_partitions_anew() -> None:
    cluster = Cluster({P: (0, 9), Q: TIMEOUT})
    source = source_of(cluster)
    plan(source, known(P, Q))
    cluster.held[Q] = UNDER_WAY
    plan(source, known(P, Q))
    source.release()
    cluster.held[Q] = (0, 7)
    assert plan(source, known(P, Q)).waiting == ()
