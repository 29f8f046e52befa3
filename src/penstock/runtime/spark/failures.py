"""What a failed Spark job means: a fix for the user, or something that may pass.

User errors travel as values and never get here. What does is Spark itself: lost executors,
a job given up after its retries, a package that is missing on the workers; and DataFrames
of users that are read in an epoch and fail by themselves.
"""

import re

from pyspark.errors import PySparkException, PythonException

from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    UserCodeError,
    UserError,
)

_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[^']+)'")
_RAISED = re.compile(
    r"^(?:penstock\.errors\.\w+: (?P<own>.+)|(?P<other>[\w.]*(?:Error|Exception): .+))$",
    re.MULTILINE,
)
"""The last line of a Python traceback; our own errors need no class to be understood."""
_TEXT_LIMIT = 4_000
_OF_THE_QUERY = ("22", "42", "P0")
"""SQL states that begin so are about data or the query itself: again would be the same."""


def describe_job_failure(error: Exception, job: str) -> PenstockError:
    """Return the error to raise for a Spark job that failed."""
    text = str(error)
    missing = _MISSING_MODULE.search(text)
    if missing is not None:
        name = missing["name"]
        return UserError(
            f"job {job!r} cannot run: the Python of Spark's executors has no module {name!r}. "
            "Install it there, or point spark.pyspark.python to an environment that has it",
            code=ErrorCode.MISSING_PACKAGE,
            job=job,
            module=name,
        )
    if _is_of_a_frame(error):
        return UserCodeError(
            f"a DataFrame that job {job!r} reads failed: {_reason_in(text)}. Nothing of the "
            "epoch was published: correct the DataFrame and start the job again",
            job=job,
        )
    failure = ExternalError(
        f"Spark could not run an epoch of job {job!r}: {_reason_in(text)}. Nothing of it was "
        "published; it is tried again",
        code=ErrorCode.ENGINE_FAILED,
        job=job,
    )
    failure.add_note(text[-_TEXT_LIMIT:])
    return failure


def _is_of_a_frame(error: Exception) -> bool:
    """Tell whether a user's DataFrame failed: all that is ours is Python, and in this package."""
    if isinstance(error, PythonException):
        return "penstock/runtime/spark/" not in str(error)
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    return state is not None and state.startswith(_OF_THE_QUERY)


def _reason_in(text: str) -> str:
    """Return what a Python task raised, or else how Spark begins: its text is long."""
    _, traceback, rest = text.partition("Traceback (most recent call last)")
    raised = _RAISED.search(rest) if traceback else None
    if raised is not None:
        return (raised["own"] or raised["other"]).strip().rstrip(".")[:300]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else "it gave no reason"
