"""One Spark for the whole run of the tests: it takes seconds to start."""

import os
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
