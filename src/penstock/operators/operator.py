"""ArrowOperator and SourceOperator: what the author of an operator or a source implements.

An operator must have `name` and `process_batch`. In every epoch these hooks of each subtask's
operator are called, in this order:

    on_start                     only if it was just built: at first, after a restore, and
                                 in a process that does not have it in memory
    process_batch[_index]        for every batch of the epoch, input by input as they come
    handle_watermark             once, if the watermark of all inputs is known
    handle_timers                once per time domain that has timers due
    handle_tick                  once, if a tick of its own interval is due
    on_close                     only in the epoch that carries Stop or EndOfData
    handle_checkpoint            once: the last chance to emit rows and to write tables
    (its tables are written)
    plan_commit                  for sinks, on the driver, once the epoch is acknowledged
    handle_commit_part           for sinks, in a task for each part that was planned
    handle_commit                for sinks, on the driver, after the last part

What a hook emits reaches the next operators before any of their later hooks, so rows emitted in
`handle_checkpoint` are part of the same epoch everywhere.

An operator may be dropped between any two epochs and built again elsewhere. What must survive
is in a table; attributes are for what can be derived from config and from its own keyed tables.
To see what other subtasks wrote to a global table, read it again. An epoch may run more than
once before it counts, so no hook but the last two may have an effect outside of tables and
emitted rows.

The input of a source is a set of **splits**: files, partitions, ranges. A split has a name
that never changes and an offset that only the source understands. Offsets are kept in a
global table by split name, never by subtask, so any subtask of any later parallelism can
go on with any split.

Before an epoch the driver calls `plan_splits`, which returns what to read. Splits are dealt to
subtasks evenly; each subtask's `run` reads its splits until the budget is spent.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

import pyarrow as pa

from penstock.core.clock import DurationLike
from penstock.core.ids import Epoch
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier, EndOfData, Stop, Watermark
from penstock.errors import hide_secrets
from penstock.operators.context import (
    ArrowCollector,
    CommitContext,
    CommitPart,
    OperatorContext,
    SourceCollector,
    SourceContext,
    StartContext,
)
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.operators.timers import DueTimers
from penstock.state.tables.specs import TableSpec, TimeDomain, global_table


@dataclass(frozen=True, slots=True)
class DisplayableOperator:
    """What `explain`, the console and error messages print about an operator.

    Credentials of URLs are hidden.
    """

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Hide credentials."""
        shown = {key: hide_secrets(value, key) for key, value in self.fields.items()}
        object.__setattr__(self, "fields", shown)

    def __str__(self) -> str:
        facts = ", ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.name}({facts})"


class ArrowOperator(ABC):
    """One step of a pipeline over Arrow batches; a sink is one without outputs.

    One instance serves one subtask and is used by one thread. It is pickled into the graph
    as it was given to `process`, so its constructor arguments must pickle.
    """

    # ---- what it declares; called when the graph is built, and again in every subtask

    @abstractmethod
    def name(self) -> str:
        """Return the kind of operator, for people to read."""

    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema | None:
        """Return the schema of its output, given those of its inputs; None for a sink.

        By default it is that of the first input. Every emitted batch is checked against it.
        """
        return inputs[0]

    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        """Return further streams by name, such as `LATE` or `BAD`.

        Rows for a side output without a reader are counted and dropped.
        """
        del inputs
        return {}

    def tables(self) -> Sequence[TableSpec]:
        """Return the tables it keeps state in. They must not depend on the subtask."""
        return ()

    def timers(self) -> Collection[TimeDomain]:
        """Return the clocks it sets timers by; its input must be keyed for that."""
        return ()

    def tick_interval(self) -> DurationLike | None:
        """Return the interval at which `handle_tick` is called, such as "1m"; None for never."""
        return None

    def generates_watermarks(self) -> bool:
        """Return whether it makes watermarks from rows, instead of passing on its inputs'.

        Then `handle_watermark` is called in every epoch, with `IDLE` while inputs are silent,
        and may return less than before: later operators keep the highest.
        """
        return False

    def why_at_least_once(self) -> str | None:
        """Return when a sink delivers a row twice, and why; None if every row comes once.

        A job warns of it when it starts, and `explain` shows it.
        """
        return None

    def display(self) -> DisplayableOperator:
        """Return how it shows itself in `explain` and the console."""
        return DisplayableOperator(self.name())

    # ---- what it does

    def on_start(self, ctx: OperatorContext) -> None:
        """Prepare a new instance: open connections, derive attributes from tables.

        Called at every construction, perhaps every epoch, before anything else. It may only
        read tables: what it writes would be written again each time. Views of tables may be
        kept in attributes: they show every later epoch's state.
        """

    @abstractmethod
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Process a batch, which is never empty. The cuts between batches have no meaning."""

    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Process a batch of input `index`. Override it for operators with several inputs.

        The order between inputs, and between the subtasks that feed one input, is arbitrary
        and may differ when an epoch is run again.
        """
        del index, total_inputs
        self.process_batch(batch, ctx, collector)

    def handle_watermark(
        self, watermark: Watermark, ctx: OperatorContext, collector: ArrowCollector
    ) -> Watermark | None:
        """Handle the watermark of all inputs; return the watermark of the output.

        Called once per epoch behind all its rows, even if the watermark did not change, but
        not before every input has a watermark, unless it `generates_watermarks`.
        `ctx.previous_watermark` is the value of the epoch before. Return less to hold later
        operators back, or None for no new watermark. It is an error to return less than in an
        earlier epoch.
        """
        del ctx, collector
        return watermark

    def handle_timers(
        self, due: DueTimers, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Handle the timers of one time domain that are due, each exactly once.

        Timers set here that are due already fire in the same epoch.
        """

    def handle_tick(
        self, tick: int, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Handle a tick, which comes every `tick_interval` of processing time.

        `tick` counts intervals since 1970; ticks that were missed are skipped. A tick may be
        repeated when the epoch it belonged to did not count.
        """

    def on_close(
        self, final: Stop | EndOfData, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit what is left, in the last epoch of this run.

        After `EndOfData` no row will ever come; windows were flushed by the watermark.
        After `Stop` the job goes on later from this epoch's state. A stop after a checkpoint,
        as by a signal, does not call it: close connections in `release`.
        """

    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Put into tables what must survive, and emit what was held back.

        The epoch's rows are complete. A sink stages its output durably here and hands what
        its commit needs to `ctx.insert_committing_data`.
        """

    def plan_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> Sequence[CommitPart]:
        """Return the parts of a commit that moves rows: `handle_commit_part` gets each in a task.

        Runs on the driver as `handle_commit` does, and decides by the commit data alone: every
        call for an epoch plans the same parts, at any parallelism. By default there are none.
        """
        del epoch, commit_data, ctx
        return ()

    def handle_commit_part(self, epoch: Epoch, part: bytes, ctx: CommitContext) -> None:
        """Carry out a part of a commit. It may run again, or twice at the same time.

        Runs on an instance of its own, without `on_start`, which is kept for later epochs. The
        subtask of `ctx.task` is the number of the part. An earlier attempt may still run in a
        process that is cut off: it must not be able to write once a later one has succeeded.
        """
        raise NotImplementedError(
            f"{type(self).__name__} plans parts of its commits but has no handle_commit_part: "
            "implement it"
        )

    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        """Make the staged output of an acknowledged epoch visible: all subtasks' at once.

        Runs on the driver on an instance of its own, without `on_start`, after all parts of
        `plan_commit`; `commit_data` is by table and subtask. It may run again for the same
        epoch, in another process, at any later time: it must then change nothing.
        """
        del ctx
        if commit_data and type(self).plan_commit is ArrowOperator.plan_commit:
            raise NotImplementedError(
                f"{type(self).__name__} gave commit data for epoch {epoch} but has no "
                "handle_commit: implement it"
            )

    def check_output(self, ctx: StartContext) -> None:
        """Refuse a start whose output could not be committed; it changes nothing.

        Runs on the driver before a job is claimed, on an instance of its own, without
        `on_start`. A sink raises `UserError` or `StateError` that says what to do.
        """

    def can_skip_epochs(self) -> bool:
        """Return whether it may go on after epochs that another process ran.

        Only one that holds nothing of earlier epochs but connections, and whose `on_start`
        writes no table. Others are released, and built again on the tables.
        """
        return False

    def release(self) -> None:
        """Close connections; the instance is not used again. A dying process does not call it."""


ONLY_SPLIT = "all"
"""The split of a source that cannot be divided."""

SPLITS_TABLE = "penstock.splits"
"""The table that holds every split's state, by name."""


class SourceFinishType(Enum):
    """Why a source stops for good, as returned by `run`; None instead means to go on later."""

    GRACEFUL = "graceful"
    """Stop the job after this epoch; windows stay open and a restart goes on from here."""
    IMMEDIATE = "immediate"
    """Stop the job at once; this epoch does not count."""
    FINAL = "final"
    """The splits read here have ended and will never have another row."""


class SourceOperator(ABC):
    """A source of rows. One instance serves one subtask; another one plans on the driver."""

    @abstractmethod
    def name(self) -> str:
        """Return the kind of source, for people to read."""

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
        """Return whether it can read again from a stored offset.

        Rows of a source that cannot are processed at most once: those of an epoch that fails,
        or that was not published when the job died, are lost. A job warns of it when it
        starts, and `explain` shows it.
        """
        return True

    def ends_with_others(self) -> bool:
        """Return whether it ends when all other sources have: its rows are for theirs alone.

        The driver says so then, and asks it for no further splits; those that were read
        must have ended.
        """
        return False

    def has_keys_in_several_splits(self) -> bool:
        """Return whether rows that follow each other may be in different splits, such as files.

        Subtasks that read such splits at the same time lose their order, so steps that take
        rows in the order in which they come warn of it.
        """
        return False

    def idle_timeout(self) -> DurationLike | None:
        """Return the `idle_timeout` of `Pipeline.read` where the user gives none; None for never."""
        return None

    def poll_interval(self) -> DurationLike:
        """Return how long to wait before the next `plan_splits` if there was nothing to read."""
        return "100ms"

    def display(self) -> DisplayableOperator:
        """Return how it shows itself in `explain` and the console."""
        return DisplayableOperator(self.name())

    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Return what to read in the next epoch. Called on the driver, before every epoch.

        With a trigger by rows or bytes it is also called in between, to learn from `has_more`
        whether so much waits; what it returns then is not read.

        `known` is what the last epoch stored. A split that is not in the plan is not read. An
        `end` makes the epoch repeatable: a second run of it reads the same rows. The default
        is one split without an end.
        """
        del budget, now_micros
        only = known.get(ONLY_SPLIT, SplitState())
        splits = () if only.ended else (SplitPlan(ONLY_SPLIT, only.offset),)
        return SourcePlan(splits, is_complete=True)

    def check_splits(self, known: Mapping[str, SplitState]) -> None:
        """Refuse to go on with splits that this source would misunderstand; changes nothing.

        Runs on the driver before a job is claimed, also if the job has finished. `known` is
        what the checkpoint holds. Raise `UserError` that says what to do.
        """

    def on_committed(self, known: Mapping[str, SplitState]) -> None:
        """Note how far a committed epoch has read: for other programs, never for recovery.

        Called on the driver, after the epoch. It may be left out if the driver dies, and an
        error is only logged.
        """

    def on_start(self, ctx: SourceContext) -> None:
        """Prepare a new instance; as `ArrowOperator.on_start`, it only reads tables."""

    @abstractmethod
    def run(
        self, ctx: SourceContext, collector: SourceCollector
    ) -> SourceFinishType | None:
        """Read `ctx.splits` until each has reached its end, or the budget is spent.

        Emit with `collector.collect(batch, split=name)`; then call `ctx.advance(name, offset)`
        with the offset behind these rows, and `ctx.end_split(name)` if nothing will follow.
        Return None to go on in the next epoch. This method must return: check
        `ctx.budget.is_spent` between batches, and do not wait for data that is not there.
        """

    def on_close(self, ctx: SourceContext) -> None:
        """Release what `run` used, in the epoch that carries Stop or the end of the source."""

    def can_skip_epochs(self) -> bool:
        """Return whether it may go on after epochs that another process ran.

        Only one that holds nothing of earlier epochs but connections, and whose `on_start`
        writes no table. Others are released, and built again on their splits.
        """
        return False

    def release(self) -> None:
        """Close connections; the instance is not used again."""


@cache
def splits_table() -> TableSpec:
    """Declare the table in which every source keeps the states of its splits."""
    return global_table(SPLITS_TABLE, str, SplitState)
