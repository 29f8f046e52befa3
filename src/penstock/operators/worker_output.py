"""What user code prints and logs on a worker: captured there, and told again by the driver.

    worker                                          driver
    with OutputCapture() as output:
        hooks of operators print and log
        output.take() ── in the task's report ──▶   tell_output(lines)

A line comes with the step that wrote it and its subtask. Hooks say by `speaking_for` which step
runs; what other threads write belongs to no step. Log records are logged again, by the logger
of the same name and with the same level, so that the program's own configuration decides about
them. Printed lines go to standard error: standard output is for data.

**Bounds.** A task that prints every row must not flood the driver. Of each task and epoch only
some lines are sent, and the driver tells how many there were. All others go where they would go
without Penstock, to the log of the executor.
"""

import io
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self, TextIO

import msgspec
from typing_extensions import Buffer, override

MOST_LINES = 100
"""How many lines of a task are sent in an epoch."""
MOST_TOLD = 500
"""How many lines of all tasks are told in an epoch."""
MOST_CHARACTERS = 2_000
"""How many characters of a line, or of a log record with its traceback, are sent."""
_PRINTED = ""

_STEP: ContextVar[str | None] = ContextVar("penstock-step", default=None)


@contextmanager
def speaking_for(step: str) -> Iterator[None]:
    """Say which step's code runs in the body."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


class OutputLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that was printed, or a record that was logged."""

    step: str | None
    subtask: int
    text: str
    logger: str = _PRINTED
    """The logger's name; empty for what was printed."""
    level: int = logging.INFO
    more: int = 0
    """How many lines of the same task follow that were not sent."""


class OutputCapture:
    """Stands between user code and the streams of its process while a task runs."""

    def __init__(self, subtask: int, level: int = logging.WARNING) -> None:
        """Capture for a subtask; `level` is that of the driver's root logger."""
        self._subtask = subtask
        self._level = level
        self._lines: list[OutputLine] = []
        self._more = 0
        self._is_over = False
        self._handler = _Handler(self)
        self._streams = (_Lines(self), _Lines(self))

    def __enter__(self) -> Self:
        self._before = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = self._streams
        root = logging.getLogger()
        self._root_level = root.level
        root.setLevel(self._level)
        root.addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger()
        root.removeHandler(self._handler)
        root.setLevel(self._root_level)
        for stream in self._streams:
            stream.end_line()
        sys.stdout, sys.stderr = self._before
        self._is_over = True
        # What no report took along: the task failed, or wrote after its report.
        for line in self._lines:
            self._pass_on(line.text)

    def take(self) -> tuple[OutputLine, ...]:
        """Return what was written since the last call."""
        for stream in self._streams:
            stream.end_line()
        lines, more = self._lines, self._more
        self._lines, self._more = [], 0
        if more:
            lines[-1] = msgspec.structs.replace(lines[-1], more=more)
        return tuple(lines)

    def add(self, text: str, logger: str = _PRINTED, level: int = logging.INFO) -> None:
        """Keep a line, or let it through if there are too many.

        Whoever has kept a stream of a task that is over writes to that of the task that runs.
        """
        if self._is_over:
            is_own = sys.stderr in self._streams
            print(text, file=self._before[1] if is_own else sys.stderr)
            return
        if len(self._lines) >= MOST_LINES:
            self._more += 1
            self._pass_on(text)
            return
        if len(text) > MOST_CHARACTERS:
            text = text[:MOST_CHARACTERS] + " …"
        # Names of files may hold bytes that are no text: a report could not be encoded.
        text = text.encode("utf-8", "backslashreplace").decode()
        line = OutputLine(_STEP.get(), self._subtask, text, logger, level)
        self._lines.append(line)

    def is_a_stream_of(self, handler: logging.Handler) -> bool:
        """Return whether a handler writes to a captured stream: its records come that way."""
        return getattr(handler, "stream", None) in self._streams

    def fileno(self) -> int:
        """Return the worker's own standard error, for programs that user code starts."""
        return self._before[1].fileno()

    def _pass_on(self, text: str) -> None:
        print(text, file=self._before[1])


class _Lines(io.TextIOBase):
    """A stream that gives whole lines to a capture. Several threads may write."""

    encoding = "utf-8"
    errors: str | None = "replace"

    def __init__(self, capture: OutputCapture) -> None:
        self._capture = capture
        self._begun = ""
        # A handler of signals may write as well, in the midst of another write.
        self._lock = threading.RLock()
        self.buffer = _Bytes(self)

    @override
    def writable(self) -> bool:
        return True

    @override
    def fileno(self) -> int:
        return self._capture.fileno()

    @override
    def write(self, text: str) -> int:
        with self._lock:
            *whole, begun = (self._begun + text).split("\n")
            # Enough to see that the line was cut: one that never ends must not fill the memory.
            self._begun = begun[: MOST_CHARACTERS + 1]
        for line in whole:
            self._capture.add(line)
        return len(text)

    def end_line(self) -> None:
        """Give away a line that has no end yet."""
        with self._lock:
            line, self._begun = self._begun, ""
        if line:
            self._capture.add(line)


class _Bytes(io.RawIOBase):
    """What some programs write bytes to. Bytes that are no text are shown as what they are."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: Buffer) -> int:
        self._lines.write(bytes(data).decode("utf-8", "backslashreplace"))
        return memoryview(data).nbytes


class _Handler(logging.Handler):
    """Gives log records to a capture."""

    def __init__(self, capture: OutputCapture) -> None:
        super().__init__()
        self._capture = capture

    @override
    def emit(self, record: logging.LogRecord) -> None:
        others = logging.getLogger().handlers
        if any(self._capture.is_a_stream_of(handler) for handler in others):
            return
        try:
            self._capture.add(self.format(record), record.name, record.levelno)
        except Exception:  # noqa: BLE001 (the arguments of the user's record do not fit)
            self.handleError(record)


def tell_output(lines: Iterable[OutputLine], file: TextIO | None = None) -> None:
    """Print and log on the driver what workers wrote, each line with its step and subtask."""
    told, left_out = 0, 0
    for line in lines:
        left_out += line.more
        told += 1
        if told > MOST_TOLD:
            left_out += 1
            continue
        where = line.step or "a step"
        if line.logger == _PRINTED:
            print(f"[{where} {line.subtask}] {line.text}", file=file or sys.stderr)
        else:
            logger = logging.getLogger(line.logger)
            logger.log(line.level, "[%s %d] %s", where, line.subtask, line.text)
    if left_out:
        logging.getLogger(__name__).warning(
            "workers wrote %s more lines in this epoch; they are in the logs of the executors",
            f"{left_out:,}",
        )
