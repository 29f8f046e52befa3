"""ChainSubtasks: all subtasks of one chain, run epoch by epoch on real tables, without a runtime.

What a driver, an exchange and workers do to a chain is done here in the plainest way that
gives the chain the same view of the world. An epoch that fails leaves no trace: the next one
starts from the checkpoint before it.

Looking at the state of operators under test, as their last checkpoint holds it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.core.clock import Clock, new_token
from penstock.core.ids import Epoch, Generation, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import (
    InputWatermark,
    Watermark,
    event_time_of,
    merge,
    merge_subtasks,
)
from penstock.errors import ErrorCode, StateError, UserError, did_you_mean
from penstock.graph.logical import MAIN, Edge, Node
from penstock.operators.chain import AssembledChain, ChainSetting, run_alone
from penstock.operators.collector import Target
from penstock.operators.nodes import EpochTerms, OperatorReport, declared_tables
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceAssignment
from penstock.operators.timers import (
    DUE,
    FIRES_AT,
    in_firing_order,
    keys_of,
    micros_in,
    newest_rows,
    next_instant,
    set_rows,
    timer_tables,
)
from penstock.state.checkpoints import Metadata
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.proto.state_pb2 import TableCheckpointMetadata
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.operator_tables import apply_compaction, compact_subtask
from penstock.state.tables.sorted_rows import join_rows
from penstock.state.tables.specs import TableSpec, TimeDomain
from penstock.state.tables.table import CompactionConfig, Frontier, TableEnvironment
from penstock.state.tables.table_manager import TableManager
from penstock.testing.given import Emitted

JOB = JobId("harness")
NO_CACHE = FileCache(Path("/nonexistent"), 0)
"""A cache without room: everything is read from the store."""
Compacted: TypeAlias = dict[str, TableCheckpointMetadata]
_GENERATION = Generation(1)
_COMPACT_EVERY = 16
"""Files are merged every so many epochs, so that long tests stay fast."""


class Amnesia(Enum):
    """What is forgotten after every epoch, as if the next one ran elsewhere."""

    NOTHING = "nothing"
    OPERATORS = "operators"
    """Operators are built anew: what they keep in attributes is gone."""
    EVERYTHING = "everything"
    """Tables too are opened anew from the checkpoint."""


@dataclass(frozen=True, slots=True)
class ChainState:
    """Where a chain stands after an epoch: all that another process would be told."""

    epoch: int = 0
    """The last one; 0 before the first."""
    processing_time_micros: int | None = None
    metadata: Mapping[OperatorId, Mapping[int, Metadata]] = field(default_factory=dict)
    """Of every subtask, by operator and index."""
    watermarks: Mapping[OperatorId, tuple[InputWatermark, ...]] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class SubtaskInput:
    """What one subtask is given in an epoch."""

    head: OperatorId
    rows: list[tuple[int, pa.RecordBatch]] = field(default_factory=list)
    """By input, in the order they come."""
    spoken: Sequence[Watermark | None] = ()

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        """Return the rows."""
        return ((self.head, index, batch) for index, batch in self.rows)

    def watermarks(self) -> Mapping[tuple[str, int], Watermark | None]:
        """Return what each input was told."""
        return {(self.head, index): told for index, told in enumerate(self.spoken)}


@dataclass(frozen=True, slots=True)
class ChainRun:
    """What an epoch of all subtasks gave."""

    reports: Mapping[tuple[OperatorId, int], OperatorReport]
    watermark: Watermark | None
    """What the last operator passed on, merged over its subtasks."""
    emitted: Emitted


class _Outlet:
    """Puts the rows of one output with the others."""

    __slots__ = ("_emitted", "_output")

    def __init__(self, emitted: Emitted, output: str) -> None:
        self._emitted = emitted
        self._output = output

    def take(self, batch: pa.RecordBatch) -> None:
        self._emitted.add(self._output, batch)


class ChainSubtasks:
    """Runs the epochs of one chain. `state` moves on only when all subtasks succeeded."""

    def __init__(
        self,
        nodes: Sequence[Node],
        links: Sequence[Edge],
        *,
        store: ObjectStore,
        registry: Registry,
        clock: Clock,
        amnesia: Amnesia = Amnesia.NOTHING,
        state: ChainState | None = None,
    ) -> None:
        self.nodes = tuple(nodes)
        self.links = tuple(links)
        self.parallelism = nodes[0].parallelism
        self.store = store
        self.registry = registry
        self.clock = clock
        self.amnesia = amnesia
        self.state = state or ChainState()
        self.tables: dict[OperatorId, tuple[TableSpec, ...]] = {
            node.operator: declared_tables(registry.construct(node.spec).operator, node)
            for node in self.nodes
        }
        last = self.nodes[-1].operator
        self.outputs = {
            name: stream
            for node in self.nodes
            for name, stream in node.outputs.items()
            if name != MAIN or node.operator == last
        }
        """What leaves the chain: side outputs of all operators, and the last one's rows."""
        self._chains: dict[int, AssembledChain] = {}
        self._compacted: list[tuple[OperatorId, Compacted]] = []

    def run(
        self,
        terms: EpochTerms,
        inputs: Sequence[SubtaskInput],
        assignments: Sequence[SourceAssignment] = (),
        *,
        attempts: int = 1,
    ) -> ChainRun:
        """Run an epoch of all subtasks and go on from it; of several attempts the last counts."""
        for _ in range(attempts - 1):
            self._attempt(terms, inputs, assignments)
            self._abandon()
        run = self._attempt(terms, inputs, assignments)
        self._accept(terms, run.reports)
        if terms.is_stop or terms.barrier.then_stop:
            self.close()
        self._forget()
        return run

    def discard(self, state: ChainState) -> None:
        """Go back to where the chain stood: what ran since does not count."""
        self.close()
        self.state = state
        self._compacted = []

    def _attempt(
        self,
        terms: EpochTerms,
        inputs: Sequence[SubtaskInput],
        assignments: Sequence[SourceAssignment],
    ) -> ChainRun:
        """Run an epoch of all subtasks, one after the other, on the last checkpoint."""
        emitted = Emitted(self.outputs)
        reports: dict[tuple[OperatorId, int], OperatorReport] = {}
        last: list[Watermark | None] = []
        try:
            for index, given in enumerate(inputs):
                chain = self._open(index)
                chain.begin(
                    terms,
                    watermarks=self.state.watermarks,
                    assignments={given.head: assignments[index]} if assignments else {},
                    outlets=self._outlets(emitted),
                )
                done, passed_on = run_alone(chain.nodes, chain.links, given, terms)
                reports |= {(report.operator, index): report for report in done}
                last.append(passed_on[self.nodes[-1].operator])
        except BaseException:
            self._abandon()
            raise
        return ChainRun(reports, merge(last), emitted)

    def close(self) -> None:
        """Let go of everything; another epoch opens it again from the checkpoint."""
        while self._chains:
            _, chain = self._chains.popitem()
            chain.close()

    def open_tables(self, operator: OperatorId, subtask: Subtask) -> TableManager:
        """Open an operator's tables on the checkpoint, to look at what a subtask would see."""
        manager = self._load(TaskInfo(JOB, operator, subtask), self.tables[operator])
        manager.begin_epoch(self._frontier(operator))
        return manager

    def _open(self, index: int) -> AssembledChain:
        """Return a subtask's chain on the last checkpoint."""
        subtask = Subtask(index, self.parallelism)
        chain = self._chains.get(index)
        if chain is None:
            setting = ChainSetting(JOB, subtask, self.registry, self.clock, self._load)
            chain = AssembledChain(self.nodes, self.links, setting)
            self._chains[index] = chain
            return chain
        for node in chain.nodes:
            restored = self.state.metadata.get(node.task.operator, {})
            node.tables.catch_up(self._environment(node.task), restored)
        return chain

    def _load(self, task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        restored = self.state.metadata.get(task.operator, {})
        return TableManager.load(self._environment(task), specs, restored)

    def _environment(self, task: TaskInfo) -> TableEnvironment:
        return TableEnvironment(task, _GENERATION, new_token(), self.store, NO_CACHE)

    def _outlets(self, emitted: Emitted) -> dict[OperatorId, dict[str, list[Target]]]:
        return {
            node.operator: {
                name: [_Outlet(emitted, name)]
                for name in node.outputs
                if name != MAIN or node is self.nodes[-1]
            }
            for node in self.nodes
        }

    def _accept(
        self, terms: EpochTerms, reports: Mapping[tuple[OperatorId, int], OperatorReport]
    ) -> None:
        """Go on from an epoch in which every subtask wrote its checkpoint."""
        epoch = terms.barrier.epoch
        metadata: dict[OperatorId, dict[int, Metadata]] = {}
        watermarks: dict[OperatorId, tuple[InputWatermark, ...]] = {}
        for node in self.nodes:
            operator = node.operator
            known = self.state.metadata.get(operator, {})
            of_subtasks = [reports[operator, i] for i in range(self.parallelism)]
            metadata[operator] = {
                i: report.checkpoint.metadata if report.checkpoint.changed else known[i]
                for i, report in enumerate(of_subtasks)
            }
            watermarks[operator] = merge_subtasks([report.inputs for report in of_subtasks])
        self._swap(metadata, epoch)
        now = terms.processing_time_micros
        self.state = ChainState(int(epoch), now, metadata, watermarks)
        if epoch % _COMPACT_EVERY == 0:
            self._compact()

    def _swap(self, metadata: dict[OperatorId, dict[int, Metadata]], epoch: Epoch) -> None:
        """Let merged files take the place of those they were made of."""
        for operator, compacted in self._compacted:
            parts = metadata[operator]
            parts.update(apply_compaction(parts, compacted, epoch=epoch))
        self._compacted = []

    def _compact(self) -> None:
        for node in self.nodes:
            for index in range(self.parallelism):
                task = TaskInfo(JOB, node.operator, Subtask(index, self.parallelism))
                config = CompactionConfig(
                    self._environment(task),
                    Epoch(self.state.epoch + 1),
                    self._frontier(node.operator),
                )
                parts = self.state.metadata[node.operator]
                done = compact_subtask(self.tables[node.operator], config, parts)
                if done:
                    self._compacted.append((node.operator, done))

    def _frontier(self, operator: OperatorId) -> Frontier:
        known = event_time_of(self.state.watermarks.get(operator, ()))
        micros = None if known is None else known.micros
        now = self.state.processing_time_micros
        return Frontier(micros, now or 0, now)

    def _forget(self) -> None:
        if self.amnesia is Amnesia.EVERYTHING:
            self.close()
        elif self.amnesia is Amnesia.OPERATORS:
            for chain in self._chains.values():
                chain.forget()

    def _abandon(self) -> None:
        while self._chains:
            _, chain = self._chains.popitem()
            chain.close()


def rescale_nodes(nodes: Sequence[Node], parallelism: int) -> tuple[Node, ...]:
    """Return the same operators with another number of subtasks."""
    return tuple(replace(node, parallelism=parallelism) for node in nodes)


def read_table(subtasks: ChainSubtasks, table: str, subtask: int | None = None) -> Any:
    """Return a global table as a dictionary, another one as an Arrow table."""
    operator, spec = _find(subtasks, table)
    # One subtask of one owns all keys: it sees the state of all the others.
    seen_by = Subtask(0, 1) if subtask is None else Subtask(subtask, subtasks.parallelism)
    manager = subtasks.open_tables(operator, seen_by)
    try:
        return _contents(manager, spec)
    finally:
        manager.close()


def read_timers(subtasks: ChainSubtasks, domain: TimeDomain) -> list[dict[str, Any]]:
    """Return the timers that no clock has reached yet, of all operators, earliest first."""
    found: list[dict[str, Any]] = []
    declares_any = False
    for node in subtasks.nodes:
        if not node.inputs or not node.inputs[0].key_columns:
            continue
        table = timer_tables([domain], node.inputs[0])[0].name
        if all(spec.name != table for spec in subtasks.tables[node.operator]):
            continue
        declares_any = True
        found += _timers(subtasks, node.operator, node.inputs[0], domain)
    if not declares_any:
        raise UserError(
            f"no operator under test sets timers by {domain.value}: return "
            f"TimeDomain.{domain.name} from timers()",
            code=ErrorCode.UNDECLARED_TIMERS,
        )
    return sorted(found, key=lambda timer: timer["due_micros"])


def _find(subtasks: ChainSubtasks, table: str) -> tuple[OperatorId, TableSpec]:
    known = [
        (operator, spec) for operator, specs in subtasks.tables.items() for spec in specs
    ]
    found = [(operator, spec) for operator, spec in known if spec.name == table]
    if len(found) == 1:
        return found[0]
    names = [str(spec.name) for _, spec in known]
    raise StateError(
        f"{len(found) or 'no'} operators under test declare the table {table!r}"
        f"{did_you_mean(table, set(names))}; there is: {', '.join(names) or 'none'}",
        code=ErrorCode.NO_REGISTERED_TABLE,
        table=table,
    )


def _contents(manager: TableManager, spec: TableSpec) -> Any:
    if spec.table_type == state_pb2.GLOBAL_KEYED_TABLE:
        return dict(manager.get_global_keyed_state(spec.name).items())
    if spec.table_type == state_pb2.TIME_KEYED_TABLE:
        return manager.get_time_keyed_state(spec.name).rows()
    view = manager.get_keyed_state(spec.name)
    return pa.Table.from_batches(list(view.scan()), view.schema.declared)


def _timers(
    subtasks: ChainSubtasks, operator: OperatorId, keyed: StreamSchema, domain: TimeDomain
) -> list[dict[str, Any]]:
    table = timer_tables([domain], keyed)[0].name
    rows: pa.Table = read_table(subtasks, table)
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    if not batches:
        return []
    clock = subtasks.state.processing_time_micros
    if domain is TimeDomain.EVENT_TIME:
        known = event_time_of(subtasks.state.watermarks.get(operator, ()))
        clock = None if known is None else known.micros
    joined = join_rows(batches)
    if clock is not None:
        ahead = micros_in(joined, FIRES_AT) >= next_instant(clock)
        joined = joined.filter(pa.array(ahead))
    timers = in_firing_order(set_rows(newest_rows(joined)))
    due = micros_in(timers, DUE).tolist()
    return [
        {**key, "due_micros": micros}
        for key, micros in zip(keys_of(timers, keyed).to_pylist(), due, strict=True)
    ]
