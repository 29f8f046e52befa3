"""Starts the JVM that Spark runs in, so that the start can be given up, and ends one for sure.

**Start.** A thread of its own starts JVM and context, while the caller waits and can be told to
give up. Giving up ends the JVM: left alone, one whose start was interrupted would live on.
PySpark installs a handler for Ctrl-C, which cancels all jobs, only in the main thread; so this
also keeps it from doing so. The JVM gets a process group of its own, because a terminal sends
its signals to the whole group of the program: Spark is needed for the last checkpoint.

**End.** A JVM ends by itself when this process does. One that hangs is killed, and PySpark,
which keeps it in class attributes, is made to forget it; the next start makes another one.

**Calls.** Whatever calls Spark and may hang does so in a daemon thread, for which nobody waits
longer than he wants to: neither at the end of a run, nor at the end of the process.
"""

import logging
import os
import re
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import IO, Any, ParamSpec, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.errors import ErrorCode, ExternalError

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
_GATEWAY_SECONDS = 10.0
"""How long a start that is given up may take to tell which process the JVM is."""
_KILL_SECONDS = 5.0
_QUOTED_LINES = 20
_SHELL_SIGNALS = 128
"""Above this number are the exit codes of what was ended by a signal, and says so itself."""
GONE: tuple[type[Exception], ...] = (Py4JError, OSError, AttributeError)
"""What calls to a JVM that has ended raise; an attribute is missing after `stop`."""


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextmanager
def quiet_py4j() -> Iterator[None]:
    """Keep py4j from logging a traceback for every call to a JVM that has ended.

    It does so by the root logger, and then raises the same as an error.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_of_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_of_py4j)


class CallThread:
    """A daemon thread that makes calls one after the other, each as a future."""

    def __init__(self, name: str, prepare: Callable[[], None] | None = None) -> None:
        """Start it; `prepare` runs in the thread before the first call."""
        self._prepare = prepare
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> Future[T]:
        """Have the thread make a call, after those submitted before."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._prepare is not None:
                    self._prepare()
                    self._prepare = None
                future.set_result(function(*arguments, **options))
            except BaseException as error:  # noqa: BLE001 (raised again by the future)
                future.set_exception(error)

        self._calls.put(call)
        return future

    def close(self) -> None:
        """End the thread after the calls submitted so far, without waiting for them."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def call_within(seconds: float, function: Callable[[], object]) -> bool:
    """Make a call; return whether it succeeded in time. Why it did not is logged."""
    thread = CallThread("penstock-call")
    made = thread.submit(function)
    thread.close()
    _, late = wait([made], seconds)
    problem = f"it takes longer than {seconds:g} s" if late else made.exception()
    if problem is not None:
        _log.debug("a call to Spark failed: %s", problem)
    return problem is None


class SparkStart:
    """One start of Spark, which can be given up."""

    def __init__(self, settings: Mapping[str, str], *, show_logs: bool) -> None:
        self._settings = settings
        self._show_logs = show_logs
        self._log: IO[str] | None = None
        """A file without a name: the messages of a JVM, which has it to its end, are for errors."""
        self._has_begun = False
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: Future[Any] = Future()
        self._context: Future[SparkContext] = Future()

    def run(self) -> SparkContext:
        """Start Spark and wait for it; raise what PySpark raises, or that it was given up."""
        self._has_begun = True
        if not self._context.done():
            thread = CallThread("penstock-spark-start")
            thread.submit(self._start)
            thread.close()
        return self._context.result()

    def give_up(self) -> None:
        """End the JVM, and with it the start, from any thread; also before the start has begun.

        A JVM that takes long to tell where it is ends as soon as it does.
        """
        if self._has_begun:
            with suppress(Exception):
                end_jvm(self._gateway.result(_GATEWAY_SECONDS))
        given_up = ExternalError(
            "the start of Spark was given up", code=ErrorCode.ENGINE_FAILED
        )
        with suppress(InvalidStateError):
            self._context.set_exception(given_up)

    def was_killed(self, error: Exception) -> bool:
        """Return whether a start failed because its JVM was ended by a signal, or without a word."""
        process = self._process
        if process is None:
            return False
        if not isinstance(error, Py4JJavaError | PySparkException):
            # The JVM has not answered. Its connections break before the process is gone.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_SECONDS)
        code = process.poll()
        if code is None:
            return False
        has_spoken = re.search(r"Error|Exception", self.said) is not None
        return code < 0 or code > _SHELL_SIGNALS or not has_spoken

    @property
    def said(self) -> str:
        """The last lines that the JVM wrote."""
        return "" if self._log is None else last_lines(self._log)

    def close(self) -> None:
        """Let go of what a start has left that failed, unless its JVM can be used by the next."""
        if self._gateway.done() and self._gateway.exception() is None:
            if has_ended(self._gateway.result()):
                end_jvm(self._gateway.result())
            return
        _end_process(self._process)
        if self._log is not None:
            self._log.close()

    def _start(self) -> None:
        try:
            gateway: Any = SparkContext._gateway  # noqa: SLF001 (of an earlier start)
            if gateway is not None and has_ended(gateway):
                end_jvm(gateway)
                gateway = None
            conf = SparkConf().setAll(list(self._settings.items()))
            if gateway is None:
                launch: Any = launch_gateway
                process: dict[str, Any] = {"process_group": 0}
                if not self._show_logs:
                    process["stderr"] = self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`close` closes it)
                gateway = launch(conf, process)
                gateway.penstock_log = self._log
            self._log = getattr(gateway, "penstock_log", None)
            self._process = getattr(gateway, "proc", None)
            self._gateway.set_result(gateway)
            if self._context.done():
                end_jvm(gateway)  # it was given up meanwhile
                return
            context = SparkContext(conf=conf, gateway=gateway)
            server: Any = getattr(context, "_accumulatorServer", None)
            if server is not None:
                # It would print a traceback when the JVM ends, which is told in other ways.
                server.handle_error = lambda *_: None
        except BaseException as error:  # noqa: BLE001 (raised again by the futures)
            self._process = self._process or _launched_before(error)
            for future in (self._gateway, self._context):
                with suppress(InvalidStateError):
                    future.set_exception(error)
            return
        try:
            self._context.set_result(context)
        except InvalidStateError:
            end_jvm(gateway)


def _launched_before(error: BaseException) -> subprocess.Popen[bytes] | None:
    """Return the process of a launch that failed, which only its frame knows."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is launch_gateway.__code__:
            found = frame.f_locals.get("proc")
            return found if isinstance(found, subprocess.Popen) else None
    return None


def last_lines(log: IO[str]) -> str:
    """Return the end of a file that the JVM writes, whose position both share."""
    if log.closed:
        return ""  # it was ended on purpose
    size = os.fstat(log.fileno()).st_size
    read = os.pread(log.fileno(), 1 << 16, max(0, size - (1 << 16)))
    lines = [line for line in read.decode(errors="replace").splitlines() if line.strip()]
    return "\n".join(lines[-_QUOTED_LINES:])


def last_words(session: SparkSession) -> str:
    """Return the last lines of the JVM of a session, if Penstock has started it."""
    context = getattr(session, "sparkContext", None)
    log = getattr(getattr(context, "_gateway", None), "penstock_log", None)
    return "" if log is None else last_lines(log)


def is_gone(session: SparkSession) -> bool:
    """Return whether a session's JVM has ended, or its context was stopped."""
    # With Spark Connect the attribute raises an AttributeError, and there is no JVM here.
    context = getattr(session, "sparkContext", None)
    return context is not None and is_context_gone(context)


def is_context_gone(context: SparkContext) -> bool:
    """Return whether a context was stopped, or its JVM has ended."""
    try:
        return bool(context._jsc.sc().isStopped())  # noqa: SLF001 (no public way)
    except GONE:
        return True


def stop_session(session: SparkSession, seconds: float) -> None:
    """Stop Spark; end its JVM if that fails or takes too long. Never raises."""
    context = getattr(session, "sparkContext", None)
    gateway = getattr(context, "_gateway", None)
    if is_gone(session) or not call_within(seconds, session.stop):
        end_jvm(gateway)


def has_ended(gateway: Any) -> bool:
    """Return whether a JVM that this process has started has ended."""
    process = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None


def end_jvm(gateway: Any) -> None:
    """Kill a JVM that this process has started, and make PySpark forget it."""
    _end_process(getattr(gateway, "proc", None))
    call_within(_KILL_SECONDS, gateway.close if gateway is not None else lambda: None)
    log: IO[str] | None = getattr(gateway, "penstock_log", None)
    if log is not None:
        log.close()
    known: Any = SparkContext
    if known._gateway is gateway:  # noqa: SLF001 (no public way, as below)
        server = getattr(known._active_spark_context, "_accumulatorServer", None)  # noqa: SLF001
        if server is not None:
            call_within(_KILL_SECONDS, server.shutdown)
        known._gateway = known._jvm = known._active_spark_context = None  # noqa: SLF001
        sessions: Any = SparkSession
        sessions._instantiatedSession = sessions._activeSession = None  # noqa: SLF001


def _end_process(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        with suppress(Exception):
            process.wait(_KILL_SECONDS)
            if process.stdin is not None:
                process.stdin.close()
