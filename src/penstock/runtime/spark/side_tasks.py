"""What Spark sends to workers besides supersteps: compactions and the parts of commits.

Each is a job of its own with a partition per order, and returns one value per order.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from penstock.core.ids import OperatorId
from penstock.errors import PenstockError
from penstock.operators.worker_output import OutputCapture
from penstock.runtime.plan.executor import (
    CommitOrder,
    CompactionOrder,
    CompactionResult,
    PartReport,
)
from penstock.runtime.spark.task import (
    WorkerSpec,
    partition_number,
    release_at_the_end,
    worker_of,
)
from penstock.state.proto.state_pb2 import TableCheckpointMetadata

_log = logging.getLogger(__name__)
RESULT_SCHEMA = "result BINARY"
_ARROW = pa.schema([("result", pa.binary())])


def _to_batch(result: msgspec.Struct) -> pa.RecordBatch:
    data = msgspec.msgpack.encode(result)
    return pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=_ARROW)


@dataclass(frozen=True, slots=True)
class CommitTask:
    """All parts of a commit; each partition runs one of them, whatever becomes of the others."""

    orders: tuple[CommitOrder, ...]
    worker: WorkerSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the part of this partition; its error is a value."""
        release_at_the_end()
        for _ in batches:
            pass
        order = self.orders[partition_number()]
        output = OutputCapture(order.task.subtask.index, self.worker.log_level)
        with output:
            report = worker_of(self.worker).committers.run(order)
            report = msgspec.structs.replace(report, output=output.take())
        yield _to_batch(report)


def part_reports(table: pa.Table) -> Sequence[PartReport]:
    """Return the reports of a job of `CommitTask`, in the order of its parts."""
    results: list[Any] = table.column("result").to_pylist()
    return [msgspec.msgpack.decode(data, type=PartReport) for data in results]


class _Result(msgspec.Struct, frozen=True, array_like=True):
    """The new files by table, each as the bytes of its message; or the error."""

    operator: str
    tables: dict[str, bytes]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """All orders of one Spark job; each partition runs one of them."""

    orders: tuple[CompactionOrder, ...]
    worker: WorkerSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the order of this partition."""
        for _ in batches:
            pass
        yield _to_batch(_carry_out(self.orders[partition_number()], self.worker))


def _carry_out(order: CompactionOrder, spec: WorkerSpec) -> _Result:
    try:
        worker = worker_of(spec)
        done = order.run(worker.store, worker.cache)
    except (PenstockError, OSError, pa.ArrowException) as error:
        return _Result(str(order.task.operator), {}, str(error) or repr(error))
    tables = {name: message.SerializeToString() for name, message in done.tables.items()}
    return _Result(str(order.task.operator), tables)


def compact_here(
    orders: Sequence[CompactionOrder], spec: WorkerSpec
) -> Sequence[CompactionResult]:
    """Run orders in this process, one after the other."""
    return _done(_carry_out(order, spec) for order in orders)


def compaction_results(table: pa.Table) -> Sequence[CompactionResult]:
    """Return the results of a job of `CompactionTask`; failures are logged."""
    results: list[Any] = table.column("result").to_pylist()
    return _done(msgspec.msgpack.decode(data, type=_Result) for data in results)


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
