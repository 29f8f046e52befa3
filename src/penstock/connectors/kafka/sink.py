"""The Kafka sink: each row exactly once in a topic, or at least once where latency counts more.

Exactly once: subtasks stage the records of an epoch, durable before it is acknowledged. Its
commit sends them, by one transaction per shard; `transactions` says why none is doubled and none
is lost. A reader with `isolation.level=read_committed` sees, in each partition, a shard's part
of an epoch whole or not at all. Kafka shows nothing at the same instant across transactions or
partitions.

At least once: subtasks send records as they come, and an epoch is acknowledged after all of its
records are. An epoch that is run again sends them again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.output.staging import STAGED, tidy_staging
from penstock.connectors.formats.record_format import RecordFormat
from penstock.connectors.formats.registry import record_format
from penstock.connectors.kafka.client import KafkaClients, Reports, to_error
from penstock.connectors.kafka.markers import (
    marker_place,
    marker_topic_of,
    transactional_id,
)
from penstock.connectors.kafka.output_check import (
    check_markers_known,
    check_output_topic,
    check_records,
)
from penstock.connectors.kafka.output_records import RecordColumns, RecordEncoder
from penstock.connectors.kafka.output_topics import OutputTopic, OutputTopics
from penstock.connectors.kafka.producing import (
    RecordRefusedError,
    RecordSender,
    producer_options,
)
from penstock.connectors.kafka.staging import (
    SMALL_BYTES,
    EpochStaging,
    ShardPart,
    decode_commit_data,
    plan_parts,
    read_part,
)
from penstock.connectors.kafka.transactions import ShardCommit, ShardTransactions
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, SchemaError, UserError, naming_missing_extras
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    CommitPart,
    OperatorContext,
    StartContext,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.secret_options import usable_options
from penstock.state.tables.specs import TableSpec, global_table

Delivery: TypeAlias = Literal["exactly_once", "at_least_once"]
DEFAULT_PARTITIONER = "murmur2_random"
"""That of Java's clients: a key lands where their producers put it."""
DEFAULT_TRANSACTION_TIMEOUT_MS = 300_000
_FLUSH_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class NewTopic:
    """What a topic gets that is created because it is absent."""

    partitions: int = 1
    replication: int = -1
    """-1 for the broker's default."""


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSinkConfig(OperatorConfig):
    """The config of kind "kafka_sink": rows go to a topic."""

    kind: ClassVar[str] = "kafka_sink"

    servers: str
    topic: str
    format: str = "json"
    format_options: Mapping[str, Any] = field(default_factory=dict)
    columns: RecordColumns = field(default_factory=RecordColumns)
    delivery: Delivery = "exactly_once"
    partitioner: str = DEFAULT_PARTITIONER
    shards: int | None = None
    """How many transactions an epoch is divided into; None for as many as there are subtasks."""
    marker_topic: str | None = None
    """None for one named after job and step."""
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    create_topic: NewTopic | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of librdkafka."""

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"topic": self.topic, "servers": self.servers, "format": self.format}
        if self.columns.key:
            facts["key"] = ", ".join(self.columns.key)
        return facts | {"delivery": self.delivery}


class KafkaSink(Configured[KafkaSinkConfig], ArrowOperator):
    """Writes rows to a topic. One instance stages, others check the start and commit."""

    small_bytes: ClassVar[int] = SMALL_BYTES
    """Up to which size an epoch is one transaction; tests lower it."""

    def __init__(
        self, config: KafkaSinkConfig, clients: KafkaClients | None = None
    ) -> None:
        super().__init__(config)
        self._clients = clients or KafkaClients(config.servers, config.options)
        self._topics = OutputTopics(self._clients)
        self._encoder: RecordEncoder | None = None
        self._staging: EpochStaging | None = None
        self._facts: OutputTopic | None = None
        self._sender: RecordSender | None = None
        self._transactions: ShardTransactions | None = None
        self._marked: set[tuple[str, int]] = set()
        """Marker topics, and how many partitions they are known to have."""
        self._has_tidied = False

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> None:
        """Refuse rows that could not be sent; it is a sink and emits nothing."""
        problems = self.config.columns.find_problems(inputs[0])
        if not problems:
            try:
                self._encoder_of(inputs[0])
            except UserError as error:
                problems.append(error.message)
        if problems:
            raise SchemaError(
                f"the rows cannot be written to the topic {self.config.topic!r}:\n  "
                + "\n  ".join(problems),
                problems=tuple(problems),
            )

    @override
    def tables(self) -> Sequence[TableSpec]:
        # Also where nothing is staged, so that a job may go on with another delivery.
        return [global_table(STAGED, str, bytes, uses_two_phase_commit=True)]

    @override
    def why_at_least_once(self) -> str | None:
        if self._is_exact:
            return None
        return (
            'delivery="at_least_once" sends records before their epoch counts, so those of an '
            "epoch that is run again come twice"
        )

    @override
    @naming_missing_extras()
    def on_start(self, ctx: OperatorContext) -> None:
        """Create the topic if that was asked for."""
        wanted = self.config.create_topic
        if wanted is not None and self._topics.partitions_of(self.config.topic) is None:
            self._topics.create(
                self.config.topic,
                partitions=wanted.partitions,
                replication=wanted.replication,
            )

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Encode the rows; stage them, or send them at once."""
        if self._encoder is None:
            self._encoder = self._encoder_of(ctx.inputs[0])
        records = self._encoder.encode(batch)
        if not records.num_rows:
            return
        facts = self._checked(records, ctx)
        if not self._is_exact:
            self._send(records, facts)
            return
        # Records of an attempt that did not finish must not get into the next one.
        if self._staging is None or self._staging.attempt != ctx.attempt:
            shards = self.config.shards or ctx.task.subtask.parallelism
            markers = self.config.marker_topic or marker_topic_of(ctx.task)
            self._staging = EpochStaging(
                ctx, self.config.topic, markers, shards, small_bytes=self.small_bytes
            )
        self._staging.add(records)

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Make the records durable: staged beside the checkpoint, or acknowledged by Kafka."""
        if self._sender is not None:
            self._call_sender(self._sender.flush)
        staging, self._staging = self._staging, None
        if staging is None or staging.attempt != ctx.attempt:
            return
        data = staging.finish()
        if data is not None:
            ctx.count("bytes_staged", staging.bytes_staged)
            ctx.insert_committing_data(STAGED, data)

    @override
    def plan_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> Sequence[CommitPart]:
        """Return a part per transaction."""
        return plan_parts(decode_commit_data(commit_data.get(STAGED, {}), epoch, ctx))

    @override
    def handle_commit_part(self, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
        """Carry out one transaction, unless it was carried out before."""
        asked = msgspec.msgpack.decode(part, type=ShardPart)
        needed = asked.markers, asked.shards + 1
        if needed not in self._marked:
            self._topics.ensure_markers(*needed, like=asked.topic)
            self._marked.add(needed)
        if self._transactions is None:
            self._transactions = ShardTransactions(
                self._clients,
                producer_options(self._topic_facts(asked.topic), self.config.partitioner),
                timeout_ms=self.config.transaction_timeout_ms,
            )
        commit = ShardCommit(
            transactional_id(ctx.task, ctx.identity, asked.shard),
            asked.topic,
            marker_place(asked.markers, ctx.task, ctx.identity, asked.shard),
            int(epoch),
            is_large=bool(asked.ranges),
        )
        self._transactions.commit(commit, lambda: read_part(asked, ctx.store))

    @override
    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Remove what was staged: all of it is in the topic, and every marker says so."""
        staged = decode_commit_data(commit_data.get(STAGED, {}), epoch, ctx)
        if any(each.ranges for each in staged) or not self._has_tidied:
            tidy_staging(ctx.store, ctx.task, int(epoch))
            self._has_tidied = True

    @override
    @naming_missing_extras()
    def check_output(self, ctx: StartContext) -> None:
        """Refuse a start whose records could not be committed."""
        markers = None
        if self._is_exact:
            markers = self.config.marker_topic or marker_topic_of(ctx.task)
        create = self.config.create_topic
        check_output_topic(
            self._clients,
            self.config.topic,
            may_create=None if create is None else (create.partitions, create.replication),
            markers=markers,
            shards=self.config.shards or ctx.task.subtask.parallelism,
            transactional_id=transactional_id(ctx.task, "check", 0),
            timeout_ms=self.config.transaction_timeout_ms,
        )
        if markers is not None and ctx.identity is not None:
            check_markers_known(self._clients, self._topics, markers, ctx)

    @override
    def can_skip_epochs(self) -> bool:
        """It keeps connections; what it staged belongs to one attempt."""
        return True

    @override
    def release(self) -> None:
        """Close connections, and drop what an unfinished epoch held."""
        self._staging = self._sender = None
        self._topics.close()
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None

    @property
    def _is_exact(self) -> bool:
        return self.config.delivery == "exactly_once"

    def _encoder_of(self, stream: StreamSchema) -> RecordEncoder:
        config, columns = self.config, self.config.columns
        fields = [stream.arrow.field(name) for name in columns.value_of(stream)]
        given = usable_options(config.format_options)
        values = record_format(config.format, pa.schema(fields), given)
        keys: RecordFormat | None = None
        names = columns.key_of(stream)
        if names:
            keys = record_format("json", pa.schema([stream.arrow.field(n) for n in names]))
        values.check_writable()
        return RecordEncoder(columns, stream, values, keys)

    @naming_missing_extras()
    def _topic_facts(self, topic: str) -> OutputTopic:
        """Return what the topic takes; a topic that is gone is an error."""
        found = self._topics.describe(topic)
        if found is None:
            raise UserError(
                f"the topic {topic!r} is not there (any more) at {self.config.servers}: create "
                "it, and the job goes on from where it is",
                code=ErrorCode.INVALID_CONFIG,
                topic=topic,
            )
        return found

    def _checked(self, records: pa.RecordBatch, ctx: OperatorContext) -> OutputTopic:
        """Return what the topic takes, after refusing records that it would not."""
        now_ms, facts = ctx.processing_time_micros // 1_000, self._facts
        if facts is None or check_records(records, facts, now_ms) is not None:
            # Its settings may have changed since they were read.
            facts = self._facts = self._topic_facts(self.config.topic)
        problem = check_records(records, facts, now_ms)
        if problem is not None:
            raise UserError(
                f"a record cannot be written to {self.config.topic!r}: {problem}",
                code=ErrorCode.VALUE_OUT_OF_RANGE,
                topic=self.config.topic,
            )
        return facts

    def _send(self, records: pa.RecordBatch, facts: OutputTopic) -> None:
        if self._sender is None:
            options = producer_options(facts, self.config.partitioner)
            producer = self._clients.producer(Reports(), enable_idempotence=True, **options)
            self._sender = RecordSender(
                producer, self.config.topic, timeout_s=_FLUSH_SECONDS
            )
        sender = self._sender
        self._call_sender(lambda: sender.send([records]))

    def _call_sender(self, call: Callable[[], object]) -> None:
        """Send; a failure ends this attempt at the epoch, and the next one begins anew."""
        from confluent_kafka import KafkaException

        sender, self._sender = self._sender, None
        try:
            call()
        except RecordRefusedError as error:
            raise error.to_error() from error
        except KafkaException as error:
            doing = f"records could not be sent to {self.config.topic!r}"
            raise to_error(error, doing) from error
        self._sender = sender
