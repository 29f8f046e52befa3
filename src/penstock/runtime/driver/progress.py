"""EpochProgress: what one epoch did and how long each phase of it took. Plain values.

It also holds what a person looks at when an epoch did something odd: how many rows each subtask
took, a sample of the keys that an exchange moved, and the first of the late and bad rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.core.clock import Clock
from penstock.graph.logical import BAD, LATE
from penstock.operators.nodes import OperatorReport
from penstock.operators.samples import ROWS_PER_SAMPLE
from penstock.runtime.plan.executor import KeySample, Reports, TaskReport

_MOST_KEYS = 8
"""How many keys of an exchange are told."""


class EpochPhase(StrEnum):
    """What an epoch spends its time on, in this order."""

    WAIT = "wait"
    """It waits for a compaction, because a table has too many runs."""
    PLAN = "plan"
    """The sources say what there is to read."""
    RUN = "run"
    """The tasks run, and write state files and staged output."""
    PUBLISH = "publish"
    """Metadata, manifest and epoch record are written."""
    COMMIT = "commit"
    """The sinks make their output visible."""


@dataclass(frozen=True, slots=True)
class RowSample:
    """The first rows of an epoch that a step put aside."""

    operator: str
    output: str
    """`late` or `bad`."""
    rows: tuple[str, ...]
    """Each as JSON, cut if it is long."""


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """One epoch as it was run."""

    epoch: int
    is_published: bool
    """False for an epoch that changed nothing."""
    processing_time_micros: int
    duration_micros: int
    rows_read: int
    bytes_read: int
    bytes_written: int
    """The size of the state files that it wrote."""
    compactions: int
    """How many results of compactions it swapped in."""
    waited_for_compaction: bool = False
    storage_requests: int = 0
    """The requests of all tasks; the driver's own, about a dozen per epoch, are not counted."""
    cache_hits: int = 0
    cache_misses: int = 0
    """Pieces of state files that tasks did not find in their cache."""
    phases: Mapping[EpochPhase, int] = field(default_factory=dict)
    """How many microseconds each phase took."""
    rows_by_subtask: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """How many rows each subtask of an operator took, by operator."""
    keys: tuple[KeySample, ...] = ()
    """Samples of the keys that exchanges moved, in epochs that take them."""
    samples: tuple[RowSample, ...] = ()

    @property
    def cache_hit_rate(self) -> float | None:
        """The share of hits among all lookups; None without lookups."""
        lookups = self.cache_hits + self.cache_misses
        return self.cache_hits / lookups if lookups else None


class PhaseWatch:
    """Measures the phases of one epoch, one after the other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_micros = clock.now_micros()
        self.phases: dict[EpochPhase, int] = {}

    def end(self, phase: EpochPhase) -> None:
        """Note that a phase has ended, which began when the one before it ended."""
        now = self._clock.now_micros()
        self.phases[phase] = max(0, now - self._last_micros)
        self._last_micros = now


def rows_by_subtask(
    reports: Reports,
) -> dict[str, tuple[int, ...]]:
    """Return how many rows each subtask took, by operator and in the order of subtasks."""
    found: dict[str, list[int]] = {}
    for (operator, _), report in sorted(reports.items()):
        found.setdefault(str(operator), []).append(report.rows_taken)
    return {operator: tuple(rows) for operator, rows in found.items()}


def samples_of(reports: Iterable[OperatorReport]) -> tuple[RowSample, ...]:
    """Return the first late and bad rows of each operator, a few of each kind."""
    found: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for output in (LATE, BAD):
            rows = report.samples.get(output, ())
            if rows:
                found.setdefault((str(report.operator), output), []).extend(rows)
    return tuple(
        RowSample(operator, output, tuple(rows[:ROWS_PER_SAMPLE]))
        for (operator, output), rows in sorted(found.items())
    )


def joined_keys(reports: Iterable[TaskReport]) -> tuple[KeySample, ...]:
    """Return one sample of keys for each exchange, of the samples of its subtasks."""
    found: dict[tuple[str, str], list[KeySample]] = {}
    for report in reports:
        for sample in report.keys:
            found.setdefault((sample.source, sample.target), []).append(sample)
    joined = []
    for (source, target), samples in sorted(found.items()):
        rows: dict[str, int] = {}
        for sample in samples:
            for key, count in sample.rows_by_key.items():
                rows[key] = rows.get(key, 0) + count
        most = sorted(rows.items(), key=lambda item: (-item[1], item[0]))[:_MOST_KEYS]
        total = sum(sample.rows for sample in samples)
        joined.append(KeySample(source, target, total, dict(most)))
    return tuple(joined)
