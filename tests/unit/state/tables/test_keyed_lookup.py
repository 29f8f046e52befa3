"""Lookups find rows by hash, decide by key, and let the newest version have the last word."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hash_kernels import Hashes
from penstock.state.tables.keyed_lookup import look_up
from penstock.state.tables.keyed_runs import MemoryRun, Run, Segment
from penstock.state.tables.table import DataOperation

PUT, DELETED = DataOperation.UPSERT.value, DataOperation.TOMBSTONE.value
Version = tuple[int, int, int, int | None]
"""A stored row: key, value, operation, expiry."""


def hash_of(key: int) -> int:
    """A poor hash: keys that differ by a multiple of 4 collide."""
    return key % 4 << 62


def stored(versions: list[Version]) -> pa.RecordBatch:
    ordered = sorted(versions, key=lambda version: hash_of(version[0]))
    return pa.record_batch(
        {
            "key": pa.array([key for key, *_ in ordered], pa.int64()),
            "value": pa.array([value for _, value, *_ in ordered], pa.int64()),
            "_key_hash": pa.array([hash_of(key) for key, *_ in ordered], pa.uint64()),
            "_operation": pa.array(
                [operation for _, _, operation, _ in ordered], pa.int8()
            ),
            "_expires_at": pa.array([expiry for *_, expiry in ordered], pa.timestamp("us")),
        }
    )


class CutRun(Run):
    """A run in segments of at most `size` rows, wherever its hashes lie."""

    def __init__(self, rows: pa.RecordBatch, size: int) -> None:
        self.segments = [
            Segment(rows.slice(start, size)) for start in range(0, rows.num_rows, size)
        ]

    @property
    def first_hashes(self) -> Hashes:
        return np.array([segment.hashes[0] for segment in self.segments], np.uint64)

    @property
    def last_hashes(self) -> Hashes:
        return np.array([segment.hashes[-1] for segment in self.segments], np.uint64)

    def read_segment(self, index: int) -> Segment:
        return self.segments[index]


def find(runs: list[Run], keys: list[int], instant: int | None = None) -> list[int | None]:
    """Return the value of each key in a stack of runs, oldest first."""
    hashes = np.array([hash_of(key) for key in keys], np.uint64)
    matches = look_up(
        reversed(runs),
        hashes,
        [pa.array(keys, pa.int64())],
        key_columns=["key"],
        columns=["value"],
        instant=instant,
    )
    schema = pa.schema([pa.field("value", pa.int64())])
    values = matches.aligned(schema, ["value"]).column("value").to_pylist()
    assert [value is not None for value in values] == matches.found.tolist()
    return values


def test_keys_of_one_hash_are_told_apart() -> None:
    run = MemoryRun(stored([(key, 10 * key, PUT, None) for key in range(12)]))
    assert find([run], [11, 3, 7, 0, 12, 15]) == [110, 30, 70, 0, None, None]


def test_a_key_is_found_in_any_segment_that_shares_its_hash() -> None:
    rows = stored([(key, 10 * key, PUT, None) for key in range(24)])
    for size in (1, 2, 5):
        assert find([CutRun(rows, size)], [*range(24), 24]) == [
            *(10 * key for key in range(24)),
            None,
        ]


def test_the_newest_version_decides_even_if_it_is_dead() -> None:
    old = MemoryRun(stored([(key, 1, PUT, None) for key in range(4)]))
    new = MemoryRun(stored([(0, 2, PUT, None), (1, 2, DELETED, None), (2, 2, PUT, 10)]))
    assert find([old, new], [0, 1, 2, 3], instant=9) == [2, None, 2, 1]
    assert find([old, new], [0, 1, 2, 3], instant=10) == [2, None, None, 1]


def test_a_run_without_rows_settles_nothing() -> None:
    old = MemoryRun(stored([(1, 5, PUT, None)]))
    assert find([old, MemoryRun(stored([]))], [1]) == [5]
    assert find([CutRun(stored([]), 3)], [1]) == [None]


versions = st.dictionaries(
    st.integers(0, 12),
    st.tuples(
        st.integers(0, 99), st.sampled_from([PUT, DELETED]), st.none() | st.integers(0, 9)
    ),
)


@given(
    layers=st.lists(versions, max_size=4),
    size=st.integers(1, 4),
    keys=st.lists(st.integers(0, 15), max_size=30),
    instant=st.none() | st.integers(0, 9),
)
def test_a_stack_of_runs_answers_like_dictionaries_asked_from_the_top(
    layers: list[dict[int, tuple[int, int, int | None]]],
    size: int,
    keys: list[int],
    instant: int | None,
) -> None:
    runs: list[Run] = [
        CutRun(stored([(key, *row) for key, row in layer.items()]), size)
        for layer in layers
    ]
    merged: dict[int, tuple[int, int, int | None]] = {}
    for layer in layers:
        merged |= layer

    def expected(key: int) -> int | None:
        value, operation, expiry = merged.get(key, (0, DELETED, None))
        is_live = expiry is None or instant is None or expiry > instant
        return value if operation == PUT and is_live else None

    assert find(runs, keys, instant) == [expected(key) for key in keys]
