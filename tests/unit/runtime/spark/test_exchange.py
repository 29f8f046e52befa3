"""Records as Spark sees them: unchanged on the way, and let go of afterwards."""

import gc

import pyarrow as pa

from penstock.runtime.spark.task import BATCH_BYTES, from_batches, to_batches
from penstock.runtime.task.wire import Record


def records_of(*sizes: int) -> list[Record]:
    return [
        Record(at, at % 3, b"h" * at, pa.py_buffer(bytes([at % 251]) * size))
        for at, size in enumerate(sizes)
    ]


def test_records_come_back_as_they_were_in_batches_of_a_size() -> None:
    records = records_of(0, 1, BATCH_BYTES, 5, BATCH_BYTES // 2, BATCH_BYTES // 2, 7)
    batches = list(to_batches(records))
    for batch in batches:
        batch.validate(full=True)
    assert [batch.num_rows for batch in batches] == [3, 3, 1]
    found = list(from_batches(batches))
    assert [record[:3] for record in found] == [record[:3] for record in records]
    assert [bytes(record.payload) for record in found] == [
        bytes(record.payload) for record in records
    ]


def test_no_payload_is_held_once_its_batch_is_gone() -> None:
    """A leak holds something of every round; threads of other tests may hold a few things."""

    def views() -> int:
        gc.collect()
        return sum(type(thing) is memoryview for thing in gc.get_objects())

    rounds, size = 50, 4096
    before, allocated = views(), pa.total_allocated_bytes()
    for _ in range(rounds):
        list(to_batches(records_of(size, size, size)))
    assert views() - before < rounds
    assert pa.total_allocated_bytes() - allocated < rounds * size
