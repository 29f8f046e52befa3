"""The Spark session of the job that this thread drives: what hooks on the driver work with."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import SparkSession

from penstock.errors import ErrorCode, UserError

_SESSION: ContextVar[SparkSession] = ContextVar("penstock-spark-session")


@contextmanager
def driving_with(session: SparkSession) -> Iterator[None]:
    """Let hooks that the body calls on this thread find the session: the user's, if one was given."""
    token = _SESSION.set(session)
    try:
        yield
    finally:
        _SESSION.reset(token)


def driving_session(what: str) -> SparkSession:
    """Return the session of the running job; `what` needs it."""
    session = _SESSION.get(None)
    if session is None:
        raise UserError(
            f"{what} needs Spark, and this job runs without it: start it with Pipeline.run or "
            "Pipeline.attach",
            code=ErrorCode.ENGINE_MISSING,
        )
    return session
