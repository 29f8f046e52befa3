"""Stopping a source that does not come back from its epoch.

A source that waits for data which is not there, or never looks at its budget, would hang the
epoch without a word. Python can interrupt another thread only by raising in it between two
bytecodes: that is what a timer does here. A call that blocks in C is interrupted when it
returns, so it is late, never wrong.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from penstock.errors import ErrorCode, UserCodeError

T = TypeVar("T")

_PAUSE_SECONDS = 1.0
_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _OverrunError(BaseException):
    """Raised inside the source; a BaseException, so that user code does not swallow it."""


@dataclass(slots=True, eq=False)
class _Limit:
    """One body that is being watched."""

    deadline: float
    thread: int
    has_fired: bool = False
    paused_at: float | None = None
    """Since when the time does not count; None while it does."""

    def is_due(self, now: float) -> bool:
        """Tell whether the body must be interrupted."""
        is_running = not self.has_fired and self.paused_at is None
        return is_running and self.deadline <= now


class _Watch:
    """One thread per process that looks after all limits.

    A thread per limit would cost more than an epoch does. It sleeps until the earliest limit
    it knows, so it is woken only for one that is earlier still.
    """

    def __init__(self) -> None:
        self._guard = threading.Condition()
        self._limits: list[_Limit] = []
        self._wakes_at = 0.0
        self._is_started = False

    def add(self, limit: _Limit) -> None:
        """Watch a body from now on."""
        with self._guard:
            self._limits.append(limit)
            if not self._is_started:
                self._is_started = True
                threading.Thread(
                    target=self._run, daemon=True, name="penstock-watch"
                ).start()
            elif limit.deadline < self._wakes_at:
                self._guard.notify()

    def remove(self, limit: _Limit) -> None:
        """Stop watching: from here on the body is not interrupted any more."""
        with self._guard:
            self._limits.remove(limit)

    def pause(self) -> _Limit | None:
        """Stop the time of this thread's limit, if it has one."""
        thread = threading.get_ident()
        for limit in self._limits:
            if limit.thread == thread and limit.paused_at is None:
                limit.paused_at = time.monotonic()
                return limit
        return None

    def go_on(self, limit: _Limit) -> None:
        """Let the time count again."""
        with self._guard:
            if limit.paused_at is not None:
                limit.deadline += time.monotonic() - limit.paused_at
                limit.paused_at = None

    def settle(self, limit: _Limit) -> None:
        """Tidy up after an interruption, which may have come while `add` or `remove` ran."""
        with suppress(RuntimeError):
            # Refused unless this thread was interrupted between taking and giving it back.
            self._guard.release()
        with self._guard:
            if limit in self._limits:
                self._limits.remove(limit)

    def _run(self) -> None:
        with self._guard:
            while True:
                now = time.monotonic()
                for limit in self._limits:
                    if limit.is_due(now):
                        limit.has_fired = True
                        exception = ctypes.py_object(_OverrunError)
                        _raise_in_thread(ctypes.c_ulong(limit.thread), exception)
                waiting = [
                    # A paused limit is looked at again after a while: it may go on.
                    max(limit.deadline, now + _PAUSE_SECONDS)
                    if limit.paused_at is not None
                    else limit.deadline
                    for limit in self._limits
                    if not limit.has_fired
                ]
                self._wakes_at = min(waiting, default=now + 3600.0)
                self._guard.wait(self._wakes_at - now)


_watch = _Watch()


def _new_watch() -> None:
    """Begin anew in a forked child: its parent's thread did not come along."""
    global _watch  # noqa: PLW0603 (one per process)
    _watch = _Watch()


os.register_at_fork(after_in_child=_new_watch)


def call_within(seconds: float, operator: str, function: Callable[[], T]) -> T:
    """Call a function; interrupt it after so much wall time with an error that names the source.

    A function and not a context manager: the interruption may arrive at any bytecode until
    the limit is removed, so all of them must lie within one `try`.
    """
    limit = _Limit(time.monotonic() + seconds, threading.get_ident())
    watch = _watch
    try:
        watch.add(limit)
        try:
            result = function()
        finally:
            watch.remove(limit)
            if limit.has_fired:
                _await_interruption()
        if limit.has_fired:
            # User code caught the interruption; what it was doing is only half done.
            raise _OverrunError  # noqa: TRY301 (told below, like one that was not caught)
    except _OverrunError as error:
        watch.settle(limit)
        raise UserCodeError(
            f"source {operator!r} did not end its epoch: run() was still busy {seconds:g} s "
            "after it began. Return when ctx.budget.is_spent, and when there is nothing to "
            "read right now",
            code=ErrorCode.SOURCE_OVERRAN,
            operator=operator,
        ) from error
    return result


def not_counted(function: Callable[[], None]) -> None:
    """Call a function whose time is not the source's: what its rows cost further on."""
    watch = _watch
    limit = watch.pause()
    try:
        function()
    finally:
        if limit is not None:
            watch.go_on(limit)


def _await_interruption() -> None:
    """Give an exception on its way the bytecodes it needs to arrive.

    Taking it back instead would leave the interpreter looking for it for ever.
    """
    for _ in range(10_000):
        pass
