"""One Spark for the whole run of the tests, and programs that start a Spark of their own.

Marks are empty files by which the processes of one test tell each other what has happened.

`SparkProgram` is a driver in a process group of its own, with its JVM, that a test can stop or
kill. The test and the program talk in JSON lines: a line in starts a run, lines out tell what
happens. What a killed program leaves behind lies in one folder with a short name, because the
paths of Spark's sockets must stay short; the fixture that made the folder removes it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import penstock as pen
from penstock.core.clock import new_token
from penstock.core.settings import current
from penstock.operators import Registry
from penstock.operators.splits import SourceBudget
from penstock.operators.user_functions import pickle_function
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.options import RunOptions
from penstock.runtime.plan.executor import Executor
from penstock.runtime.spark.attach import QUERY_ID
from penstock.runtime.spark.executor import SparkExecutor
from penstock.runtime.spark.running import run_on_spark
from penstock.runtime.spark.session import open_session
from penstock.runtime.spark.task import WorkerSpec
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store
from penstock.testing import Fault, FaultMode
from tests.builders.spark_home import quick_jvm, spark_home

ROOT = Path(__file__).resolve().parents[2]


@cache
def shared_session() -> SparkSession:
    """Return a session with two cores whose workers can import the tests' modules."""
    os.environ.setdefault("SPARK_HOME", str(spark_home()))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_jvm())
    session = open_session("local[2,4]", name="penstock-tests")
    path = f"{ROOT}:{ROOT / 'src'}"
    session.sparkContext.environment["PYTHONPATH"] = path
    return session


class OnSpark:
    """A place of `run_modes`: tasks run in Spark's workers, faults hit the driver's calls alone."""

    deaths: Sequence[Fault] = (
        # All tasks of epoch 2 have done their work, and none of it counts.
        Fault(FaultMode.CRASH_BEFORE, 1, "create", "*/0000000002/manifest.pb"),
        # Epoch 3 is acknowledged, and its rows are not yet out.
        Fault(FaultMode.CRASH_AFTER, 1, "create", "*/epochs/0000000003.record"),
    )

    def __init__(self, folder: Path, *, most_rows: int) -> None:
        self._folder = folder
        self.most_rows = most_rows

    def new_store(self) -> ObjectStore:
        return open_store(str(self._folder / "checkpoints"), durable=False)

    def new_output(self) -> str:
        return str(self._folder / "out")

    def executor(
        self, driver_store: ObjectStore, store: ObjectStore, registry: Registry
    ) -> Executor:
        del driver_store
        cache_root = str(self._folder / "worker-cache")
        kinds = pickle_function(registry, "registry")
        spec = WorkerSpec(new_token(), store, cache_root, current(), kinds)
        return SparkExecutor(shared_session(), spec)


def job_ids() -> set[int]:
    """Return the Spark jobs of the shared session that it remembers and that are in no group."""
    return set(shared_session().sparkContext.statusTracker().getJobIdsForGroup(None))


def run_module(
    module: str, *arguments: str, folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in a process of its own; it must leave no temporary file."""
    temporary = folder / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**(os.environ if variables is None else variables), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert list(temporary.iterdir()) == []
    return done


PATIENCE_SECONDS = 120.0
"""Far more than anything takes here; a test that has to wait so long fails."""


def claim(folder: str | Path, name: str) -> bool:
    """Make a mark; tell whether this call was the first to do so."""
    try:
        handle = os.open(Path(folder) / name, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.close(handle)
    return True


def wait_for_mark(folder: str | Path, pattern: str) -> str:
    """Wait until there is a mark of such a name; return its name."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for path in Path(folder).glob(pattern):
            return path.name
        time.sleep(0.005)
    raise AssertionError(f"nobody made the mark {pattern!r} in {folder}")


def marks_in(folder: Path) -> set[str]:
    """Return the names of all marks."""
    return {path.name for path in folder.iterdir()}


NUMBERS = pa.schema([pa.field("number", pa.int64(), nullable=False)])
QUICK = DriverSettings(
    budget=SourceBudget(rows=100), adapts_budget=False, target_epoch_micros=1
)


class CrashError(Exception):
    """Stands for a process that dies: no error of Penstock, so nothing is tried again."""


class DriverDiedError(BaseException):
    """Stands for a driver that dies: raised by `on_status`, where an `Exception` is only logged."""


def numbers(start: int, end: int, *, partitions: int = 3) -> DataFrame:
    """Return the numbers `[start, end)` as a DataFrame."""
    frame = shared_session().range(start, end, 1, partitions)
    return frame.withColumnRenamed("id", "number")


def start(
    pipeline: pen.Pipeline,
    folder: Path,
    on_status: Callable[[pen.JobStatus], None] | None = None,
) -> pen.JobStatus:
    """Run a job to its end."""
    return run_on_spark(
        pipeline.graph(),
        pipeline.registry,
        RunOptions(
            checkpoint=str(folder / "checkpoints"),
            session=shared_session(),
            settings=QUICK,
            on_status=on_status,
        ),
    )


class Ledger:
    """Takes epochs as DataFrames, idempotent as such functions must be: by epoch."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.rows: dict[int, list[int]] = {}
        self.before: Callable[[int], None] = lambda epoch: None
        self.after: Callable[[int], None] = lambda epoch: None

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        self.before(epoch)
        self.calls.append(epoch)
        found = [row["number"] for row in frame.collect()]
        # A repeated commit must hand over the same rows.
        assert sorted(self.rows.get(epoch, found)) == sorted(found)
        self.rows[epoch] = found
        self.after(epoch)

    @property
    def numbers(self) -> list[int]:
        """All rows of all epochs, sorted."""
        return sorted(number for rows in self.rows.values() for number in rows)


@contextmanager
def as_query(query: str) -> Iterator[None]:
    """Let this thread look like that of a streaming query."""
    context = shared_session().sparkContext
    context.setLocalProperty(QUERY_ID, query)
    try:
        yield
    finally:
        context.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]  # None removes it


def attached_pipeline(name: str, ledger: Any, *, parallelism: int = 2) -> pen.Pipeline:
    """Return a pipeline that hands the numbers of a query's batches to a ledger."""
    pipeline = pen.Pipeline(name, parallelism=parallelism)
    read = pipeline.read("numbers", pen.attached(schema=NUMBERS))
    read.write("ledger", pen.for_each_epoch(ledger))
    return pipeline


def _heed_signals() -> None:
    """Undo what the tests may have inherited: shells and nohup let programs ignore signals."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class SparkProgram:
    """One started program."""

    def __init__(
        self,
        program: Path,
        scratch: Path,
        *arguments: str,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self.errors = scratch / f"errors-{new_token()}"
        self._forgotten = 0
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(scratch, conf or {}),
                cwd=scratch,
                start_new_session=True,
                preexec_fn=_heed_signals,  # noqa: PLW1509 (it calls nothing that could wait)
            )

    def tell(self, **order: Any) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return the next line; the test's own time limit is the limit."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.errors.read_text()[-4_000:]}"
        said: dict[str, Any] = json.loads(line)
        return said

    def hear_until(self, event: str) -> dict[str, Any]:
        """Return the first line about an event; others are dropped."""
        while (said := self.hear())["event"] != event:
            assert said["event"] != "failed", f"the job failed: {said}"
        return said

    @property
    def said(self) -> str:
        """What it has written to its standard error, but for what was forgotten."""
        return self.errors.read_text()[self._forgotten :]

    def forget_errors(self) -> None:
        """Begin `said` anew, for another test."""
        self._forgotten = len(self.errors.read_text())

    def wait_for_words(self, words: str) -> None:
        """Wait until it has written words to its standard error."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while words not in self.said:
            assert time.monotonic() < deadline, f"it did not say {words!r}: {self.said}"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal as a terminal does: to the program's group, to which no JVM belongs."""
        os.killpg(self.process.pid, number)

    def jvms(self) -> list[int]:
        """Return the JVMs that the program has started and that still run."""
        return [
            int(folder.name)
            for folder in Path("/proc").glob("[0-9]*")
            if _is_jvm_of(folder, self.process.pid)
        ]

    def wait(self) -> int:
        """Wait until the program has ended; return its exit code."""
        code = self.process.wait()
        self._close()
        return code

    def kill(self) -> None:
        """kill -9 the driver and its JVM; workers notice by themselves."""
        jvms = self.jvms()
        self.signal(signal.SIGKILL)
        for jvm in jvms:
            with suppress(ProcessLookupError):
                os.kill(jvm, signal.SIGKILL)
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


def _is_jvm_of(process: Path, parent: int) -> bool:
    """Return whether a process is a JVM for Spark that another process has started."""
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()
        program, *arguments = (process / "cmdline").read_text().split("\0")
    except OSError:
        return False  # it has ended meanwhile
    # One that is only asked for its version comes before that of Spark.
    is_asked = "-version" in arguments
    return int(state[1]) == parent and program.endswith("java") and not is_asked


def _environment(scratch: Path, conf: Mapping[str, str]) -> dict[str, str]:
    path = f"{ROOT}:{ROOT / 'src'}"
    settings = {
        "spark.executorEnv.PYTHONPATH": path,
        "spark.executor.extraJavaOptions": quick_jvm(),
        **conf,
    }
    return {
        **os.environ,
        "PYTHONPATH": path,
        # Which Python the executors of a cluster start; the driver tells them.
        "PYSPARK_PYTHON": sys.executable,
        "TMPDIR": str(scratch),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"{quick_jvm()} -Djava.io.tmpdir={scratch}",
        "PYSPARK_SUBMIT_ARGS": " ".join(
            [
                *(f"--conf '{key}={value}'" for key, value in settings.items()),
                "pyspark-shell",
            ]
        ),
    }


def say(event: str, **facts: Any) -> None:
    """Tell the test what happened; called in the program."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def orders() -> Any:
    """Yield the test's orders until it has no more; called in the program."""
    for line in sys.stdin:
        yield json.loads(line)
