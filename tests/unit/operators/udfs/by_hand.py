"""Driving the subtasks of one operator through epochs by hand, with real tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo
from penstock.core.schema import StreamSchema
from penstock.core.watermark import (
    MAX_EVENT_TIME,
    CheckpointBarrier,
    EndOfData,
    EventTime,
    Watermark,
)
from penstock.graph.logical import BAD, MAIN
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import ArrowOperator
from penstock.state.proto import state_pb2
from penstock.state.storage.memory import MemoryStore
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.kept_epochs import an_attempt


@dataclass
class Taken:
    """Takes the rows of one output."""

    batches: list[pa.RecordBatch] = field(default_factory=list)

    def take(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


@dataclass
class EpochOutput:
    """What one subtask gave in one epoch."""

    main: list[dict[str, Any]]
    bad: list[dict[str, Any]]
    watermark: Watermark | None
    wake_up_micros: int | None
    counters: Mapping[str, int]


class OperatorByHand:
    """All subtasks of an operator, each built anew in every epoch: nothing is remembered."""

    def __init__(
        self,
        build: Callable[[], ArrowOperator],
        stream: StreamSchema,
        *,
        parallelism: int = 1,
    ) -> None:
        self.parallelism = parallelism
        self.epoch = 0
        self._build = build
        self._stream = stream
        self._store = MemoryStore()
        self._restored: dict[int, state_pb2.OperatorCheckpointMetadata] = {}
        self._watermark: EventTime | None = None

    def run_epoch(
        self,
        rows: Mapping[int, Sequence[pa.RecordBatch]] | None = None,
        watermark: Watermark | None = None,
    ) -> list[EpochOutput]:
        """Run one epoch of all subtasks; `MAX_EVENT_TIME` ends the data."""
        self.epoch += 1
        published = {}
        outputs = []
        for index in range(self.parallelism):
            output, metadata = self._run_subtask(
                index, (rows or {}).get(index, ()), watermark
            )
            outputs.append(output)
            published[index] = metadata
        self._restored = published
        if isinstance(watermark, EventTime):
            self._watermark = watermark
        return outputs

    def read_table(self, table: str) -> dict[str, Any]:
        """Return what a global table holds after the last epoch."""
        task = TaskInfo(JobId("job"), OperatorId("look-up"), Subtask(0, self.parallelism))
        operator = self._build()
        tables = TableManager.load(
            an_attempt(self._store, task), operator.tables(), self._restored
        )
        tables.begin_epoch(Frontier())
        return dict(tables.get_global_keyed_state(table).items())

    def _run_subtask(
        self, index: int, batches: Sequence[pa.RecordBatch], watermark: Watermark | None
    ) -> tuple[EpochOutput, Any]:
        operator = self._build()
        inputs = (self._stream,)
        main = operator.output_schema(inputs)
        assert main is not None
        outputs = {MAIN: main, **operator.side_outputs(inputs)}
        taken = {name: Taken() for name in (MAIN, BAD)}
        collector = ArrowCollector(
            "look-up", outputs, {name: [taken[name]] for name in outputs}
        )
        task = TaskInfo(
            JobId("job"), OperatorId("look-up"), Subtask(index, self.parallelism)
        )
        tables = TableManager.load(
            an_attempt(self._store, task), operator.tables(), self._restored
        )
        tables.begin_epoch(Frontier())
        ctx = OperatorContext(task, inputs=inputs, outputs=outputs, tables=tables)
        ctx.epoch = Epoch(self.epoch)
        ctx.processing_time_micros = self.epoch * 1_000
        ctx.previous_watermark = ctx.watermark = self._watermark
        collector.open({})
        said: Watermark | None = None
        try:
            operator.on_start(ctx)
            for batch in batches:
                operator.process_batch(batch, ctx, collector)
            if watermark is not None:
                if isinstance(watermark, EventTime):
                    ctx.watermark = watermark
                said = operator.handle_watermark(watermark, ctx, collector)
            if watermark == MAX_EVENT_TIME:
                operator.on_close(EndOfData(), ctx, collector)
            barrier = CheckpointBarrier(ctx.epoch, Epoch(1), ctx.processing_time_micros)
            operator.handle_checkpoint(barrier, ctx, collector)
        finally:
            operator.release()
        collector.close()
        checkpoint = tables.checkpoint(ctx.epoch, Epoch(1), None)
        output = EpochOutput(
            taken[MAIN].rows,
            taken[BAD].rows,
            said,
            ctx.wake_up_micros,
            dict(ctx.counters),
        )
        return output, checkpoint.metadata
