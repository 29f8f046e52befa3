"""Runs a job on Spark: puts session, executor, driver and the handling of signals together.

Signals are handled from before Spark is started until it is stopped. While it starts, a signal
gives the start up: there is nothing to checkpoint yet.

If the JVM of a Spark that Penstock has started ends, another one is started when the driver
tries the epoch again. A session of the user's is not Penstock's to start: the job ends.
"""

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.core.clock import new_token
from penstock.core.ids import JobId
from penstock.core.settings import Settings, current, variable
from penstock.errors import ErrorCode, PenstockError, UserError
from penstock.graph.logical import LogicalGraph
from penstock.operators.registry import Registry
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.decide import JobPhase, JobStatus, StopMode
from penstock.runtime.driver.environment import JobEnvironment, SideWork
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.driver.signals import StopSignals
from penstock.runtime.journal.attendant import attend
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.failures import noticing_its_end
from penstock.runtime.spark.jvm import quiet_py4j, stop_session
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

_WRITERS = 8
"""How many metadata objects of an epoch are written side by side."""
_STOP_SECONDS = 20.0
"""How long Spark may take to stop before its JVM is ended."""


def run_on_spark(graph: LogicalGraph, registry: Registry, options: RunOptions) -> JobStatus:
    """Run a job until its data ends or it is stopped.

    A session that the user gave, or that runs in this process, is used and not changed;
    otherwise Spark is started, and stopped again.
    """
    _check_logs(options)
    store, epochs, settings = options.open_store(graph.job), options.epochs, current()
    if isinstance(store, MemoryStore):
        raise UserError(
            f"job {graph.job!r} cannot keep its checkpoints in memory on Spark: workers are "
            "other processes. Give a folder, s3://…, gs://… or az://…",
            code=ErrorCode.INVALID_URL,
        )
    signals = StopSignals(str(graph.job))
    with signals.listening(), quiet_py4j(), ExitStack() as ending:
        try:
            engine = ending.enter_context(_OWN_SPARK.engine(options, graph.job, signals))
        except PenstockError:
            if not signals.has_come:
                raise
            return options.tell(JobStatus(str(graph.job), JobPhase.STOPPED))
        cache_root = ending.enter_context(_cache_root(settings, engine.session))
        spec = WorkerSpec(
            new_token(),
            store,
            cache_root,
            settings,
            pickle_function(registry, "registry"),
            logging.getLogger().level,
        )
        environment = JobEnvironment(
            graph,
            store,
            FileCache(Path(cache_root), limit_bytes=settings.cache_limit_bytes),
            SparkExecutor(
                engine.session, spec, restart=engine.restart if engine.is_ours else None
            ),
            registry,
            options.clock,
            settings=options.driver_settings(),
            side_work=SideWork(_WRITERS),
        )
        driver = attend(options, environment)
        signals.direct(
            partial(driver.request_stop, StopMode.CHECKPOINT),
            partial(driver.request_stop, StopMode.IMMEDIATE),
        )
        with driving_with(lambda: engine.theirs):
            return driver.run(restore=epochs)


@dataclass(slots=True)
class _Engine:
    """The Spark of one job. It is replaced when it has ended and was started by Penstock."""

    theirs: SparkSession
    """The session that was given, found or started: what users see."""
    session: SparkSession
    """The one beside it that epochs run on."""
    is_ours: bool
    replace: Callable[[SparkSession], SparkSession]

    def restart(self) -> SparkSession:
        """Start Spark again after its JVM has ended; return the session for epochs."""
        self.theirs = self.replace(self.theirs)
        self.session = adopt_session(self.theirs)
        return self.session


class _OwnSpark:
    """The Spark that jobs of this process have started: the last one to end stops it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def engine(
        self, options: RunOptions, job: JobId, signals: StopSignals
    ) -> Iterator[_Engine]:
        """Yield the Spark to run on: the session that was given, or is found, or is started."""

        def start() -> SparkSession:
            with signals.redirected():
                return open_session(
                    options.master or DEFAULT_MASTER,
                    name=job,
                    show_logs=options.show_logs,
                    on_start=lambda start: signals.direct(
                        start.give_up, start.give_up, "stops while Spark starts"
                    ),
                )

        given, begin = options.session, f"the start of job {str(job)!r}"
        with self._lock:
            theirs = given or running_session()
            is_ours = given is None and (theirs is None or self._users > 0)
            if theirs is None:
                options.tell(
                    JobStatus(str(job), JobPhase.STARTING, doing="starting Spark…")
                )
                theirs = start()
            else:
                with noticing_its_end(theirs, begin):
                    _check_master(theirs, options.master)
            self._users += is_ours
        engine = _Engine(theirs, theirs, is_ours, partial(self._replace, start))
        try:
            with noticing_its_end(theirs, begin):
                engine.session = adopt_session(theirs)
            yield engine
        finally:
            with self._lock:
                self._users -= is_ours
                if is_ours and self._users == 0:
                    stop_session(engine.theirs, _STOP_SECONDS)

    def _replace(
        self, start: Callable[[], SparkSession], gone: SparkSession
    ) -> SparkSession:
        """Return a Spark in the place of one that has ended; another job may have started it."""
        with self._lock:
            found = running_session()
            if found is not None:
                return found
            stop_session(gone, _STOP_SECONDS)
            return start()


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


def _check_logs(options: RunOptions) -> None:
    if options.show_logs and options.session is not None:
        raise UserError(
            "show_logs shows what a Spark says that Penstock starts, and the job was given a "
            "session: leave show_logs out, and set the level of that Spark's messages with "
            'session.sparkContext.setLogLevel("WARN")',
            code=ErrorCode.INVALID_CONFIG,
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
        # Others may write to such a folder too: each user has a cache of their own.
        yield str(Path(local) / "penstock-cache-{uid}")
        return
    folder = tempfile.mkdtemp(prefix="penstock-cache-", dir=local)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
