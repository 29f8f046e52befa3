"""The Spark session: what Penstock needs of it, on its own or on the user's.

| setting | why |
|---|---|
| AQE off | it cuts an epoch into several jobs |
| shuffle files are cleaned up with their job | else they pile up until the JVM's next collection |
| Arrow batches limited by bytes, not by records | a record is a whole batch already; one batch of a whole partition would be copied as it grows |
| unions keep all partitions | else single ones of several sources would become one task |
| what is known to be empty keeps its partitions | else a DataFrame without rows would have no tasks |
| checksums and full retry of shuffles | the first line of defence; receipts are the second |
| Unix sockets to Python (own session) | TCP costs about 40 ms more per stage |
| FAIR pools (own session) | a compaction must not hold an epoch up |
| tasks wait for no particular executor (own session) | an epoch is shorter than the wait |
| `local[*,4]` (own session) | plain `local[*]` never tries a task again |
| Python workers keep freed memory for a while (own session) | each epoch would ask the system for it anew, a quarter of the CPU time |
| Java's fast compiler only (own, local) | the other takes a core from the tasks for minutes |
| shuffles are not compressed (own, local) | they never leave the machine |
| a temporary folder for the JVM (own session) | Spark leaves sockets behind, and Java does not heed TMPDIR |
"""

import atexit
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import ErrorCode, UserError
from penstock.runtime.spark.contexts import context_of
from penstock.runtime.spark.job_threads import POOLS_FILE
from penstock.runtime.spark.preflight import check_can_start

_log = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*,4]"
EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_EPOCH_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "0",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    "spark.sql.unionOutputPartitioning": "false",
    EXCLUDED_RULES: "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
"""May be set on any session."""
_STARTED_HERE = "spark.penstock.started"
_OWN_SETTINGS = {
    _STARTED_HERE: "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": POOLS_FILE.as_uri(),
    "spark.locality.wait": "0s",
    # Spark owns the cores: one thread per Python worker.
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
    # The allocators of Arrow and of Polars, in milliseconds; NumPy's knows only sizes.
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "10000",
    "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Only a context of our own can have them."""
_WORTH_HAVING = (
    "spark.python.unix.domain.socket.enabled",
    "spark.scheduler.mode",
    "spark.locality.wait",
)
"""Those of them whose lack on a Spark of the user's is told."""
_QUIET = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
_TALKATIVE = {"spark.ui.showConsoleProgress": "true", "spark.log.level": "WARN"}
_LONGEST_SOCKET_FOLDER = 55
"""Of the 104 bytes that a Unix socket's whole path may have; Spark's names take 42."""


def running_session() -> SparkSession | None:
    """Return a session of the Spark that runs in this process already, or is connected to it."""
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 (no public way)
        builder: SparkSession.Builder = SparkSession.builder
        return builder.getOrCreate()
    try:
        session = SparkSession.active()
    except PySparkException:
        return None
    # A session outlives the context that was stopped below it.
    return session if context_of(session) is None else None


def adopt_session(session: SparkSession) -> SparkSession:
    """Return a session beside the user's, set for epochs; theirs is not changed."""
    own = session.newSession()
    lacks = [*set_for_epochs(own), *find_lacking(own)]
    if lacks:
        _warn_once(
            "this Spark was started by somebody else and lacks: "
            f"{'; '.join(lacks)}. Epochs stay correct; give it these when it starts, or let "
            "Penstock start one"
        )
    return own


def set_for_epochs(own: SparkSession) -> list[str]:
    """Set what any session can have; return what this one refuses."""
    refused = []
    for name, wanted in _EPOCH_SETTINGS.items():
        value = wanted
        if name == EXCLUDED_RULES:
            theirs = own.conf.get(name, None) or ""
            value = ",".join(
                {**dict.fromkeys(filter(None, theirs.split(","))), wanted: None}
            )
        try:
            own.conf.set(name, value)
        except PySparkException:
            refused.append(f"{name}={value}")
    return refused


def find_lacking(own: SparkSession) -> Iterator[str]:
    """Yield what can only be had when a context starts and makes a difference."""
    if own.conf.get(_STARTED_HERE, None) is not None:
        return
    for name in _WORTH_HAVING:
        if own.conf.get(name, None) != _OWN_SETTINGS[name]:
            yield f"{name}={_OWN_SETTINGS[name]}"
    master = own.conf.get("spark.master", None) or ""
    if re.fullmatch(r"local(\[[^,\]]*\])?", master):
        yield f"the master {DEFAULT_MASTER}, as {master} never tries a task again"


@cache
def _warn_once(message: str) -> None:
    _log.warning(message)


def open_session(
    master: str = DEFAULT_MASTER, *, name: str = "penstock", shows_logs: bool = False
) -> SparkSession:
    """Start Spark; none runs in this process yet.

    Its messages go to a nameless file instead of the terminal unless `shows_logs`; what they
    say is part of the error if Spark does not start.
    """
    check_can_start(master)
    builder: Any = SparkSession.builder.master(master).appName(name)
    settings = {
        **_EPOCH_SETTINGS,
        **_OWN_SETTINGS,
        **(_TALKATIVE if shows_logs else _QUIET),
        **_folder_settings(is_local=master.startswith("local")),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile("w+") as log:
        try:
            with _redirected(log, shows_logs=shows_logs):
                session: SparkSession = builder.getOrCreate()
        except Exception as error:
            raise _no_spark(error, master, log) from error
    if master.startswith("local"):
        # Workers are children of this process: they need its environment, not the system's.
        session.sparkContext.pythonExec = sys.executable
        session.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(
            str(Path(entry).resolve()) for entry in sys.path
        )
    return session


@cache
def _folder_settings(*, is_local: bool) -> dict[str, str]:
    """Return settings that keep what the JVM writes in a folder that goes with this process.

    Where TMPDIR says, which Java does not heed. Spark leaves its sockets behind, and a JVM
    its performance data in /tmp whatever it is told.
    """
    folder = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # "default" ones: the user's own are the "extra" Java options, and both count.
    options = f'"-Djava.io.tmpdir={folder}" -XX:-UsePerfData'
    if is_local:
        # This JVM plans and moves bytes. The optimising compiler would gain nothing and take
        # a core from the tasks for the first minutes.
        options += " -XX:TieredStopAtLevel=1"
    settings = {"spark.driver.defaultJavaOptions": options}
    if is_local:
        settings["spark.executor.defaultJavaOptions"] = options
        settings["spark.shuffle.compress"] = "false"
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        settings["spark.python.unix.domain.socket.enabled"] = "false"
    return settings


@contextmanager
def _redirected(log: IO[str], *, shows_logs: bool) -> Iterator[None]:
    """Let the JVM inherit a file as its standard error: it writes there for as long as it lives."""
    if shows_logs:
        yield
        return
    kept = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _no_spark(error: Exception, master: str, log: IO[str]) -> UserError:
    log.seek(0)
    said = [line for line in log.read().splitlines() if line.strip()]
    failure = UserError(
        f"Spark did not start with master {master!r}: {_first_line(error)}. Check the master and "
        "what Spark said, below; shows_logs=True shows all of it",
        code=ErrorCode.ENGINE_MISSING,
        master=master,
    )
    failure.add_note("Spark said:\n" + "\n".join(said[-20:]))
    return failure


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
