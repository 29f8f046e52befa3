"""Gathered: what happened to a job since its last event, until the next one tells it. Pure.

The driver's thread adds, the journal's thread takes: both hold the lock of the journal.
"""

import traceback
from collections import Counter
from dataclasses import replace

from penstock.errors import PenstockError, hide_secrets
from penstock.operators.samples import ROWS_PER_SAMPLE
from penstock.runtime.driver.decide import JobStatus
from penstock.runtime.driver.progress import EpochPhase, EpochProgress, RowSample
from penstock.runtime.journal.events import (
    Answer,
    DriverPlace,
    EpochSums,
    Event,
    EventKind,
    FailureSeen,
    cut_text,
)
from penstock.runtime.plan.executor import KeySample

_MOST_FAILURES = 10
_FAILURES_MICROS = 3_600_000_000
"""For how long a failure is told."""
_RATE_MICROS = 5_000_000
"""The least time that a rate is of."""


class Gathered:
    """Sums up what happens until `take` makes an event of it."""

    def __init__(self, driver: DriverPlace) -> None:
        self._driver = driver
        self._since_micros = driver.started_at_micros
        self._rows_before: dict[str, int] = {}
        self._counted_micros = driver.started_at_micros
        """When those rows were counted."""
        self._keys: tuple[KeySample, ...] = ()
        """The last samples: they stay until there are others, so that the newest event has them."""
        self._failures: dict[tuple[str, str], FailureSeen] = {}
        """They are told by every event for a while, so that the newest one has them."""
        self.status: JobStatus | None = None
        """The newest status."""
        self._reset()

    def _reset(self) -> None:
        self._sums = EpochSums()
        self._phases: Counter[EpochPhase] = Counter()
        self._rows_by_subtask: dict[str, list[int]] = {}
        self._samples: dict[tuple[str, str], tuple[str, ...]] = {}
        self._answers: list[Answer] = []

    def note_epoch(self, epoch: EpochProgress) -> None:
        """Add an epoch."""
        known = self._sums
        self._sums = EpochSums(
            known.count + 1,
            known.published + epoch.is_published,
            known.rows_read + epoch.rows_read,
            known.bytes_read + epoch.bytes_read,
            known.bytes_written + epoch.bytes_written,
            known.storage_requests + epoch.storage_requests,
            known.cache_hits + epoch.cache_hits,
            known.cache_misses + epoch.cache_misses,
            known.compactions + epoch.compactions,
            known.duration_micros + epoch.duration_micros,
            max(known.longest_micros, epoch.duration_micros),
        )
        self._phases.update(epoch.phases)
        for operator, rows in epoch.rows_by_subtask.items():
            before = self._rows_by_subtask.get(operator, [0] * len(rows))
            self._rows_by_subtask[operator] = [
                a + b for a, b in zip(before, rows, strict=True)
            ]
        self._keys = epoch.keys or self._keys
        for sample in epoch.samples:
            name = (sample.operator, sample.output)
            first = (*self._samples.get(name, ()), *sample.rows)
            self._samples[name] = first[:ROWS_PER_SAMPLE]

    def note_failure(self, error: Exception, *, is_retried: bool, now_micros: int) -> None:
        """Add a failure; one that was seen before is counted."""
        kind, message = type(error).__name__, cut_text(hide_secrets(str(error)))
        known = self._failures.pop((kind, message), None)
        if known is not None:
            again = replace(
                known,
                count=known.count + 1,
                last_at_micros=now_micros,
                is_retried=is_retried,
            )
            self._failures[kind, message] = again
            return
        trace = cut_text(hide_secrets("".join(traceback.format_exception(error))))
        code = error.code.value if isinstance(error, PenstockError) else None
        self._failures[kind, message] = FailureSeen(
            kind, message, trace, 1, now_micros, now_micros, is_retried, code
        )
        if len(self._failures) > _MOST_FAILURES:
            self._failures.pop(next(iter(self._failures)))

    def note_answer(self, answer: Answer) -> None:
        """Add what became of a request."""
        self._answers.append(answer)

    @property
    def has_answers(self) -> bool:
        """Return whether somebody waits for the next event."""
        return bool(self._answers)

    def take(self, kind: EventKind, number: int, now_micros: int) -> Event:
        """Return the next event, and begin anew: it has told all that was gathered."""
        status = self.status
        assert status is not None  # noqa: S101 (the journal begins with a status)
        self._failures = {
            name: seen
            for name, seen in self._failures.items()
            if seen.last_at_micros >= now_micros - _FAILURES_MICROS
        }
        event = Event(
            job=status.job,
            generation=status.generation or 0,
            number=number,
            at_micros=now_micros,
            since_micros=self._since_micros,
            kind=kind,
            status=status,
            driver=self._driver,
            epochs=replace(self._sums, phases=dict(self._phases)),
            rates=self._take_rates(status, now_micros),
            rows_by_subtask={
                name: tuple(taken) for name, taken in self._rows_by_subtask.items()
            },
            keys=self._keys,
            samples=tuple(
                RowSample(operator, output, first)
                for (operator, output), first in sorted(self._samples.items())
            ),
            failures=tuple(self._failures.values()),
            answers=tuple(self._answers),
        )
        self._since_micros = now_micros
        self._reset()
        return event

    def _take_rates(self, status: JobStatus, now_micros: int) -> dict[str, float]:
        """Return the rows per second of each operator, over some seconds at least.

        Events may follow each other closely, and an epoch's rows count all at once.
        """
        # A clock may stand still or go back; a rate must not be negative.
        elapsed = max(1, now_micros - self._counted_micros)
        before = self._rows_before
        rows = {each.operator: each.rows_taken for each in status.operators}
        if elapsed >= _RATE_MICROS:
            self._rows_before, self._counted_micros = rows, now_micros
        return {
            name: (count - before.get(name, 0)) * 1_000_000 / elapsed
            for name, count in rows.items()
        }
