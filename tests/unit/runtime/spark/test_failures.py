"""Tests of what a failed Spark job is said to mean."""

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
