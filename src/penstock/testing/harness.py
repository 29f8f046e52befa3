"""OperatorHarness and SourceHarness: test operators and sources, one epoch per call.

    with OperatorHarness(Dedup(), schema, key="user") as harness:
        harness.push({"user": ["a", "b", "a"], "n": [1, 2, 3]})
        harness.watermark("2026-01-01T00:00:10")
        harness.barrier()
        assert harness.rows() == [...]

    with SourceHarness(LogFiles("logs/"), parallelism=2) as harness:
        harness.read(rows=100)            one epoch with a budget
        harness.rescale(3)                another process with more subtasks goes on
        harness.read()

How it works. A harness is a job of its own (`SteppedJob`): the operators under test stand
between parts that bring rows and watermarks and parts that keep what comes out.

    input-0 → given-0 ─by key→ operator → output-0

`push`, `watermark` and `advance` prepare an epoch; `barrier` runs it: plan, tasks, real
tables, publication. Only `advance` moves the clock. If a hook raises, `barrier` raises the
`PenstockError` that a job would fail with, and the epoch and its rows are lost. Nothing is
committed before `commit` is called.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from penstock.core.clock import DurationLike, ManualClock, new_token, to_micros
from penstock.core.ids import Epoch, JobId, OperatorId
from penstock.core.schema import StreamSchema
from penstock.core.spellings import renamed
from penstock.core.watermark import MAX_EVENT_TIME, Watermark
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import (
    MAIN,
    Exchange,
    LogicalGraph,
    Node,
    OperatorSpec,
    WatermarkSpec,
)
from penstock.operators.operator import SPLITS_TABLE, SourceOperator
from penstock.operators.registry import Registry
from penstock.operators.splits import SourceAssignment, SourceBudget, SplitState
from penstock.operators.user_functions import source_spec
from penstock.runtime.driver.decide import StopMode
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.protocol.retention import Epochs
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TimeDomain
from penstock.testing.given import (
    START,
    EpochOutput,
    GivenRows,
    InstantLike,
    OperatorLike,
    StreamLike,
    WatermarkLike,
    chain_of,
    rows_to_batches,
    shared_registry,
    to_instant,
    to_watermark,
)
from penstock.testing.parts import GivenInput
from penstock.testing.stepped_job import Amnesia, SteppedJob, rescaled

_SOURCE = OperatorId("source")


def _place_in(store: ObjectStore | None) -> tuple[JobId, ObjectStore]:
    """Return the name and the store of a harness's job; a given store may hold other jobs."""
    if store is None:
        return JobId("harness"), MemoryStore()
    return JobId(f"harness-{new_token()}"), store


@dataclass(frozen=True, slots=True)
class HarnessCheckpoint:
    """The state of a harness after an epoch. Later epochs of the harness do not change it."""

    epoch: int
    """The epoch after which it was made; 0 before the first."""
    graph: LogicalGraph
    """The operators under test."""
    watermarks: tuple[Watermark | None, ...]
    """Of each input."""
    now_micros: int
    store: ObjectStore
    registry: Registry
    broadcast: frozenset[int]


class OperatorHarness(SteppedJob):
    """Operators under test. Not thread-safe; close it, or use it as a context manager.

    >>> import polars as pl
    >>> from penstock.operators.expressions import filter_spec
    >>> schema = pa.schema([("n", pa.int64())])
    >>> with OperatorHarness(filter_spec(pl.col("n") > 1), schema) as harness:
    ...     harness.push({"n": [1, 2, 3]})
    ...     harness.barrier().rows()
    [{'n': 2}, {'n': 3}]
    """

    def __init__(
        self,
        operator: OperatorLike | Sequence[OperatorLike],
        *inputs: StreamLike,
        key: str | Sequence[str] = (),
        time_column: str | None = None,
        parallelism: int = 1,
        broadcast: Collection[int] = (),
        amnesia: bool | Amnesia = False,
        now: InstantLike = START,
        store: ObjectStore | None = None,
        registry: Registry | None = None,
    ) -> None:
        """Test an operator on inputs of these schemas; several operators make a chain.

        `key` and `time_column` are for all inputs that are given as plain Arrow schemas.
        Rows of inputs with a key go to the subtask that owns it; of others in turn, or to
        all subtasks if the number of the input is in `broadcast`. With `amnesia` operators
        are built again for each epoch.
        """
        registry = registry or shared_registry()
        keys = (key,) if isinstance(key, str) else tuple(key)
        streams = tuple(
            stream
            if isinstance(stream, StreamSchema)
            else StreamSchema(stream, time_column, keys)
            for stream in inputs
        )
        if not streams:
            raise UserError(
                "an operator under test needs the schema of each of its inputs",
                code=ErrorCode.INVALID_GRAPH,
            )
        job, store = _place_in(store)
        start = HarnessCheckpoint(
            0,
            chain_of(job, operator, streams, parallelism, registry),
            (None,) * len(streams),
            to_instant(now),
            store,
            registry,
            frozenset(broadcast),
        )
        self._start_from(start, amnesia)

    @classmethod
    def restore(
        cls,
        checkpoint: HarnessCheckpoint,
        *,
        parallelism: int | None = None,
        operator: OperatorLike | Sequence[OperatorLike] | None = None,
        amnesia: bool | Amnesia = False,
    ) -> Self:
        """Go on from a checkpoint, as another process does; `operator` may be a newer one."""
        job, _ = _place_in(checkpoint.store)
        graph = replace(checkpoint.graph, job=job)
        head = graph.nodes[0]
        parallelism = head.parallelism if parallelism is None else parallelism
        if operator is not None:
            graph = chain_of(job, operator, head.inputs, parallelism, checkpoint.registry)
        if checkpoint.epoch:
            clock = ManualClock(checkpoint.now_micros)
            origin = JobCheckpoints(checkpoint.store, checkpoint.graph.job, clock)
            origin.branch(job, Epochs(Epoch(checkpoint.epoch)))
        restored = cls.__new__(cls)
        moved = replace(checkpoint, graph=rescaled(graph, parallelism))
        restored._start_from(moved, amnesia)  # noqa: SLF001 (of the same class)
        return restored

    def _start_from(self, checkpoint: HarnessCheckpoint, amnesia: bool | Amnesia) -> None:  # noqa: FBT001 (as it was given)
        if isinstance(amnesia, bool):
            amnesia = Amnesia.OPERATORS if amnesia else Amnesia.NOTHING
        self._start = checkpoint
        self.counters: dict[str, int] = {}
        """What `ctx.count` counted so far, over all operators and subtasks."""
        head = checkpoint.graph.nodes[0]
        self._inputs: list[GivenInput] = []
        given = zip(head.inputs, checkpoint.watermarks, strict=True)
        for number, (stream, watermark) in enumerate(given):
            exchange = Exchange.BY_KEY if stream.key_columns else Exchange.REBALANCE
            if number in checkpoint.broadcast:
                exchange = Exchange.BROADCAST
            if head.parallelism == 1:
                # All operators are in one chain, so no rows are exchanged.
                exchange = Exchange.FORWARD
            self._inputs.append(GivenInput(stream, exchange, watermark))
        super().__init__(
            checkpoint.graph,
            self._inputs,
            store=checkpoint.store,
            registry=checkpoint.registry,
            clock=ManualClock(checkpoint.now_micros),
            amnesia=amnesia,
        )

    # ---- what goes in

    def push(self, rows: GivenRows, *, input: int = 0) -> None:  # noqa: A002 (as in the graph)
        """Add rows to the next epoch: columns, dictionaries, a batch, a table or a frame.

        The operator gets the rows of input 0 first, then those of input 1 and so on; several
        pushes to one input may come as one batch.
        """
        self._check_input(input)
        given = self._inputs[input]
        if given.watermark == MAX_EVENT_TIME:
            raise UserError(
                f"input {input} has ended: no row can follow the end of data",
                code=ErrorCode.WATERMARK_WENT_BACK,
            )
        given.batches += rows_to_batches(rows, given.stream.arrow)

    def watermark(self, watermark: WatermarkLike, *, input: int | None = None) -> None:  # noqa: A002 (as in the graph)
        """Set how far event time has come at an input, or at all of them.

        It counts from the next barrier, behind all rows of that epoch. `IDLE` is for an
        input that must not hold the others back.
        """
        if input is not None:
            self._check_input(input)
        for given in self._inputs if input is None else [self._inputs[input]]:
            given.watermark = to_watermark(watermark)

    def barrier(self, *, attempts: int = 1) -> EpochOutput:
        """Run an epoch over what was pushed, checkpoint it, and return what came out.

        With several `attempts` the epoch runs so often, as after failures, and the last one
        counts: an operator with effects outside of its tables and rows then has them twice.
        """
        return self._run_epoch(attempts=attempts)

    def end(self) -> EpochOutput:
        """Run an epoch that ends all inputs: windows are flushed, operators closed for good."""
        self.watermark(MAX_EVENT_TIME)
        return self._run_epoch()

    def stop(self, *, tells_operators: bool = True) -> EpochOutput:
        """Run the last epoch before the job stops; the next one starts as after a restart.

        With `tells_operators` their `on_close(Stop)` is called; otherwise they only checkpoint.
        """
        return self._run_epoch(
            StopMode.GRACEFUL if tells_operators else StopMode.CHECKPOINT
        )

    # ---- what comes out

    def table(self, output: str = MAIN) -> pa.Table:
        """Return what `rows` does as an Arrow table."""
        return self._emitted.table(output)

    def state(self, table: str, *, subtask: int | None = None) -> Any:
        """Return what a table holds after the last epoch, in all subtasks or in one.

        It is a dictionary for a global table, and an Arrow table for any other.
        """
        return self._read_table(table, subtask)

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> list[dict[str, Any]]:
        """Return the timers that are set, earliest first: key columns and `due_micros`."""
        return self._read_timers(domain)

    @property
    def epoch(self) -> int:
        """The last epoch that was run; 0 before the first."""
        return self._session.state.next_epoch - 1

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        return self._start.graph.nodes[0].parallelism

    # ---- commits

    @property
    def commits(self) -> Mapping[int, Mapping[str, Mapping[int, bytes]]]:
        """The commit data of the last operator, by epoch, table and subtask."""
        last = self._start.graph.nodes[-1].operator
        return {
            epoch: commit.data
            for epoch, staged in self._commits.staged.items()
            for task, commit in staged.items()
            if task.operator == last
        }

    def commit(self, epoch: int | None = None) -> None:
        """Commit an epoch, even a second time; without a number all that are not committed."""
        self._commits.carry_out(epoch)

    # ---- other processes

    def checkpoint(self) -> HarnessCheckpoint:
        """Return the state of the harness after its last epoch; see `restore`."""
        return replace(
            self._start,
            epoch=self.epoch,
            watermarks=tuple(given.watermark for given in self._inputs),
            now_micros=self.clock.micros,
        )

    def forget(self) -> None:
        """Drop operators and tables, as if the process had died after the last epoch."""
        self._worker.forget()

    def _run_epoch(self, stop: StopMode | None = None, *, attempts: int = 1) -> EpochOutput:
        try:
            _, output = self._run(stop, attempts=attempts)
        finally:
            for given in self._inputs:
                given.batches = []
        for name, amount in output.counters.items():
            self.counters[name] = self.counters.get(name, 0) + amount
        return output

    def _check_input(self, index: int) -> None:
        if not 0 <= index < len(self._inputs):
            raise UserError(
                f"there is no input {index}: the harness was made with "
                f"{len(self._inputs)} schemas, one per input",
                code=ErrorCode.INVALID_NUMBER,
            )


class SourceHarness(SteppedJob):
    """A source under test. Not thread-safe; close it, or use it as a context manager."""

    @renamed(lateness="watermark_delay")
    def __init__(
        self,
        source: SourceOperator | OperatorSpec,
        *,
        parallelism: int = 1,
        budget: SourceBudget | None = None,
        watermark_delay: DurationLike = 0,
        idle_timeout: DurationLike | None = None,
        amnesia: Amnesia = Amnesia.NOTHING,
        now: InstantLike = START,
        store: ObjectStore | None = None,
        registry: Registry | None = None,
    ) -> None:
        self.assignments: tuple[SourceAssignment, ...] = ()
        """The assignment of each subtask in the last epoch."""
        self._budget = budget or SourceBudget()
        registry = registry or shared_registry()
        spec = source if isinstance(source, OperatorSpec) else source_spec(source)
        watermark = WatermarkSpec(
            to_micros(watermark_delay, "watermark_delay"),
            None if idle_timeout is None else to_micros(idle_timeout, "idle timeout"),
        )
        built = registry.construct(spec).operator
        if not isinstance(built, SourceOperator):
            raise UserError(
                f"{built.name()!r} is no source: test it with OperatorHarness",
                code=ErrorCode.INVALID_GRAPH,
            )
        job, store = _place_in(store)
        stream = built.output_schema()
        node = Node(
            _SOURCE,
            OperatorSpec(spec.kind, spec.config),
            parallelism,
            outputs={MAIN: stream, **built.side_outputs()},
            watermark=None if stream.time_column is None else watermark,
        )
        super().__init__(
            LogicalGraph(job, (node,)),
            (),
            store=store,
            registry=registry,
            clock=ManualClock(to_instant(now)),
            amnesia=amnesia,
        )

    def read(
        self,
        *,
        rows: int | None = None,
        is_stop: bool = False,
        again_after: Callable[[], object] | None = None,
    ) -> EpochOutput:
        """Run an epoch; `rows` limits what each subtask may read, `is_stop` closes the source.

        Nothing is read in the epoch that closes the source. An epoch in which the source
        returns `IMMEDIATE` does not count.

        With `again_after` the epoch is read twice by the same plan, as after a failure; the
        function is called in between. Other rows or offsets than before are an error.
        """
        planned = self._session.planner.sources[_SOURCE]
        planned.budget = self._budget if rows is None else replace(self._budget, rows=rows)
        ran, output = self._run(
            StopMode.GRACEFUL if is_stop else None,
            attempts=1 if again_after is None else 2,
            between=again_after,
        )
        self.assignments = ran.reading.assignments[_SOURCE]
        self._refuse_other_rows()
        return output

    def read_all(self, *, rows: int | None = None, max_epochs: int = 1_000) -> None:
        """Run epochs until the source has ended and its end has reached its readers."""
        for _ in range(max_epochs):
            if self.has_ended:
                return
            self.read(rows=rows)
        raise UserError(
            f"the source has not ended after {max_epochs} epochs: its splits are "
            f"{dict(self.splits)}",
            code=ErrorCode.SOURCE_OVERRAN,
        )

    def rescale(self, parallelism: int) -> None:
        """Go on with so many subtasks, as another process does: from the checkpoint alone."""
        self.close()
        self._open(rescaled(self._graph, parallelism))

    def state(self, table: str) -> Any:
        """Return what a table that the source declares holds after the last epoch."""
        return self._read_table(table)

    @property
    def splits(self) -> Mapping[str, SplitState]:
        """How far every split was read, as the last checkpoint has it."""
        known: dict[str, SplitState] = self._read_table(SPLITS_TABLE)
        return known

    @property
    def has_ended(self) -> bool:
        """Return whether the source has ended and an epoch has announced its end."""
        return self._session.is_finished
