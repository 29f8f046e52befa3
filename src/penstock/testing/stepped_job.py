"""SteppedJob: a job in this process that runs one epoch per call; harnesses are made of it.

It uses the same session, executor and worker as every other job, with three differences: every
epoch is published, even one that changed nothing, so that epochs are numbered without gaps;
commits are noted and run only on request; and all output of the operators under test is kept.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Self

import msgspec
import pyarrow as pa
from typing_extensions import override

from penstock.core.clock import DurationLike, ManualClock, to_micros
from penstock.core.ids import OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.settings import CompactionSettings
from penstock.core.watermark import MAX_EVENT_TIME, current, merge, merge_subtasks
from penstock.errors import (
    ErrorCode,
    InternalError,
    PenstockError,
    StateError,
    UserError,
    did_you_mean,
)
from penstock.graph.logical import MAIN, LogicalGraph, OperatorSpec
from penstock.operators.chain import declared_tables
from penstock.operators.operator import SourceFinishType
from penstock.operators.registry import ConstructedOperator, Registry
from penstock.operators.timers import Timers, timer_tables
from penstock.runtime.driver.committing import CommittingSinks, SinkCommit
from penstock.runtime.driver.decide import StopMode
from penstock.runtime.driver.environment import DriverSettings, JobEnvironment
from penstock.runtime.driver.outcomes import EpochRan
from penstock.runtime.driver.session import JobSession
from penstock.runtime.in_process import InProcessExecutor
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.executor import TaskReport
from penstock.runtime.plan.physical import PhysicalPlan
from penstock.runtime.task.task import Worker
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec, TimeDomain
from penstock.testing.given import Emitted, EpochOutput
from penstock.testing.parts import Builder, GivenInput, surround

NO_CACHE = FileCache(Path("/nonexistent"), 0)
"""A cache of size 0: everything is read from the store."""
_SETTINGS = DriverSettings(
    keep_epochs=1,
    collect_every=1 << 62,
    adapts_budget=False,
    # Compactions keep the number of files small, so that long tests stay fast.
    compaction=CompactionSettings(min_files=16, min_expiring_files=16),
)


def rescaled(graph: LogicalGraph, parallelism: int) -> LogicalGraph:
    """Return the same graph with another number of subtasks of every operator."""
    nodes = tuple(replace(node, parallelism=parallelism) for node in graph.nodes)
    return replace(graph, nodes=nodes)


class Amnesia(Enum):
    """What is dropped after every epoch, as if the next one ran elsewhere."""

    NOTHING = "nothing"
    OPERATORS = "operators"
    """Operators are built again: what they keep in attributes is gone."""
    EVERYTHING = "everything"
    """Tables too are opened again from the checkpoint."""


class SteppedJob:
    """A job that runs one epoch per call. Only its store lasts between epochs.

    An epoch that fails changes nothing: the next one starts from the checkpoint before it,
    in a new session.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        inputs: Sequence[GivenInput],
        *,
        store: ObjectStore,
        registry: Registry,
        clock: ManualClock,
        amnesia: Amnesia = Amnesia.NOTHING,
    ) -> None:
        """Make a job of a graph; the rows of every output that nothing reads are kept."""
        self.clock = clock
        self._store = store
        self._amnesia = amnesia
        graph, self._parts = surround(graph, inputs, self._keep)
        self._registry = _PartsRegistry(registry, self._parts)
        self._outputs = {
            edge.output: graph.node(edge.source).outputs[edge.output]
            for edge in graph.edges
            if edge.target in self._parts and edge.source not in self._parts
        }
        self._emitted = Emitted(self._outputs)
        self._open(graph)

    def _open(self, graph: LogicalGraph) -> None:
        self._graph = graph
        self._failures: list[PenstockError] = []
        self._started: JobSession | None = None
        self._worker = Worker(
            self._store,
            NO_CACHE,
            self._registry,
            self.clock,
            on_failure=self._failures.append,
        )
        self._executor = _SteppedExecutor(self._worker, self._outputs)
        self._environment = JobEnvironment(
            graph,
            self._store,
            NO_CACHE,
            self._executor,
            self._registry,
            self.clock,
            _SETTINGS,
        )
        # State by event time is allowed behind a forward edge, too: here all subtasks of an
        # operator get the same watermark.
        self._environment.tables = {
            node.operator: declared_tables(
                self._registry.construct(node.spec).operator, node
            )
            for node in graph.nodes
        }
        self._commits = _StagedCommits(self._environment)

    @property
    def _session(self) -> JobSession:
        """The session of the job, started when it is first needed."""
        if self._started is None:
            self._started = JobSession.start(self._environment, sinks=self._commits)
        return self._started

    def rows(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return all rows of an output since the start or the last `take`, as dictionaries."""
        return self._emitted.rows(output)

    def take(self, output: str = MAIN) -> list[dict[str, Any]]:
        """Return the rows of an output and forget them."""
        return self._emitted.take(output)

    def advance(self, duration: DurationLike) -> None:
        """Advance processing time, such as by "10s", before the next epoch."""
        self.clock.advance(to_micros(duration))

    def close(self) -> None:
        """Release the operators; the next epoch claims the job again."""
        self._executor.close()
        if self._started is not None:
            self._started.close()
            self._started = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_other_rows(self) -> None:
        """Raise if the attempts at the last epoch gave different rows or offsets."""
        told = [
            (
                {name: emitted.table(name) for name in self._outputs},
                [part.splits for report in reports for part in report.operators],
            )
            for emitted, reports in self._executor.runs
        ]
        if any(each != told[0] for each in told):
            raise UserError(
                "an epoch that was run again by the same plan gave other rows or offsets: first "
                f"{told[0]}, then {told[-1]}",
                code=ErrorCode.UDF_INVALID,
            )

    def _run(
        self,
        stop: StopMode | None = None,
        *,
        attempts: int = 1,
        between: Callable[[], object] | None = None,
    ) -> tuple[EpochRan, EpochOutput]:
        """Run an epoch; of several attempts the last counts, and `between` is called before it."""
        self._executor.attempts = attempts
        self._executor.between = between
        self._failures.clear()
        try:
            ran = self._session.run_epoch(stop=stop)
        except BaseException as error:
            self.close()
            if self._failures and isinstance(error, PenstockError):
                # The error that travelled from the task has lost its cause.
                raise self._failures[0] from self._failures[0].__cause__
            raise
        if not isinstance(ran, EpochRan):
            raise InternalError(f"an epoch in one process came to {ran}")
        output = self._output(ran)
        if ran.finish is not SourceFinishType.IMMEDIATE:
            self._emitted.extend(output.emitted)
        if self._amnesia is Amnesia.EVERYTHING:
            self._worker.forget()
        elif self._amnesia is Amnesia.OPERATORS:
            for kept in self._worker.chains.values():
                kept.chain.forget()
        return ran, output

    def _read_table(self, table: str, subtask: int | None = None) -> Any:
        """Return a global table as a dictionary, another one as an Arrow table."""
        operator, spec = self._find(table)
        parallelism = self._graph.node(operator).parallelism
        seen_by = None if subtask is None else Subtask(subtask, parallelism)
        with self._session.read_tables(operator, [spec], seen_by) as manager:
            if spec.table_type == state_pb2.GLOBAL_KEYED_TABLE:
                return dict(manager.get_global_keyed_state(spec.name).items())
            if spec.table_type == state_pb2.TIME_KEYED_TABLE:
                return manager.get_time_keyed_state(spec.name).rows()
            view = manager.get_keyed_state(spec.name)
            return pa.Table.from_batches(list(view.scan()), view.schema.declared)

    def _read_timers(self, domain: TimeDomain) -> list[dict[str, Any]]:
        """Return the timers that no clock has reached yet, of all operators, earliest first."""
        found: list[dict[str, Any]] = []
        is_declared = False
        for node in self._graph.nodes:
            if not node.inputs or not node.inputs[0].key_columns:
                continue
            tables = timer_tables([domain], node.inputs[0])
            declared = {spec.name for spec in self._environment.tables[node.operator]}
            if tables[0].name not in declared:
                continue
            is_declared = True
            frontier = self._session.frontier(node.operator)
            clock = frontier.previous_processing_time_micros
            if domain is TimeDomain.EVENT_TIME:
                clock = frontier.watermark_micros
            with self._session.read_tables(node.operator, tables) as manager:
                timers = Timers(domain, manager, node.inputs[0])
                timers.begin_epoch(clock)
                due = timers.take_due(MAX_EVENT_TIME.micros)
            if due is not None:
                rows = zip(due.keys.to_pylist(), due.due_micros.to_pylist(), strict=True)
                found += [{**key, "due_micros": micros} for key, micros in rows]
        if not is_declared:
            raise UserError(
                f"no operator under test sets timers by {domain.value}: return "
                f"TimeDomain.{domain.name} from timers()",
                code=ErrorCode.UNDECLARED_TIMERS,
            )
        return sorted(found, key=lambda timer: timer["due_micros"])

    def _output(self, ran: EpochRan) -> EpochOutput:
        """Return the output of an epoch as harnesses give it to users."""
        reports = ran.reports.values()
        counters: Counter[str] = Counter()
        for report in reports:
            counters.update(report.counters)
        wake_ups = [report.wake_up_micros for report in reports]
        # The part that keeps the last output of the last operator has got its watermark.
        last = self._graph.nodes[-1]
        inputs = merge_subtasks(
            [ran.reports[last.operator, i].inputs for i in range(last.parallelism)]
        )
        return EpochOutput(
            ran.progress.epoch,
            self._executor.emitted,
            merge(map(current, inputs)),
            dict(counters),
            min((micros for micros in wake_ups if micros is not None), default=None),
            next((report.finish for report in reports if report.finish), None),
        )

    def _find(self, table: str) -> tuple[OperatorId, TableSpec]:
        """Return the one operator under test that declares a table, and its declaration."""
        known = [
            (name, spec)
            for name, specs in self._environment.tables.items()
            if name not in self._parts
            for spec in specs
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

    def _keep(self, output: str, batch: pa.RecordBatch) -> None:
        self._executor.emitted.add(output, batch)


class _SteppedExecutor(InProcessExecutor):
    """Runs an epoch several times, and makes it count even if it changed nothing."""

    def __init__(self, worker: Worker, outputs: Mapping[str, StreamSchema]) -> None:
        super().__init__(worker)
        self.attempts = 1
        self.between: Callable[[], object] | None = None
        self.runs: list[tuple[Emitted, Sequence[TaskReport]]] = []
        """What every attempt at the last epoch gave."""
        self._outputs = outputs
        self.emitted = Emitted(outputs)
        """The rows of the last attempt."""

    @override
    def run_epoch(
        self, job: PhysicalPlan, epoch: EpochPlan, parent: CheckpointManifest | None
    ) -> Sequence[TaskReport]:
        reports: Sequence[TaskReport] = ()
        self.runs = []
        for attempt in range(max(self.attempts, 1)):
            if attempt:
                self.worker.forget()
                if self.between is not None:
                    self.between()
            self.emitted = Emitted(self._outputs)
            reports = super().run_epoch(job, epoch, parent)
            self.runs.append((self.emitted, reports))
            if not all(report.is_whole for report in reports):
                return reports
        first, *others = reports
        operators = [msgspec.structs.replace(first.operators[0], has_fired=True)]
        operators += first.operators[1:]
        return [msgspec.structs.replace(first, operators=tuple(operators)), *others]


class _PartsRegistry(Registry):
    """Builds a harness's own parts, and everything else as another registry does."""

    def __init__(self, registry: Registry, parts: Mapping[str, Builder]) -> None:
        super().__init__()
        self._registry = registry
        self._parts = parts

    @override
    def construct(self, spec: OperatorSpec) -> ConstructedOperator:
        build = self._parts.get(spec.kind)
        if build is None:
            return self._registry.construct(spec)
        return ConstructedOperator(build())


class _StagedCommits(CommittingSinks):
    """Notes what may be committed, and commits an epoch only in `carry_out`."""

    def __init__(self, environment: JobEnvironment) -> None:
        super().__init__(environment)
        self.staged: dict[int, dict[TaskInfo, SinkCommit]] = {}
        self._waiting: set[int] = set()

    @override
    def _commit_all(self, commits: Sequence[SinkCommit]) -> None:
        for commit in commits:
            epoch = int(commit.permit.ref.epoch)
            self.staged.setdefault(epoch, {})[commit.task] = commit
            self._waiting.add(epoch)

    def carry_out(self, epoch: int | None) -> None:
        """Commit an epoch on new instances of its sinks; without a number all uncommitted ones."""
        if epoch is not None and epoch not in self.staged:
            raise UserError(
                f"epoch {epoch} staged nothing to commit; these did: "
                f"{', '.join(map(str, self.staged)) or 'none'}",
                code=ErrorCode.INVALID_NUMBER,
            )
        for number in sorted(self._waiting) if epoch is None else [epoch]:
            try:
                super()._commit_all([*self.staged[number].values()])
            finally:
                self.release()
            self._waiting.discard(number)
