"""Threads that start Spark jobs, each with a scheduling pool and a tag.

Pools, tags and local properties belong to a thread. In threads of our own they never touch
the jobs that the user starts beside an epoch.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

EPOCHS = "penstock-epochs"
COMPACTIONS = "penstock-compactions"
POOLS_FILE = Path(__file__).with_name("pools.xml")
"""What the pools get, for a session that is told so when it starts."""


def job_thread(session: SparkSession, pool: str, tag: str) -> ThreadPoolExecutor:
    """Return one thread whose jobs run in a pool and can be cancelled by a tag."""

    def prepare() -> None:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
        session.sparkContext.addJobTag(tag)

    return ThreadPoolExecutor(1, thread_name_prefix=pool, initializer=prepare)
