"""Contexts and collectors: how an operator reaches state, time and timers, and emits rows.

Both belong to one operator of one subtask. The time of a context is fixed within an epoch, so
a second run of the epoch sees the same instants. A collector checks rows against the declared
schema. It is open from the start of an epoch to the end of the operator's `handle_checkpoint`:
rows emitted later would be in no checkpoint.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from msgspec.structs import replace
from typing_extensions import override

from penstock.core.batch import to_batches
from penstock.core.clock import new_token
from penstock.core.ids import Epoch, Generation, OperatorId, TaskInfo, Token
from penstock.core.rows import RowsLike, to_instant
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime, InputWatermark, event_time_of
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.graph.logical import MAIN
from penstock.operators.samples import SAMPLED, sample_rows
from penstock.operators.splits import (
    BudgetMeter,
    Deadline,
    SplitPlan,
    SplitState,
    SplitTimes,
)
from penstock.operators.timers import Timers
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.specs import TableSpec, TimeDomain
from penstock.state.tables.table_manager import TableManager
from penstock.state.tables.time_keyed_view import KeyTimeView, TimeKeyedView


class OperatorContext:
    """State, time and facts of one subtask of an operator. Every hook gets it as an argument."""

    def __init__(
        self,
        task: TaskInfo,
        *,
        inputs: tuple[StreamSchema, ...],
        outputs: Mapping[str, StreamSchema],
        tables: TableManager,
        timers: Mapping[TimeDomain, Timers] | None = None,
    ) -> None:
        self.task = task
        self.inputs = inputs
        """The schemas of its inputs, keys included."""
        self.outputs = outputs
        """The schemas of its outputs by name."""
        self.epoch = Epoch(1)
        self.parent: Epoch | None = None
        """The epoch that this one builds on, after a restore an older one. None at first."""
        self.processing_time_micros = 0
        """The processing time of the epoch: the same in all hooks of all subtasks."""
        self.previous_processing_time_micros: int | None = None
        """The processing time of the epoch before, which is earlier; None in the first one."""
        self.previous_watermark: EventTime | None = None
        """How far event time had come after the epoch before; the same in all subtasks."""
        self.watermark: EventTime | None = None
        """The watermark of this epoch from `handle_watermark` on; until then the previous one."""
        self.counters: Counter[str] = Counter()
        self.wake_up_micros: int | None = None
        self.known_inputs: Mapping[OperatorId, Sequence[InputWatermark]] = {}
        """How far the inputs of all operators of the job had come after the epoch before."""
        self._tables = tables
        self._timers = dict(timers or {})

    def previous_watermark_of(self, operator: str) -> EventTime | None:
        """Return how far event time had come in another operator after the epoch before.

        It is the same in all subtasks of all operators. An operator that prepares rows for
        another one uses it in place of the other's own `previous_watermark`.
        """
        return event_time_of(self.known_inputs.get(OperatorId(operator), ()))

    @property
    def table_manager(self) -> TableManager:
        """All tables of the subtask; the methods below ask it for a view.

        A view stays the same object in every later epoch of this instance of the operator, so
        it may be taken in `on_start` and kept in an attribute.
        """
        return self._tables

    def get_global_keyed_state(self, table: str) -> GlobalKeyedView[Any, Any]:
        """Return the view of a global table that `tables` declares."""
        return self.table_manager.get_global_keyed_state(table)

    def get_keyed_state(self, table: str) -> KeyedView:
        """Return the view of a keyed table that `tables` declares."""
        return self.table_manager.get_keyed_state(table)

    def get_time_keyed_state(self, table: str) -> TimeKeyedView:
        """Return the view, by time, of a time-keyed table that `tables` declares."""
        return self.table_manager.get_time_keyed_state(table)

    def get_key_time_state(self, table: str) -> KeyTimeView:
        """Return the view, by key, of a time-keyed table that `tables` declares."""
        return self.table_manager.get_key_time_state(table)

    @property
    def attempt(self) -> Token:
        """The token of this attempt at the epoch: no other attempt of any subtask shares it."""
        return self._tables.environment.token

    @property
    def generation(self) -> Generation:
        """The generation of the driver that this attempt runs for."""
        return self._tables.environment.generation

    @property
    def store(self) -> ObjectStore:
        """The store of the checkpoints, for sinks that stage beside them."""
        return self._tables.environment.store

    def insert_committing_data(self, table: str, data: bytes) -> None:
        """Store the data that `handle_commit` gets once the epoch is acknowledged.

        It may be called once per table and epoch.
        """
        self.table_manager.insert_committing_data(table, data)

    @property
    def event_timers(self) -> Timers:
        """Timers by event time; declare `TimeDomain.EVENT_TIME` in `timers`."""
        return self._timers_of(TimeDomain.EVENT_TIME)

    @property
    def processing_timers(self) -> Timers:
        """Timers by processing time; declare `TimeDomain.PROCESSING_TIME` in `timers`."""
        return self._timers_of(TimeDomain.PROCESSING_TIME)

    def count(self, counter: str, amount: int = 1) -> None:
        """Add to a named counter that the job's status shows."""
        self.counters[counter] += amount

    def wake_at(self, processing_time_micros: int | datetime) -> None:
        """Request an epoch at that time even if no data comes. Each epoch must request again."""
        try:
            micros = to_instant(processing_time_micros)
        except ValueError as error:
            raise UserError(
                f"operator {self.task.operator!r} cannot be woken so: {error}. Give "
                "microseconds since 1970 or a datetime",
                code=ErrorCode.INVALID_NUMBER,
                operator=self.task.operator,
            ) from error
        if self.wake_up_micros is None or micros < self.wake_up_micros:
            self.wake_up_micros = micros

    def _timers_of(self, domain: TimeDomain) -> Timers:
        timers = self._timers.get(domain)
        if timers is None:
            raise UserError(
                f"operator {self.task.operator!r} uses timers by {domain.value} without "
                f"declaring them: return TimeDomain.{domain.name} from timers()",
                code=ErrorCode.UNDECLARED_TIMERS,
                operator=self.task.operator,
            )
        return timers


class SourceContext(OperatorContext):
    """The context of one subtask of a source: it also has its splits and its budget."""

    def __init__(
        self, task: TaskInfo, *, outputs: Mapping[str, StreamSchema], tables: TableManager
    ) -> None:
        super().__init__(task, inputs=(), outputs=outputs, tables=tables)
        self.splits: tuple[SplitPlan, ...] = ()
        """The splits to read in this epoch; empty for a subtask that got none."""
        self.budget: BudgetMeter
        """How much may still be read."""
        self.deadline = Deadline()
        self.split_states: dict[str, SplitState] = {}
        """The state of every split of this subtask, as changed so far in this epoch."""
        self.fed: Iterable[pa.RecordBatch] | None = None
        """Rows that the executor brings, to be read once; None unless the source is fed."""

    def advance(self, split: str, offset: Any) -> None:
        """Note that everything before `offset` was emitted: the next epoch goes on there."""
        self.deadline.check()
        self.split_states[split] = replace(self.split_state(split), offset=offset)

    def note_event_time(self, split: str, micros: int) -> None:
        """Note that event time has come at least that far in a split, whatever rows were read."""
        state = self.split_state(split)
        known = state.max_event_time_micros
        latest = micros if known is None else max(known, micros)
        self.split_states[split] = replace(state, max_event_time_micros=latest)

    def end_split(self, split: str) -> None:
        """Note that a split has ended for good."""
        self.split_states[split] = replace(self.split_state(split), ended=True)

    def split_state(self, split: str) -> SplitState:
        """Return how far a split of this subtask was read."""
        if split not in self.split_states:
            known = ", ".join(map(repr, self.split_states)) or "none"
            raise UserError(
                f"source {self.task.operator!r} speaks of the split {split!r}, which subtask "
                f"{self.task.subtask.index} does not read in this epoch; it reads: {known}",
                code=ErrorCode.UNKNOWN_SPLIT,
                operator=self.task.operator,
                split=split,
            )
        return self.split_states[split]


@dataclass(frozen=True, slots=True)
class CommitPart:
    """A piece of an epoch's commit that one task carries out, alone: see `plan_commit`."""

    data: bytes
    """Names what to commit, for `handle_commit_part`; not the rows themselves, if they are many."""
    size_bytes: int = 0
    """About how much is to be moved. A few small parts run on the driver: a job costs more."""


@dataclass(frozen=True, slots=True)
class CommitContext:
    """The job and operator of a commit. Tables are closed by then: only commit data is left."""

    task: TaskInfo
    """On the driver subtask 0 of as many as there were; for a part its number and how many."""
    store: ObjectStore
    """The store of the checkpoints, for sinks that stage beside them."""
    identity: str = ""
    """Differs from that of another job of the same name, in another store or made later."""
    attempt: Token = field(default_factory=new_token)
    """The token of this attempt at the commit or part: no other one shares it."""


@dataclass(frozen=True, slots=True)
class StartContext:
    """The job and operator of a start that is being checked, before the job is claimed."""

    task: TaskInfo
    identity: str | None
    """As in `CommitContext`; None if the job was never claimed."""
    read_last_epoch: Callable[[], int]
    """Reads the highest number of an epoch that the job has used; 0 if it has used none.

    A driver that still runs may publish epochs meanwhile: look at the output first, then call
    this. Whatever is committed was acknowledged before.
    """
    inputs: tuple[StreamSchema, ...] = ()
    """The schemas of the operator's inputs."""
    read_global: Callable[[TableSpec], Mapping[Any, Any]] = field(default=lambda _: {})
    """Reads a global table of the operator, as of the epoch that the start goes on from."""


class Target(Protocol):
    """Takes the rows of an output: the next operator of the chain, or an exchange."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Take a batch, which is never empty."""
        ...


Targets: TypeAlias = Mapping[str, Sequence[Target]]
"""Where the rows of an operator's outputs go, by output."""


class ArrowCollector:
    """Takes what an operator emits and passes it on at once."""

    def __init__(
        self, operator: str, outputs: Mapping[str, StreamSchema], targets: Targets
    ) -> None:
        self._operator = operator
        self._outputs = outputs
        self._chained = {name: tuple(targets.get(name, ())) for name in outputs}
        self._targets = self._chained
        self._is_open = False
        self.rows_emitted: Counter[str] = Counter()
        self.samples: dict[str, tuple[str, ...]] = {}
        """The first rows of this epoch that were late or bad, as JSON."""
        self.observe: Callable[[pa.RecordBatch], None] | None = None
        """Sees every batch of the main output before it is passed on."""

    def open(self, outlets: Targets) -> None:
        """Start an epoch: rows go to the next operators of the chain and to these outlets."""
        self.rows_emitted, self.samples = Counter(), {}
        self._targets = {
            name: (*chained, *outlets.get(name, ()))
            for name, chained in self._chained.items()
        }
        self._is_open = True

    def close(self) -> None:
        """End an epoch: the operator's state is about to be written."""
        self._is_open = False

    def collect(self, rows: RowsLike, output: str = MAIN) -> None:
        """Emit rows: a record batch, an Arrow table or a Polars frame of the output's schema.

        Layouts such as large strings are converted; other differences are an error. Rows for
        an output without a reader are counted and dropped. An empty batch is ignored.
        """
        for batch in self._conform(rows, output):
            self.rows_emitted[output] += batch.num_rows
            if output in SAMPLED:
                sample_rows(self.samples, output, batch)
            if self.observe is not None and output == MAIN:
                self.observe(batch)
            for target in self._targets[output]:
                target.take(batch)

    def _conform(self, rows: RowsLike, output: str) -> list[pa.RecordBatch]:
        """Return rows in the schema that the output declares, or refuse them."""
        stream = self._outputs.get(output)
        if stream is None:
            known = "; it is a sink"
            if self._outputs:
                known = did_you_mean(output, self._outputs) + ". Declare it in side_outputs"
            raise UserError(
                f"operator {self._operator!r} has no output {output!r}{known}",
                code=ErrorCode.UNKNOWN_OUTPUT,
                operator=self._operator,
                output=output,
            )
        if not self._is_open:
            raise UserError(
                f"operator {self._operator!r} emitted rows outside of its epoch: after "
                "handle_checkpoint its state is written, so these rows would be in no "
                "checkpoint. Emit from the hooks only, not from threads or release()",
                code=ErrorCode.EMITTED_AFTER_CLOSE,
                operator=self._operator,
                output=output,
            )
        try:
            return to_batches(rows, stream.arrow)
        except (SchemaError, pa.ArrowException) as error:
            raise SchemaError(
                f"operator {self._operator!r} emitted rows that do not fit its output "
                f"{output!r}: {error}. Emit what output_schema declares, or declare what is "
                "emitted",
                operator=self._operator,
                output=output,
            ) from error


class SourceCollector(ArrowCollector):
    """Also counts against the budget, and notes the latest event time of every split."""

    def __init__(
        self, operator: str, outputs: Mapping[str, StreamSchema], targets: Targets
    ) -> None:
        super().__init__(operator, outputs, targets)
        self.budget: BudgetMeter
        self.deadline = Deadline()
        self.times = SplitTimes(operator, outputs[MAIN])
        self.observe = self.times.note_passed

    @override
    def open(self, outlets: Targets) -> None:
        super().open(outlets)
        self.times.begin_epoch(None)

    @property
    def latest_by_split(self) -> Mapping[str | None, int | None]:
        """The latest event time of each split that gave rows in this epoch; None if unknown."""
        return self.times.latest

    @override
    def collect(
        self, rows: RowsLike, output: str = MAIN, *, split: str | None = None
    ) -> None:
        """Emit rows of a split; `split` may be None in a source that has only one."""
        self.deadline.check()
        batches = self._conform(rows, output)
        for batch in batches:
            self.budget.spend(batch.num_rows, batch.nbytes)
        if batches and output == MAIN:
            self.times.split = split
            self.times.latest.setdefault(split, None)
        with self.deadline.paused():
            for batch in batches:
                super().collect(batch, output)
