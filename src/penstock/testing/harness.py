"""OperatorHarness: test an operator, or a chain of them, without a runtime.

    with OperatorHarness(Dedup(), schema, key="user") as harness:
        harness.push({"user": ["a", "b", "a"], "n": [1, 2, 3]})
        harness.watermark("2026-01-01T00:00:10")
        harness.barrier()
        assert harness.rows() == [...]

How it works. `push`, `watermark` and `advance` prepare an epoch; `barrier` runs it, as a
job would: rows go by key to as many subtasks as wanted, the chain loop calls every hook in
order, real tables are checkpointed, and the next epoch starts from that checkpoint. Time
stands still unless `advance` moves it. What a hook raises comes out of `barrier` as the
`PenstockError` a job would fail with; the epoch and its rows are then gone.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from penstock.core.clock import DurationLike, ManualClock, to_micros
from penstock.core.ids import OperatorId
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_EVENT_TIME, Watermark
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import Edge, Exchange, Node
from penstock.operators.registry import Registry
from penstock.runtime.plan.physical import route_rows
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TimeDomain
from penstock.testing.chain_nodes import (
    START,
    ChainCommits,
    CommitData,
    OperatorLike,
    StreamLike,
    chain_of,
    next_terms,
    shared_registry,
    to_output,
    to_streams,
)
from penstock.testing.chain_subtasks import (
    Amnesia,
    ChainState,
    ChainSubtasks,
    SubtaskInput,
    read_table,
    read_timers,
    rescale_nodes,
)
from penstock.testing.given import (
    Emitted,
    EpochOutput,
    GivenRows,
    InstantLike,
    WatermarkLike,
    rows_to_batches,
    to_instant,
    to_watermark,
)


@dataclass(frozen=True, slots=True)
class HarnessCheckpoint:
    """Where a harness stood after an epoch. Stays valid whatever the harness does later."""

    nodes: tuple[Node, ...]
    links: tuple[Edge, ...]
    state: ChainState
    spoken: tuple[Watermark | None, ...]
    now_micros: int
    store: ObjectStore
    registry: Registry
    broadcast: frozenset[int] = field(default_factory=frozenset)

    @property
    def epoch(self) -> int:
        """The epoch it was made in; 0 before the first."""
        return self.state.epoch


class OperatorHarness:
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
        are built anew for each epoch.
        """
        registry = registry or shared_registry()
        streams = to_streams(inputs, key, time_column)
        nodes, links = chain_of(operator, streams, parallelism, registry)
        checkpoint = HarnessCheckpoint(
            nodes,
            links,
            ChainState(),
            (None,) * len(streams),
            to_instant(now),
            MemoryStore() if store is None else store,
            registry,
            frozenset(broadcast),
        )
        self._open(checkpoint, amnesia)

    @classmethod
    def restore(
        cls,
        checkpoint: HarnessCheckpoint,
        *,
        parallelism: int | None = None,
        operator: OperatorLike | Sequence[OperatorLike] | None = None,
        amnesia: bool | Amnesia = False,
    ) -> Self:
        """Go on from a checkpoint, as another process would; perhaps with a newer operator."""
        nodes, links = checkpoint.nodes, checkpoint.links
        parallelism = nodes[0].parallelism if parallelism is None else parallelism
        if operator is not None:
            nodes, links = chain_of(
                operator, nodes[0].inputs, parallelism, checkpoint.registry
            )
        restored = cls.__new__(cls)
        moved = replace(checkpoint, nodes=rescale_nodes(nodes, parallelism), links=links)
        restored._open(moved, amnesia)  # noqa: SLF001 (of the same class)
        return restored

    def _open(self, checkpoint: HarnessCheckpoint, amnesia: bool | Amnesia) -> None:  # noqa: FBT001 (as it was given)
        if isinstance(amnesia, bool):
            amnesia = Amnesia.OPERATORS if amnesia else Amnesia.NOTHING
        self.clock = ManualClock(checkpoint.now_micros)
        self._streams = checkpoint.nodes[0].inputs
        self._broadcast = checkpoint.broadcast
        self._spoken = list(checkpoint.spoken)
        self._subtasks = ChainSubtasks(
            checkpoint.nodes,
            checkpoint.links,
            store=checkpoint.store,
            registry=checkpoint.registry,
            clock=self.clock,
            amnesia=amnesia,
            state=checkpoint.state,
        )
        self._commits = ChainCommits(self._subtasks)
        self._emitted = Emitted(self._subtasks.outputs)
        self._pushed: list[tuple[int, pa.RecordBatch]] = []
        self.counters: dict[str, int] = {}
        """What `ctx.count` counted so far, over all operators and subtasks."""

    # ---- what goes in

    def push(self, rows: GivenRows, *, input: int = 0) -> None:  # noqa: A002 (as in the graph)
        """Add rows to the next epoch: columns, dictionaries, a batch, a table or a frame."""
        self._check_input(input)
        if self._spoken[input] == MAX_EVENT_TIME:
            raise UserError(
                f"input {input} has ended: no row can follow the end of data",
                code=ErrorCode.WATERMARK_WENT_BACK,
            )
        batches = rows_to_batches(rows, self._streams[input].schema)
        self._pushed += [(input, batch) for batch in batches]

    def watermark(self, watermark: WatermarkLike, *, input: int | None = None) -> None:  # noqa: A002 (as in the graph)
        """Let an input, or all of them, say how far event time has come, from now on.

        It counts from the next barrier, behind all rows of that epoch. `IDLE` is for an
        input that must not hold the others back.
        """
        if input is not None:
            self._check_input(input)
        for index in range(len(self._spoken)) if input is None else [input]:
            self._spoken[index] = to_watermark(watermark)

    def advance(self, duration: DurationLike) -> None:
        """Let processing time pass, such as "10s": the next epoch happens then."""
        self.clock.advance(to_micros(duration))

    def barrier(self, *, attempts: int = 1) -> EpochOutput:
        """Run an epoch over what was pushed, checkpoint it, and return what came out.

        With several `attempts` it is run so often, as after failures, and the last counts:
        an operator that has effects outside of its tables and rows shows them twice.
        """
        return self._run_epoch(attempts=attempts)

    def end(self) -> EpochOutput:
        """Run an epoch that ends all inputs: windows are flushed, operators closed for good."""
        self.watermark(MAX_EVENT_TIME)
        return self._run_epoch()

    def stop(self, *, tells_operators: bool = True) -> EpochOutput:
        """Run the last epoch before the job stops; the next one starts as after a restart.

        Operators see `on_close(Stop)`, or nothing at all in a checkpoint-then-stop.
        """
        return self._run_epoch(is_stop=tells_operators, then_stop=not tells_operators)

    # ---- what comes out

    def rows(self, output: str = "main") -> list[dict[str, Any]]:
        """Return all rows of an output since the start or the last `take`, as dictionaries."""
        return self._emitted.rows(output)

    def take(self, output: str = "main") -> list[dict[str, Any]]:
        """Return the rows of an output and forget them."""
        return self._emitted.take(output)

    def table(self, output: str = "main") -> pa.Table:
        """Return what `rows` does as an Arrow table."""
        return self._emitted.table(output)

    def state(self, table: str, *, subtask: int | None = None) -> Any:
        """Return what a table holds after the last epoch, in all subtasks or in one.

        A dictionary for a global table, else an Arrow table.
        """
        return read_table(self._subtasks, table, subtask)

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> list[dict[str, Any]]:
        """Return the timers that are set, earliest first: key columns and `due_micros`."""
        return read_timers(self._subtasks, domain)

    @property
    def epoch(self) -> int:
        """The last epoch that was run; 0 before the first."""
        return self._subtasks.state.epoch

    @property
    def parallelism(self) -> int:
        """How many subtasks there are."""
        return self._subtasks.parallelism

    # ---- commits

    @property
    def commits(self) -> Mapping[int, CommitData]:
        """What the last operator gave `handle_commit` to do: by epoch, table and subtask."""
        return self._commits.staged

    def commit(self, epoch: int | None = None) -> None:
        """Commit an epoch, again if it was; without a number all that are not committed yet."""
        self._commits.commit(epoch)

    # ---- other processes

    def checkpoint(self) -> HarnessCheckpoint:
        """Return where the harness stands after its last epoch; see `restore`."""
        return HarnessCheckpoint(
            self._subtasks.nodes,
            self._subtasks.links,
            self._subtasks.state,
            tuple(self._spoken),
            self.clock.micros,
            self._subtasks.store,
            self._subtasks.registry,
            self._broadcast,
        )

    def forget(self) -> None:
        """Drop operators and tables, as if the process had died after the last epoch."""
        self._subtasks.close()

    def close(self) -> None:
        """Release the operators."""
        self._subtasks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run_epoch(
        self, *, is_stop: bool = False, then_stop: bool = False, attempts: int = 1
    ) -> EpochOutput:
        pushed, self._pushed = self._pushed, []
        terms = next_terms(
            self._subtasks.state, self.clock, is_stop=is_stop, then_stop=then_stop
        )
        run = self._subtasks.run(terms, self._deal(pushed), attempts=attempts)
        self._commits.note(run)
        self._emitted.extend(run.emitted)
        output = to_output(terms, run)
        for name, amount in output.counters.items():
            self.counters[name] = self.counters.get(name, 0) + amount
        return output

    def _deal(self, pushed: Sequence[tuple[int, pa.RecordBatch]]) -> list[SubtaskInput]:
        """Send rows to the subtasks that an exchange would send them to."""
        head: OperatorId = self._subtasks.nodes[0].operator
        parallelism = self._subtasks.parallelism
        given = [SubtaskInput(head, [], tuple(self._spoken)) for _ in range(parallelism)]
        for turn, (index, batch) in enumerate(pushed):
            schema = self._streams[index]
            parts = route_rows(
                batch,
                self._exchange(index, schema),
                schema,
                subtask=0,
                parallelism=parallelism,
                turn=turn,
            )
            for subtask, part in parts:
                given[subtask].rows.append((index, part))
        return given

    def _exchange(self, index: int, schema: StreamSchema) -> Exchange:
        if index in self._broadcast:
            return Exchange.BROADCAST
        return Exchange.BY_KEY if schema.key_columns else Exchange.REBALANCE

    def _check_input(self, index: int) -> None:
        if not 0 <= index < len(self._streams):
            raise UserError(
                f"there is no input {index}: the harness was made with "
                f"{len(self._streams)} schemas, one per input",
                code=ErrorCode.INVALID_NUMBER,
            )
