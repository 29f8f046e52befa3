"""Stopping a source that does not come back from its epoch.

A source that waits for data which is not there, or never looks at its budget, would hang the
epoch without a word. Python can interrupt another thread only by raising in it between two
bytecodes: that is what a timer does here. A call that blocks in C is interrupted when it
returns, so it is late, never wrong.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import ErrorCode, UserCodeError

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _OverrunError(BaseException):
    """Raised inside the source; a BaseException, so that user code does not swallow it."""


@contextmanager
def limit_seconds(seconds: float, operator: str) -> Iterator[None]:
    """Interrupt the body after so much wall time with an error that names the source."""
    guard = threading.Lock()
    running, fired = True, False
    thread = ctypes.c_ulong(threading.get_ident())

    def interrupt() -> None:
        nonlocal fired
        with guard:
            if running:
                fired = True
                _raise_in_thread(thread, ctypes.py_object(_OverrunError))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
        with guard:
            running = False
        if fired:
            _await_interruption()
    except _OverrunError as error:
        raise UserCodeError(
            f"source {operator!r} did not end its epoch: run() was still busy {seconds:g} s "
            "after it began. Return when ctx.budget.is_spent, and when there is nothing to "
            "read right now",
            code=ErrorCode.SOURCE_OVERRAN,
            operator=operator,
        ) from error
    finally:
        timer.cancel()
        with guard:
            running = False


def _await_interruption() -> None:
    """Give an exception on its way the bytecodes it needs to arrive.

    Taking it back instead would leave the interpreter looking for it for ever.
    """
    for _ in range(10_000):
        pass
