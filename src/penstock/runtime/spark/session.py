"""Opens or adopts the Spark session that epochs run on, and checks what it needs to start.

**Settings.** Those marked "own" need a context that Penstock starts:

| setting | why |
|---|---|
| AQE off | it cuts an epoch into several jobs |
| shuffle files are cleaned up with their job | else they pile up until the JVM's next collection |
| Arrow batches limited by bytes, not by records | a record is a whole batch already; one batch of a whole partition would be copied as it grows |
| unions keep all partitions | else single ones of several sources would become one task |
| what is known to be empty keeps its partitions | else a DataFrame without rows would have no tasks |
| checksums and full retry of shuffles | the first line of defence; receipts are the second |
| Unix sockets to Python (own session) | TCP costs about 40 ms more per stage |
| FAIR pools (own session) | a compaction must not delay an epoch |
| tasks wait for no particular executor (own session) | an epoch is shorter than the wait |
| `local[*,4]` (own session) | plain `local[*]` never tries a task again |
| Python workers keep freed memory for a while (own session) | else each epoch allocates it again, which takes a quarter of the CPU time |
| Java's fast compiler only (own, local) | the optimising one takes a core from the tasks for minutes |
| shuffles are not compressed (own, local) | they never leave the machine |
| a temporary folder for the JVM (own session) | Spark leaves sockets behind, and Java ignores TMPDIR |

**Checks.** Before Spark is started or anything is written, a usable Java and a master that
answers must be there. This takes a few seconds at most. Spark's own errors do not help: an old
Java fails with a class file version, and Spark tries a master that cannot be reached for a
minute.

**Contexts.** Only a Spark in this process has a context; behind Spark Connect there is none.
Pools, local properties and job tags need a context. They make epochs faster, and are left out
without one. They belong to a thread: set in Penstock's own threads, they never affect jobs that
the user starts beside an epoch.
"""

import atexit
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.core.settings import variable
from penstock.errors import ErrorCode, ExternalError, PenstockError, UserError
from penstock.runtime.spark.jvm import CallThread, SparkStart, is_context_gone

NEEDED_JAVA = 17
_VERSION = re.compile(r'version "(?P<version>[^"]+)"')
_CONNECT_SECONDS = 5.0
_JAVA_SECONDS = 20.0
_STANDALONE = "spark://"


def check_can_start(master: str) -> None:
    """Raise an error, `UserError` in most cases, if Spark could not start with this master."""
    # A JVM that runs already, as with spark-submit, needs none of these checks.
    if variable("PYSPARK_GATEWAY_PORT") is None:
        check_java()
    if master.startswith(_STANDALONE):
        check_master(master)


def check_java() -> None:
    """Check the Java that Spark will use: that of JAVA_HOME, else the one on PATH."""
    home = variable("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    version = None if program is None else _read_version(program)
    if program is None:
        where = (
            f"JAVA_HOME is {home!r}, and there is no bin/java" if home else "not on PATH"
        )
        problem = f"no Java was found ({where})"
    elif version is None:
        problem = f"{program} does not tell its version"
    else:
        # 17 of "17.0.9", and 8 of "1.8.0_392".
        major = re.match(r"(?:1\.)?(\d+)", version)
        if major is not None and int(major[1]) >= NEEDED_JAVA:
            return
        problem = f"{program} is Java {version}"
    raise UserError(
        f"Spark cannot start: it needs Java {NEEDED_JAVA} or newer, and {problem}. Install "
        f"Java {NEEDED_JAVA} or newer, or point JAVA_HOME to one (in a checkout: `make java`)",
        code=ErrorCode.ENGINE_MISSING,
        needed=NEEDED_JAVA,
        found=version,
    )


def check_master(master: str) -> None:
    """Check that a standalone master, or any of several, accepts a connection."""
    reasons = []
    for place in master.removeprefix(_STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(
                f"the Spark master {master!r} has no host and port: write spark://host:7077",
                code=ErrorCode.INVALID_URL,
                master=master,
            )
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return
        except (OSError, OverflowError) as error:
            reasons.append(f"{place}: {error}")
    raise UserError(
        f"the Spark master {master!r} cannot be reached ({'; '.join(reasons)}). Check its "
        "address and that it runs, or leave the master out to run Spark in this process",
        code=ErrorCode.ENGINE_MISSING,
        master=master,
    )


def _read_version(program: str) -> str | None:
    try:
        # The option turns off performance data, for which Java leaves a folder in /tmp.
        done = subprocess.run(  # noqa: S603 (the program that Spark is about to start)
            [program, "-XX:-UsePerfData", "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_JAVA_SECONDS,
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired as error:
        raise _no_answer(program, f"told no version within {_JAVA_SECONDS:g} s") from error
    if done.returncode < 0:
        raise _no_answer(program, "was killed when it was asked for its version")
    match = _VERSION.search(done.stderr + done.stdout)
    return None if match is None else match["version"]


def _no_answer(program: str, what: str) -> ExternalError:
    return ExternalError(
        f"Spark cannot start: {program} {what}. The machine may have too much to do, or too "
        "little memory. Start the job again",
        code=ErrorCode.ENGINE_FAILED,
    )


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the context of a session; None for one of Spark Connect."""
    # With Spark Connect the attribute raises an AttributeError.
    return getattr(session, "sparkContext", None)


EPOCHS = "penstock-epochs"
COMPACTIONS = "penstock-compactions"
POOLS_FILE = Path(__file__).with_name("pools.xml")
"""The shares of the pools, in the file that a session gets when it starts."""


def job_thread(session: SparkSession, pool: str, tag: str) -> CallThread:
    """Return one thread whose jobs run in a pool and can be cancelled by a tag."""

    def prepare() -> None:
        context = context_of(session)
        if context is None:
            session.addTag(tag)
            return
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.addJobTag(tag)

    return CallThread(pool, prepare)


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the jobs under way that have a tag, from any thread."""
    context = context_of(session)
    if context is None:
        session.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)


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
"""Settings that any session can have."""
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
    # The allocators of Arrow and Polars take milliseconds; NumPy's takes only sizes.
    "spark.executorEnv.MIMALLOC_PURGE_DELAY": "10000",
    "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Settings that only a context of our own can have."""
_WORTH_HAVING = (
    "spark.python.unix.domain.socket.enabled",
    "spark.scheduler.mode",
    "spark.locality.wait",
)
"""Settings whose lack in a user's Spark is logged as a warning."""
_LONGEST_SOCKET_FOLDER = 55
"""The longest folder: a Unix socket's path may have 104 bytes, of which Spark's names take 42."""


def running_session() -> SparkSession | None:
    """Return a session of the Spark that runs in this process already, or is connected to it."""
    running = SparkContext._active_spark_context  # noqa: SLF001 (no public way)
    if running is not None:
        if is_context_gone(running):
            return None
        builder: SparkSession.Builder = SparkSession.builder
        return builder.getOrCreate()
    try:
        session = SparkSession.active()
    except PySparkException:
        return None
    # A session object remains after its context was stopped.
    return session if context_of(session) is None else None


def adopt_session(session: SparkSession) -> SparkSession:
    """Return a session beside the user's, set for epochs; the user's is not changed."""
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
    """Set what any session can have; return the settings that this one refuses."""
    theirs = own.conf.get(EXCLUDED_RULES, None) or ""
    rules = dict.fromkeys(
        [*filter(None, theirs.split(",")), _EPOCH_SETTINGS[EXCLUDED_RULES]]
    )
    refused = []
    for name, value in {**_EPOCH_SETTINGS, EXCLUDED_RULES: ",".join(rules)}.items():
        try:
            own.conf.set(name, value)
        except PySparkException:
            refused.append(f"{name}={value}")
    return refused


def find_lacking(own: SparkSession) -> Iterator[str]:
    """Yield the important settings that a session lacks and that only a new context can have."""
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
    master: str = DEFAULT_MASTER,
    *,
    name: str = "penstock",
    show_logs: bool = False,
    on_start: Callable[[SparkStart], None] = lambda _: None,
) -> SparkSession:
    """Start Spark. None may run in this process; `on_start` gets the start, to give it up.

    Its messages go to a nameless file instead of the terminal unless `show_logs`; they are
    part of the error if Spark does not start.
    """
    check_can_start(master)
    settings: dict[str, Any] = {
        "spark.master": master,
        "spark.app.name": name,
        **_EPOCH_SETTINGS,
        **_OWN_SETTINGS,
        "spark.ui.showConsoleProgress": "true" if show_logs else "false",
        "spark.log.level": "WARN" if show_logs else "ERROR",
        **_folder_settings(is_local=master.startswith("local")),
    }
    start = SparkStart(settings, show_logs=show_logs)
    on_start(start)
    builder: Any = SparkSession.builder.config(map=settings)
    try:
        if variable("SPARK_REMOTE") is None:
            start.run()
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        failure = _not_started(error, master, start)
        start.close()
        raise failure from error
    if master.startswith("local"):
        # Workers are children of this process: they need its environment, not the system's.
        session.sparkContext.pythonExec = sys.executable
        session.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(
            str(Path(entry).resolve()) for entry in sys.path
        )
    return session


def _not_started(error: Exception, master: str, start: SparkStart) -> PenstockError:
    """Return the error of a start that failed: its JVM has ended, or Spark refused something."""
    if isinstance(error, PenstockError):
        return error
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    failure: PenstockError = UserError(
        f"Spark did not start with master {master!r}: {reason}. Check the master and what Spark "
        "said, below; show_logs=True shows all of it",
        code=ErrorCode.ENGINE_MISSING,
        master=master,
    )
    if start.was_killed(error):
        failure = ExternalError(
            f"Spark's JVM ended while Spark started with master {master!r}: it was killed, or "
            "had too little memory. Start the job again",
            code=ErrorCode.ENGINE_FAILED,
            master=master,
        )
    failure.add_note(f"Spark said:\n{start.said}")
    return failure


@cache
def _folder_settings(*, is_local: bool) -> dict[str, str]:
    """Return settings that put the JVM's files into a folder that is deleted with this process.

    It lies in TMPDIR, which Java ignores. Spark leaves its sockets behind, and a JVM its
    performance data in /tmp.
    """
    folder = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # These are the "default" Java options; users set the "extra" ones, and both apply.
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


_SESSION: ContextVar[Callable[[], SparkSession]] = ContextVar("penstock-spark-session")


@contextmanager
def driving_with(session: Callable[[], SparkSession]) -> Iterator[None]:
    """Make a session, the user's if there is one, available to hooks on this thread.

    It is asked for each time, because Spark may have been started again.
    """
    token = _SESSION.set(session)
    try:
        yield
    finally:
        _SESSION.reset(token)


def driving_session(what: str) -> SparkSession:
    """Return the session of the running job; `what` names its user in the error."""
    session = _SESSION.get(None)
    if session is None:
        raise UserError(
            f"{what} needs Spark, and this job runs without it: start it with Pipeline.run or "
            "Pipeline.attach",
            code=ErrorCode.ENGINE_MISSING,
        )
    return session()
