"""`kafka`, the function by which users name topics to read or to write.

    p.read("bids", kafka("bids", servers="broker:9092", schema={"item": int, "price": float}))
    stream.write("out", kafka("results", servers="broker:9092"))

The reading itself is in `source`, the writing in `sink`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.connectors.kafka.output_options import (
    CreateTopic,
    KafkaOutput,
    KeyLike,
    to_output,
)
from penstock.connectors.kafka.output_records import KeyFormat
from penstock.connectors.kafka.positions import Partition, Selection, Start, StartKind
from penstock.connectors.kafka.producing import OWN_OPTIONS as OWN_OF_SINK
from penstock.connectors.kafka.reading import OWN_OPTIONS
from penstock.connectors.kafka.records import METADATA_TYPES, MetadataName
from penstock.connectors.kafka.sink import DEFAULT_PARTITIONER, Delivery
from penstock.connectors.kafka.source import KafkaSource, KafkaSourceConfig
from penstock.core.clock import DurationLike, to_micros
from penstock.core.rows import to_instant
from penstock.core.schema import StreamSchema
from penstock.core.secrets import refuse_literal_secrets
from penstock.core.spellings import OnBad, check_choice, diverts_bad
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec
from penstock.operators.frames import SchemaLike, as_schema
from penstock.operators.secret_options import plain_options

StartLike: TypeAlias = str | datetime | Mapping[int, int] | Mapping[str, Mapping[int, int]]
"""Where reading begins, as users write it."""
OnLost: TypeAlias = Literal["fail", "continue"]

_GROUP = "group:"
_NEVER_GIVEN = frozenset(
    {"bootstrap.servers", "metadata.broker.list", "default.topic.config"}
)
"""Addresses, and what would hide other options inside."""
_NAMED_STARTS: tuple[StartKind, ...] = ("earliest", "latest", "after-history")
_PREFIX = "kafka_"
DEFAULT_DISCOVER_MICROS = 10_000_000


def kafka(
    topics: str | Sequence[str] = (),
    *,
    servers: str | Sequence[str],
    pattern: str | None = None,
    format: str = "json",  # noqa: A002 (what users call it everywhere)
    schema: SchemaLike = None,
    format_options: Mapping[str, Any] | None = None,
    start: StartLike = "earliest",
    end: Literal["latest"] | None = None,
    metadata: Sequence[MetadataName] | Mapping[MetadataName, str] = (),
    on_bad: OnBad = "fail",
    on_lost: OnLost = "fail",
    commit_group: str | None = None,
    discover: DurationLike = "10s",
    key: KeyLike | None = None,
    key_format: KeyFormat | None = None,
    value: str | Sequence[str] | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
    partition: str | None = None,
    partitioner: str = DEFAULT_PARTITIONER,
    delivery: Delivery = "exactly_once",
    shards: int | None = None,
    marker_topic: str | None = None,
    transaction_timeout: DurationLike = "5m",
    create_topic: CreateTopic = False,
    options: Mapping[str, Any] | None = None,
) -> "KafkaSpec":
    """Name topics of Kafka, for `Pipeline.read` and `Stream.write`; see docs/connectors/kafka.md.

    `servers` are some brokers, as "host:9092". `options` are those of librdkafka, such as
    `security.protocol`; passwords are named with `pen.secret`.

    Reading: one topic, a list, or all whose name matches `pattern`, a regular expression;
    `discover` is the interval at which new ones are looked for. Values are decoded by `format`
    ("json", "csv", "text", "bytes", "debezium", "upsert") into the columns of `schema`.
    `start` says where the first epoch begins: "earliest", "latest", a datetime (records of that
    time or later), offsets ({partition: offset}, or by topic {"bids": {0: 17}}), or
    "group:NAME", the committed offsets of a consumer group. With `end="latest"` the job ends
    when it has read what was there at its first epoch.

    `metadata` adds columns: "key", "headers", "timestamp", "topic", "partition" and "offset",
    named `kafka_key` and so on, or as a mapping says. A record that cannot be read fails the
    job, or with `on_bad="divert"` goes to the side output `BAD`. Offsets that retention removed
    before they were read fail the job, or with `on_lost="continue"` are counted. `commit_group`
    is a group to which the offsets of committed epochs are written, for tools that show lag.

    Writing: `key` is a column, several, or an expression; a changelog has that of its table, and
    becomes upserts and tombstones. The value is made by `format` of all columns, or of those
    that `value` names; `headers`, `timestamp` and `partition` are columns, too. Without a
    partition the `partitioner` chooses, by default as Java's producers do. Every row is in the
    topic once; `delivery="at_least_once"` is faster, and repeats rows after a failure.
    `create_topic` is True, a number of partitions, or `{"partitions": 6, "replication": 3}`,
    for a topic that is absent. `shards`, `marker_topic` and `transaction_timeout` concern the
    transactions.

    >>> kafka(
    ...     "bids", servers="broker:9092", schema={"item": int}, start="group:old"
    ... ).start.group
    'old'
    """
    where = "kafka: "
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    _check_topics(names, pattern)
    check_choice("on_lost", on_lost, ("fail", "continue"), where=where)
    if end is not None:
        check_choice("end", end, ("latest",), where=where)
    given = dict(options or {})
    own = sorted(given.keys() & (OWN_OPTIONS | OWN_OF_SINK | _NEVER_GIVEN))
    if own:
        raise _wrong(
            f"options may not set {', '.join(map(repr, own))}: Penstock sets it itself"
        )
    refuse_literal_secrets("kafka(options=…)", given)
    refuse_literal_secrets("kafka(format_options=…)", format_options or {})
    addresses = servers if isinstance(servers, str) else ",".join(servers)
    if not all(each.strip() for each in addresses.split(",")):
        raise _wrong("servers= has an empty address: name some brokers, as 'host:9092'")
    if "@" in addresses:
        # Without what was given: servers are shown in drawings, errors and logs.
        raise _wrong(
            "servers= holds '@', and no host does: give 'host:port' alone, and the user and the "
            "password as options={'sasl.username': …, 'sasl.password': pen.secret(…)}"
        )
    return KafkaSpec(
        Selection(names, pattern),
        addresses,
        format,
        schema=as_schema(schema),
        format_options=dict(format_options or {}),
        start=to_start(start, names),
        ends_at_latest=end is not None,
        metadata=_to_metadata(metadata),
        diverts_bad=diverts_bad(on_bad, where=where),
        continues_after_loss=on_lost == "continue",
        commit_group=commit_group,
        discover_micros=to_micros(discover, "discover"),
        options=given,
        output=to_output(
            key=key,
            key_format=key_format,
            value=value,
            headers=headers,
            timestamp=timestamp,
            partition=partition,
            partitioner=partitioner,
            delivery=delivery,
            shards=shards,
            marker_topic=marker_topic,
            transaction_timeout=transaction_timeout,
            create_topic=create_topic,
        ),
    )


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSpec:
    """Topics of a graph, not yet read. Made by `kafka`, which explains the fields."""

    selection: Selection
    servers: str
    format: str = "json"
    schema: StreamSchema | pa.Schema | None = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    start: Start = field(default_factory=Start)
    ends_at_latest: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    diverts_bad: bool = False
    continues_after_loss: bool = False
    commit_group: str | None = None
    discover_micros: int = DEFAULT_DISCOVER_MICROS
    options: Mapping[str, Any] = field(default_factory=dict)
    output: KafkaOutput = field(default_factory=KafkaOutput)

    def __repr__(self) -> str:
        # Options may hold what is nobody's business.
        return f"KafkaSpec({self.selection}, servers={self.servers!r}, …)"

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads them. It connects to nothing."""
        config = self.source_config()
        KafkaSource(config)  # refuses a schema and metadata that do not fit
        return config.to_operator_spec()

    def sink_spec(self) -> OperatorSpec:
        """Return the sink that writes to the topic. It connects to nothing."""
        reading = {
            "pattern": self.selection.pattern is not None,
            "schema": self.schema is not None,
            "discover": self.discover_micros != DEFAULT_DISCOVER_MICROS,
            "start": self.start != Start(),
            "end": self.ends_at_latest,
            "metadata": bool(self.metadata),
            'on_bad="divert"': self.diverts_bad,
            'on_lost="continue"': self.continues_after_loss,
            "commit_group": self.commit_group is not None,
        }
        asked = [option for option, is_set in reading.items() if is_set]
        if asked:
            raise _wrong(
                f"{', '.join(asked)} says how a topic is read, and one is written here: leave it "
                "out, or name the topic anew for reading"
            )
        if len(self.selection.topics) != 1:
            raise _wrong(
                f"a sink writes to one topic, and {len(self.selection.topics)} are named: put a "
                "sink for each behind a filter"
            )
        config = self.output.sink_config(
            self.selection.topics[0],
            self.servers,
            format=self.format,
            format_options=plain_options(self.format_options),
            options=plain_options(self.options),
        )
        return config.to_operator_spec()

    def source_config(self) -> KafkaSourceConfig:
        """Return the config of that source."""
        if self.start.kind == "after-history":
            raise _wrong(
                'start="after-history" is for the live side of pen.concat_sources: give '
                "'earliest', 'latest', a time, offsets or a group"
            )
        return self._config()

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named; () if a pattern selects them."""
        return self.selection.topics

    def live_spec(self) -> OperatorSpec:
        """Return the source that begins behind history, as the live side of `concat_sources`."""
        if self.start.kind != "after-history":
            raise _wrong(
                "the live side of concat_sources begins where history ends: pass "
                'start="after-history"'
            )
        config = self._config()
        KafkaSource(config)  # refuses a schema and metadata that do not fit
        return config.to_operator_spec()

    def _config(self) -> KafkaSourceConfig:
        if self.output != KafkaOutput():
            raise _wrong(
                "key=, headers=, delivery= and the like say how a topic is written, and one is "
                "read here: leave them out; metadata= adds columns that are read"
            )
        if self.selection.pattern is None and (
            self.discover_micros != DEFAULT_DISCOVER_MICROS
        ):
            raise _wrong(
                "discover= says how often topics of a pattern= are looked for, and topics are "
                "named here: leave it out; new partitions are found at once"
            )
        schema = self.schema
        if isinstance(schema, pa.Schema):
            schema = StreamSchema(schema)
        return KafkaSourceConfig(
            self.servers,
            self.selection,
            self.format,
            None if schema is None else schema.to_bytes(),
            format_options=plain_options(
                {
                    name: tuple(value) if isinstance(value, list) else value
                    for name, value in self.format_options.items()
                }
            ),
            start=self.start,
            ends_at_latest=self.ends_at_latest,
            metadata=dict(self.metadata),
            commit_group=self.commit_group,
            continues_after_loss=self.continues_after_loss,
            diverts_bad=self.diverts_bad,
            discover_micros=self.discover_micros,
            options=plain_options(self.options),
        )


def to_start(given: object, topics: Sequence[str]) -> Start:
    """Return where reading begins, from what the user wrote."""
    if isinstance(given, datetime):
        return Start("time", micros=to_instant(given))
    if isinstance(given, Mapping):
        return Start("offsets", offsets=dict(_to_offsets(given, topics)))
    if isinstance(given, str):
        for kind in _NAMED_STARTS:
            if given == kind:
                return Start(kind)
        if given.startswith(_GROUP) and len(given) > len(_GROUP):
            return Start("group", group=given.removeprefix(_GROUP))
    raise _wrong(
        f"start is {given!r:.80}: give 'earliest', 'latest', a datetime, offsets by partition, "
        "or 'group:NAME' with the name of a consumer group"
    )


def _to_offsets(
    given: Mapping[Any, Any], topics: Sequence[str]
) -> Iterable[tuple[str, int]]:
    for key, value in given.items():
        if isinstance(value, Mapping) and isinstance(key, str):
            yield from _of_topic(key, value)
        elif isinstance(key, int) and len(topics) == 1:
            yield from _of_topic(topics[0], {key: value})
        else:
            raise _wrong(
                "offsets of several topics are given by topic, as {'bids': {0: 17}}: "
                f"start has {key!r:.80}"
            )


def _of_topic(topic: str, offsets: Mapping[Any, Any]) -> Iterable[tuple[str, int]]:
    for number, offset in offsets.items():
        if not all(isinstance(each, int) and each >= 0 for each in (number, offset)):
            raise _wrong(
                f"start has {number!r:.40}: {offset!r:.40} for {topic!r}: partitions and offsets "
                "are whole numbers"
            )
        yield Partition(topic, number).split, offset


def _to_metadata(given: object) -> dict[str, str]:
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping):
        named = {str(kind): str(name) for kind, name in given.items()}
    elif isinstance(given, Iterable):
        named = {str(kind): f"{_PREFIX}{kind}" for kind in given}
    else:
        raise _wrong(f"metadata is {given!r:.80}: give a list of names")
    for kind in named:
        if kind not in METADATA_TYPES:
            raise _wrong(
                f"metadata has no {kind!r:.80}{did_you_mean(kind, METADATA_TYPES)}"
            )
    if len(set(named.values())) < len(named):
        raise _wrong("metadata gives one name to two columns")
    return named


def _check_topics(names: tuple[str, ...], pattern: str | None) -> None:
    if bool(names) == (pattern is not None):
        raise _wrong("give topics by name, or a pattern= that their names match, not both")
    for name in names:
        if not name or "/" in name:
            raise _wrong(f"{name!r:.80} is no name of a topic")
    if len(set(names)) < len(names):
        raise _wrong("a topic is named twice")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise _wrong(
                f"the pattern {pattern!r} is no regular expression: {error}"
            ) from error


def _wrong(problem: str) -> UserError:
    return UserError(f"kafka: {problem}", code=ErrorCode.INVALID_CONFIG)
