"""What the driver asks a cluster about topics: which there are, their ids, ends and offsets.

Nothing is kept here but the connection: what is true of a topic may change between any two calls.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.connectors.kafka.client import KafkaClients, to_error
from penstock.connectors.kafka.offset_calls import PAUSE_SECONDS, SECONDS, OffsetCalls
from penstock.connectors.kafka.positions import (
    BEGIN_ANEW,
    Held,
    Partition,
    PartitionOffset,
    Selection,
    Start,
)
from penstock.errors import (
    ErrorCode,
    PenstockError,
    UserError,
    did_you_mean,
    naming_missing_extras,
)

_UNKNOWN = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
"""What brokers and the client say of a topic that there is not."""
_CLOSING_SECONDS = 2.0
_DELETED_SECONDS = 2.0
"""For how long a topic must be unknown before it counts as deleted."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster describes it."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class Topics:
    """The view of one cluster's topics. Connects when it is first asked."""

    def __init__(self, clients: KafkaClients) -> None:
        self.calls = OffsetCalls(clients)
        """The connection, which is also asked for offsets."""
        self._writing: list[Future[Any]] = []

    def close(self) -> None:
        """Drop the connection; what is being written to a group gets a moment."""
        wait(self._writing, _CLOSING_SECONDS)
        self._writing = []
        self.calls.close()

    def find(self, selection: Selection) -> tuple[str, ...]:
        """Return the names of the topics that are read; for a pattern this lists all of them."""
        if selection.pattern is None:
            return selection.topics
        return tuple(sorted(name for name in self._list() if selection.has(name)))

    @naming_missing_extras()  # it is what is asked first
    def describe(self, names: Collection[str]) -> dict[str, Topic]:
        """Return the topics that there are of these."""
        from confluent_kafka import KafkaException, TopicCollection

        if not names:
            return {}
        doing = f"topics {', '.join(map(repr, names))} cannot be found"
        futures = self.calls.call(
            doing, "describe_topics", TopicCollection(list(names)), request_timeout=SECONDS
        )
        found = {}
        for name, future in futures.items():
            try:
                described = self.calls.result(future, f"the topic {name!r} cannot be found")
            except UserError as error:
                cause = error.__cause__
                if isinstance(cause, KafkaException) and _is_unknown(cause):
                    continue
                raise
            numbers = tuple(sorted(each.id for each in described.partitions))
            found[name] = Topic(name, str(described.topic_id), numbers)
        return found

    def missing(self, name: str) -> UserError:
        """Return the error for a topic that is read and that there is not."""
        try:
            close = did_you_mean(name, self._list())
        except PenstockError:
            close = ""
        return UserError(
            f"there is no topic {name!r} at {self.calls.servers}: create it, or correct its "
            f"name{close}",
            code=ErrorCode.INVALID_CONFIG,
            topic=name,
        )

    def check_ids(self, known: Mapping[str, PartitionOffset]) -> dict[str, Topic]:
        """Return the topics of known splits; refuse those that were deleted or made again."""
        ids = {Partition.of_split(name).topic: known[name].topic_id for name in known}
        found = self.describe(ids)
        # A broker may not have heard yet of a topic that was just made.
        deadline = time.monotonic() + _DELETED_SECONDS
        while found.keys() != ids.keys() and time.monotonic() < deadline:
            time.sleep(PAUSE_SECONDS)
            found = self.describe(ids)
        for name, before in ids.items():
            if name not in found:
                raise UserError(
                    f"the topic {name!r}, which this job reads, was deleted. What it had not "
                    f"read of it is lost. Create it again, and {BEGIN_ANEW}",
                    code=ErrorCode.INPUT_CHANGED,
                    topic=name,
                )
            if found[name].topic_id != before:
                raise UserError(
                    f"the topic {name!r} was deleted and made again since this job began to "
                    f"read it (its id was {before} and is {found[name].topic_id}): the "
                    "positions in the checkpoint are those of the old one. To read the new one, "
                    f"{BEGIN_ANEW}",
                    code=ErrorCode.INPUT_CHANGED,
                    topic=name,
                )
        return found

    @contextmanager
    def telling_of_deletion(self, known: Mapping[str, PartitionOffset]) -> Iterator[None]:
        """Have the body say that a topic was deleted, rather than that there is none.

        The topics of known splits were there: they went away between two calls.
        """
        try:
            yield
        except PenstockError as error:
            # Nobody leads the partitions of a topic that the client does not find any longer.
            if error.context.get("kafka_error") in (*_UNKNOWN, "_NOENT"):
                self.check_ids(known)
            raise

    def starts(
        self, start: Start, partitions: Collection[Partition], held: Mapping[str, Held]
    ) -> dict[str, int]:
        """Return where each partition begins in the first epoch."""
        match start.kind:
            case "latest":
                return {each.split: held[each.split].end for each in partitions}
            case "time" | "after-time" if start.micros is not None:
                return self._at_time(partitions, held, start.micros // 1_000)
            case "offsets":
                return _given(start, partitions)
            case "after-offsets":
                # A partition that history has no row of is read from its beginning.
                return {each.split: start.offsets.get(each.split, 0) for each in partitions}
            case "group":
                return self._of_group(str(start.group), partitions, held)
            case _:
                return {each.split: held[each.split].first for each in partitions}

    def compacted(self, names: Iterable[str]) -> list[str]:
        """Return which topics are compacted; none if the cluster does not tell us."""
        from confluent_kafka import admin

        kind: Any = admin.ConfigResource  # type: ignore[attr-defined]  # it is public
        asked = [kind(kind.Type.TOPIC, name) for name in names]
        if not asked:
            return []
        found = []
        doing = "settings of topics cannot be read"
        try:
            futures = self.calls.call(
                doing, "describe_configs", asked, request_timeout=SECONDS
            )
            for resource, future in futures.items():
                policy = self.calls.result(future, doing).get("cleanup.policy")
                if policy is not None and "compact" in str(policy.value):
                    found.append(str(resource.name))
        except PenstockError as error:
            _log.info("whether topics are compacted is not known: %s", error)
        return sorted(found)

    def write_group(
        self, group: str, offsets: Mapping[str, int], on_failure: Callable[[], None]
    ) -> None:
        """Write offsets to a group, without waiting: for tools that show its lag."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        rows = [
            TopicPartition(*Partition.of_split(split), offset)
            for split, offset in sorted(offsets.items())
        ]
        doing = f"offsets of the group {group!r} could not be written"
        request = [ConsumerGroupTopicPartitions(group, rows)]
        try:
            futures = self.calls.call(
                doing, "alter_consumer_group_offsets", request, request_timeout=SECONDS
            )
        except PenstockError as error:
            _warn_of_failure(error, on_failure)
            return
        self._writing = [*futures.values()]
        for future in self._writing:
            future.add_done_callback(lambda done: _warn_if_failed(done, doing, on_failure))

    def _at_time(
        self, partitions: Collection[Partition], held: Mapping[str, Held], millis: int
    ) -> dict[str, int]:
        futures = self.calls.ask_offsets(partitions, "for_timestamp", millis)
        found = {each: self.calls.offset(futures, each) for each in partitions}
        # A partition without such a record begins with the next one that comes.
        return {
            each.split: held[each.split].end if offset < 0 else offset
            for each, offset in found.items()
        }

    def _of_group(
        self, group: str, partitions: Collection[Partition], held: Mapping[str, Held]
    ) -> dict[str, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        doing = f"the committed offsets of the group {group!r} cannot be read"
        futures = self.calls.call(
            doing,
            "list_consumer_group_offsets",
            [ConsumerGroupTopicPartitions(group)],
            request_timeout=SECONDS,
        )
        answer = self.calls.result(futures[group], doing)
        for each in answer.topic_partitions:
            if each.error is not None:
                # Taken for none, the partition would be read from its beginning.
                raise to_error(KafkaException(each.error), doing)
        committed = {
            Partition(each.topic, each.partition).split: each.offset
            for each in answer.topic_partitions
            if each.offset >= 0
        }
        if partitions and not any(each.split in committed for each in partitions):
            raise UserError(
                f"the group {group!r} has no committed offsets of the topics that are read: "
                "correct its name, or start elsewhere ('earliest', 'latest', a time or offsets)",
                code=ErrorCode.INVALID_CONFIG,
                group=group,
            )
        return {
            each.split: committed.get(each.split, held[each.split].first)
            for each in partitions
        }

    def _list(self) -> list[str]:
        listed = self.calls.call("topics cannot be listed", "list_topics", timeout=SECONDS)
        return list(listed.topics)


def _given(start: Start, partitions: Collection[Partition]) -> dict[str, int]:
    there = {each.split for each in partitions}
    unknown, missing = start.offsets.keys() - there, there - start.offsets.keys()
    if unknown or missing:
        problem = (
            f"{', '.join(sorted(unknown))} {'are' if len(unknown) > 1 else 'is'} unknown"
            if unknown
            else f"{', '.join(sorted(missing))} {'have' if len(missing) > 1 else 'has'} none"
        )
        raise UserError(
            f"start= must give an offset to every partition of the topics: {problem}",
            code=ErrorCode.INVALID_CONFIG,
        )
    return dict(start.offsets)


def _is_unknown(error: Exception) -> bool:
    reason = error.args[0] if error.args else None
    return reason is not None and reason.name() in _UNKNOWN


def _warn_if_failed(
    done: "Future[Any]", doing: str, on_failure: Callable[[], None]
) -> None:
    error = done.exception()
    if error is None:
        failed = [each.error for each in done.result().topic_partitions if each.error]
        error = failed[0] if failed else None
    if error is not None:
        _warn_of_failure(f"{doing}: {error}", on_failure)


def _warn_of_failure(problem: object, on_failure: Callable[[], None]) -> None:
    _log.warning("%s. They are for lag tools only: the job goes on", problem)
    on_failure()
