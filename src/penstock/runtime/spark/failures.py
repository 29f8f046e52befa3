"""Says what the failure of a Spark job means, and quotes its cause from Spark's long texts.

The error of a failed Spark job says whether the user has to fix something, or the failure may
pass. Errors of user code travel as values and are no failures of the job. Causes are Spark
itself (lost executors, a full disk, a job given up after its retries, a JVM that has ended, a
package that is missing on the workers) and users' DataFrames that fail while an epoch reads
them.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from penstock.errors import (
    ErrorCode,
    ExternalError,
    PenstockError,
    UserCodeError,
    UserError,
)
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.physical import PhysicalPlan
from penstock.runtime.spark.jvm import is_gone, last_words

ENGINE_ERRORS = (PySparkException, Py4JError, OSError, EOFError)
"""What calls to Spark raise; the last two when its JVM has ended."""
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<name>[^']+)'")
_PYTHON = re.compile(
    r"^Traceback \(most recent call last\).*\n(?:[ \t].*\n)*(?P<raised>\S.*)$", re.MULTILINE
)
"""A Python traceback: what was raised is its first line that is not indented."""
_OURS = re.compile(r"^penstock\.errors\.\w+: ")
_JAVA = re.compile(
    r"^(?:Caused by|Exception in thread \S+|): *(?P<kind>[\w.$]+)(?:: (?P<text>.*\S))?$",
    re.MULTILINE,
)
"""A Java exception of a chain, the one that was raised first last."""
_LOST_TASK = re.compile(
    r"most recent failure: Lost task [^\n]*?\): (?P<kind>[\w.$]+)(?:: (?P<text>.*\S))?"
)
_WRAPPERS = (
    "Exception thrown in awaitResult",
    "Job aborted due to stage failure",
    "Writing job",
)
"""How texts of Java exceptions begin that only say that there was another one."""
_TEXT_LIMIT = 4_000
_OF_THE_QUERY = ("22", "42", "P0")
"""How SQL states begin that are about the data or the query itself: a retry would not help."""


def describe_job_failure(
    error: Exception, job: str, what: str = "an epoch"
) -> PenstockError:
    """Return the error to raise for a Spark job that failed; `what` is what it ran."""
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
    hint = ""
    if "Python worker exited unexpectedly" in text:
        hint = (
            ". User code crashed that process, or it was killed, often for want of memory"
        )
    left = "Nothing of it was published"
    if what != "an epoch":
        left = "The epoch is acknowledged; it is committed again at the next start"
    failure = ExternalError(
        f"Spark could not run {what} of job {job!r}: {_reason_in(text)}. {left}{hint}",
        code=ErrorCode.ENGINE_FAILED,
        job=job,
    )
    failure.add_note(text[-_TEXT_LIMIT:])
    return failure


def _is_of_a_frame(error: Exception) -> bool:
    """Return whether a user's DataFrame failed: Penstock's own part is Python of this package."""
    if isinstance(error, PythonException):
        return "penstock/runtime/spark/" not in str(error)
    state = error.getSqlState() if isinstance(error, PySparkException) else None
    return state is not None and state.startswith(_OF_THE_QUERY)


def _reason_in(text: str) -> str:
    """Return the root cause in Spark's long text: what Python raised, else what Java did."""
    # The first of several tracebacks is the cause of the others.
    python = _PYTHON.search(text)
    if python is not None:
        reason = _OURS.sub("", python["raised"])
    else:
        reason = _java_cause(text) or _first_line(text)
    return reason.strip().rstrip(".")[:300] or "it gave no reason"


def _java_cause(text: str) -> str | None:
    """Return the deepest Java exception that says something; one without a text does not."""
    for found in (*reversed([*_JAVA.finditer(text)]), *_LOST_TASK.finditer(text)):
        kind, said = found["kind"].rpartition(".")[2], found["text"]
        if said and not said.removeprefix("[").startswith(_WRAPPERS):
            return said if kind == "SparkException" else f"{kind}: {said}"
    return None


def _first_line(text: str) -> str:
    """Return the first line that is not about the call by which the failure was noticed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [
        line for line in lines if not line.startswith("An error occurred while calling")
    ]
    return next(iter(telling or lines), "")


def engine_ended(session: SparkSession, what: str) -> ExternalError:
    """Return the error of what a JVM did when it ended; it may be started again."""
    failure = ExternalError(
        f"Spark ended while it ran {what}: its JVM was killed or ran out of memory, or its "
        "session was stopped. Whatever was not published is done again",
        code=ErrorCode.ENGINE_FAILED,
    )
    said = last_words(session)
    if said:
        failure.add_note(f"Spark said:\n{said}")
    return failure


@contextmanager
def noticing_its_end(session: SparkSession, what: str) -> Iterator[None]:
    """Let the body call Spark; if its JVM ends meanwhile, that is the error."""
    try:
        yield
    except ENGINE_ERRORS as error:
        if is_gone(session):
            raise engine_ended(session, what) from error
        raise


def source_overran(job: PhysicalPlan, epoch: EpochPlan) -> UserCodeError:
    """Return the error of a cancelled epoch, which names its sources: only they can be stuck."""
    seconds = (epoch.deadline_micros or 0) / 1_000_000
    return UserCodeError(
        f"an epoch of job {job.graph.job!r} was cancelled, still running {seconds:g} s after "
        f"it began: source {', '.join(map(repr, epoch.readers))} did not end it. Give every "
        "call that waits for data a timeout, and return when ctx.budget.is_spent; if epochs "
        "may well take that long, raise the setting epoch_deadline_seconds",
        code=ErrorCode.SOURCE_OVERRAN,
        job=str(job.graph.job),
        sources=", ".join(epoch.readers),
    )
