"""OffsetCalls: asks a cluster, for offsets of partitions above all, and does not wait for ever.

Every call is answered within `SECONDS` or fails with an error that says what to do. Nothing is
kept here but the connection, which is made by the first call.
"""

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.connectors.kafka.positions import Held, Partition
from penstock.errors import ExternalError, PenstockError, UserError

SECONDS = 10
PAUSE_SECONDS = 0.1
_SETTLING_SECONDS = 5.0
_SETTLING = (
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_TOPIC_OR_PART",
)
"""What brokers answer while a leader moves, or a topic that was just made becomes known to all."""


@dataclass(frozen=True, slots=True)
class HeldCall:
    """A call that asks what is held of partitions: answers that came, or that are under way."""

    firsts: Mapping[Partition, "Future[Any]"]
    ends: Mapping[Partition, "Future[Any]"]

    @property
    def is_done(self) -> bool:
        """Whether all answers came, or will not come any longer."""
        return all(each.done() for each in (*self.firsts.values(), *self.ends.values()))


class OffsetCalls:
    """The calls of one admin client."""

    def __init__(self, clients: KafkaClients) -> None:
        """Ask the cluster of these clients."""
        self._clients = clients
        self._opened: Any = None
        self._reports = Reports()

    @property
    def servers(self) -> str:
        """The address of the cluster, as the user gave it."""
        return self._clients.servers

    def close(self) -> None:
        """Drop the connection; the next call opens another."""
        self._opened = None

    def held(self, partitions: Collection[Partition]) -> dict[str, Held]:
        """Return the first and the last stable offset of each partition; all must answer."""
        held, failed = self.find_held(partitions)
        for error in failed.values():
            raise error
        return held

    def find_held(
        self, partitions: Collection[Partition]
    ) -> tuple[dict[str, Held], dict[Partition, PenstockError]]:
        """Return what is held of the partitions that answer, and why the others do not.

        What is wrong with a request, or forbidden, is raised. A leader that moves is waited for.
        """
        deadline = time.monotonic() + _SETTLING_SECONDS
        held: dict[str, Held] = {}
        while True:
            call = self.ask_held([each for each in partitions if each.split not in held])
            found, failed = self.answers_to(call)
            held |= found
            settling = [
                each
                for each, error in failed.items()
                if error.context.get("kafka_error") in _SETTLING
            ]
            is_over = not settling or time.monotonic() >= deadline
            for each, error in failed.items():
                if isinstance(error, UserError) and (is_over or each not in settling):
                    raise error
            if is_over:
                return held, failed
            time.sleep(PAUSE_SECONDS)
            self.look_for_leaders(settling)

    def ask_held(self, partitions: Collection[Partition]) -> HeldCall:
        """Ask what is held of partitions, without waiting for the answers."""
        ends = self.ask_offsets(partitions, "latest")
        return HeldCall(self.ask_offsets(partitions, "earliest"), ends)

    def answers_to(
        self, call: HeldCall
    ) -> tuple[dict[str, Held], dict[Partition, PenstockError]]:
        """Wait for the answers to a call; return those, and the errors of the other partitions.

        If one does not answer, all answers come when the client stops waiting for it.
        """
        held: dict[str, Held] = {}
        failed: dict[Partition, PenstockError] = {}
        for each in call.ends:
            try:
                held[each.split] = Held(
                    self.offset(call.firsts, each), self.offset(call.ends, each)
                )
            except PenstockError as error:
                failed[each] = error
        return held, failed

    def look_for_leaders(self, partitions: Collection[Partition]) -> None:
        """Have the client ask who leads partitions, instead of what it remembers of them."""
        for name in sorted({each.topic for each in partitions}):
            doing = f"the leaders of {name!r} cannot be found"
            self.call(doing, "list_topics", topic=name, timeout=SECONDS)

    def ask_offsets(
        self, partitions: Collection[Partition], which: str, *args: int
    ) -> dict[Partition, "Future[Any]"]:
        """Ask for one offset of each partition, as Kafka's `OffsetSpec` names it."""
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        if not partitions:
            return {}
        kind: Any = admin.OffsetSpec  # type: ignore[attr-defined]  # it is public
        spec = getattr(kind, which)(*args)
        futures = self.call(
            "offsets cannot be read",
            "list_offsets",
            {TopicPartition(*each): spec for each in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=SECONDS,
        )
        return {Partition(each.topic, each.partition): futures[each] for each in futures}

    def offset(self, futures: Mapping[Partition, "Future[Any]"], each: Partition) -> int:
        """Wait for an offset; -1 if there is no record that was asked for."""
        doing = f"the offsets of {each.split} cannot be read"
        offset = int(self.result(futures[each], doing).offset)
        if offset < -1:
            # The client answers so, without an error, for partitions that nobody leads.
            raise ExternalError(
                f"{doing} at {self._clients.servers}: no broker leads the partition",
                kafka_error="LEADER_NOT_AVAILABLE",
            )
        return offset

    def call(self, doing: str, method: str, /, *args: Any, **options: Any) -> Any:
        """Call a method of the client; `doing` says what cannot be done if it fails."""
        from confluent_kafka import KafkaException

        if self._opened is None:
            self._opened = self._clients.admin(self._reports)
        self._opened.poll(0)  # reports and logs would pile up otherwise
        try:
            return getattr(self._opened, method)(*args, **options)
        except KafkaException as error:
            raise self._failure(error, doing) from error

    def result(self, future: "Future[Any]", doing: str) -> Any:
        """Wait for an answer, but no longer than until it is told that none will come."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + SECONDS + 5
        while True:
            try:
                answer = future.result(PAUSE_SECONDS)
            except TimeoutError as error:
                self._opened.poll(0)
                is_refused = self._reports.find_refusal() is not None
                if is_refused or time.monotonic() >= deadline:
                    raise self._failure(error, doing) from error
            except KafkaException as error:
                if _is_answer(error):
                    self._reports.note_answer()
                raise self._failure(error, doing) from error
            else:
                self._reports.note_answer()
                return answer

    def _failure(self, error: Exception, doing: str) -> PenstockError:
        self._opened.poll(0)  # has the client make its reports
        return to_error(error, f"{doing} at {self._clients.servers}", self._reports)


def _is_answer(error: Exception) -> bool:
    """Tell whether an error came from a broker: the client's own begin with an underscore."""
    reason = error.args[0] if error.args else None
    return reason is not None and not reason.name().startswith("_")
