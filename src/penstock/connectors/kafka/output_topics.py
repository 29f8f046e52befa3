"""The topics that a sink needs: they are checked at the start, and the marker topic is made.

Whatever would fail a commit is refused before: an epoch that is acknowledged must be committed,
so a topic that is missing, a permission that is not given, or a message that is too large is
found at the start or when rows are staged.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.errors import ErrorCode, ExternalError, UserError

_SECONDS = 20
_TURN_SECONDS = 1
_KNOWN_SECONDS = 1.0
_MARKER_CONFIG = {
    "cleanup.policy": "compact",
    # Small segments, because only closed ones are compacted.
    "segment.bytes": str(16 << 20),
    "segment.ms": str(24 * 3600 * 1000),
}
_NO_LIMIT = str(2**63 - 1)
DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
"""What a topic takes unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class OutputTopic:
    """What a sink must know about its topic before it stages records for it."""

    partitions: int
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    future_millis: int | None = None
    """How far in the future a timestamp may be; None for any."""
    past_millis: int | None = None
    """How far in the past a timestamp may be; None for any."""
    is_compacted: bool = False
    """Whether records need keys."""


class OutputTopics:
    """Asks a cluster about topics, and creates them. Connects when it is first asked."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._opened: Any = None
        self._reports = Reports()

    def close(self) -> None:
        """Drop the connection."""
        self._opened = None

    def partitions_of(self, topic: str) -> int | None:
        """Return how many partitions a topic has; None if there is no such topic."""
        found = self._find(topic)
        return None if found is None else len(found.partitions)

    def _find(self, topic: str) -> Any:
        """Return what the cluster tells about a topic; None if there is no such topic."""
        from confluent_kafka import KafkaException

        doing = f"the topic {topic!r} cannot be found"
        found = self._call(doing, lambda admin: self._list(admin, topic)).topics[topic]
        if found.error is not None:
            if found.error.name() in ("UNKNOWN_TOPIC_OR_PART", "LEADER_NOT_AVAILABLE"):
                return None
            raise to_error(
                KafkaException(found.error), f"{doing} at {self._clients.servers}"
            )
        return found

    def _list(self, admin: Any, topic: str) -> Any:
        """List a topic, but wait no longer than until it is told that nobody will answer."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                return admin.list_topics(topic, timeout=_TURN_SECONDS)
            except KafkaException as error:
                admin.poll(0)  # has the client make its reports
                is_silence = error.args[0].name() in ("_TRANSPORT", "_TIMED_OUT")
                is_refused = self._reports.find_refusal() is not None
                if not is_silence or is_refused or time.monotonic() >= deadline:
                    raise

    def wait_for(self, topic: str) -> int | None:
        """Return the same; one that was just created is waited for, until all brokers know it."""
        deadline = time.monotonic() + _KNOWN_SECONDS
        while (found := self.partitions_of(topic)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return found

    def describe(self, topic: str) -> OutputTopic | None:
        """Return what a topic takes; None if there is no such topic.

        Without the permission to read its settings they are taken to be the usual ones.
        """
        partitions = self.wait_for(topic)
        if partitions is None:
            return None
        settings = self.settings_of(topic)
        limit = int(settings.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))
        is_stamped = settings.get("message.timestamp.type") == "LogAppendTime"
        return OutputTopic(
            partitions,
            limit,
            None if is_stamped else _reach(settings, "after"),
            None if is_stamped else _reach(settings, "before"),
            "compact" in settings.get("cleanup.policy", ""),
        )

    def settings_of(self, topic: str) -> Mapping[str, str]:
        """Return the settings of a topic; empty without the permission to read them."""
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        doing = f"the settings of the topic {topic!r} cannot be read"

        def describe(admin: Any) -> Any:
            futures = admin.describe_configs([asked], request_timeout=_SECONDS)
            return futures[asked].result(_SECONDS + 5)

        try:
            found = self._call(doing, describe)
        except UserError:
            return {}
        return {name: str(entry.value) for name, entry in found.items()}

    def create(
        self,
        topic: str,
        *,
        partitions: int,
        replication: int = -1,
        settings: Mapping[str, str] | None = None,
        only_validate: bool = False,
    ) -> None:
        """Create a topic, unless it is there; or only ask whether it could be created."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        asked = NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=replication,
            config=dict(settings or {}),
        )

        def create(admin: Any) -> None:
            futures = admin.create_topics(
                [asked], request_timeout=_SECONDS, validate_only=only_validate
            )
            futures[topic].result(_SECONDS + 5)

        self._call(f"the topic {topic!r} cannot be created", create, "TOPIC_ALREADY_EXISTS")

    def check_markers(
        self, topic: str, partitions: int, *, like: str | None = None
    ) -> None:
        """Refuse a start whose markers could not be written; changes nothing."""
        try:
            found = self.partitions_of(topic)
            if found is None:
                self._create_markers(topic, partitions, like, only_validate=True)
            elif found < partitions:
                self._grow(topic, partitions, only_validate=True)
        except UserError as error:
            raise _unmade(topic, partitions, error) from error
        if found is not None:
            self._check_policy(topic)

    def ensure_markers(
        self, topic: str, partitions: int, *, like: str | None = None
    ) -> None:
        """Create the marker topic, or add partitions to it; returns when all are there.

        Several tasks may do so at the same time. It gets as many copies as the output topic,
        `like`, has: without the markers its last epoch would be doubled.
        """
        deadline = time.monotonic() + _SECONDS
        is_checked = False
        while True:
            found = self.partitions_of(topic)
            if found is not None and not is_checked:
                self._check_policy(topic)
                is_checked = True
            if found is not None and found >= partitions:
                return
            if time.monotonic() > deadline:
                raise ExternalError(
                    f"the marker topic {topic!r} does not get {partitions} partitions: it has "
                    f"{found}. The brokers may be busy"
                )
            try:
                if found is None:
                    self._create_markers(topic, partitions, like)
                    is_checked = True
                else:
                    self._grow(topic, partitions)
            except UserError as error:
                raise _unmade(topic, partitions, error) from error

    def _create_markers(
        self,
        topic: str,
        partitions: int,
        like: str | None,
        *,
        only_validate: bool = False,
    ) -> None:
        output = None if like is None else self._find(like)
        copies = -1 if output is None else len(output.partitions[0].replicas)
        self.create(
            topic,
            partitions=partitions,
            replication=copies,
            settings=_MARKER_CONFIG,
            only_validate=only_validate,
        )

    def _grow(self, topic: str, partitions: int, *, only_validate: bool = False) -> None:
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        def grow(admin: Any) -> None:
            futures = admin.create_partitions(
                [NewPartitions(topic, partitions)],
                request_timeout=_SECONDS,
                validate_only=only_validate,
            )
            futures[topic].result(_SECONDS + 5)

        doing = f"the topic {topic!r} cannot get {partitions} partitions"
        # Another task may have added as many, or more.
        self._call(doing, grow, "INVALID_PARTITIONS", "REASSIGNMENT_IN_PROGRESS")

    def _check_policy(self, topic: str) -> None:
        policy = self.settings_of(topic).get("cleanup.policy")
        if policy is not None and policy != "compact":
            raise UserError(
                f"the marker topic {topic!r} has cleanup.policy={policy}, so markers would be "
                "removed with time, and an epoch that is committed again would be doubled: set "
                "cleanup.policy=compact",
                code=ErrorCode.INVALID_CONFIG,
                topic=topic,
            )

    def _call(self, doing: str, call: Callable[[Any], Any], *tolerated: str) -> Any:
        from confluent_kafka import KafkaException

        if self._opened is None:
            self._opened = self._clients.admin(self._reports)
        try:
            answer = call(self._opened)
        except (KafkaException, TimeoutError) as error:
            reason = error.args[0] if error.args else None
            if reason is not None and getattr(reason, "name", str)() in tolerated:
                return None
            doing = f"{doing} at {self._clients.servers}"
            self._opened.poll(0)  # brings what the client has to report
            raise to_error(error, doing, self._reports) from error
        self._reports.note_answer()
        return answer


def _reach(settings: Mapping[str, str], side: str) -> int | None:
    """Return how far timestamps may be from now, in milliseconds; None if it is not known."""
    given = settings.get(f"message.timestamp.{side}.max.ms")
    if given in (None, _NO_LIMIT):
        # Before Kafka 4.0 there is one setting for both sides, which counts then.
        given = settings.get("message.timestamp.difference.max.ms", given)
    return None if given is None else int(given)


def _unmade(topic: str, partitions: int, error: UserError) -> UserError:
    return UserError(
        f"the marker topic {topic!r} cannot be made or used ({error.message}). Create it with at "
        f"least {partitions} partitions and cleanup.policy=compact, and give the permission to "
        "write and read it; or name another one, marker_topic=",
        code=ErrorCode.INVALID_CONFIG,
        topic=topic,
    )
