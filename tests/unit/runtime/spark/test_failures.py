"""Tests of what a failed Spark job is said to mean."""

import pytest

from penstock.errors import ErrorCode, ExternalError, UserError
from penstock.runtime.driver.policies import is_transient
from penstock.runtime.spark.failures import describe_job_failure

FROM_A_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "superstep.py", line 1, in run_task
penstock.errors.StorageError: cannot create 'a/b': no space left on device. Free some.

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException
"""


def test_what_a_task_raised_is_the_reason_given() -> None:
    failure = describe_job_failure(RuntimeError(FROM_A_WORKER), "counts")
    assert isinstance(failure, ExternalError)
    assert failure.code is ErrorCode.ENGINE_FAILED
    assert "cannot create 'a/b': no space left on device" in str(failure)
    assert "BasePythonRunner" in failure.__notes__[0]
    assert is_transient(failure)


def test_what_other_code_raised_in_a_worker_is_named_with_its_class() -> None:
    text = FROM_A_WORKER.replace("penstock.errors.StorageError", "pyarrow.lib.ArrowInvalid")
    failure = describe_job_failure(RuntimeError(text.replace("Invalid", "Exception")), "c")
    assert ": pyarrow.lib.ArrowException: cannot create 'a/b'" in str(failure)


def test_without_such_a_reason_spark_is_quoted() -> None:
    failure = describe_job_failure(RuntimeError("\n\n  lost executor 3\n  at x"), "counts")
    assert "lost executor 3." in str(failure)
    assert "gave no reason" in str(describe_job_failure(RuntimeError(""), "counts"))


def test_a_module_that_workers_lack_is_for_the_user_to_install() -> None:
    text = "ModuleNotFoundError: No module named 'shop'"
    failure = describe_job_failure(RuntimeError(text), "counts")
    assert isinstance(failure, UserError)
    assert failure.context["module"] == "shop"


FULL_FOLDER = """\
An error occurred while calling o189.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
	at org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 \
failed 4 times, most recent failure: Lost task 0.3 in stage 2.0 (TID 8) (vm executor driver): \
java.io.IOException: No space left on device
	at java.base/java.io.FileOutputStream.writeBytes(Native Method)

Driver stacktrace:
	at org.apache.spark.scheduler.DAGScheduler.$anonfun$abortStage$2(DAGScheduler.scala:2935)
Caused by: java.io.IOException: No space left on device
	at java.base/java.io.FileOutputStream.writeBytes(Native Method)
	... 3 more
"""


@pytest.mark.parametrize(
    "text",
    [FULL_FOLDER, FULL_FOLDER.partition("Driver stacktrace")[0]],
    ids=["cause", "task"],
)
def test_the_root_cause_of_a_java_failure_is_in_the_message(text: str) -> None:
    failure = describe_job_failure(RuntimeError(text), "counts")
    assert "job 'counts': IOException: No space left on device. Nothing" in str(failure)
    assert "getResult" not in str(failure)


def test_an_exception_without_a_text_is_not_taken_for_the_cause() -> None:
    text = """An error occurred while calling o9.getResult.
: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator
Caused by: java.io.EOFException
	at java.base/java.io.DataInputStream.readInt(DataInputStream.java:398)
"""
    failure = describe_job_failure(RuntimeError(text), "counts")
    assert "'counts': Python worker exited unexpectedly (crashed). Nothing" in str(failure)


def test_a_worker_that_was_killed_is_told_of_memory_too() -> None:
    text = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    failure = describe_job_failure(RuntimeError(text), "counts")
    assert str(failure).endswith("or it was killed, often for want of memory")


def test_the_first_of_chained_python_exceptions_is_the_cause_whatever_its_name() -> None:
    text = """Job aborted due to stage failure
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
pyarrow.lib.ArrowInvalid: not a Parquet file

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 2, in main
RuntimeError: cannot go on
	at org.apache.spark.api.python.BasePythonRunner
"""
    failure = describe_job_failure(RuntimeError(text), "counts")
    assert "'counts': pyarrow.lib.ArrowInvalid: not a Parquet file. Nothing" in str(failure)
