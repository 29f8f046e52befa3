"""A driver on a cluster of two executors of one core, each a process that a test can kill.

It starts `local-cluster` once and runs one job per order, each with its own harm:

| order | what it does |
|---|---|
| `folder`, `rows` | where the job lives and how long it is |
| `harm` | which operator hurts it |
| `has_retry` | whether Spark's checksums repeat a stage of which part was lost |
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.core.clock import new_token
from penstock.core.settings import current
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.listening import StatusFunction
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.session import adopt_session, open_session
from penstock.runtime.spark.task import WorkerSpec
from penstock.state.files.cache import FileCache
from tests.builders.spark_session import claim, orders, say, wait_for_mark
from tests.spark.counting_job import (
    SETTINGS,
    CountingJob,
    Harm,
    KillsItsExecutor,
    NumberRows,
    SpreadNumberRows,
    Straggles,
    WaitsForItsDeath,
)

EXECUTORS = 2
SLOWNESS = "spark.speculation.multiplier"
"""How many times the median a task must take to get a copy; Spark reads it for every stage."""
CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum"


def run_job(
    session: SparkSession, job: CountingJob, *, has_retry: bool = True
) -> dict[str, Any]:
    """Run a job, as `run_on_spark` does but for the checksums."""
    own = adopt_session(session)
    if not has_retry:
        own.conf.set(f"{CHECKSUMS}.enabled", "false")
        own.conf.set(f"{CHECKSUMS}.enableFullRetryOnMismatch", "false")
    pipeline, cache = job.pipeline(), str(job.folder / "cache")
    worker = WorkerSpec(
        new_token(),
        job.store,
        cache,
        current(),
        pickle_function(pipeline.registry, "registry"),
    )
    environment = JobEnvironment(
        pipeline.graph(),
        job.store,
        FileCache(Path(cache), limit_bytes=1 << 30),
        SparkExecutor(own, worker),
        pipeline.registry,
        settings=SETTINGS,
    )
    errors: list[str] = []

    def note(status: JobStatus) -> None:
        if status.error is not None and status.error not in errors:
            errors.append(status.error)

    status = JobDriver(environment, listeners=[StatusFunction(note)]).run()
    return {
        "phase": status.phase,
        "restarts": status.restarts,
        "torn": status.torn_epochs,
        "errors": errors,
    }


def kill_a_waiting_executor(session: SparkSession, marks: Path) -> None:
    """Kill the executor that waits for it, once another task of its stage has finished."""
    victim = int(wait_for_mark(marks, "victim-*").partition("-")[2])
    tracker = session.sparkContext.statusTracker()
    while not any(
        info is not None and info.numCompletedTasks > 0
        for info in map(tracker.getStageInfo, tracker.getActiveStageIds())
    ):
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    claim(marks, "killed")


def wait_for_executors(session: SparkSession, count: int) -> None:
    """Wait until the cluster has replaced what was killed."""
    scala: Any = session.sparkContext._jsc
    while scala.sc().getExecutorMemoryStatus().size() < count + 1:
        time.sleep(0.05)


@contextmanager
def speculation(session: SparkSession) -> Iterator[None]:
    """Let Spark start copies of slow tasks for a while, on an executor of another host.

    Spark never runs both on one host, and `local-cluster` has one: a worker on another
    address of this machine joins it.
    """
    join_from_another_host(session)
    context: Any = session.sparkContext
    conf = context._jsc.sc().conf()
    before = conf.get(SLOWNESS)
    conf.set(SLOWNESS, "1.5")
    yield
    conf.set(SLOWNESS, before)


def join_from_another_host(session: SparkSession) -> None:
    """Add a third executor."""
    context: Any = session.sparkContext
    jvm = context._jvm
    module = getattr(jvm.org.apache.spark.deploy, "LocalSparkCluster$")
    cluster = getattr(module, "MODULE$").get().get()
    field = cluster.getClass().getDeclaredField("masterRpcEnvs")
    field.setAccessible(True)
    masters = context._gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = field.get(cluster).head().address().toSparkURL()
    nothing = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
        "127.0.0.2",
        0,
        0,
        1,
        1024,
        masters,
        os.environ["TMPDIR"] + "/third-worker",
        jvm.scala.Some(EXECUTORS + 1),
        context._jsc.sc().conf(),
        nothing,
    )
    wait_for_executors(session, EXECUTORS + 1)


def carry_out(session: SparkSession, order: dict[str, Any]) -> dict[str, Any]:
    """Run one job with its harm."""
    folder = Path(order["folder"])
    marks = folder / "marks"
    marks.mkdir()
    kind = order["harm"]
    harms: dict[str, type[Harm]] = {
        "kill": KillsItsExecutor,
        "kill-waiting": WaitsForItsDeath,
        "straggle": Straggles,
    }
    is_last = kind == "kill-waiting"
    job = CountingJob(
        folder,
        rows=order["rows"],
        harm=harms[kind](marks),
        is_harm_last=is_last,
        counting=SpreadNumberRows(marks) if is_last else NumberRows(),
    )
    if kind == "straggle":
        with speculation(session):
            return run_job(session, job)
    if is_last:
        killer = threading.Thread(
            target=kill_a_waiting_executor, args=(session, marks), daemon=True
        )
        killer.start()
    return run_job(session, job, has_retry=order.get("has_retry", True))


def main() -> None:
    session = open_session(f"local-cluster[{EXECUTORS},1,1024]", name="cluster")
    say("ready")
    for order in orders():
        wait_for_executors(session, EXECUTORS)
        started = time.monotonic()
        told = carry_out(session, order)
        say("ended", **told, seconds=time.monotonic() - started)
    session.stop()
    sys.stdout.close()


if __name__ == "__main__":
    main()
