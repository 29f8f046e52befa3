"""Compactions as Spark tasks: one per subtask, in a job of their own that no epoch waits for.

A failure comes back as a value and is logged: Spark's attempts would take the cores from the
epochs, and whatever is still due is ordered again after the next one.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.ids import OperatorId
from penstock.errors import PenstockError
from penstock.runtime.executor import CompactionOrder, CompactionResult
from penstock.runtime.spark.task import WorkerSpec, partition_number, worker_of
from penstock.state.proto.state_pb2 import TableCheckpointMetadata
from penstock.state.tables.operator_tables import compact_subtask

_log = logging.getLogger(__name__)
RESULT_SCHEMA = "result BINARY"
_ARROW = pa.schema([("result", pa.binary())])


class _Result(msgspec.Struct, frozen=True, array_like=True):
    """New files by table, each as the bytes of its message; or why there are none."""

    operator: str
    tables: dict[str, bytes]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """All orders of one job; each partition carries out its own."""

    orders: tuple[CompactionOrder, ...]
    worker: WorkerSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Carry out the order that this partition is."""
        for _ in batches:
            pass
        result = _carry_out(self.orders[partition_number()], self.worker)
        data = msgspec.msgpack.encode(result)
        yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=_ARROW)


def read_results(table: pa.Table) -> Sequence[CompactionResult]:
    """Return what the tasks gave back."""
    column: list[Any] = table.column("result").to_pylist()
    return _done(msgspec.msgpack.decode(data, type=_Result) for data in column)


def compact_here(
    orders: Sequence[CompactionOrder], spec: WorkerSpec
) -> Sequence[CompactionResult]:
    """Carry orders out in this process: for those smaller than the job that would do it."""
    return _done(_carry_out(order, spec) for order in orders)


def _carry_out(order: CompactionOrder, spec: WorkerSpec) -> _Result:
    try:
        worker = worker_of(spec)
        config = order.config(worker.store, worker.cache)
        done = compact_subtask(order.specs, config, order.metadata)
    except (PenstockError, OSError, pa.ArrowException) as error:
        return _Result(str(order.operator), {}, str(error) or repr(error))
    tables = {name: message.SerializeToString() for name, message in done.items()}
    return _Result(str(order.operator), tables)


def _done(results: Iterable[_Result]) -> Sequence[CompactionResult]:
    found = []
    for result in results:
        if result.failure:
            _log.warning(
                "a compaction of %r failed and is ordered again: %s",
                result.operator,
                result.failure,
            )
        elif result.tables:
            tables = {
                name: TableCheckpointMetadata.FromString(message)
                for name, message in result.tables.items()
            }
            found.append(CompactionResult(OperatorId(result.operator), tables))
    return found
