"""Spark as the tests start it: seen through a folder of the run, by JVMs that start quickly.

Spark is many thousands of classes, and a JVM that lives for seconds spends most of them on
loading these. So in a run of the whole suite, which starts dozens, the first one that needs Spark
has the JVM write the classes that it loaded to an archive, which all others map. A JVM takes
the archive only if its class path is the same, letter by letter. That is why all of them see Spark
through one folder, and why those whose class path is another one are as slow as ever.
"""

import fcntl
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyspark

RUN_FOLDER = "PENSTOCK_TEST_RUN_FOLDER"
"""The variable by which all processes of one run know its folder (`tests/conftest.py`)."""
RUN_PID = "PENSTOCK_TEST_RUN_PID"
"""The variable by which they know the process that ends last."""
QUICK_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Xlog:disable"
)
"""For JVMs that live for minutes at most: they start in half of the processor time."""


@cache
def spark_home() -> Path:
    """Return Spark seen through a folder of ours: its executors write beside its programs."""
    home = Path(os.environ[RUN_FOLDER], "spark")
    with Path(os.environ[RUN_FOLDER], "spark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            home.mkdir()
            for part in Path(pyspark.__file__).parent.iterdir():
                (home / part.name).symlink_to(part)
    return home


@cache
def quick_jvm() -> str:
    """Return the options for JVMs of Spark in `spark_home`."""
    archive = Path(os.environ[RUN_FOLDER], "classes.jsa")
    # A run of one process has a Spark or two: the archive would cost more than it saves.
    if "PYTEST_XDIST_WORKER" in os.environ:
        home = spark_home()
        with Path(os.environ[RUN_FOLDER], "classes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _write(archive, home)
    return f"{QUICK_JVM} -XX:SharedArchiveFile={archive}" if archive.exists() else QUICK_JVM


def _write(archive: Path, home: Path) -> None:
    """Let a small program on Spark write down its classes when it ends."""
    options = f"-XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={archive}"
    subprocess.run(
        [sys.executable, "-m", "tests.builders.spark_classes_program"],
        cwd=Path(__file__).parents[2],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(home),
            "SPARK_SUBMIT_OPTS": options,
        },
        check=True,
        timeout=300,
    )
