"""Collectors: where operators put their rows, checked against the declared schema.

A collector belongs to one operator of one subtask. It is open from the start of an epoch to
the operator's `handle_checkpoint`; rows emitted later would be in no checkpoint.

Stopping a source that does not come back from its epoch.

A source that waits for data which is not there, or never looks at its budget, would hang the
epoch without a word. Python can interrupt another thread only by raising in it between two
bytecodes: that is what a timer does here. A call that blocks in C is interrupted when it
returns, so it is late, never wrong.
"""

import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.batch import RowsLike, to_batches
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserCodeError, UserError, did_you_mean
from penstock.graph.logical import MAIN
from penstock.operators.splits import BudgetMeter

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


class Target(Protocol):
    """Whatever takes the rows of an output: the next operator of the chain, or an exchange."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Take some rows; never empty."""
        ...


class ArrowCollector:
    """Takes what an operator emits and passes it on at once."""

    def __init__(
        self,
        operator: str,
        outputs: Mapping[str, StreamSchema],
        targets: Mapping[str, Sequence[Target]],
    ) -> None:
        self._operator = operator
        self._schemas = {name: stream.schema for name, stream in outputs.items()}
        self._chained = {name: tuple(targets.get(name, ())) for name in outputs}
        self._targets = self._chained
        self._is_open = False
        self.rows_emitted: Counter[str] = Counter()

    def open(self, outlets: Mapping[str, Sequence[Target]]) -> None:
        """Start an epoch: rows go to the next operators of the chain and to these besides."""
        self.rows_emitted = Counter()
        self._targets = {
            name: (*chained, *outlets.get(name, ()))
            for name, chained in self._chained.items()
        }
        self._is_open = True

    def close(self) -> None:
        """End an epoch: the operator's state is about to be written."""
        self._is_open = False

    def collect(self, rows: RowsLike, output: str = MAIN) -> None:
        """Emit rows: a record batch, an Arrow table or a Polars frame of the output's schema.

        Layouts such as large strings are converted; other differences are an error. Rows for
        an output that nobody reads are counted and dropped. No rows are no error.
        """
        self._emit(self._conform(rows, output), output)

    def _conform(self, rows: RowsLike, output: str) -> list[pa.RecordBatch]:
        """Return rows in the form the output declares, or refuse them."""
        schema = self._schemas.get(output)
        if schema is None or not self._is_open:
            raise self._refusal(output)
        try:
            return to_batches(rows, schema)
        except (SchemaError, pa.ArrowException) as error:
            raise SchemaError(
                f"operator {self._operator!r} emitted rows that do not fit its output "
                f"{output!r}: {error}. Emit what output_schema declares, or declare what is "
                "emitted",
                operator=self._operator,
                output=output,
            ) from error

    def _emit(self, batches: Sequence[pa.RecordBatch], output: str) -> None:
        for batch in batches:
            self.rows_emitted[output] += batch.num_rows
            for target in self._targets[output]:
                target.take(batch)

    def _refusal(self, output: str) -> UserError:
        if output not in self._schemas:
            known = "; it is a sink"
            if self._schemas:
                known = did_you_mean(output, self._schemas) + ". Declare it in side_outputs"
            return UserError(
                f"operator {self._operator!r} has no output {output!r}{known}",
                code=ErrorCode.UNKNOWN_OUTPUT,
                operator=self._operator,
                output=output,
            )
        return UserError(
            f"operator {self._operator!r} emitted rows outside of its epoch: after "
            "handle_checkpoint its state is written, so these rows would be in no checkpoint. "
            "Emit from the hooks only, not from threads or release()",
            code=ErrorCode.EMITTED_AFTER_CLOSE,
            operator=self._operator,
            output=output,
        )


class SourceCollector(ArrowCollector):
    """Also counts against the budget, and notes the latest event time of every split."""

    def __init__(
        self,
        operator: str,
        outputs: Mapping[str, StreamSchema],
        targets: Mapping[str, Sequence[Target]],
    ) -> None:
        super().__init__(operator, outputs, targets)
        self._stream = outputs[MAIN]
        self.budget: BudgetMeter
        self.max_event_times: dict[str | None, int] = {}
        """The latest event time emitted in this epoch by split."""
        self.active_splits: set[str | None] = set()

    @override
    def open(self, outlets: Mapping[str, Sequence[Target]]) -> None:
        super().open(outlets)
        self.max_event_times.clear()
        self.active_splits.clear()

    @override
    def collect(
        self, rows: RowsLike, output: str = MAIN, *, split: str | None = None
    ) -> None:
        """Emit rows of a split; None is right for a source with only one."""
        batches = self._conform(rows, output)
        for batch in batches:
            if output == MAIN:
                self._note(batch, split)
            self.budget.spend(batch.num_rows, batch.nbytes)
        not_counted(lambda: self._emit(batches, output))

    def _note(self, batch: pa.RecordBatch, split: str | None) -> None:
        self.active_splits.add(split)
        if self._stream.time_column is None:
            return
        times = batch.column(self._stream.time_column)
        # What becomes of rows without a time is up to the operators that need one.
        timed = batch.filter(times.is_valid()) if times.null_count else batch
        if not timed.num_rows:
            return
        try:
            latest = int(np.max(self._stream.event_times_of(timed)))
        except SchemaError as error:
            raise SchemaError(
                f"source {self._operator!r} emitted rows whose event time cannot be told: "
                f"{error.message}",
                operator=self._operator,
                split=split,
            ) from error
        known = self.max_event_times.get(split)
        self.max_event_times[split] = latest if known is None else max(known, latest)
