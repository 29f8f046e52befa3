"""The Spark session: what Penstock needs of it, on its own or on the user's.

| setting | why |
|---|---|
| AQE off | it cuts an epoch into several jobs |
| shuffle files are cleaned up with their job | else they pile up until the JVM's next collection |
| Arrow batches limited by bytes, not by records | a record is a whole batch already; one batch of a whole partition would be copied as it grows |
| unions keep all partitions | else single ones of several sources would become one task |
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
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import ErrorCode, UserError
from penstock.runtime.spark.job_threads import POOLS_FILE
from penstock.runtime.spark.preflight import check_can_start

_log = logging.getLogger(__name__)

DEFAULT_MASTER = "local[*,4]"
_EPOCH_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "0",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}
"""May be set on any session."""
_OWN_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": POOLS_FILE.as_uri(),
    "spark.locality.wait": "0s",
    "spark.log.level": "ERROR",
    # Spark owns the cores: one thread per Python worker.
    "spark.executorEnv.POLARS_MAX_THREADS": "1",
    # The allocators of Arrow and of Polars, in milliseconds; NumPy's knows only sizes.
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "10000",
    "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Only a context of our own can have them."""
_LONGEST_SOCKET_FOLDER = 55
"""Of the 104 bytes that a Unix socket's whole path may have; Spark's names take 42."""


def adopt_session(session: SparkSession) -> SparkSession:
    """Return a session beside the user's, set for epochs; theirs is not changed."""
    own = session.newSession()
    refused = []
    for name, value in _EPOCH_SETTINGS.items():
        try:
            own.conf.set(name, value)
        except PySparkException:
            refused.append(name)
    if refused:
        _log.warning(
            "this Spark session does not take %s: epochs stay correct but may be slower",
            ", ".join(refused),
        )
    return own


def open_session(
    master: str = DEFAULT_MASTER, *, name: str = "penstock", shows_logs: bool = False
) -> SparkSession:
    """Start Spark, or join the one that runs in this process already.

    Its messages go to a nameless file instead of the terminal unless `shows_logs`; what they
    say is part of the error if Spark does not start.
    """
    if SparkSession.getActiveSession() is None:
        check_can_start(master)
    builder: Any = SparkSession.builder.master(master).appName(name)
    folders = _folder_settings(is_local=master.startswith("local"))
    for key, value in {**_EPOCH_SETTINGS, **_OWN_SETTINGS, **folders}.items():
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
