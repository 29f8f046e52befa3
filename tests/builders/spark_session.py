"""One Spark for the whole run of the tests: it takes seconds to start.

Programs that start one of their own are run by `run_module`.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.runtime.spark.session import open_session

ROOT = Path(__file__).resolve().parents[2]
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Xlog:disable"
)
"""For JVMs that live for minutes at most: they start in half of the processor time."""


@cache
def shared_session() -> SparkSession:
    """Return a session with two cores whose workers can import the tests' modules."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JVM)
    session = open_session("local[2,4]", name="penstock-tests")
    path = f"{ROOT}:{ROOT / 'src'}"
    session.sparkContext.environment["PYTHONPATH"] = path
    return session


def last_job() -> int:
    """Return the number of the last Spark job of the shared session; they are counted one by one."""
    tracker = shared_session().sparkContext.statusTracker()
    return max(tracker.getJobIdsForGroup(None), default=-1)


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
