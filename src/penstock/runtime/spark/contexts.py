"""What only a Spark in this process has: its context. Behind Spark Connect there is none.

Pools, local properties and job tags of a context make epochs faster and are done without
where it is missing; nothing else of Penstock may ask for one.
"""

from pyspark import SparkContext
from pyspark.sql import SparkSession


def context_of(session: SparkSession) -> SparkContext | None:
    """Return the context of a session; None for one of Spark Connect."""
    # There, asking raises an AttributeError that says so.
    return getattr(session, "sparkContext", None)
