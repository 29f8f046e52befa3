"""Inlets: what arrives at a task, checked: every producer once, whole, in order, of one attempt.

An engine may run a task twice, recompute part of a stage, or lose and repeat records. What a
producer sent on an edge counts only if all of it came from one attempt, numbered without a
gap, and its barrier confirms the count. The attempts consumed are the task's **receipts**.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.core.ids import OperatorId, Subtask, Token
from penstock.core.signals import Watermark
from penstock.operators.watermarks import merge
from penstock.runtime.narrowing import narrowed_schema, widen
from penstock.runtime.outlets import Mailbox
from penstock.runtime.physical import Chain, PhysicalPlan
from penstock.runtime.routing import producers_of
from penstock.runtime.wire import (
    BarrierPayload,
    Header,
    Record,
    RecordKind,
    decode_barrier,
    decode_batch,
    decode_header,
)


class TornInputError(Exception):
    """The input is not what one attempt of each producer sent. A value to be, not a bug."""


class AbortedInputError(Exception):
    """A producer failed and said so; this task has nothing to do."""


@dataclass(frozen=True, slots=True, order=True)
class Sender:
    """A producer on one edge."""

    edge: int
    level: int
    task: int

    def __str__(self) -> str:
        return f"task {self.task} of level {self.level} on edge {self.edge}"


@dataclass(slots=True)
class Channel:
    """What was heard from one sender so far."""

    token: Token | None = None
    received: int = 0
    barrier: BarrierPayload | None = None

    def accept(self, sender: Sender, header: Header) -> None:
        """Note a record; refuse one that is not the next of the same attempt."""
        if self.token is None:
            self.token = header.token
        if header.token != self.token:
            raise TornInputError(f"{sender} was heard in two attempts")
        if self.barrier is not None or header.sequence != self.received:
            raise TornInputError(
                f"{sender} sent record {header.sequence} where {self.received} was next"
            )


class ExchangeInput:
    """The input of one task; see `ChainInput`. Relays what is meant for later levels."""

    def __init__(
        self,
        plan: PhysicalPlan,
        chain: Chain,
        subtask: Subtask,
        records: Iterable[Record],
        mailbox: Mailbox,
    ) -> None:
        self._exchanges = {edge.number: edge for edge in plan.incoming(chain.number)}
        self._level = chain.level
        self._records = iter(records)
        self._mailbox = mailbox
        self._channels: dict[Sender, Channel] = {}
        for edge in self._exchanges.values():
            producer = plan.chains[edge.source_chain]
            for index in producers_of(edge.exchange, producer.parallelism, subtask.index):
                sender = Sender(edge.number, producer.level, producer.first_task + index)
                self._channels[sender] = Channel()

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        """Return the rows as they come; raises when they turn out torn or aborted."""
        for record in self._records:
            header = decode_header(record.header)
            if header.level != self._level:
                self._mailbox.relay(record, header)
                continue
            sender = Sender(header.edge, header.producer_level, header.producer_task)
            channel = self._channels.get(sender)
            if channel is None:
                raise TornInputError(
                    f"{sender} sent records to a task that does not read it"
                )
            channel.accept(sender, header)
            if record.kind == RecordKind.DATA:
                channel.received += 1
                exchange = self._exchanges[header.edge]
                schema, layout = exchange.schema.schema, header.layout
                sent = decode_batch(record.payload, narrowed_schema(schema, layout))
                batch = widen(sent, schema, layout)
                yield exchange.edge.target, exchange.edge.input_index, batch
            else:
                channel.barrier = decode_barrier(record.payload)
                if channel.barrier.is_aborted:
                    raise AbortedInputError(f"{sender} failed")
        self._check_complete()

    def watermarks(self) -> Mapping[tuple[str, int], Watermark | None]:
        """Return what all producers of each input have reached."""
        spoken: dict[tuple[str, int], list[Watermark | None]] = {}
        for sender, channel in self._channels.items():
            edge = self._exchanges[sender.edge].edge
            watermark = None if channel.barrier is None else channel.barrier.watermark
            spoken.setdefault((edge.target, edge.input_index), []).append(watermark)
        return {port: merge(latest) for port, latest in spoken.items()}

    def receipts(self) -> list[tuple[Sender, Token]]:
        """Return which attempt of each producer was consumed."""
        return [
            (sender, channel.token)
            for sender, channel in sorted(self._channels.items())
            if channel.token is not None
        ]

    def relay_rest(self) -> None:
        """Pass on what later levels and the driver still need; drop the own rows."""
        for record in self._records:
            header = decode_header(record.header)
            if header.level != self._level:
                self._mailbox.relay(record, header)

    def _check_complete(self) -> None:
        for sender, channel in sorted(self._channels.items()):
            if channel.barrier is None:
                raise TornInputError(f"{sender} sent no barrier")
            if channel.barrier.record_count != channel.received:
                raise TornInputError(
                    f"{sender} sent {channel.barrier.record_count} records, "
                    f"{channel.received} arrived"
                )
