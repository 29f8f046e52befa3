"""Tests how records are staged, and how the commit of an epoch is divided into transactions."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.kafka import staging
from penstock.connectors.kafka.staging import (
    SMALL,
    ShardPart,
    StagedRange,
    StagedRecords,
    decode_commit_data,
    plan_parts,
    read_part,
    shards_of,
    split_by_shard,
    to_stream,
)
from penstock.core.ids import Epoch, JobId, OperatorId, Subtask, TaskInfo, checksum_of
from penstock.errors import CorruptStateError
from penstock.operators.context import CommitContext
from penstock.state.storage.memory import MemoryStore

Row = tuple[bytes | None, bytes]


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    kind = pa.large_binary()
    columns = [pa.array([row[place] for row in rows], kind) for place in (0, 1)]
    return pa.record_batch(columns, ["key", "value"])


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    return [
        row
        for batch in batches
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def staged_in(
    store: MemoryStore, rows: Sequence[Row], subtask: int, shards: int, *, is_small: bool
) -> StagedRecords:
    batch = batch_of(rows)
    if is_small:
        inline = to_stream([batch])
        return StagedRecords("out", "marks", shards, subtask, len(rows), inline)
    data, ranges, path = b"", [], f"of-{subtask}"
    for shard, batches in split_by_shard([batch], shards, subtask):
        piece = to_stream(batches)
        ranges.append(StagedRange(shard, path, len(data), len(piece), checksum_of(piece)))
        data += piece
    store.put(path, data)
    return StagedRecords("out", "marks", shards, subtask, len(rows), None, tuple(ranges))


KEYS = st.one_of(st.none(), st.binary(max_size=2))


@given(
    st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=30), st.booleans()), min_size=1),
    st.integers(1, 7),
)
def test_every_record_is_in_one_part_and_keys_keep_their_order(
    subtasks: list[tuple[list[bytes | None], bool]], shards: int
) -> None:
    store, all_rows = MemoryStore(), []
    staged = []
    for index, (keys, is_small) in enumerate(subtasks):
        rows = [(key, b"%d-%d" % (index, place)) for place, key in enumerate(keys)]
        all_rows += rows
        staged.append(staged_in(store, rows, index, shards, is_small=is_small))
    parts = [
        msgspec.msgpack.decode(part.data, type=ShardPart) for part in plan_parts(staged)
    ]
    found = {part.shard: rows_of(read_part(part, store)) for part in parts}
    assert sorted(map(repr, (row for rows in found.values() for row in rows))) == sorted(
        map(repr, all_rows)
    )
    shards_of_key = defaultdict(set)
    for shard, rows in found.items():
        for key, _ in rows:
            if key is not None:
                shards_of_key[key].add(shard)
    assert all(len(owners) == 1 for owners in shards_of_key.values())
    for index, (keys, _) in enumerate(subtasks):
        for key in set(keys):
            values = [b"%d-%d" % (index, place) for place, k in enumerate(keys) if k == key]
            mine = [
                value
                for rows in found.values()
                for found_key, value in rows
                if found_key == key and value.startswith(b"%d-" % index)
            ]
            assert mine == values
    is_small_epoch = all(is_small for _, is_small in subtasks)
    assert (found.keys() == {SMALL}) == is_small_epoch
    assert all(0 <= shard <= shards for shard in found)


def test_shards_of_keys_never_change() -> None:
    keys = batch_of([(b"ada", b""), (b"bob", b""), (b"", b""), (None, b"")])
    assert shards_of(keys, 1, 5).tolist() == [1, 1, 1, 1]
    assert shards_of(keys, 4, 5).tolist() == [4, 4, 2, 2]
    assert np.all(shards_of(keys, 4, 6)[:3] == shards_of(keys, 4, 0)[:3])


def test_commit_data_of_the_first_version_is_read() -> None:
    """These bytes are in checkpoints: whoever commits them later must understand them."""
    ctx = CommitContext(
        TaskInfo(JobId("job"), OperatorId("out"), Subtask(0, 1)), MemoryStore(), "token"
    )
    fields = {
        "topic": "out",
        "markers": "marks",
        "shards": 2,
        "subtask": 1,
        "rows": 3,
        "inline": None,
        "ranges": [[1, "a/b", 0, 10, 2**63], [2, "a/b", 10, 5, 7]],
        "version": 1,
    }
    of_subtask = {1: msgspec.msgpack.encode(fields)}
    (found,) = decode_commit_data(of_subtask, Epoch(1), ctx)
    assert msgspec.msgpack.encode(found) == of_subtask[1]
    assert found.ranges == (
        StagedRange(1, "a/b", 0, 10, 2**63),
        StagedRange(2, "a/b", 10, 5, 7),
    )
    later = {1: msgspec.msgpack.encode({**fields, "version": 2})}
    with pytest.raises(CorruptStateError, match="later version"):
        decode_commit_data(later, Epoch(1), ctx)
    with pytest.raises(CorruptStateError, match="not what a Kafka sink"):
        decode_commit_data({0: b"other"}, Epoch(1), ctx)


def test_part_tells_how_much_it_moves() -> None:
    store = MemoryStore()
    small = staged_in(store, [(b"a", b"1")], 0, 2, is_small=True)
    assert small.inline is not None
    (part,) = plan_parts([small])
    assert part.size_bytes == len(small.inline)
    # Records in objects count as much as those in the commit data: the sum decides who sends.
    rows = [(b"%d" % n, b"x" * 100) for n in range(50)]
    large = staged_in(store, rows, 1, 2, is_small=False)
    object_bytes = len(store.read("of-1") or b"")
    alone = plan_parts([large])
    assert [each.size_bytes for each in alone] == [each.length for each in large.ranges]
    assert sum(each.size_bytes for each in alone) == object_bytes
    of_both = plan_parts([small, large])
    decoded = [msgspec.msgpack.decode(each.data, type=ShardPart) for each in of_both]
    kept = sum(len(data) for each in decoded for data in each.inline)
    assert kept > 0
    assert sum(each.size_bytes for each in of_both) == object_bytes + kept


@pytest.mark.parametrize("damage", [None, b"other bytes"])
def test_staged_object_that_is_gone_or_damaged_is_refused(damage: bytes | None) -> None:
    store = MemoryStore()
    staged = staged_in(store, [(b"a", b"1")], 0, 1, is_small=False)
    store.delete("of-0")
    if damage is not None:
        store.put("of-0", damage)
    (part,) = plan_parts([staged])
    with pytest.raises(CorruptStateError, match="missing" if damage is None else "damaged"):
        list(read_part(msgspec.msgpack.decode(part.data, type=ShardPart), store))


def test_limits_leave_room_for_commit_data_of_all_subtasks() -> None:
    assert staging.SMALL_BYTES < staging.OBJECT_BYTES
