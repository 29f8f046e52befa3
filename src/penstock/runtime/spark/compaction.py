"""Compactions as Spark tasks: one per subtask, in a job of their own that no epoch waits for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.ids import OperatorId
from penstock.runtime.executor import CompactionOrder, CompactionResult
from penstock.runtime.spark.task import WorkerSpec, partition_number, worker_of
from penstock.state.proto.state_pb2 import TableCheckpointMetadata
from penstock.state.tables.operator_tables import compact_subtask

RESULT_SCHEMA = "result BINARY"
_ARROW = pa.schema([("result", pa.binary())])


class _Result(msgspec.Struct, frozen=True, array_like=True):
    """New files by table, each as the bytes of its message."""

    operator: str
    tables: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """All orders of one job; each partition carries out its own."""

    orders: tuple[CompactionOrder, ...]
    worker: WorkerSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carry out the order that this partition is."""
        for _ in batches:
            pass
        order = self.orders[partition_number()]
        tables = _carry_out(order, self.worker)
        if tables:
            result = _Result(str(order.operator), tables)
            data = msgspec.msgpack.encode(result)
            yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=_ARROW)


def read_results(table: pa.Table) -> Sequence[CompactionResult]:
    """Return what the tasks gave back."""
    column: list[Any] = table.column("result").to_pylist()
    return [_to_result(msgspec.msgpack.decode(data, type=_Result)) for data in column]


def _to_result(result: _Result) -> CompactionResult:
    tables = {
        name: TableCheckpointMetadata.FromString(message)
        for name, message in result.tables.items()
    }
    return CompactionResult(OperatorId(result.operator), tables)


def compact_here(
    orders: Sequence[CompactionOrder], spec: WorkerSpec
) -> Sequence[CompactionResult]:
    """Carry orders out in this process: for those smaller than the job that would do it."""
    found = []
    for order in orders:
        tables = _carry_out(order, spec)
        if tables:
            found.append(_to_result(_Result(str(order.operator), tables)))
    return found


def _carry_out(order: CompactionOrder, spec: WorkerSpec) -> dict[str, bytes]:
    worker = worker_of(spec)
    config = order.config(worker.store, worker.cache)
    done = compact_subtask(order.specs, config, order.metadata)
    return {name: message.SerializeToString() for name, message in done.items()}
