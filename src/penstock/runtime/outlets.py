"""Outlets: how the rows and signals of a task leave for the next levels.

Rows for one consumer are gathered and sent as few records of a good size. The last record
to every consumer of every edge is a BARRIER that says how many came before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.core.ids import OperatorId, Token
from penstock.core.settings import current
from penstock.core.signals import Watermark
from penstock.runtime.narrowing import narrow
from penstock.runtime.physical import Chain, ExchangeEdge, PhysicalPlan
from penstock.runtime.routing import consumers_of, route_rows
from penstock.runtime.wire import (
    TARGET_PAYLOAD_BYTES,
    BarrierPayload,
    Header,
    Record,
    RecordKind,
    cut,
    encode_barrier,
    encode_batch,
    encode_header,
)

REPORT_EDGE = -1
"""The edge of a record that is meant for the driver."""


@dataclass(slots=True)
class Lane:
    """What waits for, and was sent to, one consumer of one edge."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    sent: int = 0
    has_barrier: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of one task: who speaks."""

    level: int
    task: int
    token: Token


class Mailbox:
    """The records a task has made and the executor has not taken yet."""

    def __init__(self, plan: PhysicalPlan, attempt: Attempt) -> None:
        self._plan = plan
        self._attempt = attempt
        self._records: list[Record] = []

    def send(self, kind: RecordKind, header: Header, payload: object) -> None:
        """Post a record of this task."""
        self._records.append(Record(self.hop(header), kind, encode_header(header), payload))

    def relay(self, record: Record, header: Header) -> None:
        """Pass on a record that is meant for a later level, unchanged but for its route."""
        self._records.append(record._replace(route=self.hop(header)))

    def hop(self, header: Header) -> int:
        """Return the task of the next level that takes, or relays, a record."""
        following = self._attempt.level + 1
        if header.level == following:
            return header.task
        if following == len(self._plan.supersteps):
            return 0
        return header.task % self._plan.supersteps[following].task_count

    def report(self, payload: bytes) -> None:
        """Post the task's control record to the driver."""
        driver = len(self._plan.supersteps)
        header = self.header(REPORT_EDGE, driver, self._attempt.task, 0)
        self.send(RecordKind.REPORT, header, payload)

    def header(self, edge: int, level: int, task: int, sequence: int) -> Header:
        """Return the header of a record that this attempt makes."""
        attempt = self._attempt
        return Header(
            edge, level, task, attempt.level, attempt.task, attempt.token, sequence
        )

    def drain(self) -> Iterator[Record]:
        """Hand over everything posted so far."""
        records, self._records = self._records, []
        return iter(records)


class Outlet:
    """One edge out of a task: takes batches, sends them to the consumers they belong to."""

    def __init__(
        self,
        exchange: ExchangeEdge,
        consumer: Chain,
        mailbox: Mailbox,
        *,
        subtask: int,
        first_turn: int,
    ) -> None:
        self.exchange = exchange
        self._consumer = consumer
        self._mailbox = mailbox
        self._subtask = subtask
        self._turn = first_turn
        chosen = current().exchange_compression
        self._compression = None if chosen == "none" else chosen
        speaks_to = consumers_of(exchange.exchange, consumer.parallelism, subtask)
        self._lanes = {index: Lane() for index in speaks_to}

    def take(self, batch: pa.RecordBatch) -> None:
        """Route some rows."""
        parts = route_rows(
            batch,
            self.exchange.exchange,
            self.exchange.schema,
            subtask=self._subtask,
            parallelism=self._consumer.parallelism,
            turn=self._turn,
        )
        for index, part in parts:
            lane = self._lanes[index]
            lane.waiting.append(part)
            lane.waiting_bytes += part.nbytes
            if lane.waiting_bytes >= TARGET_PAYLOAD_BYTES:
                self._flush(index, lane)
        self._turn += 1

    def finish(self, watermark: Watermark | None) -> None:
        """Send what waits, then the barrier, to every consumer."""
        for index, lane in self._lanes.items():
            self._flush(index, lane)
            self._send_barrier(index, BarrierPayload(lane.sent, False, watermark))  # noqa: FBT003

    def abort(self) -> None:
        """Tell every consumer that was not told the end yet that the rows are not complete.

        A second barrier would pass for a torn epoch and hide why it failed.
        """
        for index, lane in self._lanes.items():
            if not lane.has_barrier:
                self._send_barrier(index, BarrierPayload(lane.sent, True, None))  # noqa: FBT003

    def _flush(self, index: int, lane: Lane) -> None:
        if not lane.waiting:
            return
        joined = lane.waiting
        if len(joined) > 1:
            # More than one batch again if a column of them all would not fit into one.
            joined = pa.Table.from_batches(joined).combine_chunks().to_batches()
        lane.waiting, lane.waiting_bytes = [], 0
        for piece in (piece for batch in joined for piece in cut(batch)):
            narrowed, layout = narrow(piece)
            header = self._header(index, lane.sent)._replace(layout=layout)
            payload = encode_batch(narrowed, self._compression)
            self._mailbox.send(RecordKind.DATA, header, payload)
            lane.sent += 1

    def _send_barrier(self, index: int, barrier: BarrierPayload) -> None:
        self._lanes[index].has_barrier = True
        header = self._header(index, barrier.record_count)
        self._mailbox.send(RecordKind.BARRIER, header, encode_barrier(barrier))

    def _header(self, index: int, sequence: int) -> Header:
        consumer = self._consumer
        return self._mailbox.header(
            self.exchange.number, consumer.level, consumer.first_task + index, sequence
        )


def outlets_of(
    plan: PhysicalPlan, chain: Chain, mailbox: Mailbox, *, subtask: int, epoch: int
) -> dict[OperatorId, dict[str, list[Outlet]]]:
    """Return the outlets of one subtask of a chain, by operator and output."""
    found: dict[OperatorId, dict[str, list[Outlet]]] = {}
    for exchange in plan.outgoing(chain.number):
        outlet = Outlet(
            exchange,
            plan.chains[exchange.target_chain],
            mailbox,
            subtask=subtask,
            first_turn=subtask + epoch,
        )
        outputs = found.setdefault(exchange.edge.source, {})
        outputs.setdefault(exchange.edge.output, []).append(outlet)
    return found
