"""Contexts: what an operator, a source and a commit may ask of the runtime.

A context belongs to one subtask. Its time stands still within an epoch: whatever runs an
epoch again sees the same instants.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from penstock.core.ids import Epoch, Generation, OperatorId, TaskInfo, Token
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime, InputWatermark, event_time_of
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import BudgetMeter, Deadline, SplitPlan, SplitState
from penstock.operators.timers import Timers
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.global_keyed import GlobalKeyedView
from penstock.state.tables.keyed_view import KeyedView
from penstock.state.tables.specs import TimeDomain
from penstock.state.tables.table_manager import TableManager
from penstock.state.tables.time_keyed_view import KeyTimeView, TimeKeyedView


class OperatorContext:
    """What one subtask of an operator sees of the world. Handed to every hook."""

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
        """The epoch that this one builds on; after a restore not the one before. None at first."""
        self.processing_time_micros = 0
        """Now, by the epoch's one clock: the same in all hooks of all subtasks."""
        self.previous_watermark: EventTime | None = None
        """How far event time had come after the epoch before; the same in all subtasks."""
        self.watermark: EventTime | None = None
        """How far it has come: from `handle_watermark` on; equal to the previous one before."""
        self.counters: Counter[str] = Counter()
        self.wake_up_micros: int | None = None
        self.known_inputs: Mapping[OperatorId, Sequence[InputWatermark]] = {}
        """How far the inputs of all operators of the job had come after the epoch before."""
        self._tables = tables
        self._timers = dict(timers or {})

    def previous_watermark_of(self, operator: str) -> EventTime | None:
        """Return how far event time had come in another operator after the epoch before.

        The same in all subtasks of all operators. A step that prepares rows for another one
        goes by it, where the other would go by its own `previous_watermark`.
        """
        return event_time_of(self.known_inputs.get(OperatorId(operator), ()))

    def get_global_keyed_state(self, table: str) -> GlobalKeyedView[Any, Any]:
        """Return the view of a global table that `tables` declares."""
        return self._tables.get_global_keyed_state(table)

    def get_keyed_state(self, table: str) -> KeyedView:
        """Return the view of a keyed table that `tables` declares."""
        return self._tables.get_keyed_state(table)

    def get_time_keyed_state(self, table: str) -> TimeKeyedView:
        """Return the view, by time, of a time-keyed table that `tables` declares."""
        return self._tables.get_time_keyed_state(table)

    def get_key_time_state(self, table: str) -> KeyTimeView:
        """Return the view, by key, of a time-keyed table that `tables` declares."""
        return self._tables.get_key_time_state(table)

    @property
    def attempt(self) -> Token:
        """The token of this attempt at the epoch: no other attempt of any subtask shares it."""
        return self._tables.environment.token

    @property
    def generation(self) -> Generation:
        """The claim of the driver that this attempt runs for."""
        return self._tables.environment.generation

    @property
    def store(self) -> ObjectStore:
        """The store of the checkpoints, for sinks that stage beside them."""
        return self._tables.environment.store

    def insert_committing_data(self, table: str, data: bytes) -> None:
        """Keep what `handle_commit` needs once the epoch is acknowledged; once per epoch."""
        self._tables.insert_committing_data(table, data)

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

    def wake_at(self, processing_time_micros: int) -> None:
        """Ask for an epoch at that time even if no data comes. Holds for this epoch only."""
        if self.wake_up_micros is None or processing_time_micros < self.wake_up_micros:
            self.wake_up_micros = processing_time_micros

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
    """What one subtask of a source sees: its splits and its budget besides the rest."""

    def __init__(
        self,
        task: TaskInfo,
        *,
        outputs: Mapping[str, StreamSchema],
        tables: TableManager,
    ) -> None:
        super().__init__(task, inputs=(), outputs=outputs, tables=tables)
        self.splits: tuple[SplitPlan, ...] = ()
        """What to read in this epoch; empty for a subtask that got nothing."""
        self.budget: BudgetMeter
        """How much may still be read."""
        self.deadline = Deadline()
        self.split_states: dict[str, SplitState] = {}
        """The state of every split of this subtask, as changed so far in this epoch."""
        self.fed: Iterable[pa.RecordBatch] | None = None
        """Rows that the executor brings, to be read once; None unless the plan asked for it."""

    def advance(self, split: str, offset: Any) -> None:
        """Note that everything before `offset` was emitted: the next epoch goes on there."""
        self.deadline.check()
        self.split_states[split] = replace(self.split_state(split), offset=offset)

    def note_event_time(self, split: str, micros: int) -> None:
        """Note that event time has come at least that far in a split, whatever it was read of it."""
        state = self.split_state(split)
        known = state.max_event_time_micros
        latest = micros if known is None else max(known, micros)
        self.split_states[split] = replace(state, max_event_time_micros=latest)

    def end_split(self, split: str) -> None:
        """Note that a split has ended for good."""
        self.split_states[split] = replace(self.split_state(split), ended=True)

    def split_state(self, split: str) -> SplitState:
        """Return how far one of the own splits was read."""
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
class CommitContext:
    """What a commit sees: whose it is. Tables are closed by then; the commit data is all."""

    task: TaskInfo
    store: ObjectStore
    """The store of the checkpoints, for sinks that stage beside them."""
    identity: str = ""
    """It differs from that of another job of the same name, elsewhere or after this one's end."""
