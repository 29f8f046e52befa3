"""Connections to Kafka: what they are made of, and what their errors mean to a user.

A connection is a plain address and options of librdkafka. The process that opens it reads its
secrets, so configs hold none. `KafkaClients` is the only maker of clients: tests put faults in
front of each call by making their own.

    no answer, a leader that moves, a broker that starts   ExternalError   the driver tries again
    no such topic, no permission, a wrong option           UserError       says what to change
"""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    UserError,
    naming_missing_extras,
)
from penstock.operators.secret_options import resolve_options

_log = logging.getLogger(__name__)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out that a producer was shut out: the sink expects it, and goes on."""
    told = record.getMessage()
    return "fenced by a newer instance" not in told and "with an old epoch" not in told


_log.addFilter(_is_news)


_AT_FIRST = ("_RESOLVE", "_SSL")
"""What a wrong address or protocol looks like, and later also a network that fails."""


_NO_NEW_TOPICS = {"allow_auto_create_topics": False}
"""Brokers make every topic that a producer or admin client asks about, unless it says this.

The client library warns that only consumers have this option, and keeps to it nevertheless."""


class _ClientLog:
    """Takes what the client library logs: each failed try to connect, many times a second.

    What matters of it is in the errors that users get, so it is logged for debugging only.
    """

    @staticmethod
    def log(_level: int, message: str, *args: object) -> None:
        """Log as Python's own loggers do, whatever the level is."""
        _log.debug(message, *args)


class Reports:
    """What a client tells by the way, such as a host that has no address: the last few.

    A call that gets no answer says only that; why there is none is told here.
    """

    def __init__(self) -> None:
        self._told: deque[Any] = deque(maxlen=8)
        self._names: set[str] = set()
        """Of all that was told: that no broker can be reached is told once."""
        self.has_answer = False
        """Whether a call of this client was answered."""

    def __call__(self, error: Any) -> None:
        """Take a report: clients are made with this as `on_report`."""
        self._told.append(error)
        self._names.add(error.name())

    def note_answer(self) -> None:
        """Note that a broker answered: what was told before does not matter any more."""
        self.has_answer = True
        self._told.clear()
        self._names.clear()

    def find_refusal(self) -> Any:
        """Return why no broker will ever let this client in; None if that was not told.

        A host without an address, or without TLS, counts as long as nobody has answered: later
        it is the network that fails.
        """
        told = list(self._told)
        refusals = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED")
        for each in told:
            if each.name() in refusals:
                return each
        names = self._names
        is_all = "_ALL_BROKERS_DOWN" in names and names <= {*_AT_FIRST, "_ALL_BROKERS_DOWN"}
        if self.has_answer or not is_all:
            return None
        return next((each for each in told if each.name() in _AT_FIRST), None)

    def __str__(self) -> str:
        told = [each for each in self._told if each.name() != "_ALL_BROKERS_DOWN"]
        return f" The client reports: {told[-1].str()}." if told else ""


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Makes clients for one address. It is plain data; the clients are not."""

    servers: str
    """`host:port`, several separated by commas."""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of librdkafka, such as `security.protocol`."""

    def producer(self, on_report: Reports | None = None, **options: Any) -> Any:
        """Return a new `Producer`; underscores in names of options stand for dots."""
        with naming_missing_extras():
            from confluent_kafka import Producer
        return self._made("producer", Producer, _NO_NEW_TOPICS | options, on_report)

    def consumer(
        self,
        on_report: Reports | None = None,
        tuned: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return a new `Consumer`, which belongs to no group unless one is given.

        `tuned` are options that those of the user override; `options` override the user's.
        """
        with naming_missing_extras():
            from confluent_kafka import Consumer
        tuned = {"group.id": "penstock", **(tuned or {})}
        given = {"enable_auto_commit": False, **options}
        return self._made("consumer", Consumer, given, on_report, tuned)

    def admin(self, on_report: Reports | None = None, **options: Any) -> Any:
        """Return a new `AdminClient`."""
        with naming_missing_extras():
            from confluent_kafka.admin import AdminClient
        return self._made("admin client", AdminClient, _NO_NEW_TOPICS | options, on_report)

    def _made(
        self,
        what: str,
        kind: Any,
        options: Mapping[str, Any],
        on_report: Reports | None,
        tuned: Mapping[str, Any] | None = None,
    ) -> Any:
        from confluent_kafka import KafkaException

        settings = {
            "bootstrap.servers": self.servers,
            **(tuned or {}),
            **resolve_options(self.options),
            **{name.replace("_", "."): value for name, value in options.items()},
        }
        if on_report is not None:
            settings["error_cb"] = on_report
        try:
            return kind(settings, logger=_ClientLog())
        except (KafkaException, ValueError, TypeError) as error:
            raise UserError(
                f"a Kafka {what} for {self.servers} cannot be made with these options: "
                f"{error}. They are those of librdkafka",
                code=ErrorCode.INVALID_CONFIG,
            ) from error


_FORBIDDEN = {
    "TOPIC_AUTHORIZATION_FAILED": "the topic",
    "GROUP_AUTHORIZATION_FAILED": "the consumer group",
    "CLUSTER_AUTHORIZATION_FAILED": "the cluster",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "the transactional.id",
}
_WRONG = {
    "UNKNOWN_TOPIC_OR_PART": "there is no such topic or partition: create it, or correct its name",
    "_UNKNOWN_TOPIC": "there is no such topic: create it, or correct its name",
    "_UNKNOWN_PARTITION": "there is no such partition",
    "TOPIC_EXCEPTION": "this is no name of a topic: use letters, digits, '.', '_' and '-'",
    "_AUTHENTICATION": "the broker did not accept the user or the password: check both",
    "SASL_AUTHENTICATION_FAILED": "the broker did not accept the user or the password: check both",
    "_RESOLVE": "no server has this name: correct servers=",
    "_SSL": "the encrypted connection was refused: check security.protocol, "
    "ssl.ca.location and the port",
    "UNSUPPORTED_VERSION": "the broker is too old for this: Kafka 2.8 or later is needed",
    "INVALID_TRANSACTION_TIMEOUT": "the broker allows no transaction of this length: lower "
    "transaction_timeout, or raise its transaction.max.timeout.ms",
    "POLICY_VIOLATION": "a policy of the cluster forbids it",
}


def to_error(
    error: BaseException, doing: str, reports: Reports | None = None
) -> PenstockError:
    """Return what an error of the client library means; `doing` is what was tried.

    `reports` are those of the client, which tell why nobody answers.

    >>> str(to_error(TimeoutError("no answer"), "topic 'a' could not be read"))
    "topic 'a' could not be read: no answer"
    """
    reason = error.args[0] if error.args else error
    refusal = None if reports is None else reports.find_refusal()
    if refusal is not None:
        reason = refusal
    name = _name_of(reason)
    text = _text_of(reason)
    if name in _FORBIDDEN:
        return UserError(
            f"{doing}: Kafka gives no permission for {_FORBIDDEN[name]} ({text}). Give it to "
            "the user that the options name",
            code=ErrorCode.INVALID_CONFIG,
            kafka_error=name,
        )
    if name in _WRONG:
        return UserError(
            f"{doing}: {_WRONG[name]} ({text})",
            code=ErrorCode.INVALID_CONFIG,
            kafka_error=name,
        )
    told = "" if reports is None else str(reports)
    return ExternalError(f"{doing}: {text}{'.' * bool(told)}{told}", kafka_error=name)


def _name_of(reason: object) -> str | None:
    name = getattr(reason, "name", None)
    found = name() if callable(name) else None
    return found if isinstance(found, str) else None


def _text_of(reason: object) -> str:
    text = getattr(reason, "str", None)
    return str(text()) if callable(text) else str(reason)
