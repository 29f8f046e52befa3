"""Threads that start Spark jobs, each with a scheduling pool and a tag.

Pools, tags and local properties belong to a thread. In threads of our own they never touch
the jobs that the user starts beside an epoch.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.runtime.spark.contexts import context_of

EPOCHS = "penstock-epochs"
COMPACTIONS = "penstock-compactions"
POOLS_FILE = Path(__file__).with_name("pools.xml")
"""What the pools get, for a session that is told so when it starts."""


def job_thread(session: SparkSession, pool: str, tag: str) -> ThreadPoolExecutor:
    """Return one thread whose jobs run in a pool and can be cancelled by a tag."""

    def prepare() -> None:
        context = context_of(session)
        if context is None:
            session.addTag(tag)
            return
        context.setLocalProperty("spark.scheduler.pool", pool)
        context.addJobTag(tag)

    return ThreadPoolExecutor(1, thread_name_prefix=pool, initializer=prepare)


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the jobs under way that have a tag; for any thread."""
    context = context_of(session)
    if context is None:
        session.interruptTag(tag)
    else:
        context.cancelJobsWithTag(tag)
