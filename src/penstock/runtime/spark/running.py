"""Running a job on Spark: session, executor, driver, and Ctrl-C, put together.

Ctrl-C on a job, run or attached: once stops it after a checkpoint, twice stops it now.

Installed after the Spark context exists, because PySpark's own handler cancels all jobs.
"""

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from penstock.core.clock import new_token
from penstock.core.settings import Settings, variable
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.driver import JobDriver
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment, SideWork
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.session import (
    DEFAULT_MASTER,
    adopt_session,
    context_of,
    driving_with,
    open_session,
    running_session,
)
from penstock.runtime.spark.task import WorkerSpec
from penstock.state.files.cache import FileCache
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore


@contextmanager
def stopped_by_ctrl_c(driver: JobDriver, executor: SparkExecutor) -> Iterator[None]:
    """Let Ctrl-C stop the driver for as long as the body runs; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    presses = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        del number, frame
        presses += 1
        if presses == 1:
            driver.request_stop(StopMode.CHECKPOINT)
            return
        driver.request_stop(StopMode.IMMEDIATE)
        executor.cancel()

    before: Any = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def noticing_ctrl_c() -> Iterator[threading.Event]:
    """Yield what the first Ctrl-C sets; from the second on it does what it did before.

    Only in the main thread: elsewhere nothing is ever set.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before: Any = signal.signal(signal.SIGINT, handle)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


_WRITERS = 8
"""How many metadata objects of an epoch are written side by side."""


def run_on_spark(
    graph: LogicalGraph,
    store: ObjectStore,
    registry: Registry,
    *,
    settings: Settings,
    driver_settings: DriverSettings,
    session: SparkSession | None = None,
    master: str | None = None,
    restore: Epochs | None = None,
    on_status: Callable[[JobStatus], None] | None = None,
    shows_logs: bool = False,
    on_driver: Callable[[JobDriver], None] | None = None,
    on_epoch: Callable[[EpochRan], None] | None = None,
) -> JobStatus:
    """Run a job until its data ends or somebody stops it.

    With the user's own `session`, or one that runs in this process, that is left as it is;
    otherwise Spark is started, and stopped again. `on_driver` is given the driver before it
    starts, `on_epoch` every epoch that counts, committed.
    """
    if isinstance(store, MemoryStore):
        raise UserError(
            f"job {graph.job!r} cannot keep its checkpoints in memory on Spark: workers are "
            "other processes. Give a folder, s3://…, gs://… or az://…",
            code=ErrorCode.INVALID_URL,
        )
    name = str(graph.job)
    with (
        _OWN_SPARK.session(session, master, name, shows_logs=shows_logs) as (theirs, spark),
        _cache_root(settings, spark) as cache_root,
    ):
        spec = WorkerSpec(
            new_token(), store, cache_root, settings, pickle_function(registry, "registry")
        )
        executor = SparkExecutor(spark, spec)
        environment = JobEnvironment(
            graph,
            store,
            FileCache(Path(cache_root), limit_bytes=settings.cache_limit_bytes),
            executor,
            registry,
            settings=driver_settings,
            side_work=SideWork(_WRITERS),
        )
        driver = JobDriver(environment, on_status=on_status, on_epoch=on_epoch)
        if on_driver is not None:
            on_driver(driver)
        with stopped_by_ctrl_c(driver, executor), driving_with(theirs):
            return driver.run(restore=restore)


class _OwnSpark:
    """The Spark that jobs of this process have started: the last one to end stops it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def session(
        self, given: SparkSession | None, master: str | None, name: str, *, shows_logs: bool
    ) -> Iterator[tuple[SparkSession, SparkSession]]:
        """Yield whose session it is, and the one beside it that epochs run on."""
        with self._lock:
            theirs = given or running_session()
            is_ours = given is None and (theirs is None or self._users > 0)
            if theirs is None:
                theirs = open_session(
                    master or DEFAULT_MASTER, name=name, shows_logs=shows_logs
                )
            else:
                _check_master(theirs, master)
            self._users += is_ours
        try:
            yield theirs, adopt_session(theirs)
        finally:
            with self._lock:
                self._users -= is_ours
                if is_ours and self._users == 0:
                    theirs.stop()


_OWN_SPARK = _OwnSpark()


def _check_master(running: SparkSession, master: str | None) -> None:
    found = running.conf.get("spark.master", None)
    if master is not None and master != found:
        raise UserError(
            f"the job was to run with master {master!r}, but the session it was given, or that "
            f"runs in this process already, has {found!r}: leave the master out, or stop that "
            "session first",
            code=ErrorCode.INVALID_CONFIG,
            master=master,
        )


@contextmanager
def _cache_root(settings: Settings, session: SparkSession) -> Iterator[str]:
    """Return where workers cache state files: on each of their machines.

    Embedded Spark gets a folder of its own that goes with the run. On a cluster the folder
    stays, below `spark.local.dir`, so that the next run finds it warm.
    """
    if settings.cache_root is not None:
        yield settings.cache_root
        return
    local = _local_folder(session)
    context = context_of(session)
    if context is None or not str(context.master).startswith("local"):
        yield str(Path(local) / "penstock-cache")
        return
    folder = tempfile.mkdtemp(prefix="penstock-cache-", dir=local)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _local_folder(session: SparkSession) -> str:
    """Return where Spark keeps its own files: the first of several folders."""
    named = variable("SPARK_LOCAL_DIRS") or session.conf.get("spark.local.dir", "") or ""
    return named.split(",")[0].strip() or tempfile.gettempdir()
