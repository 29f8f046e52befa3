"""What users say about writing to a topic: `KafkaOutput`, checked as a whole.

`kafka` in `connector` takes these options beside those of reading; `docs/connectors/kafka.md`
explains them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

import polars as pl

from penstock.connectors.kafka.output_records import KeyFormat, RecordColumns
from penstock.connectors.kafka.sink import (
    DEFAULT_PARTITIONER,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    Delivery,
    KafkaSinkConfig,
    NewTopic,
)
from penstock.core.clock import DurationLike, to_micros
from penstock.core.ids import is_whole
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.operators.frames import column_name, column_names

KeyLike: TypeAlias = str | Sequence[str] | pl.Expr
CreateTopic: TypeAlias = bool | int | Mapping[str, int]
"""True, a number of partitions, or `{"partitions": 6, "replication": 3}`."""

PARTITIONERS = (
    DEFAULT_PARTITIONER,
    "murmur2",
    "consistent_random",
    "consistent",
    "fnv1a_random",
    "fnv1a",
    "random",
)
_UPSERT = "upsert"
_MOST_SHARDS = 1_000


@dataclass(frozen=True, slots=True)
class KafkaOutput:
    """How rows are written to a topic. Made by `to_output`."""

    columns: RecordColumns = field(default_factory=RecordColumns)
    delivery: Delivery = "exactly_once"
    partitioner: str = DEFAULT_PARTITIONER
    shards: int | None = None
    marker_topic: str | None = None
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    create_topic: NewTopic | None = None

    def sink_config(
        self,
        topic: str,
        servers: str,
        *,
        format: str,  # noqa: A002 (what users call it everywhere)
        format_options: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> KafkaSinkConfig:
        """Return the config of the sink that writes so."""
        columns, given = self.columns, dict(format_options)
        rules = sorted(given.keys() & {"on_new", "on_missing", "on_wider"})
        if rules:
            raise UserError(
                f"kafka: {', '.join(rules)} says how records are read, and a topic is written "
                "here: leave it out",
                code=ErrorCode.INVALID_CONFIG,
            )
        if format == _UPSERT and columns.key:
            # This format makes keys itself, of the columns that it is told.
            given.setdefault("key", columns.key)
            if columns.key_format is not None:
                given.setdefault("key_format", columns.key_format)
            columns = RecordColumns(
                value=columns.value,
                headers=columns.headers,
                timestamp=columns.timestamp,
                partition=columns.partition,
            )
        return KafkaSinkConfig(
            servers,
            topic,
            format=format,
            format_options=given,
            columns=columns,
            delivery=self.delivery,
            partitioner=self.partitioner,
            shards=self.shards,
            marker_topic=self.marker_topic,
            transaction_timeout_ms=self.transaction_timeout_ms,
            create_topic=self.create_topic,
            options=options,
        )


def to_output(
    *,
    key: KeyLike | None,
    key_format: KeyFormat | None,
    value: str | Sequence[str] | None,
    headers: str | None,
    timestamp: str | None,
    partition: str | None,
    partitioner: str,
    delivery: Delivery,
    shards: int | None,
    marker_topic: str | None,
    transaction_timeout: DurationLike,
    create_topic: CreateTopic,
) -> KafkaOutput:
    """Return what users say about writing, or raise with all that is wrong with it."""
    problems: list[str] = []
    timeout_ms = DEFAULT_TRANSACTION_TIMEOUT_MS
    try:
        timeout_ms = to_micros(transaction_timeout, "transaction_timeout") // 1_000
    except UserError as error:
        problems.append(error.message)
    if timeout_ms < 1_000:
        problems.append(f"transaction_timeout is {transaction_timeout!r}: use 1s at least")
    choices: dict[str, tuple[object, Sequence[str | None]]] = {
        "key_format": (key_format, (*get_args(KeyFormat), None)),
        "delivery": (delivery, get_args(Delivery)),
        "partitioner": (partitioner, PARTITIONERS),
    }
    for option, (given, known) in choices.items():
        if given not in known:
            names = [name for name in known if name is not None]
            problems.append(f"{option} is {given!r:.80}{did_you_mean(str(given), names)}")
    if shards is not None and not (is_whole(shards) and 1 <= shards <= _MOST_SHARDS):
        problems.append(f"shards is {shards!r:.80}: use 1 to {_MOST_SHARDS}")
    keys, expression = _to_key(key, problems)
    columns = RecordColumns(
        keys,
        expression,
        key_format,
        None if value is None else _to_columns("value", value, problems),
        _to_column("headers", headers, problems),
        _to_column("timestamp", timestamp, problems),
        _to_column("partition", partition, problems),
    )
    new = _to_new_topic(create_topic, problems)
    if delivery == "at_least_once":
        transactional = {
            "shards": shards is not None,
            "marker_topic": marker_topic is not None,
            "transaction_timeout": timeout_ms != DEFAULT_TRANSACTION_TIMEOUT_MS,
        }
        problems += [
            f"{option} concerns transactions, and delivery='at_least_once' has none"
            for option, is_given in transactional.items()
            if is_given
        ]
    if key_format is not None and expression is not None:
        problems.append(
            "key_format is for columns, and key= is an expression: it makes bytes or text itself"
        )
    if problems:
        raise UserError(
            f"kafka: a topic cannot be written so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
            problems=tuple(problems),
        )
    return KafkaOutput(
        columns, delivery, partitioner, shards, marker_topic, timeout_ms, new
    )


def _to_key(given: Any, problems: list[str]) -> tuple[tuple[str, ...], bytes | None]:
    if given is None:
        return (), None
    if isinstance(given, pl.Expr) and column_name(given) is None:
        return (), given.meta.serialize()
    return _to_columns("key", given, problems), None


def _to_columns(option: str, given: Any, problems: list[str]) -> tuple[str, ...]:
    names = column_names(given)
    if names is None or len(set(names)) < len(names):
        problems.append(f"{option}={given!r:.80} are no columns, or one of them twice")
    return names or ()


def _to_column(option: str, given: Any, problems: list[str]) -> str | None:
    if given is None:
        return None
    name = column_name(given)
    if name is None:
        problems.append(f"{option}={given!r:.80} is no column: name one")
    return name


def _to_new_topic(given: Any, problems: list[str]) -> NewTopic | None:
    if isinstance(given, bool):
        return NewTopic() if given else None
    if is_whole(given) and given > 0:
        return NewTopic(given)
    known = ("partitions", "replication")
    if isinstance(given, Mapping) and all(
        name in known and is_whole(number) and number > 0 for name, number in given.items()
    ):
        return NewTopic(**given)
    problems.append(
        f"create_topic is {given!r:.80}: give True, a number of partitions, or "
        "{'partitions': 6, 'replication': 3}"
    )
    return None
