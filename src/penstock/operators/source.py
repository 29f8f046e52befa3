"""SourceOperator: what the author of a source implements, and how its input is split.

The input of a source is a set of **splits**: files, partitions, ranges. A split has a name
that never changes and an offset that only the source understands. Offsets are kept in a
global table by split name, never by subtask, so any subtask of any later parallelism can
go on with any split.

Before an epoch the driver asks `plan_splits` what there is to read. Splits are dealt to
subtasks evenly; each subtask's `run` reads what it was given until the budget is spent.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import cache

from penstock.core.schema import StreamSchema
from penstock.operators.collector import SourceCollector
from penstock.operators.context import SourceContext
from penstock.operators.operator import DisplayableOperator
from penstock.operators.splits import SourceBudget, SplitPlan, SplitState
from penstock.state.tables.specs import TableSpec, global_table

ONLY_SPLIT = "all"
"""The split of a source that cannot be divided."""

SPLITS_TABLE = "penstock.splits"
"""The table that holds every split's state, by name."""


class SourceFinishType(Enum):
    """Why a source stops for good, as `run` says it; None instead of one means: go on later."""

    GRACEFUL = "graceful"
    """Stop the job after this epoch; windows stay open and a restart goes on from here."""
    IMMEDIATE = "immediate"
    """Stop the job at once; this epoch does not count."""
    FINAL = "final"
    """The splits read here have ended and will never have another row."""


class SourceOperator(ABC):
    """Where rows come from. One instance serves one subtask, another one plans on the driver."""

    @abstractmethod
    def name(self) -> str:
        """Return what kind of source this is, for people."""

    @abstractmethod
    def output_schema(self) -> StreamSchema:
        """Return the stream it emits."""

    def side_outputs(self) -> Mapping[str, StreamSchema]:
        """Return further streams by name, such as `BAD` for rows that cannot be read."""
        return {}

    def tables(self) -> Sequence[TableSpec]:
        """Return tables it needs besides the one that holds the splits."""
        return ()

    def is_rewindable(self) -> bool:
        """Tell whether it can read again from an offset; otherwise it is at-most-once."""
        return True

    def poll_interval(self) -> timedelta:
        """Return how long to wait before asking again when there was nothing to read."""
        return timedelta(milliseconds=100)

    def display(self) -> DisplayableOperator:
        """Return how it shows itself in `explain` and the console."""
        return DisplayableOperator(self.name())

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> "SourcePlan":
        """Say what to read in the next epoch. Called on the driver, before every epoch.

        `known` is what the last epoch stored. A split that is not named in the plan rests.
        Naming an `end` makes the epoch repeatable: a second run of it reads the same rows.
        The default is one split without an end.
        """
        del budget, now_micros
        only = known.get(ONLY_SPLIT, SplitState())
        ended = only.ended
        splits = () if ended else (SplitPlan(ONLY_SPLIT, only.offset),)
        return SourcePlan(splits, is_complete=True)

    def on_start(self, ctx: SourceContext) -> None:
        """Prepare a new instance; as `ArrowOperator.on_start`, it only reads tables."""

    @abstractmethod
    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        """Read `ctx.splits` until each has reached its end, or the budget is spent.

        Emit with `collector.collect(batch, split=name)`, say with `ctx.advance(name, offset)`
        how far that went, and with `ctx.end_split(name)` that nothing will follow. Return
        None to go on in the next epoch. It must come back: check `ctx.budget.is_spent`
        between batches, and do not wait for data that is not there.
        """

    def on_close(self, ctx: SourceContext) -> None:
        """Let go of what `run` used, in the epoch that carries Stop or the end of the source."""

    def release(self) -> None:
        """Close connections; the instance is not used again."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """What a source reads in one epoch, as decided on the driver."""

    splits: tuple[SplitPlan, ...]
    is_complete: bool
    """True if no split will ever be added: when all known ones have ended, so has the source."""
    has_more: bool = False
    """True if more is known to be there than this plan reads."""
    fed: str | None = None
    """Names what the executor brings the rows from, as `SourceContext.fed`; None: `run` reads.

    Executors know only what belongs to their engine, such as a Spark DataFrame. Every subtask
    of a fed source is given a part of the rows, so each needs a split to read.
    """


@cache
def splits_table() -> TableSpec:
    """Declare the table every source keeps its splits in."""
    return global_table(SPLITS_TABLE, str, SplitState)
