"""Programs that run jobs: errors become a message and an exit code that tells their kind.

| code | kind of error | starting again |
|---|---|---|
| 0 | none | |
| 1 | any other exception, with its traceback | |
| 2 | `UserError`: the call, the pipeline, its settings, or what Spark needs | after a fix |
| 3 | `UserCodeError`: a user's function raised | after a fix |
| 4 | `ExternalError`: Spark, or a system that user code talks to | may help |
| 5 | `FencedError`: another driver has taken the job over | never |
| 6 | `StorageError` | may help |
| 7 | `UnknownOutcomeError` | may help |
| 8 | `CorruptStateError`: durable bytes are damaged | never: look first |
| 9 | `StateError`: the graph does not fit the checkpoint | after a fix |
| 10 | `InternalError`: a bug of Penstock, with its traceback | |
| 130 | Ctrl-C before the job could stop by itself | goes on |
"""

import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from penstock.errors import InternalError, PenstockError

_INTERRUPTED = 130


def exit_code(error: BaseException) -> int:
    """Return what a program that ends with this error should exit with.

    >>> from penstock.errors import FencedError
    >>> exit_code(FencedError("another driver owns the job")), exit_code(ValueError())
    (5, 1)
    """
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    return error.exit_code if isinstance(error, PenstockError) else 1


def main(function: Callable[[], object]) -> NoReturn:
    """Call a function and exit: with what it returns if that is a number, else with 0.

    An error of Penstock's is printed as its message and notes, without a traceback unless it
    is a bug of ours, and the exit code tells its kind. The last line of a program:

        if __name__ == "__main__":
            ps.main(run)
    """
    try:
        result = function()
    except (PenstockError, KeyboardInterrupt) as error:
        print(describe_error(error), file=sys.stderr, flush=True)  # noqa: T201 (its purpose)
        sys.exit(exit_code(error))
    sys.exit(result if isinstance(result, int) and not isinstance(result, bool) else 0)


def describe_error(error: BaseException) -> str:
    """Return an error as people read it: kind, code, message, then the notes."""
    if not isinstance(error, PenstockError):
        return "interrupted"
    if isinstance(error, InternalError):
        return "".join(traceback.format_exception(error)).rstrip()
    lines = [f"error: {error.message} [{error.code}]"]
    for note in getattr(error, "__notes__", ()):
        lines += [f"  {line}" for line in note.splitlines()]
    return "\n".join(lines)
