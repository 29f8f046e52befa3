"""Progress: a job's status as it changes, on a terminal or as plain lines.

    pipeline.run("checkpoints", on_status=ps.Progress())

On a terminal one block is redrawn a few times a second. Elsewhere, as in a log file, a line
is written every few seconds and whenever the job starts, ends or gets into trouble. Both go
to standard error: standard output belongs to the data.
"""

import contextlib
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.console.figures import (
    RowRate,
    rows_written,
    show_bytes,
    show_elapsed,
    show_instant,
    show_seconds,
    show_storage,
    state_bytes,
    state_files,
    watermark_micros,
)
from penstock.core.clock import Clock, SystemClock
from penstock.runtime.status import JobPhase, JobStatus

_LAST = frozenset({JobPhase.STOPPED, JobPhase.FINISHED, JobPhase.FAILED, JobPhase.FENCED})
"""Phases after which a driver says nothing more."""
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
    """A file that may break, as a pipe does whose reader is gone: never the job's problem."""

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
    """Shows one run of a job; give it as `on_status`. Begins and ends by itself."""

    def __init__(
        self,
        *,
        file: TextIO | None = None,
        is_live: bool | None = None,
        line_every_micros: int = 2_000_000,
        clock: Clock | None = None,
    ) -> None:
        """Choose where it is shown; `is_live` overrides whether that looks like a terminal."""
        shown_on: Any = _Forgiving(file or sys.stderr)
        self._console = Console(file=shown_on, highlight=False, force_terminal=is_live)
        self._is_live = self._console.is_terminal if is_live is None else is_live
        self._line_every_micros = line_every_micros
        self._clock = clock or SystemClock()
        self._started_micros: int | None = None
        self._last_line_micros = 0
        self._rate = RowRate()
        self._shown: tuple[JobStatus, float] | None = None
        self._live: Live | None = None

    def __call__(self, status: JobStatus) -> None:
        """Show a status."""
        now = self._clock.now_micros()
        if self._started_micros is None:
            self._started_micros = now
            self._rate.note(now, 0)
        before = None if self._shown is None else self._shown[0]
        if before is None or before.epochs_run != status.epochs_run:
            self._rate.note(now, status.rows_read)
        self._shown = (status, self._rate.rows_per_second)
        if self._is_live:
            self._redraw(status)
        elif self._is_line_due(before, status, now):
            self._last_line_micros = now
            self._console.print(self.line(), soft_wrap=True)

    def _is_line_due(self, before: JobStatus | None, status: JobStatus, now: int) -> bool:
        if before is None or status.phase in _LAST:
            return True
        if status.phase is not before.phase and status.phase not in _QUIET:
            return True
        has_news = status.epochs_run > 0 and before.epochs_run != status.epochs_run
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
        parts = [f"{status.job}: {status.phase}"]
        if status.epoch is not None:
            parts.append(f"epoch {status.epoch}")
        if status.epochs_run:
            parts += [
                f"{status.rows_read:,} rows read ({rate:,.0f}/s)",
                f"{rows_written(status):,} written",
                f"watermark {show_instant(watermark_micros(status))}",
                f"state {show_bytes(state_bytes(status))}",
            ]
        if status.restarts:
            parts.append(f"{status.restarts} restarts")
        if status.error is not None:
            parts.append(status.error.splitlines()[0])
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
            block.add_row("rows written", f"{rows_written(status):,}")
            block.add_row("watermark", show_instant(watermark_micros(status)))
            files = f"[dim]in {state_files(status)} files[/dim]"
            block.add_row("state", f"{show_bytes(state_bytes(status))}   {files}")
        if status.last is not None:
            block.add_row("storage", f"[dim]{show_storage(status.last)}[/dim]")
        if status.error is not None:
            block.add_row("trouble", Text(status.error.splitlines()[0], style="yellow"))
        return block

    def _headline(self, status: JobStatus) -> Text:
        headline = Text()
        headline.append(str(status.phase), _COLOURS.get(status.phase, ""))
        if status.epoch is not None:
            headline.append(f"   epoch {status.epoch}", "bold")
        if status.last is not None:
            duration = show_seconds(status.last.duration_micros)
            headline.append(f"   {duration} per epoch", "dim")
        if self._started_micros is not None:
            elapsed = self._clock.now_micros() - self._started_micros
            headline.append(f"   {show_elapsed(elapsed)} elapsed", "dim")
        return headline
