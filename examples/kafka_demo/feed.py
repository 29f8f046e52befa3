"""The feed: Nexmark auctions and bids, produced into Kafka at a steady pace.

`python -m examples.kafka_demo` runs it in a thread. When it ends, every partition
gets one more row that is an hour later and has no partner: it tells that nothing earlier is to
come, so that the last windows close although the topics have no end.
"""

import math
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import msgspec
import polars as pl
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import penstock as pen
from examples.kafka_demo.job import AUCTIONS, BIDS, RESULTS
from penstock.connectors.nexmark.draws import EventKind
from penstock.connectors.nexmark.rows import SCHEMAS, NexmarkConfig, make_batch

EVENTS_PER_SECOND = 10_000
"""In event time: Nexmark's events are 100 µs apart. The feed keeps the pace."""
PARTITIONS = 3
_TICK_SECONDS = 0.02
_LATER = timedelta(hours=1)
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%.6fZ"


def make_rows(start: int, end: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the bids and the auctions among the events `[start, end)`, in order of time."""
    bids = _make(start, end, EventKind.BIDS).select(
        "auction", "bidder", "price", bid_time="date_time"
    )
    auctions = _make(start, end, EventKind.AUCTIONS).select(
        "category", "seller", auction="id", opened="date_time"
    )
    return bids, auctions


def _make(start: int, end: int, kind: EventKind) -> pl.DataFrame:
    spec = pen.nexmark(end, kind=kind.value)
    config = msgspec.convert(dict(spec.config), NexmarkConfig)
    first, last = (config.sequence.rows_below(events, 0, 1) for events in (start, end))
    numbers = config.sequence.numbers(0, 1, first, last)
    rows = pl.DataFrame(pl.from_arrow(make_batch(config, numbers, SCHEMAS[kind].arrow)))
    return rows.with_columns(pl.col("date_time").dt.replace_time_zone("UTC"))


def create_topics(servers: str) -> None:
    """Create the topics that the job reads and writes."""
    admin = AdminClient({"bootstrap.servers": servers})
    wanted = [NewTopic(topic, PARTITIONS, 1) for topic in (BIDS, AUCTIONS, RESULTS)]
    for made in admin.create_topics(wanted).values():
        made.result()


class Feed:
    """Produces events by a thread of its own, a second's worth at a time, until told to end."""

    def __init__(self, servers: str) -> None:
        # Its log is not part of the story: that the broker ends, for one.
        options = {"bootstrap.servers": servers, "linger.ms": 5, "log_level": 2}
        self._producer = Producer(options)
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)
        self._last_second: float = math.inf
        self.events = 0
        """How many of Nexmark's events are in Kafka, or on their way; not all are rows."""

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def end(self, seconds: int) -> None:
        """Wait until it has gone on for some seconds, and everything is in Kafka."""
        self._last_second = self.events // EVENTS_PER_SECOND + seconds
        self._thread.join()

    def _run(self) -> None:
        started = time.perf_counter()
        second = 0
        while True:
            end = (second + 1) * EVENTS_PER_SECOND
            bids, auctions = make_rows(second * EVENTS_PER_SECOND, end)
            self._produce(bids, auctions, started + second)
            self.events, second = end, second + 1
            if second >= self._last_second:
                break
        # All rows before the last of any partition: else they would be late.
        self._flush()
        for topic, partition, value in [
            *_closing_records(BIDS, bids, "bid_time", auction=-1),
            *_closing_records(AUCTIONS, auctions, "opened", auction=-2),
        ]:
            self._producer.produce(topic, value, partition=partition)
        self._flush()

    def _produce(self, bids: pl.DataFrame, auctions: pl.DataFrame, begin: float) -> None:
        """Produce the rows of a second in the order of their times, none before it is due."""
        records = pl.concat(
            [_to_records(BIDS, bids, "bid_time"), _to_records(AUCTIONS, auctions, "opened")]
        ).sort("due", maintain_order=True)
        for topic, partition, due, value in records.iter_rows():
            while time.perf_counter() < begin + due:
                self._producer.poll(_TICK_SECONDS)
            self._producer.produce(topic, value, partition=partition)

    def _flush(self) -> None:
        if self._producer.flush(60):
            raise RuntimeError("the broker does not take the rows")


def _to_records(topic: str, rows: pl.DataFrame, time_column: str) -> pl.DataFrame:
    """Return what to produce: topic, partition, the part of a second at which it is due, JSON."""
    return rows.select(
        topic=pl.lit(topic),
        partition=pl.col("auction") % PARTITIONS,
        due=pl.col(time_column).dt.microsecond() / 1e6,
        value=_to_json(time_column),
    )


def _closing_records(
    topic: str, rows: pl.DataFrame, time_column: str, *, auction: int
) -> Iterator[tuple[str, int, str]]:
    later = rows.tail(1).with_columns(
        pl.lit(auction, pl.Int64).alias("auction"), pl.col(time_column) + _LATER
    )
    for partition in range(PARTITIONS):
        yield topic, partition, later.select(_to_json(time_column)).item()


def _to_json(time_column: str) -> pl.Expr:
    times = pl.col(time_column).dt.strftime(_TIME_FORMAT)
    return pl.struct(pl.exclude(time_column), times).struct.json_encode()
