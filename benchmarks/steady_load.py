"""A steady load on a topic, and how long it takes until each of its events is in the results.

Events are `{"user": 17}`; results are running counts, `{"user": 17, "events": 3}`. All events of
a user are in one partition, so the result that counts n of them is the first to hold the n-th.
The latency of an event is the time from its creation until a reader of committed records has
the first result that holds it: nothing depends on what an engine says about itself.
"""

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.kafka_topics import PARTITIONS, create_topic
from benchmarks.sides import run_side
from benchmarks.suites import Row, end_with_parent

USERS = 10_000
EVENTS_PER_SECOND = 20_000
_TICK_SECONDS = 0.01
_START_EVENTS_PER_SECOND = 200
"""While a side starts: enough to see that it is there, and no backlog to speak of."""
_PATIENCE_SECONDS = 120.0
_QUIET_SECONDS = 10.0
"""After so long without a result there is none to come: no trigger took that long."""
_COUNT = pl.Struct({"user": pl.Int64, "events": pl.Int64})


@dataclass(frozen=True, slots=True)
class Timing:
    """How long each phase of a measurement takes, from the first result on."""

    warm_seconds: float
    timed_seconds: float
    drain_seconds: float
    """How long results are awaited after the last event, at most."""

    @property
    def load_seconds(self) -> float:
        """How long events are produced."""
        return self.warm_seconds + self.timed_seconds


FULL, QUICK = Timing(30.0, 40.0, 60.0), Timing(8.0, 8.0, 60.0)


@dataclass(frozen=True, slots=True)
class Counting:
    """What a job is to do: count the events of one topic into another until it is told to end."""

    servers: str
    source: str
    target: str
    folder: Path

    @property
    def has_started(self) -> bool:
        """Whether a first result was seen, so that the load may run."""
        return (self.folder / "started").exists()

    @property
    def has_ended(self) -> bool:
        """Whether all is measured. Files tell it: every process sees them, at no cost."""
        return (self.folder / "ended").exists()

    def start(self) -> None:
        """Let the load run."""
        (self.folder / "started").touch()

    def end(self) -> None:
        """Tell all processes to end."""
        (self.folder / "ended").touch()


Job: TypeAlias = Callable[[Counting], Row]


def measure(name: str, job: Job, servers: str, folder: Path, timing: Timing) -> Row:
    """Run a job under load; return percentiles of its latency, and its memory."""
    folder.mkdir(parents=True)
    counting = Counting(
        servers,
        create_topic(servers, f"{name}-events"),
        create_topic(servers, f"{name}-counts"),
        folder,
    )
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn, end_with_parent) as pool:
        load = pool.submit(_produce_events, counting, timing)
        seen = pool.submit(_see_counts, counting, timing)
        try:
            side = run_side(job, counting)
        finally:
            counting.end()
        latencies = match(load.result(), seen.result(), timing)
    return {**describe(latencies), **side}


def _produce_events(counting: Counting, timing: Timing) -> pl.DataFrame:
    """Produce events at a steady pace, and return all of them in order."""
    producer = Producer({"bootstrap.servers": counting.servers, "linger.ms": 1})
    draw = np.random.default_rng(1)
    users, times = [], []
    due, last, until = 0.0, time.perf_counter(), float("inf")
    while last < until and not counting.has_ended:
        is_loaded = until < float("inf")
        if not is_loaded and counting.has_started:
            until = last + timing.load_seconds
        pace = EVENTS_PER_SECOND if is_loaded else _START_EVENTS_PER_SECOND
        now = time.perf_counter()
        due, last = due + (now - last) * pace, now
        some, due = draw.integers(0, USERS, int(due)), due % 1
        # Events of the start have no time: they are not measured.
        micros = time.time_ns() // 1_000 if is_loaded else 0
        for user in some.tolist():
            value = b'{"user": %d}' % user
            producer.produce(counting.source, value, partition=user % PARTITIONS)
        users.append(some)
        times.append(np.full(len(some), micros))
        producer.poll(max(0.0, _TICK_SECONDS - (time.perf_counter() - now)))
    producer.flush(10)
    return pl.DataFrame({"user": np.concatenate(users), "sent": np.concatenate(times)})


def _see_counts(counting: Counting, timing: Timing) -> pl.DataFrame:
    """Read results as they are committed; start the load at the first, and end all in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": counting.servers,
            "group.id": "observer",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    partitions = range(PARTITIONS)
    consumer.assign([TopicPartition(counting.target, number, 0) for number in partitions])
    values: list[bytes | None] = []
    times: list[Any] = []
    loaded_until = until = time.monotonic() + _PATIENCE_SECONDS
    quiet_until = loaded_until
    while (now := time.monotonic()) < until and not counting.has_ended:
        messages = consumer.consume(1_000, _TICK_SECONDS)
        if not messages:
            if now > max(loaded_until, quiet_until):
                break
            continue
        values += [message.value() for message in messages]
        times.append(np.full(len(messages), time.time_ns() // 1_000))
        quiet_until = now + _QUIET_SECONDS
        if not counting.has_started:
            counting.start()
            loaded_until = now + timing.load_seconds
            until = loaded_until + timing.drain_seconds
    counting.end()
    consumer.close()
    if not values:
        raise TimeoutError("no results were seen")
    counts = pl.Series(values).cast(pl.String).str.json_decode(_COUNT)
    return counts.struct.unnest().with_columns(seen=np.concatenate(times))


def match(events: pl.DataFrame, counts: pl.DataFrame, timing: Timing) -> pl.DataFrame:
    """Return for each event of the timed phase when it was sent and seen, in microseconds.

    An event that is in no result is an error: a job that loses rows would look quick.
    """
    numbered = events.with_columns(events=pl.int_range(1, pl.len() + 1).over("user"))
    first = counts.group_by("user", "events").agg(pl.col("seen").min()).sort("events")
    matched = numbered.sort("events").join_asof(
        first, on="events", by="user", strategy="forward", check_sortedness=False
    )
    ended = int(events["sent"].to_numpy().max())
    timed = matched.filter(pl.col("sent") > ended - int(timing.timed_seconds * 1e6))
    lost = timed["seen"].null_count()
    if lost or not timed.height:
        raise RuntimeError(f"{lost} of {timed.height} events are in no result")
    return timed


def describe(timed: pl.DataFrame) -> Row:
    """Return percentiles of the latency in milliseconds, and how much there was."""
    millis = (timed["seen"] - timed["sent"]).to_numpy() / 1_000
    p50, p90, p99 = np.percentile(millis, [50, 90, 99])
    seconds = (timed["sent"].to_numpy().max() - timed["sent"].to_numpy().min()) / 1e6
    return {
        "p50_ms": round(float(p50), 1),
        "p90_ms": round(float(p90), 1),
        "p99_ms": round(float(p99), 1),
        "events": timed.height,
        "events_per_second": round(timed.height / seconds),
    }
