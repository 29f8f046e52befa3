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
    where = f"in {hook} (subtask {subtask.index} of {subtask.parallelism}, epoch {context.epoch})"
    facts: dict[str, Any] = {
        "operator": str(context.task.operator),
        "subtask": subtask.index,
        "epoch": int(context.epoch),
        "hook": hook,
    }
    if isinstance(error, PenstockError):
        failure = error
        for name, value in facts.items():
            failure.context.setdefault(name, value)
        _note(failure, f"Raised by operator {context.task.operator!r} {where}")
    else:
        failure = UserCodeError(
            f"operator {context.task.operator!r} raised {type(error).__name__} {where}: "
            f"{error}",
            **facts,
        )
        failure.__cause__ = error
    if batch is not None:
        _note(failure, f"The batch it was given begins with:\n{describe_sample(batch)}")
    if failure is not error:
        frames = traceback.format_exception(error, limit=-_TRACEBACK_FRAMES)
        _note(failure, "".join(frames).rstrip())
    return failure


def _note(error: PenstockError, text: str) -> None:
    """Add a note, once: an error object may be raised again."""
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)
