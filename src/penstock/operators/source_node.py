"""SourceNode: a source as the first node of a chain, with its splits and their watermark."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from typing_extensions import override

from penstock.core.clock import Clock
from penstock.core.watermark import IDLE, MAX_EVENT_TIME, Watermark
from penstock.errors import ErrorCode, UserCodeError, UserError
from penstock.operators.collector import SourceCollector
from penstock.operators.context import SourceContext
from penstock.operators.event_time import (
    last_watermark,
    next_idle_micros,
    watermark_of_splits,
)
from penstock.operators.nodes import (
    EpochTerms,
    NodeParts,
    OperatorNode,
    OperatorReport,
    Outlets,
)
from penstock.operators.source import SPLITS_TABLE, SourceFinishType, SourceOperator
from penstock.operators.splits import (
    BudgetMeter,
    Deadline,
    SourceAssignment,
    SourceOverrunError,
    SourcePhase,
    SplitState,
    change,
)
from penstock.state.tables.table import Frontier


class SourceNode(OperatorNode[SourceOperator, SourceContext, SourceCollector]):
    """A source that reads what it was dealt. Offsets go into its table, by split."""

    def __init__(
        self, parts: NodeParts[SourceOperator], collector: SourceCollector, clock: Clock
    ) -> None:
        context = SourceContext(parts.task, outputs=parts.node.outputs, tables=parts.tables)
        super().__init__(parts, context, collector)
        self._clock = clock
        self._assignment = SourceAssignment()
        self._finish: SourceFinishType | None = None
        self._changed: dict[str, SplitState] = {}

    def begin(
        self,
        terms: EpochTerms,
        assignment: SourceAssignment,
        outlets: Outlets,
        fed: Iterable[pa.RecordBatch] | None = None,
    ) -> None:
        """Start an epoch with what the driver dealt to this subtask, and what it is fed."""
        self._assignment = assignment
        self._finish = None
        self._changed = {}
        frontier = Frontier(
            None, terms.processing_time_micros, terms.previous_processing_time_micros
        )
        self.begin_epoch(terms, frontier, outlets)
        self.context.splits = assignment.splits
        self.context.fed = fed
        self.context.budget = BudgetMeter(assignment.budget, self._clock)
        self.collector.budget = self.context.budget
        self.context.split_states = self._known(assignment)
        if assignment.phase is not SourcePhase.ENDED:
            self.start()

    def run(self, terms: EpochTerms) -> None:
        """Read until the source comes back; then store how far it got."""
        assignment = self._assignment
        before = self.context.split_states.copy()
        if assignment.phase is SourcePhase.READING and assignment.splits:
            limit = assignment.budget.wall_micros + assignment.budget.overrun_micros
            self._finish = self._checked(self._read(limit / 1_000_000))
        is_reading = assignment.phase is SourcePhase.READING
        if assignment.phase is SourcePhase.ENDING or (terms.is_stop and is_reading):
            self.call("on_close", self.instance.on_close, self.context)
        self.call("run", self._note_activity, terms.processing_time_micros)
        self._store(before)

    def watermark(self) -> Watermark | None:
        """Return what is true of the splits this subtask speaks for."""
        if self._assignment.phase is not SourcePhase.READING:
            return MAX_EVENT_TIME
        states = self.context.split_states
        if not any(not state.ended for state in states.values()):
            spec = self.node.watermark
            return IDLE if spec is None else last_watermark(self._ended_now(), spec)
        if self.node.watermark is None:
            return None
        now = self.context.processing_time_micros
        return watermark_of_splits(states, self.node.watermark, now)

    def _ended_now(self) -> Iterator[SplitState]:
        """Return the splits that have ended in this epoch."""
        return (state for state in self._changed.values() if state.ended)

    @override
    def report(self) -> OperatorReport:
        """Say what was read in the epoch that was just checkpointed."""
        meter = self.context.budget
        return OperatorReport(
            self.task.operator,
            self.checkpointed(),
            rows_emitted=dict(self.collector.rows_emitted),
            rows_taken=meter.rows_read,
            counters=dict(self.context.counters),
            wake_up_micros=self._wake_up(),
            splits=self._changed,
            finish=self._finish,
            bytes_read=meter.bytes_read,
            has_more=self._finish is None and meter.is_spent,
        )

    def _read(self, limit_seconds: float) -> object:
        def note_overrun() -> None:
            error = UserCodeError(
                f"source {self.task.operator!r} did not end its epoch: run() was still busy "
                f"{limit_seconds:g} s after it began. Return when ctx.budget.is_spent, and when "
                "there is nothing to read right now",
                code=ErrorCode.SOURCE_OVERRAN,
            )
            self.fail(error, "run")

        def run() -> object:
            finish = self.instance.run(self.context, self.collector)
            deadline.check()
            return finish

        deadline = Deadline(limit_seconds, note_overrun)
        self.context.deadline = self.collector.deadline = deadline
        try:
            return self.call("run", run)
        except SourceOverrunError as error:
            raise self.failures[0] from error
        finally:
            # Hooks that run outside of `run` have no deadline.
            self.context.deadline = self.collector.deadline = Deadline()

    def _known(self, assignment: SourceAssignment) -> dict[str, SplitState]:
        """Return the state of all splits dealt to this subtask; new ones begin now."""
        table = self.context.get_global_keyed_state(SPLITS_TABLE)
        now = self.context.processing_time_micros
        found: dict[str, SplitState] = {}
        for name in (*(split.name for split in assignment.splits), *assignment.resting):
            state = table.get(name)
            if state is None:
                state = SplitState(last_active_micros=now)
                table.insert(name, state)
                self._changed[name] = state
            found[name] = state
        return found

    def _checked(self, finish: object) -> SourceFinishType | None:
        if finish is SourceFinishType.FINAL:
            for split in self.context.splits:
                self.context.end_split(split.name)
        elif finish is not None and not isinstance(finish, SourceFinishType):
            raise self.fail(
                UserError(
                    f"source {self.task.operator!r} returned {finish!r} from run(): return a "
                    "SourceFinishType, or None to go on in the next epoch",
                    code=ErrorCode.INVALID_NUMBER,
                ),
                "run",
            )
        return finish

    def _note_activity(self, now_micros: int) -> None:
        """Note for every split that gave rows when that was and how late they got."""
        only = self.context.splits[0].name if len(self.context.splits) == 1 else None
        for given in self.collector.active_splits:
            name = only if given is None else given
            if name is None:
                raise UserError(
                    f"source {self.task.operator!r} emitted rows without saying of which of "
                    "its splits: pass split= to collect",
                    code=ErrorCode.UNKNOWN_SPLIT,
                )
            state = self.context.split_state(name)
            latest = self.collector.max_event_times.get(given)
            known = state.max_event_time_micros
            if latest is None or (known is not None and known > latest):
                latest = known
            self.context.split_states[name] = change(
                state, max_event_time_micros=latest, last_active_micros=now_micros
            )
        for split in self.context.splits:
            # Rows that are known to be there make a split busy, also when it was not its turn.
            if split.end is not None and split.end != split.start:
                state = self.context.split_state(split.name)
                self.context.split_states[split.name] = change(
                    state, last_active_micros=now_micros
                )

    def _store(self, before: dict[str, SplitState]) -> None:
        table = self.context.get_global_keyed_state(SPLITS_TABLE)
        for name, state in self.context.split_states.items():
            if state != before.get(name):
                table.insert(name, state)
                self._changed[name] = state

    def _wake_up(self) -> int | None:
        """Return when to look again: for new data, and to notice that a split is idle."""
        if self._assignment.phase is not SourcePhase.READING:
            return None
        now = self.context.processing_time_micros
        states = self.context.split_states
        wake_ups = [self.context.wake_up_micros]
        if self.node.watermark is not None:
            wake_ups.append(next_idle_micros(states, self.node.watermark, now))
        known = [micros for micros in wake_ups if micros is not None]
        return min(known) if known else None
