"""SinkUnderTest: what the contract suite of sinks asks of each sink, and the job that feeds it.

A sink joins the suite by a class as described by the protocol, and a line in `KINDS` of
`conftest.py` (with the fixture or marker of its server, if it has one). It says

- how to build the sink, over and over, on one output (`connect`);
- how to harm the calls that it makes to its system (`arm`): the suite counts them in a run
  that nothing happens to, then harms them one by one;
- how a reader reads everything back (`rows`);
- which lines it cannot promise, and why (`cannot`). A sink that cannot deliver once says so to
  its users too, by `why_at_least_once`: the suite compares both.

**Processes.** `arm` begins a process: sinks that are built from then on share its fate. Sinks of
an earlier process stay as they are. One that was struck dead makes no call any more, and one
that sleeps goes on when the call returns: so a zombie meets its successor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import polars as pl

import penstock as pen
from penstock.catalog import default_registry
from penstock.core.ids import Epoch
from penstock.graph.logical import OperatorSpec
from penstock.operators.registry import Registry
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.driver.policies import RestartPolicy
from penstock.runtime.in_process import NO_CHAOS, Chaos
from penstock.state.protocol.retention import Epochs
from penstock.testing import CUT, Fault, LocalJob, ScriptedSource

Row = Mapping[str, Any]
ROUNDS = 3
"""How many epochs have rows; the epoch that ends the data has none."""
PER_SPLIT = 4
FURTHER = 10_000
"""What the rows of a second sink have more, to tell them apart."""


class Line(StrEnum):
    """A promise that a sink may be unable to give."""

    ONCE = "every row is there once, whatever fails"
    WHOLE_EPOCHS = "a reader sees an epoch whole or not at all"
    RESTORE = "after a restore every row is there once"


class Harm(StrEnum):
    """What befalls a call. Only `SLEEPS` does so without an error."""

    FAILS = "it is not carried out, and fails"
    FAILS_AFTER = "it is carried out, and fails"
    ANSWER_LOST = "it is not carried out, and nobody knows"
    LANDS_LATE = "nobody knows, and it is carried out by `settle`, or a few calls later"
    DIES_BEFORE = "the process dies before it"
    DIES_AFTER = "the process dies after it"
    SLEEPS = "others do something, then it is carried out"


DEATHS = (Harm.DIES_BEFORE, Harm.DIES_AFTER)


@dataclass(frozen=True, slots=True)
class Strike:
    """One harm to one call of a process, or to all of its calls."""

    harm: Harm
    at: int | None = 1
    """The number of the call, from 1; None for every one."""
    meanwhile: Callable[[], object] = field(default=lambda: None)
    """For `SLEEPS`: what others do. It may begin another process."""


class SinkUnderTest(Protocol):
    """One kind of sink with an empty output of its own."""

    cannot: Mapping[Line, str]
    """The lines that it cannot promise, each with the reason."""
    harms: Sequence[Harm]
    """What can be done to its calls; none if it makes none."""
    cases: int
    """How many cases of a sweep are tried; few if each takes long."""

    merges: bool
    """Whether it is given a changelog, to be merged by the column `n`, and not the rows."""

    def connect(self, registry: Registry) -> OperatorSpec:
        """Return a sink that writes to the output; its kind may be added to the registry."""
        ...

    def arm(self, strike: Strike | None = None) -> None:
        """Begin a process, which meets the harm; without one nothing happens to it."""
        ...

    @property
    def calls(self) -> int:
        """How many calls the process that was begun last has made."""
        ...

    def settle(self) -> None:
        """Let what dead processes have sent arrive."""
        ...

    def rows(self) -> list[Row]:
        """Return the rows that a careful reader finds in the output now, in any order."""
        ...


def rows_of(split: int, turn: int) -> list[dict[str, Any]]:
    """Return what a split gives in one epoch; all numbers tell the epoch."""
    start = turn * 100 + split * 10
    return [{"n": n, "word": f"w{n % 3}"} for n in range(start, start + PER_SPLIT)]


def numbers_of(epochs: int = ROUNDS) -> list[int]:
    """Return the numbers of the rows of the first epochs."""
    return sorted(
        row["n"]
        for turn in range(epochs)
        for split in (0, 1)
        for row in rows_of(split, turn)
    )


@dataclass
class SinkJob:
    """A job of two splits and one or two sinks on one output, run as often as wanted."""

    sink: SinkUnderTest
    name: str = "sinks"
    step: str = "out"
    has_two: bool = False
    chaos: Chaos = field(default_factory=lambda: NO_CHAOS)

    def __post_init__(self) -> None:
        self.registry = default_registry(load_plugins=False)
        self.spec = self.sink.connect(self.registry)
        script = {
            str(split): [
                step for turn in range(ROUNDS) for step in (rows_of(split, turn), CUT)
            ]
            for split in (0, 1)
        }
        pipeline = pen.Pipeline(self.name, registry=self.registry)
        rows = pipeline.read("rows", ScriptedSource(script))
        self._write(rows, self.step)
        if self.has_two:
            more = rows.with_columns(n=pl.col("n") + FURTHER)
            self._write(more, f"{self.step}-further")
        self.job = LocalJob(
            pipeline,
            registry=self.registry,
            chaos=self.chaos,
            settings=DriverSettings(
                torn_limit=1_000, restarts=RestartPolicy(first_delay_micros=1)
            ),
        )

    def _write(self, rows: pen.Stream, step: str) -> None:
        if self.sink.merges:
            rows = rows.from_upserts(f"{step}-changes", key="n")
        rows.write(step, self.spec)

    @property
    def expected(self) -> list[int]:
        """The numbers of all rows that the job writes."""
        numbers = numbers_of()
        return numbers + [n + FURTHER for n in numbers] if self.has_two else numbers

    def run(
        self,
        *checkpoint_faults: Fault,
        strike: Strike | None = None,
        parallelism: int = 2,
        restore: int | None = None,
    ) -> pen.JobStatus:
        """Run the job in a new process."""
        self.sink.arm(strike)
        which = None if restore is None else Epochs(Epoch(restore))
        return self.job.run(*checkpoint_faults, parallelism=parallelism, restore=which)

    def finish(self, parallelism: int = 2) -> None:
        """Let another process bring the job to its end, and check what it has written."""
        self.sink.settle()
        status = self.run(parallelism=parallelism)
        assert status.phase is pen.JobPhase.FINISHED
        self.sink.settle()
        self.check()

    def check(self, *breaks: Line) -> None:
        """Check that every row is there: once, unless the sink cannot promise one of the lines."""
        found = sorted(row["n"] for row in self.sink.rows())
        if any(line in self.sink.cannot for line in (Line.ONCE, *breaks)):
            found = sorted(set(found))
        assert found == self.expected
        for row in self.sink.rows():
            assert row["word"] == f"w{row['n'] % FURTHER % 3}"
