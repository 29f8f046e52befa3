"""Runs a job on Spark: puts session, executor, driver and the handling of Ctrl-C together.

Ctrl-C on a job, run or attached, stops it after a checkpoint if pressed once, and at once if
pressed twice. Its handler is installed after the Spark context exists, because PySpark installs
one too, which cancels all jobs.
"""

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

from penstock.core.clock import new_token
from penstock.core.settings import Settings, current, variable
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.decide import JobStatus, StopMode
from penstock.runtime.driver.environment import JobEnvironment, SideWork
from penstock.runtime.driver.options import RunOptions
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
from penstock.state.storage.memory import MemoryStore


@contextmanager
def on_ctrl_c(
    first: Callable[[], None], again: Callable[[], None] | None = None
) -> Iterator[None]:
    """Call `first` at the first Ctrl-C while the body runs, and `again` at each later one.

    Without `again` a later one does what it does outside of the body. This works only in the
    main thread: elsewhere nothing is called.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        first()
        signal.signal(signal.SIGINT, before if again is None else lambda *_: again())

    before: Any = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_WRITERS = 8
"""How many metadata objects of an epoch are written side by side."""


def run_on_spark(graph: LogicalGraph, registry: Registry, options: RunOptions) -> JobStatus:
    """Run a job until its data ends or it is stopped.

    A session that the user gave, or that runs in this process, is used and not changed;
    otherwise Spark is started, and stopped again.
    """
    store, epochs, settings = options.open_store(graph.job), options.epochs, current()
    if isinstance(store, MemoryStore):
        raise UserError(
            f"job {graph.job!r} cannot keep its checkpoints in memory on Spark: workers are "
            "other processes. Give a folder, s3://…, gs://… or az://…",
            code=ErrorCode.INVALID_URL,
        )
    with (
        _OWN_SPARK.session(options, str(graph.job)) as (theirs, spark),
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
            settings=options.driver_settings(),
            side_work=SideWork(_WRITERS),
        )
        driver = options.driver(environment)

        def stop_now() -> None:
            driver.request_stop(StopMode.IMMEDIATE)
            executor.cancel()

        stop = partial(driver.request_stop, StopMode.CHECKPOINT)
        with on_ctrl_c(stop, again=stop_now), driving_with(theirs):
            return driver.run(restore=epochs)


class _OwnSpark:
    """The Spark that jobs of this process have started: the last one to end stops it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def session(
        self, options: RunOptions, name: str
    ) -> Iterator[tuple[SparkSession, SparkSession]]:
        """Yield a session, given, found or started, and one beside it that epochs run on."""
        given, master = options.session, options.master
        with self._lock:
            theirs = given or running_session()
            is_ours = given is None and (theirs is None or self._users > 0)
            if theirs is None:
                theirs = open_session(
                    master or DEFAULT_MASTER, name=name, show_logs=options.show_logs
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
    """Yield the folder in which workers cache state files, on each of their machines.

    Embedded Spark gets a folder of its own that is deleted after the run. On a cluster the
    folder stays, below `spark.local.dir`, so that the next run finds the cached files.
    """
    if settings.cache_root is not None:
        yield settings.cache_root
        return
    # Spark keeps its own files in this folder, or in the first of several.
    named = variable("SPARK_LOCAL_DIRS") or session.conf.get("spark.local.dir", "") or ""
    local = named.split(",")[0].strip() or tempfile.gettempdir()
    context = context_of(session)
    if context is None or not str(context.master).startswith("local"):
        yield str(Path(local) / "penstock-cache")
        return
    folder = tempfile.mkdtemp(prefix="penstock-cache-", dir=local)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
