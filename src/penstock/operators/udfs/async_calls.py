"""Makes async calls in an event loop's thread, and keeps in state those that outlive an epoch.

The number of calls under way is bounded. The thread that submits calls never waits for the
loop itself, only for answers, and can cancel all calls at any time. An answer that comes after
that is dropped.

A call that outlives its epoch is kept in a global table under `epoch-subtask-number` of the
epoch that first kept it: a name that is never used again, at any parallelism. Each call has a
position in key space, and the subtask that owns this position owns the call: only this subtask
makes the call again, and removes the entry when it has the answer.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from penstock.core.batch import from_ipc, to_batches, to_ipc
from penstock.errors import ErrorCode, SchemaError, StateError, UserError
from penstock.operators.context import OperatorContext
from penstock.operators.udfs.functions import arguments_of, to_result_array
from penstock.operators.udfs.specs import AsyncUdfSpec, ResultSpec

_LOGGER = logging.getLogger(__name__)
_LONGEST_DELAY_SECONDS = 10.0
_MOST_DOUBLINGS = 30
_CLOSE_SECONDS = 5.0
_MICROS = 1_000_000
"""Microseconds of a second."""
"""How long `close` waits for calls that cannot be cancelled."""


@dataclass(slots=True, eq=False)
class AsyncCall:
    """One call: its arguments and, later, its result or error. Owned by the submitter."""

    order: int
    """Its place among all calls, which are submitted in this order."""
    arguments: tuple[Any, ...]
    failures: int = 0
    """How many attempts have failed."""
    is_answered: bool = False
    value: Any = None
    error: BaseException | None = None
    """Why it has no value, after the last attempt."""


class CallTimeoutError(Exception):
    """A call took longer than its time limit."""


class CallLimits(Protocol):
    """How many calls may wait at the same time, for how long, and how often one is repeated."""

    @property
    def is_ordered(self) -> bool:
        """Whether no call may be far ahead of the oldest one without an answer."""

    @property
    def max_concurrency(self) -> int:
        """The most calls under way."""

    @property
    def timeout_micros(self) -> int:
        """How long one attempt may take."""

    @property
    def retries(self) -> int:
        """How many attempts follow one that failed."""

    @property
    def retry_delay_micros(self) -> int:
        """The pause before the first of them."""


class CallPool:
    """Makes calls of one async function. Used by one thread; `close` ends its own."""

    def __init__(self, function: Callable[..., Awaitable[Any]], spec: CallLimits) -> None:
        self._function = function
        self._spec = spec
        self._changed = threading.Condition()
        # Guarded by the condition's lock:
        self._waiting: deque[AsyncCall] = deque()
        self._running: dict[AsyncCall, asyncio.Task[Any]] = {}
        self._finished: list[AsyncCall] = []
        self._has_failure = False
        # Set together, when the thread has started; the thread itself does not read them:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    def submit(self, calls: Iterable[AsyncCall]) -> None:
        """Submit calls; they start in order as soon as the bound allows."""
        with self._changed:
            self._waiting.extend(calls)
            has_work = bool(self._waiting)
        if has_work:
            self._open_loop().call_soon_threadsafe(self._start_calls)

    def wait_started(self) -> bool:
        """Block until all calls have started, or one has failed; return whether all started."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_failure or not self._waiting)
            return not self._waiting

    def wait_idle(self, seconds: float | None) -> bool:
        """Block until all are answered, one has failed, or the time is over.

        Return whether all are answered.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._has_failure or self._is_idle, seconds)
            return self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not (self._waiting or self._running)

    def take_finished(self) -> list[AsyncCall]:
        """Return the calls that were answered since the last call of this method."""
        with self._changed:
            finished, self._finished = self._finished, []
            self._has_failure = False
            return finished

    def cancel_all(self) -> None:
        """Cancel every call that has no answer; none of them will get one."""
        with self._changed:
            tasks = list(self._running.values())
            self._waiting.clear()
            self._running.clear()
        if self._loop is not None:
            for task in tasks:
                self._loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the thread; unanswered calls are cancelled."""
        self.cancel_all()
        loop, closing, thread = self._loop, self._closing, self._thread
        if loop is None or closing is None or thread is None:
            return
        self._loop = self._closing = self._thread = None
        loop.call_soon_threadsafe(closing.set)
        thread.join(_CLOSE_SECONDS)
        if thread.is_alive():
            _LOGGER.warning(
                "calls of %r do not let themselves be cancelled: their thread stays behind",
                self._function,
            )

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop, closing = asyncio.new_event_loop(), asyncio.Event()
            # A daemon: a call that cannot be cancelled must not keep the process alive.
            thread = threading.Thread(
                target=_serve, args=(loop, closing), name="penstock-async-udf", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads: the next call tries again
                loop.close()
                raise
            self._loop, self._closing, self._thread = loop, closing, thread
        return self._loop

    # ---- in the loop's thread

    def _start_calls(self) -> None:
        with self._changed:
            while self._waiting and self._has_room():
                call = self._waiting.popleft()
                task = asyncio.get_running_loop().create_task(self._answer(call))
                self._running[call] = task
                task.add_done_callback(partial(self._settle, call))
            if not self._waiting:
                self._changed.notify_all()

    def _has_room(self) -> bool:
        if not self._running:
            return True
        if self._spec.is_ordered:
            oldest = next(iter(self._running)).order
            return self._waiting[0].order - oldest < self._spec.max_concurrency
        return len(self._running) < self._spec.max_concurrency

    async def _answer(self, call: AsyncCall) -> Any:
        spec = self._spec
        while True:
            try:
                return await self._attempt(call)
            except Exception:
                call.failures += 1
                if call.failures > spec.retries:
                    raise
            delay = spec.retry_delay_micros / _MICROS * 2 ** (call.failures - 1)
            await asyncio.sleep(min(delay, _LONGEST_DELAY_SECONDS))

    async def _attempt(self, call: AsyncCall) -> Any:
        timeout = asyncio.timeout(self._spec.timeout_micros / _MICROS)
        try:
            async with timeout:
                return await self._function(*call.arguments)
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise CallTimeoutError(
                f"no answer within {self._spec.timeout_micros / _MICROS:g} seconds"
            ) from error
        except (SystemExit, KeyboardInterrupt) as error:
            # These two would end the loop, and leave all other calls without an answer.
            raise RuntimeError(f"the function raised {type(error).__name__}") from error

    def _settle(self, call: AsyncCall, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        with self._changed:
            if call not in self._running:
                return  # it was cancelled
            del self._running[call]
            call.is_answered = True
            call.error = error
            call.value = None if error is not None else task.result()
            self._finished.append(call)
            self._has_failure = self._has_failure or error is not None
            if self._has_failure or self._is_idle:
                self._changed.notify_all()
        self._start_calls()


def _serve(loop: asyncio.AbstractEventLoop, closing: asyncio.Event) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:  # cancels what is left
        runner.run(closing.wait())


CALLS_TABLE = "penstock.calls"


class StoredCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call without an answer, or whose row may not be emitted yet. New fields need defaults."""

    epoch: int
    """The epoch that first kept it; orders calls, with `number`."""
    number: int
    """Its place among the calls that its subtask first kept in that epoch."""
    position: int
    """A key hash: the subtask that owns it owns the call, also after a rescale."""
    row: bytes
    """The whole input row as an Arrow IPC stream."""
    hold_micros: int | None = None
    """The bound of the output's watermark; None if the row was late when it came."""
    failures: int = 0
    """How many attempts have failed."""
    cut_offs: int = 0
    """How many epochs have ended before its answer came."""
    answer: bytes | None = None
    """The result as an Arrow IPC stream of one value, if there is one."""
    error: str | None = None
    """Why there is no result, if the call has failed for good."""


@dataclass(slots=True, eq=False, kw_only=True)
class RowCall(AsyncCall):
    """The call of one row that has not been emitted."""

    batch: pa.RecordBatch
    index: int
    """Which row of the batch."""
    stored: tuple[str, StoredCall] | None = None
    """Its name and entry in state, if an earlier epoch kept it."""
    reason: str | None = None
    """Why it has failed for good, if its row goes to the side output."""

    @property
    def cut_offs(self) -> int:
        """How many epochs have ended before its answer came."""
        return 0 if self.stored is None else self.stored[1].cut_offs

    @property
    def row(self) -> pa.RecordBatch:
        """The row alone."""
        return self.batch.slice(self.index, 1)


def patience_of(calls: Iterable[RowCall], spec: AsyncUdfSpec) -> float:
    """Return for how many seconds the end of an epoch waits for calls.

    A call that takes longer than an epoch, and is made again in every epoch, would never be
    answered. So the epoch waits twice as long after each time a call was cut off, up to the
    whole timeout of the call.
    """
    most = max((call.cut_offs for call in calls), default=0)
    longer = spec.drain_micros * (1 << min(most, _MOST_DOUBLINGS))
    return max(spec.drain_micros, min(longer, spec.timeout_micros)) / _MICROS


def hold_of(call: RowCall, ctx: OperatorContext) -> int | None:
    """Return the bound of the output's watermark while the row is not emitted.

    It is None for a row that was late when it came: the watermark had passed it already, and
    a watermark never goes back.
    """
    if call.stored is not None:
        return call.stored[1].hold_micros
    stream = ctx.inputs[0]
    if stream.time_column is None:
        return None
    micros = int(stream.event_times_of(call.row)[0])
    previous = ctx.previous_watermark
    return None if previous is not None and micros < previous.micros else micros


def restore_calls(spec: ResultSpec, ctx: OperatorContext) -> list[RowCall]:
    """Return the calls that this subtask owns of those that earlier epochs kept, in order."""
    kept: Iterable[tuple[str, StoredCall]] = ctx.get_global_keyed_state(CALLS_TABLE).items()
    own = [(name, stored) for name, stored in kept if stored.position in ctx.task.key_range]
    own.sort(key=lambda item: (item[1].epoch, item[1].number, item[0]))
    calls = []
    for order, (name, stored) in enumerate(own):
        row = _read_row(stored, ctx)
        value = None
        if stored.answer is not None:
            # It stays an Arrow scalar: a Python value might lose precision.
            value = from_ipc(stored.answer).column(0)[0]
        call = RowCall(
            order=order,
            arguments=arguments_of(row, spec.inputs)[0],
            failures=stored.failures,
            is_answered=stored.answer is not None or stored.error is not None,
            value=value,
            batch=row,
            index=0,
            stored=(name, stored),
            reason=stored.error,
        )
        calls.append(call)
    return calls


def keep_calls(calls: Sequence[RowCall], spec: ResultSpec, ctx: OperatorContext) -> None:
    """Put calls into state whose rows this epoch does not emit."""
    view = ctx.get_global_keyed_state(CALLS_TABLE)
    for number, call in enumerate(calls):
        name, stored = call.stored or _first_entry(call, number, ctx)
        answer = None
        if call.is_answered and call.reason is None:
            value = to_result_array([call.value], spec, ctx.task.operator, [call.arguments])
            batch = pa.RecordBatch.from_arrays([value], names=["answer"])
            answer = to_ipc([batch], batch.schema)
        changed = msgspec.structs.replace(
            stored,
            failures=call.failures,
            cut_offs=stored.cut_offs + (not call.is_answered),
            answer=answer,
            error=call.reason,
        )
        view.insert(name, changed)


def rows_of(calls: Sequence[RowCall]) -> pa.RecordBatch:
    """Return the rows of calls as one batch, in their order."""
    parts = []
    for _, group in groupby(calls, key=lambda call: id(call.batch)):
        run = list(group)
        batch = run[0].batch
        if len(run) < batch.num_rows:
            batch = batch.take(pa.array([call.index for call in run]))
        parts.append(batch)
    if len(parts) == 1:
        return parts[0]
    joined = pa.Table.from_batches(parts).combine_chunks().to_batches()
    if len(joined) > 1:
        raise UserError(
            "the rows of one epoch's calls have more than 2 GiB in one column: lower "
            "max_concurrency, or send the address of the large value instead",
            code=ErrorCode.UDF_INVALID,
        )
    return joined[0]


def _first_entry(
    call: RowCall, number: int, ctx: OperatorContext
) -> tuple[str, StoredCall]:
    """Return the name and the entry of a call that is kept for the first time."""
    row, stream, key_range = call.row, ctx.inputs[0], ctx.task.key_range
    position = key_range.start
    if stream.key_columns:
        # A row whose key belongs to another subtask stays with this one: rows were not
        # exchanged by key, and only this subtask holds the watermark back for it.
        key_hash = int(stream.key_hashes_of(row)[0])
        position = key_hash if key_hash in key_range else position
    stored = StoredCall(
        epoch=int(ctx.epoch),
        number=number,
        position=position,
        row=to_ipc([row], row.schema),
        hold_micros=hold_of(call, ctx),
    )
    return f"{ctx.epoch}-{ctx.task.subtask.index}-{number}", stored


def _read_row(stored: StoredCall, ctx: OperatorContext) -> pa.RecordBatch:
    """Return the row of a stored call in the current schema of the input."""
    try:
        return to_batches(from_ipc(stored.row), ctx.inputs[0].arrow)[0]
    except (SchemaError, pa.ArrowException) as error:
        raise StateError(
            f"operator {ctx.task.operator!r} has kept a call whose row does not fit its input "
            f"any more: {error}. Let the earlier version of the pipeline answer its calls "
            "before the input changes, or give the operator another name",
            code=ErrorCode.MIGRATION_FAILED,
            operator=ctx.task.operator,
        ) from error
