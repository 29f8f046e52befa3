"""The wire schema as Spark sees it: records in Arrow batches of four columns, and back.

A Spark row is a whole batch of rows, not one of them, so a shuffle moves few large rows and
never looks at the user's schema.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.runtime.wire import Record

SPARK_SCHEMA = "route INT, kind TINYINT, header BINARY, payload BINARY"
_COLUMNS: dict[str, pa.DataType] = {
    "route": pa.int32(),
    "kind": pa.int8(),
    "header": pa.binary(),
    "payload": pa.binary(),
}
ARROW_SCHEMA = pa.schema(_COLUMNS)
BATCH_BYTES = 4 << 20
"""A batch of records is handed to Spark at about this size."""


def to_batches(records: Iterable[Record]) -> Iterator[pa.RecordBatch]:
    """Return records as batches of the wire schema, in their order."""
    waiting: list[Record] = []
    waiting_bytes = 0
    for record in records:
        waiting.append(record)
        waiting_bytes += memoryview(record.payload).nbytes
        if waiting_bytes >= BATCH_BYTES:
            yield _to_batch(waiting)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield _to_batch(waiting)


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    """Return the records of batches of the wire schema; payloads are views, not copies."""
    for batch in batches:
        routes: list[Any] = batch.column("route").to_pylist()
        kinds: list[Any] = batch.column("kind").to_pylist()
        headers: list[Any] = batch.column("header").to_pylist()
        payloads: Any = batch.column("payload")
        for index in range(batch.num_rows):
            payload = payloads[index].as_buffer()
            yield Record(routes[index], kinds[index], headers[index], payload)


def _to_batch(records: list[Record]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.route for record in records], pa.int32()),
            pa.array([int(record.kind) for record in records], pa.int8()),
            pa.array([record.header for record in records], pa.binary()),
            _binary([record.payload for record in records]),
        ],
        schema=ARROW_SCHEMA,
    )


def _binary(values: list[Any]) -> Any:
    """Return buffers as one column; `pa.array` would never let go of memoryviews of them."""
    ends: Any = np.cumsum(
        [0, *(memoryview(value).nbytes for value in values)], dtype=np.int32
    )
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
