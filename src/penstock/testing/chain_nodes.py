"""Operators under test as nodes of a graph: what each one takes and gives.

Commits of operators under test: what epochs staged, and handing it to `handle_commit`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

import pyarrow as pa

from penstock.catalog import default_registry
from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import CheckpointBarrier
from penstock.errors import ErrorCode, PenstockError, UserCodeError, UserError
from penstock.graph.logical import MAIN, Edge, Node, OperatorSpec
from penstock.operators.context import CommitContext
from penstock.operators.nodes import EpochTerms
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Registry
from penstock.operators.source import SourceFinishType
from penstock.operators.user_functions import process_spec
from penstock.runtime.driver.session import SMALLEST_STEP_MICROS
from penstock.testing.chain_subtasks import JOB, ChainRun, ChainState, ChainSubtasks
from penstock.testing.given import EpochOutput

OperatorLike: TypeAlias = ArrowOperator | OperatorSpec
"""An operator, or the spec of a built-in or plugged-in one."""
StreamLike: TypeAlias = StreamSchema | pa.Schema


def to_streams(
    inputs: Sequence[StreamLike], key: str | Sequence[str], time_column: str | None
) -> tuple[StreamSchema, ...]:
    """Return the inputs with their roles; key and time column are for plain schemas."""
    if not inputs:
        raise UserError(
            "an operator under test needs the schema of each of its inputs",
            code=ErrorCode.INVALID_GRAPH,
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    return tuple(
        stream
        if isinstance(stream, StreamSchema)
        else StreamSchema(stream, time_column, keys)
        for stream in inputs
    )


def chain_of(
    operators: OperatorLike | Sequence[OperatorLike],
    inputs: Sequence[StreamSchema],
    parallelism: int,
    registry: Registry,
) -> tuple[tuple[Node, ...], tuple[Edge, ...]]:
    """Return a chain: the first operator takes `inputs`, every other one what comes before.

    One operator is named `operator`, those of a chain `operator-1`, `operator-2` and so on.
    """
    listed = (
        [operators]
        if isinstance(operators, ArrowOperator | OperatorSpec)
        else list(operators)
    )
    nodes: list[Node] = []
    edges: list[Edge] = []
    streams = tuple(inputs)
    for number, operator in enumerate(listed, start=1):
        name = OperatorId("operator" if len(listed) == 1 else f"operator-{number}")
        node = _node(name, operator, streams, parallelism, registry)
        if nodes:
            edges.append(Edge(nodes[-1].operator, name))
        nodes.append(node)
        if number < len(listed):
            streams = (_main_of(node),)
    if not nodes:
        raise UserError("there is no operator to test", code=ErrorCode.INVALID_GRAPH)
    return tuple(nodes), tuple(edges)


def _node(
    name: OperatorId,
    operator: OperatorLike,
    inputs: tuple[StreamSchema, ...],
    parallelism: int,
    registry: Registry,
) -> Node:
    spec = operator if isinstance(operator, OperatorSpec) else process_spec(operator)
    built = registry.construct(spec).operator
    if not isinstance(built, ArrowOperator):
        raise UserError(
            f"{built.name()!r} is a source: test it with SourceHarness",
            code=ErrorCode.INVALID_GRAPH,
        )
    main = built.output_schema(inputs)
    outputs = {} if main is None else {MAIN: main}
    return Node(
        name,
        spec,
        parallelism=parallelism,
        inputs=inputs,
        outputs={**outputs, **built.side_outputs(inputs)},
    )


def _main_of(node: Node) -> StreamSchema:
    if MAIN not in node.outputs:
        raise UserError(
            f"{node.operator!r} is a sink: no operator can follow it",
            code=ErrorCode.INVALID_GRAPH,
        )
    return node.outputs[MAIN].keyed_by()


CommitData: TypeAlias = Mapping[str, Mapping[int, bytes]]
"""By table and subtask."""


class ChainCommits:
    """What was staged so far. A commit runs on a new instance, as it does on a driver."""

    def __init__(self, subtasks: ChainSubtasks) -> None:
        self._subtasks = subtasks
        self._staged: dict[int, dict[OperatorId, dict[str, dict[int, bytes]]]] = {}
        self._open: set[int] = set()

    @property
    def staged(self) -> dict[int, CommitData]:
        """What the last operator staged, by epoch."""
        last = self._subtasks.nodes[-1].operator
        return {epoch: of[last] for epoch, of in self._staged.items() if last in of}

    def note(self, run: ChainRun) -> None:
        """Keep what an epoch staged."""
        epoch = self._subtasks.state.epoch
        for (operator, index), report in run.reports.items():
            for table, data in report.checkpoint.metadata.commit_data.items():
                by_operator = self._staged.setdefault(epoch, {})
                tables = by_operator.setdefault(operator, {})
                tables.setdefault(table, {})[index] = data
                self._open.add(epoch)

    def commit(self, epoch: int | None = None) -> None:
        """Commit an epoch, or all open ones in order."""
        if epoch is not None and epoch not in self._staged:
            raise UserError(
                f"epoch {epoch} staged nothing to commit; these did: "
                f"{', '.join(map(str, self._staged)) or 'none'}",
                code=ErrorCode.INVALID_NUMBER,
            )
        for number in sorted(self._open) if epoch is None else [epoch]:
            for node in self._subtasks.nodes:
                data = self._staged[number].get(node.operator)
                if data is not None:
                    self._commit(node, Epoch(number), data)
            self._open.discard(number)

    def _commit(self, node: Node, epoch: Epoch, data: CommitData) -> None:
        sink = self._subtasks.registry.construct(node.spec).operator
        assert isinstance(sink, ArrowOperator)  # noqa: S101 (sources stage nothing)
        task = TaskInfo(JOB, node.operator, Subtask(0, node.parallelism))
        try:
            sink.handle_commit(epoch, data, CommitContext(task, self._subtasks.store))
        except PenstockError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"operator {node.operator!r} raised {type(error).__name__} in handle_commit "
                f"of epoch {epoch}: {error}",
                operator=str(node.operator),
                epoch=int(epoch),
                hook="handle_commit",
            ) from error
        finally:
            sink.release()


START = "2026-01-01"
"""When a harness's clock starts."""


@cache
def shared_registry() -> Registry:
    """Return the registry of tests in this process; filling one takes milliseconds."""
    return default_registry()


def next_terms(
    state: ChainState,
    clock: ManualClock,
    *,
    is_stop: bool = False,
    then_stop: bool = False,
) -> EpochTerms:
    """Fix the terms of the epoch after `state`: time never stands still and never goes back."""
    previous = state.processing_time_micros
    now = clock.now_micros()
    if previous is not None:
        now = max(now, previous + SMALLEST_STEP_MICROS)
    epoch = Epoch(state.epoch + 1)
    barrier = CheckpointBarrier(epoch, epoch, now, then_stop=then_stop)
    parent = Epoch(state.epoch) if state.epoch else None
    return EpochTerms(barrier, now, previous, is_stop=is_stop, parent=parent)


def to_output(terms: EpochTerms, run: ChainRun) -> EpochOutput:
    """Return what users see of an epoch."""
    counters: dict[str, int] = {}
    wake_ups: list[int] = []
    finish: SourceFinishType | None = None
    for report in run.reports.values():
        for name, amount in report.counters.items():
            counters[name] = counters.get(name, 0) + amount
        if report.wake_up_micros is not None:
            wake_ups.append(report.wake_up_micros)
        finish = report.finish or finish
    return EpochOutput(
        int(terms.barrier.epoch),
        run.emitted,
        run.watermark,
        counters,
        min(wake_ups, default=None),
        finish,
    )
