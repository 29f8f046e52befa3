"""The Kafka source: every partition is a split; the driver plans ranges of offsets of them.

How it works: before each epoch the driver asks the cluster how far each partition can be read
(`finding`), and plans what the epoch reads of each (`positions`). A subtask reads these ranges
(`reading`) and makes rows of the records (`records`). Positions are in the state alone. In an
epoch that reads anything all partitions are planned, also those without rows, and with equal
weights, so each stays with its subtask as long as parallelism and partitions do.

A topic is known by its id. The driver checks it before every epoch. A subtask checks it again
behind the last record that it read: a topic that was made again in between has other records
under the same offsets, and the epoch fails before anything of it counts.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from penstock.connectors.formats.record_format import RecordFormat
from penstock.connectors.formats.registry import record_format
from penstock.connectors.history.handover import Handover
from penstock.connectors.kafka.client import KafkaClients
from penstock.connectors.kafka.fetched import Range
from penstock.connectors.kafka.finding import PartitionFinder
from penstock.connectors.kafka.positions import (
    BEGIN_ANEW,
    Loss,
    Partition,
    PartitionOffset,
    Selection,
    Start,
    check_not_shrunk,
    check_same_topics,
    find_losses,
    lag_of,
    plan_ends,
    start_after,
    stop_of,
)
from penstock.connectors.kafka.reading import PartitionReader
from penstock.connectors.kafka.records import (
    BAD_RECORDS,
    Piece,
    RecordSize,
    gathered_kinds,
    output_schema,
    refuse_bad,
    to_rows,
)
from penstock.connectors.kafka.topics import Topics
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import BAD
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.secret_options import usable_options
from penstock.operators.splits import (
    SourceBudget,
    SourcePlan,
    SplitPlan,
    SplitState,
    have_ended,
)

DEFAULT_IDLE_TIMEOUT = "10s"
"""Long enough for producers that write to partitions in turn, each in its own time."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class KafkaSourceConfig(OperatorConfig):
    """The config of kind "kafka_source"."""

    kind: ClassVar[str] = "kafka_source"

    servers: str
    selection: Selection
    format: str
    schema: bytes | None = None
    """The result of `StreamSchema.to_bytes`: what is read of the values."""
    format_options: Mapping[str, Any] = field(default_factory=dict)
    start: Start = field(default_factory=Start)
    ends_at_latest: bool = False
    """The job ends when it has read what was there at the first epoch."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The names of columns by what they hold; see `METADATA_TYPES`."""
    commit_group: str | None = None
    """The group to which positions are written, for tools that show lag."""
    continues_after_loss: bool = False
    diverts_bad: bool = False
    discover_micros: int = 10_000_000
    """The interval at which topics are looked for that match a pattern."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of librdkafka; secrets as `plain_options` has them."""

    @property
    def clients(self) -> KafkaClients:
        """What opens connections."""
        return KafkaClients(self.servers, self.options)

    def record_format(self) -> RecordFormat:
        """Return what decodes values."""
        schema = None if self.schema is None else StreamSchema.from_bytes(self.schema).arrow
        return record_format(self.format, schema, usable_options(self.format_options))

    @override
    def shown(self) -> Mapping[str, str]:
        topics = self.selection.pattern or ", ".join(self.selection.topics)
        facts = {"topics": topics, "servers": self.servers, "format": self.format}
        return {**facts, "start": self.start.group or self.start.kind}


MOST_BUDGETS = 2
"""How many times its budget of bytes an epoch may read if records are larger than they were."""


class KafkaSource(Configured[KafkaSourceConfig], SourceOperator):
    """Reads topics. It connects when it is first needed, and keeps its connections."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        super().__init__(config)
        self._format = config.record_format()
        given = None if config.schema is None else StreamSchema.from_bytes(config.schema)
        time_column = None if given is None else given.time_column
        self._stream = output_schema(self._format, config.metadata, time_column)
        self._topics = Topics(config.clients)
        kinds = gathered_kinds(
            config.metadata, self._format, diverts_bad=config.diverts_bad
        )
        self._reader = PartitionReader(config.clients, kinds)
        self._finder = PartitionFinder(
            self._topics,
            config.selection,
            config.start,
            ends_at_latest=config.ends_at_latest,
            discover_micros=config.discover_micros,
            continues_after_loss=config.continues_after_loss,
        )
        self._warned: set[str] = set()
        self._written: Mapping[str, int] = {}

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def side_outputs(self) -> Mapping[str, StreamSchema]:
        """Return the stream of bad records, unless they fail the job."""
        return {BAD: BAD_RECORDS} if self.config.diverts_bad else {}

    def begin_at(self, handover: Handover) -> None:
        """Begin behind history: `LiveSource` has the contract."""
        self._finder.begin_at(start_after(handover, self.config.metadata.get("timestamp")))

    @override
    def check_splits(self, known: Mapping[str, SplitState]) -> None:
        """Refuse other topics than those that the job began with, and offsets that are gone."""
        check_same_topics(known, self.config.selection)
        if known and have_ended(known, is_complete=self.config.ends_at_latest):
            return
        found = self._finder.look(known, 0)
        self._allow(find_losses(found.offsets, found.held))

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Plan all partitions, each as far as the budget goes; none if there is nothing to do.

        Of a partition that does not answer nothing is read, and it is not idle.
        """
        found = self._finder.look(known, now_micros)
        offsets, held = found.offsets, found.held
        self._warn_of_compaction(offsets)
        for loss in self._allow(find_losses(offsets, held)):
            offsets[loss.split] = offsets[loss.split].without(loss)
        check_not_shrunk(offsets, held)
        ends = plan_ends(offsets, held, budget)
        return SourcePlan(
            _plan_all(known, offsets, ends),
            is_complete=self.config.ends_at_latest,
            has_more=any(
                stop_of(offsets[split], each) > ends.get(split, offsets[split].next)
                for split, each in held.items()
            ),
            waiting=found.waiting,
            holds_watermark=found.has_unbegun,
            lag=lag_of(offsets, held, ends, now_micros),
        )

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Read what was planned: a second run gives the same rows, unless one is cut short."""
        offsets = {
            Partition.of_split(split.name): PartitionOffset(*split.start)
            for split in ctx.splits
        }
        ranges: dict[Partition, Range] = {}
        for split in ctx.splits:
            partition = Partition.of_split(split.name)
            self._advance(ctx, partition, offsets[partition])
            end = PartitionOffset(*split.end).next
            if offsets[partition].next < end:
                ranges[partition] = Range(offsets[partition].next, end)
        if not ranges:
            return
        reading = self._reader.read(
            ranges,
            kept=[*offsets],
            on_gone=lambda partition, at: self._go_on(partition, at, ranges, offsets),
            on_stall=lambda: self._check_ids(offsets),
            is_late=ctx.budget.has_overrun,
        )
        sizes = {each: RecordSize() for each in ranges}
        read_bytes, size_bytes = 0, ctx.budget.budget.size_bytes
        begun = {each.split: offset for each, offset in offsets.items()}
        with self._topics.telling_of_deletion(begun):
            for piece in reading:
                offset = offsets[piece.partition]._replace(next=piece.next)
                if piece.chunks:
                    self._emit(piece, ctx, collector)
                    offset = offset._replace(
                        record_bytes=sizes[piece.partition].add(piece),
                        last_millis=piece.chunks[-1].last_millis,
                    )
                offsets[piece.partition] = offset
                self._advance(ctx, piece.partition, offset)
                read_bytes += piece.size_bytes
                if ctx.budget.has_overrun(3 / 4) or read_bytes > MOST_BUDGETS * size_bytes:
                    break
        self._check_ids({each: offsets[each] for each in ranges})

    def _emit(self, piece: Piece, ctx: SourceContext, collector: SourceCollector) -> None:
        found = to_rows(piece, self._format, self.config.metadata)
        collector.collect(found.rows, split=piece.partition.split)
        if found.bad.num_rows:
            if found.failing is not None or not self.config.diverts_bad:
                raise refuse_bad(found.bad, found.failing)
            ctx.count("bad_rows", found.bad.num_rows)
            collector.collect(found.bad, BAD)

    @staticmethod
    def _advance(ctx: SourceContext, partition: Partition, offset: PartitionOffset) -> None:
        known = ctx.split_state(partition.split).offset
        before = None if known is None else PartitionOffset(*known)
        # A position that is the same is not news that is worth an epoch's publication.
        if before != offset:
            ctx.advance(partition.split, tuple(offset))
            lost = offset.lost - (0 if before is None else before.lost)
            if lost:
                ctx.count("lost_offsets", lost)
        if offset.end is not None and offset.next >= offset.end:
            ctx.end_split(partition.split)

    def _go_on(
        self,
        partition: Partition,
        at: int,
        ranges: Mapping[Partition, Range],
        offsets: dict[Partition, PartitionOffset],
    ) -> int:
        """Return where to go on behind offsets that vanished since they were planned."""
        held = self._topics.calls.held([partition])
        check_not_shrunk({partition.split: offsets[partition]._replace(next=at)}, held)
        # What is gone behind the range is found when it is planned.
        stop = min(held[partition.split].first, ranges[partition].end)
        if at < stop:
            loss = Loss(partition.split, at, stop)
            self._allow((loss,))
            offset = offsets[partition]
            offsets[partition] = offset._replace(lost=offset.lost + loss.size)
        return max(stop, at)

    def _check_ids(self, offsets: Mapping[Partition, PartitionOffset]) -> None:
        self._topics.check_ids({each.split: offset for each, offset in offsets.items()})

    @override
    def idle_timeout(self) -> DurationLike:
        """Return how long a partition without new records holds event time back."""
        return DEFAULT_IDLE_TIMEOUT

    @override
    def can_skip_epochs(self) -> bool:
        """It reads ranges of offsets, whoever read those before."""
        return True

    @override
    def release(self) -> None:
        """Close the connections."""
        self._reader.close()
        self._finder.release()
        self._topics.close()

    def _allow(self, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """Return losses that the user accepts; refuse them otherwise."""
        if not losses:
            return losses
        told = "; ".join(map(str, losses[:5])) + ("; …" if len(losses) > 5 else "")
        if not self.config.continues_after_loss:
            raise UserError(
                f"{told} were removed before this job read them (retention, or deleted "
                "records). To go on without them, pass on_lost='continue', which counts them; "
                f"or {BEGIN_ANEW}. Let the topic keep records longer (retention.ms) than the "
                "job may stand still",
                code=ErrorCode.INPUT_LOST,
                splits=tuple(loss.split for loss in losses),
            )
        _log.warning(
            "%s were removed before they were read: the job goes on behind them", told
        )
        return losses

    def _warn_of_compaction(self, offsets: Mapping[str, PartitionOffset]) -> None:
        names = {Partition.of_split(split).topic for split in offsets} - self._warned
        self._warned |= names
        for name in self._topics.compacted(sorted(names)):
            _log.warning(
                "the topic %r is compacted: Kafka removes records that later ones of the same "
                "key replace, so an epoch that is run again, or a restore, may not see all that "
                "was seen before. Read it as upserts, whose result is the same either way",
                name,
            )

    @override
    def on_committed(self, known: Mapping[str, SplitState]) -> None:
        """Write the positions to a group, if one is named."""
        group = self.config.commit_group
        if group is None or not known:
            return
        offsets = {
            name: PartitionOffset(*state.offset).next for name, state in known.items()
        }
        changed = {n: at for n, at in offsets.items() if self._written.get(n) != at}
        if changed:
            self._written = offsets
            self._topics.write_group(group, changed, on_failure=self._forget_written)

    def _forget_written(self) -> None:
        """Have all offsets written again with the next epoch. Called by any thread."""
        self._written = {}


def _plan_all(
    known: Mapping[str, SplitState],
    offsets: Mapping[str, PartitionOffset],
    ends: Mapping[str, int],
) -> tuple[SplitPlan, ...]:
    """Return a plan for every partition; none if an epoch would read and store nothing."""
    has_news = any(
        # A partition that is at its end is told so by the epoch.
        split not in known
        or tuple(known[split].offset) != offset
        or offset.next == offset.end
        for split, offset in offsets.items()
    )
    if not (ends or has_news):
        return ()
    return tuple(
        SplitPlan(
            split,
            tuple(offset),
            tuple(offset._replace(next=ends.get(split, offset.next))),
        )
        for split, offset in sorted(offsets.items())
    )
