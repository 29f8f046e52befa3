"""What becomes of an exception in user code: an error that says where it was raised and on what.

A value that travels to the driver, so everything worth knowing is in its text: causes do not
survive pickling. Errors that Penstock itself raised keep their class; they only learn whose
hook they came from.
"""

import traceback
from typing import Any

import pyarrow as pa

from penstock.core.batch import describe_sample
from penstock.errors import PenstockError, UserCodeError
from penstock.operators.context import OperatorContext

_TRACEBACK_FRAMES = 12


def describe_failure(
    error: Exception,
    context: OperatorContext,
    hook: str,
    batch: pa.RecordBatch | None = None,
) -> PenstockError:
    """Return the error to report for an exception that a hook raised."""
    subtask = context.task.subtask
    facts: dict[str, Any] = {
        "operator": str(context.task.operator),
        "subtask": subtask.index,
        "epoch": int(context.epoch),
        "hook": hook,
    }
    if isinstance(error, PenstockError):
        for name, value in facts.items():
            error.context.setdefault(name, value)
        return error
    failure = UserCodeError(
        f"operator {context.task.operator!r} raised {type(error).__name__} in {hook} (subtask "
        f"{subtask.index} of {subtask.parallelism}, epoch {context.epoch}): {error}",
        **facts,
    )
    if batch is not None:
        failure.add_note(f"The batch it was given begins with:\n{describe_sample(batch)}")
    frames = traceback.format_exception(error, limit=-_TRACEBACK_FRAMES)
    failure.add_note("".join(frames).rstrip())
    failure.__cause__ = error
    return failure
