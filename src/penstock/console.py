"""What a program shows: a job's progress, and a message and an exit code for each error.

    pipeline.run("checkpoints", on_status=pen.Progress())

On a terminal `Progress` redraws one block a few times a second. Elsewhere, as in a log file,
it writes a line every few seconds while rows come, and whenever the job starts, ends or has an
error. Both go to standard error, because standard output is for data.

`main` runs a program: an error becomes a message and an exit code.

| code | kind of error | starting again |
|---|---|---|
| 0 | none | |
| 1 | any other exception, with its traceback | |
| 2 | `UserError`: the call, the pipeline, its settings, or what Spark needs | after a fix |
| 3 | `UserCodeError`: a user's function raised | after a fix |
| 4 | `ExternalError`: Spark, or a system that user code calls | may help |
| 5 | `FencedError`: another driver has taken the job over | never |
| 6 | `StorageError` | may help |
| 7 | `UnknownOutcomeError` | may help |
| 8 | `CorruptStateError`: durable bytes are damaged | never: look first |
| 9 | `StateError`: the graph does not fit the checkpoint | after a fix |
| 10 | `InternalError`: a bug of Penstock, with its traceback | |
| 130 | Ctrl-C before the job could stop by itself | goes on |
"""

import contextlib
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, NoReturn, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.core.clock import Clock, DurationLike, SystemClock, to_micros
from penstock.core.figures import show_bytes, show_elapsed, show_instant, show_seconds
from penstock.core.spellings import renamed
from penstock.errors import InternalError, PenstockError
from penstock.runtime.driver.decide import JobPhase, JobStatus
from penstock.runtime.driver.progress import EpochProgress


@dataclass(slots=True)
class RowRate:
    """Rows per second over the last few seconds, because the rate of single epochs varies."""

    window_micros: int = 5_000_000
    _samples: deque[tuple[int, int]] = field(default_factory=deque)

    def note(self, now_micros: int, rows: int) -> None:
        """Add a sample: the total number of rows at an instant."""
        samples = self._samples
        samples.append((now_micros, rows))
        while len(samples) > 2 and samples[1][0] <= now_micros - self.window_micros:
            samples.popleft()

    @property
    def rows_per_second(self) -> float:
        """The rate between the oldest and the newest sample kept."""
        if len(self._samples) < 2:
            return 0.0
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) * 1_000_000 / (end - start) if end > start else 0.0


def show_storage(epoch: EpochProgress) -> str:
    """Return the storage requests, bytes written and cache hits of an epoch as text."""
    shown = f"{epoch.storage_requests} requests, {show_bytes(epoch.bytes_written)} written"
    rate = epoch.cache_hit_rate
    return shown if rate is None else f"{shown}, cache hits {rate:.0%}"


_LAST = frozenset({JobPhase.STOPPED, JobPhase.FINISHED, JobPhase.FAILED, JobPhase.FENCED})
"""Phases after which no other status follows."""
_QUIET = frozenset({JobPhase.RUNNING, JobPhase.WAITING})
"""Phases that come and go with every epoch."""
_COLOURS = {
    JobPhase.RUNNING: "green",
    JobPhase.FINISHED: "bold green",
    JobPhase.RESTARTING: "yellow",
    JobPhase.FAILED: "bold red",
    JobPhase.FENCED: "bold red",
}
_REDRAWS_PER_SECOND = 4


class _Forgiving:
    """A file whose errors are ignored: a broken pipe must not fail the job."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Progress:
    """Shows one run of a job; pass it as `on_status`. It starts and stops by itself."""

    @renamed(line_every_micros="line_every")
    def __init__(
        self,
        *,
        file: TextIO | None = None,
        is_live: bool | None = None,
        line_every: DurationLike = "2s",
        clock: Clock | None = None,
    ) -> None:
        """Choose where to show: standard error, or `file`.

        `is_live` overrides the check whether that is a terminal; on others there is a line
        every `line_every`.
        """
        shown_on: Any = _Forgiving(file or sys.stderr)
        self._console = Console(file=shown_on, highlight=False, force_terminal=is_live)
        self._is_live = self._console.is_terminal if is_live is None else is_live
        self._line_every_micros = to_micros(line_every, "line_every")
        self._clock = clock or SystemClock()
        self._started_micros: int | None = None
        self._last_line_micros = 0
        self._told: tuple[int, ...] = ()
        self._rate = RowRate()
        self._shown: tuple[JobStatus, float] | None = None
        self._live: Live | None = None

    def __call__(self, status: JobStatus) -> None:
        """Show a status."""
        now = self._clock.now_micros()
        if self._started_micros is None:
            self._started_micros = now
        if status.epochs_run == 0:
            # The start of Spark and of the job does not count: no row can come meanwhile.
            self._rate = RowRate()
            self._rate.note(now, 0)
        before = None if self._shown is None else self._shown[0]
        if before is None or before.epochs_run != status.epochs_run:
            self._rate.note(now, status.rows_read)
        self._shown = (status, self._rate.rows_per_second)
        if self._is_live:
            self._redraw(status)
        elif self._is_line_due(before, status, now):
            self._last_line_micros = now
            self._told = (status.rows_read, status.rows_written, status.restarts)
            # Errors may quote text in brackets, which is no markup.
            self._console.print(self.line(), soft_wrap=True, markup=False)

    def _is_line_due(self, before: JobStatus | None, status: JobStatus, now: int) -> bool:
        if before is None or status.phase in _LAST:
            return True
        if status.phase is not before.phase and status.phase not in _QUIET:
            return True
        # A job that is idle runs epochs too, and has nothing to tell.
        has_news = self._told != (status.rows_read, status.rows_written, status.restarts)
        return has_news and now - self._last_line_micros >= self._line_every_micros

    def _redraw(self, status: JobStatus) -> None:
        if self._live is None:
            self._live = Live(
                get_renderable=self.block,
                console=self._console,
                refresh_per_second=_REDRAWS_PER_SECOND,
            )
            self._live.start(refresh=True)
        if status.phase in _LAST:
            self._live.stop()
            self._live = None
            self._started_micros = None
            self._rate = RowRate()

    def line(self) -> str:
        """Return the newest status as one line."""
        if self._shown is None:
            return ""
        status, rate = self._shown
        parts = [f"{status.job}: {status.doing or status.phase}"]
        if status.epoch is not None:
            parts.append(f"epoch {status.epoch}")
        if status.epochs_run:
            parts += [
                f"{status.rows_read:,} rows read ({rate:,.0f}/s)",
                f"{status.rows_written:,} written",
                *(f"{count:,} {kind}" for kind, count in status.rows_aside.items()),
                *([f"behind by {status.lag}"] if status.lag else []),
                f"watermark {show_instant(status.watermark_micros)}",
                f"state {show_bytes(status.state_bytes)}",
            ]
        if status.restarts:
            parts.append(f"{status.restarts} restarts")
        if status.error is not None:
            parts.append(_first_line(status.error))
        return " · ".join(parts)

    def block(self) -> Table:
        """Return the newest status as a block of several lines."""
        block = Table.grid(padding=(0, 2))
        block.add_column(style="dim", min_width=12)
        block.add_column()
        if self._shown is None:
            return block
        status, rate = self._shown
        block.add_row(status.job, self._headline(status))
        if status.epochs_run:
            rows = f"{status.rows_read:,}"
            block.add_row("rows read", f"{rows}   [cyan]{rate:,.0f} rows/s[/cyan]")
            block.add_row("rows written", f"{status.rows_written:,}")
            for kind, count in status.rows_aside.items():
                block.add_row(f"rows {kind}", Text(f"{count:,}", style="yellow"))
            if status.lag:
                block.add_row("behind by", status.lag)
            block.add_row("watermark", show_instant(status.watermark_micros))
            files = f"[dim]in {status.state_files} files[/dim]"
            block.add_row("state", f"{show_bytes(status.state_bytes)}   {files}")
        if status.last is not None:
            block.add_row("storage", f"[dim]{show_storage(status.last)}[/dim]")
        if status.error is not None:
            block.add_row("trouble", Text(_first_line(status.error), style="yellow"))
        return block

    def _repr_html_(self) -> str:
        """Return the newest status as a table, for notebooks."""
        shown = Console(record=True, file=StringIO(), width=100)
        shown.print(self.block())
        return shown.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def _headline(self, status: JobStatus) -> Text:
        headline = Text()
        headline.append(status.doing or str(status.phase), _COLOURS.get(status.phase, ""))
        if status.epoch is not None:
            headline.append(f"   epoch {status.epoch}", "bold")
        if status.last is not None:
            duration = show_seconds(status.last.duration_micros)
            headline.append(f"   {duration} per epoch", "dim")
        if self._started_micros is not None:
            elapsed = self._clock.now_micros() - self._started_micros
            headline.append(f"   {show_elapsed(elapsed)} elapsed", "dim")
        return headline


def _first_line(error: str) -> str:
    """Return the first line of an error, whose text may be empty."""
    return next(iter(error.splitlines()), "")


_INTERRUPTED = 130


def exit_code(error: BaseException) -> int:
    """Return the exit code of a program that ends with this error.

    >>> from penstock.errors import FencedError
    >>> exit_code(FencedError("another driver owns the job")), exit_code(ValueError())
    (5, 1)
    """
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    return error.exit_code if isinstance(error, PenstockError) else 1


def main(function: Callable[[], object]) -> NoReturn:
    """Call a function and exit with its result if that is a whole number, else with 0.

    An error of Penstock is printed as its message and notes, with a traceback only if it is a
    bug of Penstock. The exit code shows the kind of error. Use it as a program's last line:

        if __name__ == "__main__":
            pen.main(run)
    """
    try:
        result = function()
    except (PenstockError, KeyboardInterrupt) as error:
        print(describe_error(error), file=sys.stderr, flush=True)  # noqa: T201 (its purpose)
        sys.exit(exit_code(error))
    sys.exit(result if isinstance(result, int) and not isinstance(result, bool) else 0)


def describe_error(error: BaseException) -> str:
    """Return an error as text: the message with its code, then the notes.

    An `InternalError` is returned with its traceback.
    """
    if not isinstance(error, PenstockError):
        return "interrupted"
    if isinstance(error, InternalError):
        return "".join(traceback.format_exception(error)).rstrip()
    lines = [f"error: {error.message} [{error.code}]"]
    for note in getattr(error, "__notes__", ()):
        lines += [f"  {line}" for line in note.splitlines()]
    return "\n".join(lines)
