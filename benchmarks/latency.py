"""Latency: from an event in Kafka to the committed count of its user in Kafka.

A running count per user, 10,000 of them, at 20,000 events/s; every epoch's changes are written.
`steady_load` makes the load and measures; the broker and the load share the cores with each
side in turn. Structured Streaming runs with its shortest trigger, and writes at least once: it
has no other way. Its real-time mode is shown as it is, without a target.
"""

import itertools
import shutil
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import penstock as pen
from benchmarks.kafka_peer import count_events
from benchmarks.kafka_topics import a_broker
from benchmarks.steady_load import FULL, QUICK, Counting, Job, Timing, measure
from benchmarks.structured_streaming import CORES, DEFAULT, ROCKSDB
from benchmarks.suites import Row
from penstock.connectors.kafka.sink import Delivery
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.policies import to_trigger
from penstock.runtime.spark.running import run_on_spark

GOALS = {"at_least_once": 0.6, "exactly_once": 1.0}
TRIGGER = "20ms"
"""Shorter than an epoch takes, so that epochs follow each other without a pause."""
REAL_TIME_SLOTS = 8
"""In real-time mode all tasks run at once: four that read and two that count."""
_LOOK_SECONDS = 0.1


def count_topic(counting: Counting, *, delivery: Delivery) -> Row:
    """Count events by user with Penstock until told to end."""
    pipeline = pen.Pipeline("latency", parallelism=CORES)
    source = pen.kafka(counting.source, servers=counting.servers, schema={"user": int})
    counts = (
        pipeline.read("events", source)
        .key_by("user")
        .aggregate("per-user", events=pen.count())
    )
    target = pen.kafka(counting.target, servers=counting.servers, delivery=delivery)
    counts.write("counts", target)
    epochs: list[float] = []

    def stop_in_time(driver: JobDriver) -> None:
        def watch() -> None:
            while not counting.has_ended:
                time.sleep(_LOOK_SECONDS)
            driver.request_stop()

        threading.Thread(target=watch, daemon=True).start()

    def note(ran: EpochRan) -> None:
        del ran
        epochs.append(time.perf_counter())

    run_on_spark(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(counting.folder / "checkpoint"),
            master=f"local[{CORES},4]",
            trigger=to_trigger(TRIGGER),
            on_driver=stop_in_time,
            on_epoch=note,
        ),
    )
    each = [later - earlier for earlier, later in itertools.pairwise(epochs)]
    return {"epochs": len(epochs), "epoch_ms": round(statistics.median(each) * 1e3, 1)}


SIDES: dict[str, Job] = {
    "at_least_once": partial(count_topic, delivery="at_least_once"),
    "exactly_once": partial(count_topic, delivery="exactly_once"),
    "rocksdb": partial(count_events, store=ROCKSDB),
    "default": partial(count_events, store=DEFAULT),
    "real_time": partial(
        count_events, store=ROCKSDB, real_time=True, slots=REAL_TIME_SLOTS
    ),
}
PEERS = ("rocksdb", "default")


def run(*, quick: bool) -> list[Row]:
    found = measure_all(QUICK if quick else FULL)
    best = {
        figure: min(found[peer][figure] for peer in PEERS if figure in found[peer])
        for figure in ("p50_ms", "p99_ms")
    }
    return [_row(name, found[name], best) for name in SIDES]


def measure_all(timing: Timing) -> dict[str, Row]:
    """Measure every side, one after the other, on one broker."""
    found: dict[str, Row] = {}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-latency-") as folder,
        a_broker(Path(folder, "broker")) as servers,
    ):
        for name, job in SIDES.items():
            place = Path(folder, name)
            try:
                found[name] = measure(name, job, servers, place, timing)
            except Exception as error:  # noqa: BLE001 - one side's failure is its own figure
                found[name] = {"error": str(error)[:500]}
            shutil.rmtree(place, ignore_errors=True)
    return found


def _row(name: str, figures: Row, best: Row) -> Row:
    """Return the row of a side; those of Penstock are held against the better peer."""
    row = {"name": name, **figures}
    if name not in GOALS:
        return row
    if "error" in figures:
        return {**row, "ok": False}
    ratios = [round(figures[each] / best[each], 2) for each in ("p50_ms", "p99_ms")]
    return {
        **row,
        "ratio_p50": ratios[0],
        "ratio_p99": ratios[1],
        "target": f"p50 and p99 at most {GOALS[name]} times Structured Streaming's",
        "ok": max(ratios) <= GOALS[name],
    }
