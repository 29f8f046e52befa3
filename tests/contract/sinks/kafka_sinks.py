"""The Kafka sink as the contract suite of sinks takes it: every call to a real broker is harmed."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from penstock.connectors.kafka.connector import kafka
from penstock.connectors.kafka.sink import Delivery, KafkaSink, KafkaSinkConfig
from penstock.core.clock import new_token
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
from penstock.testing import CrashError
from tests.builders.kafka_faults import (
    ANSWERS,
    CHANGES,
    MARKER_READS,
    READS,
    WatchedClients,
)
from tests.builders.kafka_output import an_output, read_output
from tests.builders.profile import by_profile
from tests.contract.sinks.sink_under_test import DEATHS, Harm, Line, Row, Strike

_HARMED = frozenset(
    by_profile(
        default=(*CHANGES, "get_watermark_offsets"),
        ci=(*CHANGES, "get_watermark_offsets"),
        nightly=(*CHANGES, *READS, *ANSWERS, *MARKER_READS),
    )
)
"""The calls that are counted and harmed."""
_WAITS = frozenset((*ANSWERS, *MARKER_READS))
"""Those that only wait for what is under way: nothing of them is left that could land late."""


class _Process:
    """A process whose calls meet one harm. A dead one makes no call any more."""

    def __init__(self, strike: Strike | None) -> None:
        self._strike = strike
        self._is_dead = False
        self.calls = 0
        self.late: list[Callable[[], Any]] = []

    def make(self, name: str, call: Callable[[], Any]) -> Any:
        if self._is_dead:
            raise CrashError("the process is dead")
        self.calls += 1
        strike = self._strike
        if strike is None or strike.at not in (None, self.calls):
            return call()
        return self._harmed(strike, name, call)

    def _harmed(self, strike: Strike, name: str, call: Callable[[], Any]) -> Any:
        match strike.harm:
            case Harm.SLEEPS:
                strike.meanwhile()
                return call()
            case Harm.LANDS_LATE if name not in _WAITS:
                self.late.append(call)
            case Harm.FAILS_AFTER | Harm.DIES_AFTER:
                call()
            case _:
                pass
        self._is_dead = strike.harm in DEATHS
        if self._is_dead:
            raise CrashError("killed at a call to Kafka")
        nobody_knows = strike.harm in (Harm.ANSWER_LOST, Harm.LANDS_LATE)
        code = KafkaError._TIMED_OUT if nobody_knows else KafkaError._TRANSPORT
        raise KafkaException(KafkaError(code, "harmed by a test", retriable=nobody_knows))


class KafkaUnderTest:
    """The Kafka sink on a topic of its own; a reader sees what is committed."""

    cannot: Mapping[Line, str] = {
        Line.WHOLE_EPOCHS: "Kafka shows nothing at the same instant across partitions",
        Line.RESTORE: "what is committed to a topic stays there",
    }
    harms: Sequence[Harm] = tuple(Harm)
    cases = by_profile(default=1, ci=3, nightly=1_000_000)
    merges = False
    delivery: Delivery = "exactly_once"

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._topic = an_output(servers, partitions=2)
        self._begun: list[_Process] = []
        self.arm()

    def connect(self, registry: Registry) -> OperatorSpec:
        kind = f"kafka-{new_token()}"

        def build(config: KafkaSinkConfig) -> KafkaSink:
            process = self._begun[-1]
            return KafkaSink(config, WatchedClients(self._servers, process.make, _HARMED))

        registry.add(kind, KafkaSinkConfig, build)
        named = kafka(
            self._topic, servers=self._servers, key="word", delivery=self.delivery
        )
        return OperatorSpec(kind, named.sink_spec().config)

    def arm(self, strike: Strike | None = None) -> None:
        self._begun.append(_Process(strike))

    @property
    def calls(self) -> int:
        return self._begun[-1].calls

    def settle(self) -> None:
        for process in self._begun:
            late, process.late = process.late, []
            for call in late:
                # Of a client that was closed meanwhile nothing arrives any more.
                with suppress(KafkaException, RuntimeError):
                    call()

    def rows(self) -> list[Row]:
        records = read_output(self._servers, self._topic)
        return [json.loads(record.value or b"") for record in records]


class RepeatingKafkaUnderTest(KafkaUnderTest):
    """The Kafka sink without transactions."""

    cannot: Mapping[Line, str] = {
        **KafkaUnderTest.cannot,
        Line.ONCE: "it sends before the epoch counts",
    }
    delivery: Delivery = "at_least_once"
