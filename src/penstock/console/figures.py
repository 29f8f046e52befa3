"""The figures of a job's progress, and how people read them. Pure."""

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from penstock.core.signals import MAX_MICROS
from penstock.runtime.status import EpochProgress, JobStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(slots=True)
class RowRate:
    """Rows per second over the last few seconds: one epoch says little."""

    window_micros: int = 5_000_000
    _samples: deque[tuple[int, int]] = field(default_factory=deque)

    def note(self, now_micros: int, rows: int) -> None:
        """Note how many rows there were by now, in total."""
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


def state_bytes(status: JobStatus) -> int:
    """Return how large the state of all operators is."""
    return sum(operator.state_bytes for operator in status.operators)


def state_files(status: JobStatus) -> int:
    """Return how many files hold the state of all operators."""
    return sum(operator.state_files for operator in status.operators)


def rows_written(status: JobStatus) -> int:
    """Return how many rows the sinks were given since the driver started."""
    return sum(operator.rows_taken for operator in status.operators if operator.is_sink)


def watermark_micros(status: JobStatus) -> int | None:
    """Return the instant that all operators which know one have reached."""
    known = [
        operator.watermark_micros
        for operator in status.operators
        if operator.watermark_micros is not None
    ]
    return min(known, default=None)


def show_storage(epoch: EpochProgress) -> str:
    """Return what an epoch asked of storage and cache."""
    shown = f"{epoch.storage_requests} requests, {show_bytes(epoch.bytes_written)} written"
    rate = epoch.cache_hit_rate
    return shown if rate is None else f"{shown}, cache hits {rate:.0%}"


def show_instant(micros: int | None) -> str:
    """Return an instant as text, to the tenth of a second."""
    if micros is None:
        return "none yet"
    if micros >= MAX_MICROS:
        return "end of data"
    try:
        instant = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros:,} us"
    return instant.strftime("%Y-%m-%d %H:%M:%S.") + str(instant.microsecond // 100_000)


def show_bytes(size_bytes: int) -> str:
    """Return a size with a unit that keeps it short.

    >>> show_bytes(512), show_bytes(3_500_000)
    ('512 B', '3.3 MiB')
    """
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{size_bytes} B"


def show_seconds(micros: int) -> str:
    """Return a duration: with hundredths below ten seconds, else as minutes and seconds."""
    return f"{micros / 1_000_000:.2f} s" if micros < 10_000_000 else show_elapsed(micros)


def show_elapsed(micros: int) -> str:
    """Return a duration that is still growing, as minutes and seconds."""
    minutes, seconds = divmod(micros // 1_000_000, 60)
    return f"{minutes}:{seconds:02}"
