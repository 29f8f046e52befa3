"""The exchange of a task: checks the records of other tasks, and sends records to them.

**Input.** An engine may run a task twice, recompute part of a stage, or lose and repeat
records. The records of a producer on an edge count only if all of them come from one attempt,
are numbered without a gap, and its barrier confirms their count. The attempts consumed are the
task's **receipts**.

**Outlets.** Rows for one consumer are gathered and sent as few records of a good size. The last
record to every consumer of every edge is a BARRIER with the number of records before it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from penstock.core.batch import empty_batch
from penstock.core.ids import OperatorId, Subtask, Token
from penstock.core.settings import current
from penstock.core.watermark import Watermark, merge
from penstock.graph.logical import Exchange
from penstock.operators.samples import KeyCounter
from penstock.runtime.plan.executor import KeySample
from penstock.runtime.plan.physical import (
    Chain,
    ExchangeEdge,
    PhysicalPlan,
    peers_of,
    route_rows,
)
from penstock.runtime.task.wire import (
    TARGET_PAYLOAD_BYTES,
    BarrierPayload,
    Header,
    Record,
    RecordKind,
    cut,
    decode_barrier,
    decode_batch,
    decode_header,
    encode_barrier,
    encode_batch,
    encode_header,
    has_dictionaries,
    narrow,
    narrowed_schema,
    widen,
)

_MANY_RECORDS = 16
"""How many records make a mailbox full: at their usual size they are some megabytes."""
REPORT_EDGE = -1
"""The edge of a record that is meant for the driver."""


@dataclass(slots=True)
class Lane:
    """The rows that wait for one consumer of one edge, and how many records were sent to it."""

    header: Header
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    waiting_bytes: int = 0
    sent: int = 0
    has_barrier: bool = False


class Attempt(NamedTuple):
    """One run of one task; its token marks its records."""

    level: int
    task: int
    token: Token


class Mailbox:
    """The records that a task has made or relays, and that the executor has not taken yet."""

    def __init__(self, plan: PhysicalPlan, attempt: Attempt) -> None:
        self._plan = plan
        self.attempt = attempt
        self.records: deque[Record] = deque()

    def send(self, kind: RecordKind, header: Header, payload: object) -> None:
        """Post a record of this task."""
        self.relay(Record(0, kind, encode_header(header), payload), header)

    def relay(self, record: Record, header: Header) -> None:
        """Post a record with its route: the task of the next level that consumes or relays it."""
        route, following = header.task, self.attempt.level + 1
        if header.level != following:
            route %= self._plan.supersteps[following].task_count
        self.records.append(record._replace(route=route))

    def report(self, payload: bytes) -> None:
        """Post the task's control record to the driver."""
        driver = len(self._plan.supersteps)
        header = Header(REPORT_EDGE, driver, self.attempt.task, *self.attempt, 0)
        self.send(RecordKind.REPORT, header, payload)

    def drain(self) -> Iterator[Record]:
        """Yield everything posted so far; a record is dropped as soon as it is taken."""
        while self.records:
            yield self.records.popleft()


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
        samples_keys: bool = False,
    ) -> None:
        self.exchange = exchange
        self._consumer = consumer
        self._mailbox = mailbox
        self._subtask = subtask
        self._turn = first_turn
        chosen = current().exchange_compression
        self._compression = None if chosen == "none" else chosen
        self._keys: KeyCounter | None = None
        if samples_keys and exchange.exchange is Exchange.BY_KEY:
            self._keys = KeyCounter(exchange.schema.key_columns)
        self._lanes: dict[int, Lane] = {}
        for index in peers_of(exchange.exchange, consumer.parallelism, subtask):
            place = (exchange.number, consumer.level, consumer.first_task + index)
            self._lanes[index] = Lane(Header(*place, *mailbox.attempt, sequence=0))

    def take(self, batch: pa.RecordBatch) -> None:
        """Route some rows."""
        if self._keys is not None:
            self._keys.note(batch)
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
                self._flush(lane)
        self._turn += 1

    def finish(self, watermark: Watermark | None, *, is_aborted: bool = False) -> None:
        """Send the barrier to every consumer that has none yet, after the rows that wait.

        An aborted barrier comes without them.
        """
        for lane in self._lanes.values():
            # A second barrier would look like a torn epoch and hide the failure.
            if lane.has_barrier:
                continue
            if not is_aborted:
                self._flush(lane)
            lane.has_barrier = True
            barrier = BarrierPayload(lane.sent, is_aborted, watermark)
            header = lane.header._replace(sequence=lane.sent)
            self._mailbox.send(RecordKind.BARRIER, header, encode_barrier(barrier))

    def sample_keys(self) -> KeySample | None:
        """Return which keys were frequent in this epoch, if it samples keys and had rows."""
        if self._keys is None or not self._keys.rows:
            return None
        edge = self.exchange.edge
        counted = self._keys.rows_by_key()
        return KeySample(str(edge.source), str(edge.target), self._keys.rows, counted)

    def abort(self) -> None:
        """Send an aborted barrier to every consumer that has no barrier yet."""
        self.finish(None, is_aborted=True)

    def _flush(self, lane: Lane) -> None:
        if not lane.waiting:
            return
        joined = _joined(lane.waiting)
        lane.waiting, lane.waiting_bytes = [], 0
        for piece in (piece for batch in joined for piece in cut(batch)):
            narrowed, layout = narrow(piece)
            header = lane.header._replace(sequence=lane.sent, layout=layout)
            payload = encode_batch(narrowed, self._compression)
            self._mailbox.send(RecordKind.DATA, header, payload)
            lane.sent += 1


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in fewer batches, or in as many if they cannot be joined.

    One array may be too small for a column, or one dictionary for the values of all.
    """
    if len(batches) == 1:
        return batches
    try:
        return pa.Table.from_batches(batches).combine_chunks().to_batches()
    except pa.ArrowInvalid:
        return batches


Outlets: TypeAlias = dict[OperatorId, dict[str, list[Outlet]]]
"""By operator and output."""


def outlets_of(
    plan: PhysicalPlan,
    chain: Chain,
    mailbox: Mailbox,
    *,
    subtask: int,
    epoch: int,
    samples_keys: bool = False,
) -> Outlets:
    """Return the outlets of one subtask of a chain."""
    found: Outlets = {}
    for exchange in plan.outgoing(chain.number):
        outlet = Outlet(
            exchange,
            plan.chains[exchange.target_chain],
            mailbox,
            subtask=subtask,
            first_turn=subtask + epoch,
            samples_keys=samples_keys,
        )
        outputs = found.setdefault(exchange.edge.source, {})
        outputs.setdefault(exchange.edge.output, []).append(outlet)
    return found


JOINED_BYTES = 8 << 20
"""Rows are joined into batches of about this size for operators, …"""
JOINED_ROWS = 256 << 10
"""… or of this many rows, because the result of an operator may be larger than the row."""


class TornInputError(Exception):
    """The records do not all come from one attempt of each producer.

    The task reports this and the driver reruns the epoch.
    """


class AbortedInputError(Exception):
    """A producer sent an aborted barrier: this task has nothing to do."""


class Sender(NamedTuple):
    """A producer on one edge."""

    edge: int
    level: int
    task: int

    def __str__(self) -> str:
        return f"task {self.task} of level {self.level} on edge {self.edge}"


@dataclass(slots=True)
class Channel:
    """The records that one sender has sent so far."""

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


@dataclass(slots=True)
class Waiting:
    """Rows of one edge that no operator has got yet."""

    is_joinable: bool
    """False with dictionary columns: different dictionaries may not fit into one."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0

    @property
    def is_enough(self) -> bool:
        """Return whether there are enough rows for a batch."""
        has_many = self.row_count >= JOINED_ROWS or self.size_bytes >= JOINED_BYTES
        return has_many or not self.is_joinable

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.batches.append(batch)
        self.row_count += batch.num_rows
        self.size_bytes += batch.nbytes

    def take(self) -> pa.RecordBatch:
        """Return all rows in one batch, and drop them here."""
        batches, self.batches = self.batches, []
        self.row_count = self.size_bytes = 0
        if len(batches) == 1:
            return batches[0]
        joined: pa.RecordBatch = pa.concat_batches(batches)  # type: ignore[attr-defined]  # not in the stubs
        return joined


class ExchangeInput:
    """The input of one task; see `ChainInput`. It relays records for later levels."""

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
        self._channels = {
            Sender(*sender): Channel() for sender in plan.senders(chain, subtask)
        }

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        """Yield the rows, each edge's in order; raise if they are torn or aborted.

        Records are sized for the engine that moves them. For operators they are joined, so
        that the cost of a batch, and of finding its keys in state, is shared by many rows. An
        empty batch comes when the mailbox is full of relayed records, so that they are handed
        on.
        """
        waiting = {
            number: Waiting(not has_dictionaries(exchange.schema.arrow))
            for number, exchange in self._exchanges.items()
        }
        for number, batch in self._arriving():
            edge, rows = self._exchanges[number].edge, waiting[number]
            if not batch.num_rows:
                yield edge.target, edge.input_index, batch
                continue
            rows.add(batch)
            if rows.is_enough:
                yield edge.target, edge.input_index, rows.take()
        for number, rows in waiting.items():
            if rows.batches:
                edge = self._exchanges[number].edge
                yield edge.target, edge.input_index, rows.take()

    def watermarks(self) -> Mapping[tuple[str, int], Watermark | None]:
        """Return the merged watermark of all producers of each input."""
        spoken: dict[tuple[str, int], list[Watermark | None]] = {}
        for sender, channel in self._channels.items():
            edge = self._exchanges[sender.edge].edge
            watermark = None if channel.barrier is None else channel.barrier.watermark
            spoken.setdefault((edge.target, edge.input_index), []).append(watermark)
        return {port: merge(latest) for port, latest in spoken.items()}

    def receipts(self) -> list[tuple[Sender, Token]]:
        """Return the attempt of each producer that was consumed."""
        return [
            (sender, channel.token)
            for sender, channel in sorted(self._channels.items())
            if channel.token is not None
        ]

    def relay_rest(self) -> Iterator[None]:
        """Relay what later levels and the driver still need, step by step; drop own rows."""
        for record in self._records:
            header = decode_header(record.header)
            if header.level != self._level:
                self._mailbox.relay(record, header)
                yield

    def _arriving(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the batches for this task, by edge, and relay all other records."""
        for record in self._records:
            header = decode_header(record.header)
            if header.level != self._level:
                self._mailbox.relay(record, header)
                if len(self._mailbox.records) >= _MANY_RECORDS:
                    number, exchange = next(iter(self._exchanges.items()))
                    yield number, empty_batch(exchange.schema.arrow)
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
                schema = self._exchanges[header.edge].schema.arrow
                travelled = narrowed_schema(schema, header.layout)
                batch = decode_batch(record.payload, travelled)
                yield header.edge, widen(batch, schema, header.layout)
            else:
                channel.barrier = decode_barrier(record.payload)
                if channel.barrier.is_aborted:
                    raise AbortedInputError(f"{sender} failed")
        for sender, channel in sorted(self._channels.items()):
            if channel.barrier is None:
                raise TornInputError(f"{sender} sent no barrier")
            if channel.barrier.record_count != channel.received:
                raise TornInputError(
                    f"{sender} sent {channel.barrier.record_count} records, "
                    f"{channel.received} arrived"
                )
