"""One subtask's chain, run epoch by epoch as a task would run it, without exchanges."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from penstock.core.clock import ManualClock
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.watermark import CheckpointBarrier, InputWatermark, Watermark
from penstock.graph.logical import Edge, Node
from penstock.operators.chain import (
    AssembledChain,
    ChainResult,
    ChainSetting,
    chain_processing,
)
from penstock.operators.nodes import EpochTerms, OperatorReport
from penstock.operators.splits import SourceAssignment
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import Metadata, an_attempt
from tests.builders.scripted import Parts, numbers_in

JOB = JobId("job")
Port: TypeAlias = tuple[str, int]
"""An operator and the number of one of its inputs."""


@dataclass
class Given:
    """What comes from other chains in one epoch."""

    rows: Sequence[tuple[str, int, pa.RecordBatch]] = ()
    spoken: Mapping[Port, Watermark | None] = field(default_factory=dict)

    def batches(self) -> Iterator[tuple[OperatorId, int, pa.RecordBatch]]:
        return ((OperatorId(name), index, batch) for name, index, batch in self.rows)

    def watermarks(self) -> Mapping[Port, Watermark | None]:
        return self.spoken


class Kept:
    """Takes the rows of one output."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    @property
    def numbers(self) -> list[int]:
        return numbers_in(self.batches)


@dataclass
class Ran:
    """What one epoch gave."""

    reports: dict[str, OperatorReport]
    watermarks: dict[str, Watermark | None]
    left: dict[tuple[str, str], Kept]
    """The rows of outputs that no link takes up, by operator and output."""

    def numbers(self, operator: str, output: str = "main") -> list[int]:
        return self.left[operator, output].numbers


class ChainRig:
    """Runs epochs of a chain; what each leaves behind is what the next one starts from."""

    def __init__(
        self, parts: Parts, nodes: Sequence[Node], links: Sequence[Edge] = ()
    ) -> None:
        self.clock = ManualClock(0)
        self.store = MemoryStore()
        self.nodes = tuple(nodes)
        self.links = tuple(links)
        self.epoch = 0
        self.watermarks: dict[OperatorId, tuple[InputWatermark, ...]] = {}
        self.metadata: dict[OperatorId, Metadata] = {}
        self._registry = parts.registry
        self._chain: AssembledChain | None = None
        self._previous: int | None = None

    @property
    def chain(self) -> AssembledChain:
        if self._chain is None:
            setting = ChainSetting(
                JOB, Subtask(0, 1), self._registry, self.clock, self._tables
            )
            self._chain = AssembledChain(self.nodes, self.links, setting)
        return self._chain

    def run(
        self,
        *given: tuple[str, int, pa.RecordBatch],
        spoken: Mapping[Port, Watermark | None] | None = None,
        now: int | None = None,
        is_stop: bool = False,
        then_stop: bool = False,
        assignments: Mapping[str, SourceAssignment] | None = None,
    ) -> Ran:
        """Run one epoch."""
        self.epoch += 1
        self.clock.micros += 1
        moment = self.clock.micros if now is None else now
        epoch = Epoch(self.epoch)
        barrier = CheckpointBarrier(epoch, Epoch(1), moment, then_stop=then_stop)
        terms = EpochTerms(barrier, moment, self._previous, is_stop=is_stop)
        chain = self.chain
        for node in chain.nodes:
            node.tables.catch_up(
                an_attempt(self.store, node.task), self._restored(node.task.operator)
            )
        left = {
            (str(node.operator), output): Kept()
            for node in self.nodes
            for output in node.outputs
        }
        chain.begin(
            terms,
            watermarks=self.watermarks,
            assignments={
                OperatorId(name): found for name, found in (assignments or {}).items()
            },
            outlets={
                node.operator: {
                    output: [left[str(node.operator), output]] for output in node.outputs
                }
                for node in self.nodes
            },
        )
        inputs = Given(given, spoken or {})
        steps = chain_processing(chain.nodes, chain.links, inputs, terms, tuple[object])
        reports, watermarks = _run_to_end(steps)
        self._previous = moment
        for report in reports:
            self.watermarks[report.operator] = report.inputs
            if report.checkpoint.changed:
                self.metadata[report.operator] = report.checkpoint.metadata
        told = {str(operator): said for operator, said in watermarks.items()}
        return Ran({str(r.operator): r for r in reports}, told, left)

    def restart(self) -> None:
        """Go on in another process."""
        if self._chain is not None:
            self._chain.close()
        self._chain = None

    def _restored(self, operator: OperatorId) -> dict[int, Metadata]:
        known = self.metadata.get(operator)
        return {} if known is None else {0: known}

    def _tables(self, task: TaskInfo, specs: tuple[TableSpec, ...]) -> TableManager:
        return TableManager.load(
            an_attempt(self.store, task), specs, self._restored(task.operator)
        )


def _run_to_end(steps: Generator[object, None, ChainResult]) -> ChainResult:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ChainResult = end.value
            return result
