"""What an epoch costs on S3: requests and bytes, counted on the line to a real server.

Jobs run in one process, as tasks on Spark make the same requests; state and output are on the
server. All that a driver and its tasks send is counted, between epochs that nothing but the data
differs in. Once more with a line that delays each request, to see how many of them wait for each
other.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

import penstock as pen
from benchmarks.suites import Row
from penstock.core.clock import new_token
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.storage.urls import open_store
from scripts.servers.fault_proxy import FaultPlan, FaultProxy, Traffic
from scripts.servers.s3 import BUCKET, S3Server

ROWS_PER_EPOCH = 20_000
KEYS = 10_000
WARM_EPOCHS = 15
"""More than are kept, so that old ones are cleaned up in each of those that are counted."""
LATENCY_SECONDS = 0.04
"""The longest delay of a request; half of it on average."""
SLOW_EPOCHS = 10

MOST_REQUESTS_PER_EPOCH = {1: 75, 4: 200}
"""By subtasks of each of the two steps; what is more is a mistake."""

Build: TypeAlias = Callable[[pen.Stream, Any], None]


def pass_on(rows: pen.Stream, sink: Any) -> None:
    rows.write("out", sink)


def count(rows: pen.Stream, sink: Any) -> None:
    keyed = rows.with_columns(key=pl.col("counter") % KEYS).key_by("key")
    keyed.aggregate("count", count=pen.count()).write("out", sink)


@dataclass
class Watch:
    """What had passed the line by the end of each epoch, and when that was."""

    line: FaultProxy
    epochs: int
    driver: JobDriver | None = None
    traffic: list[Traffic] = field(default_factory=list)
    instants: list[float] = field(default_factory=list)

    def __call__(self, status: JobStatus) -> None:
        if status.epochs_run > len(self.traffic):
            self.traffic.append(self.line.traffic)
            self.instants.append(time.perf_counter())
        if self.driver is not None and len(self.traffic) >= self.epochs:
            self.driver.request_stop(StopMode.IMMEDIATE)


def run(*, quick: bool) -> list[Row]:
    epochs = 10 if quick else 60
    with (
        tempfile.TemporaryDirectory(prefix="penstock-s3-") as folder,
        S3Server.start(Path(folder, "server")) as server,
    ):
        return [
            _measure(name, build, subtasks, epochs, server=server, folder=Path(folder))
            for name, build, subtasks in (
                ("pass on, 1 subtask", pass_on, 1),
                ("count by key, 1 subtask", count, 1),
                ("count by key, 4 subtasks", count, 4),
            )
        ]


def _measure(
    name: str, build: Build, subtasks: int, epochs: int, *, server: S3Server, folder: Path
) -> Row:
    slow = FaultPlan(seed=1, rate=0.0, latency_seconds=LATENCY_SECONDS)
    watch = _run(build, subtasks, epochs, server=server, folder=folder, plan=None)
    delayed = _run(build, subtasks, SLOW_EPOCHS, server=server, folder=folder, plan=slow)
    used = watch.traffic[-1] - watch.traffic[-1 - epochs]
    requests = used.requests.total() / epochs
    return {
        "name": name,
        "rows_per_epoch": ROWS_PER_EPOCH,
        "requests_per_epoch": round(requests, 1),
        "requests_of_an_epoch_that_cleans_nothing": min(
            (after - before).requests.total()
            for before, after in pairwise(watch.traffic[-1 - epochs :])
        ),
        "by_method": {
            method: round(number / epochs, 1) for method, number in used.requests.items()
        },
        "sent_bytes_per_epoch": round(used.sent_bytes / epochs),
        "received_bytes_per_epoch": round(used.received_bytes / epochs),
        "epoch_millis": _median_millis(watch, epochs),
        "epoch_millis_at_20_ms_a_request": _median_millis(delayed, SLOW_EPOCHS),
        "target": f"<= {MOST_REQUESTS_PER_EPOCH[subtasks]} requests",
        "ok": requests <= MOST_REQUESTS_PER_EPOCH[subtasks],
    }


def _median_millis(watch: Watch, epochs: int) -> float:
    seconds = (end - start for start, end in pairwise(watch.instants[-1 - epochs :]))
    return round(statistics.median(seconds) * 1_000, 1)


def _run(
    build: Build,
    subtasks: int,
    epochs: int,
    *,
    server: S3Server,
    folder: Path,
    plan: FaultPlan | None,
) -> Watch:
    """Run a job for some epochs; return what each had used."""
    with FaultProxy(server.port, plan) as line:
        watch, options = Watch(line, WARM_EPOCHS + epochs), server.options(line.endpoint)
        place = f"s3://{BUCKET}/{new_token()}"
        pipeline = pen.Pipeline("measured", parallelism=subtasks)
        rows = pipeline.read("rows", pen.impulse(splits=subtasks))
        build(rows, pen.files(f"{place}/out", format="parquet", store_options=options))
        store = open_store(f"{place}/state", **options)
        cache = FileCache(folder / new_token(), limit_bytes=1 << 30)
        environment = JobEnvironment(
            pipeline.graph(),
            store,
            cache,
            InProcessExecutor(Worker(store, cache, pipeline.registry)),
            pipeline.registry,
            settings=DriverSettings(
                budget=SourceBudget(rows=ROWS_PER_EPOCH // subtasks), adapts_budget=False
            ),
        )
        watch.driver = JobDriver(environment, listeners=[StatusFunction(watch)])
        watch.driver.run()
    return watch
