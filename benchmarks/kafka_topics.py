"""Topics that suites read: a broker of their own, filled with bids as JSON of 100 bytes."""

import itertools
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.bids import BIDS
from benchmarks.inputs import ROWS_PER_FILE
from benchmarks.suites import end_with_parent
from scripts.servers.installation import install
from scripts.servers.kafka import KafkaCluster

PARTITIONS = 4
VALUE_BYTES = 100
_QUEUED_MESSAGES = 200_000
_FULL_SECONDS = 0.1


@contextmanager
def a_broker(folder: Path) -> Iterator[str]:
    """Run a broker while a suite needs it; gives its address. The first use downloads it."""
    install("kafka")
    with KafkaCluster.start(folder) as cluster:
        yield cluster.bootstrap


def create_topic(servers: str, topic: str, partitions: int = PARTITIONS) -> str:
    """Create a topic and return its name."""
    admin = AdminClient({"bootstrap.servers": servers})
    made = admin.create_topics([NewTopic(topic, partitions, 1)])
    made[topic].result()
    return topic


def fill_bids(servers: str, topic: str, rows: int) -> str:
    """Create a topic with the first bids, dealt to its partitions in turn; return its name."""
    create_topic(servers, topic)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn, end_with_parent) as pool:
        parts = [
            pool.submit(_fill_partition, servers, topic, rows, partition)
            for partition in range(PARTITIONS)
        ]
        for part in parts:
            part.result()
    return topic


def _fill_partition(servers: str, topic: str, rows: int, partition: int) -> None:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": _QUEUED_MESSAGES,
            "enable.idempotence": True,
        }
    )
    for number in itertools.count():
        left = min(rows - number * ROWS_PER_FILE, ROWS_PER_FILE)
        if left <= 0:
            break
        bids = pl.DataFrame(pl.from_arrow(BIDS.make(number)))
        mine = bids.head(left).gather_every(PARTITIONS, partition)
        for value in mine.select(as_json()).to_series().to_list():
            _produce(producer, topic, value, partition)
    if producer.flush(60):
        raise RuntimeError(f"the broker at {servers} did not take all bids")


def as_json() -> pl.Expr:
    """Return bids as JSON texts of `VALUE_BYTES` bytes; a channel's name fills them up."""
    text = pl.concat_str(
        *(pl.lit('{"auction":'), "auction"),
        *(pl.lit(',"bidder":'), "bidder"),
        *(pl.lit(',"price":'), "price"),
        *(pl.lit(',"ts":"'), pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")),
        pl.lit('","channel":"'),
    )
    return pl.concat_str(text.str.pad_end(VALUE_BYTES - 2, "x"), pl.lit('"}'))


def _produce(producer: Producer, topic: str, value: str, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition)
        except BufferError:
            producer.poll(_FULL_SECONDS)
        else:
            return
