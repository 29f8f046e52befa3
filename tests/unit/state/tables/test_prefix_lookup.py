"""Lookups of prefixes find all rows of each in any run and segment, newest version, in order."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.hash_kernels import Hashes
from penstock.state.tables.keyed_lookup import look_up, look_up_prefixes
from penstock.state.tables.keyed_runs import Run, Segment
from penstock.state.tables.table import DataOperation

PUT, DELETED = DataOperation.UPSERT.value, DataOperation.TOMBSTONE.value
Rest = int | None
Version = tuple[int, int, int | None]
"""What a row holds beside its key: value, operation, expiry."""
Layer = dict[tuple[int, Rest], Version]
COPIED = pa.schema([("rest", pa.int64()), ("value", pa.int64())])


def hash_of(prefix: int) -> int:
    """A poor hash: prefixes that differ by a multiple of 3 collide."""
    return prefix % 3 << 62


def in_order(key: tuple[int, Rest]) -> tuple[int, bool, int]:
    return hash_of(key[0]), key[1] is not None, key[1] or 0


def stored(layer: Layer, *, turned: bool = False) -> pa.RecordBatch:
    """The rows of a run; if `turned`, those of equal hash lie backwards."""
    keys = sorted(layer, key=in_order, reverse=turned)
    keys.sort(key=lambda key: hash_of(key[0]))
    versions = [layer[key] for key in keys]
    return pa.record_batch(
        {
            "prefix": pa.array([prefix for prefix, _ in keys], pa.int64()),
            "rest": pa.array([rest for _, rest in keys], pa.int64()),
            "value": pa.array([value for value, _, _ in versions], pa.int64()),
            "_key_hash": pa.array([hash_of(prefix) for prefix, _ in keys], pa.uint64()),
            "_operation": pa.array([done for _, done, _ in versions], pa.int8()),
            "_expires_at": pa.array([e for _, _, e in versions], pa.timestamp("us")),
        }
    )


class CutRun(Run):
    """A run in segments of at most `size` rows, wherever its hashes lie."""

    def __init__(self, rows: pa.RecordBatch, size: int) -> None:
        starts = range(0, rows.num_rows, size)
        self.segments = [Segment(rows.slice(start, size)) for start in starts]

    @property
    def first_hashes(self) -> Hashes:
        return np.array([segment.hashes[0] for segment in self.segments], np.uint64)

    @property
    def last_hashes(self) -> Hashes:
        return np.array([segment.hashes[-1] for segment in self.segments], np.uint64)

    def read_segment(self, index: int) -> Segment:
        return self.segments[index]


def find_all(runs: list[Run], prefixes: list[int], **options: Any) -> list[list[int]]:
    """Return the values of each prefix in a stack of runs, oldest first."""
    options = {"instant": None} | options
    found = look_up_prefixes(
        runs[::-1],
        np.array([hash_of(prefix) for prefix in prefixes], np.uint64),
        [pa.array(prefixes, pa.int64())],
        prefix_columns=["prefix"],
        rest=["rest"],
        stored=COPIED,
        **options,
    )
    rows = pa.Table.from_batches(found.batches(), COPIED)
    values: list[Any] = rows.column("value").to_pylist()
    bounds = found.offsets.tolist()
    assert bounds[-1] == len(values)
    return [values[bounds[i] : bounds[i + 1]] for i in range(len(prefixes))]


def numbered(prefix: int, count: int, first: int = 0) -> Layer:
    """Rows of one prefix whose value is their rest."""
    return {(prefix, rest): (rest, PUT, None) for rest in range(first, first + count)}


def test_rows_come_by_prefix_as_asked_and_in_order_of_the_rest() -> None:
    run = CutRun(stored(numbered(5, 3) | numbered(1, 2) | numbered(2, 4)), 100)
    assert find_all([run], [2, 9, 5, 1, 5]) == [
        [0, 1, 2, 3],
        [],
        [0, 1, 2],
        [0, 1],
        [0, 1, 2],
    ]
    assert find_all([run], []) == []
    assert find_all([], [1, 2]) == [[], []]


@pytest.mark.parametrize("last", [False, True])
def test_a_limit_looks_further_where_newer_runs_deleted_what_comes_first(
    last: bool,
) -> None:
    old = CutRun(stored(numbered(1, 500) | numbered(2, 500)), 70)
    dead = range(300, 500) if last else range(200)
    new = CutRun(stored({(1, rest): (0, DELETED, None) for rest in dead}), 30)
    first = [[297, 298, 299], [497, 498, 499]] if last else [[200, 201, 202], [0, 1, 2]]
    assert find_all([old, new], [1, 2], limit=3, last=last) == first
    all_dead = CutRun(stored({(1, rest): (0, DELETED, None) for rest in range(500)}), 30)
    assert find_all([old, all_dead], [1], limit=3, last=last) == [[]]


def test_a_limit_copies_few_rows_of_a_large_prefix() -> None:
    run = CutRun(stored(numbered(1, 5_000) | numbered(2, 3)), 1_000)
    found = look_up_prefixes(
        [run],
        np.array([hash_of(1), hash_of(2)], np.uint64),
        [pa.array([1, 2], pa.int64())],
        prefix_columns=["prefix"],
        rest=["rest"],
        stored=COPIED,
        instant=None,
        limit=2,
    )
    assert found.offsets.tolist() == [0, 2, 4]
    assert found.pieces.num_rows <= 16 * len(run.segments) + 3


layers_of_rows = st.lists(
    st.dictionaries(
        st.tuples(st.integers(0, 7), st.none() | st.integers(-20, 20)),
        st.tuples(
            st.integers(0, 99),
            st.sampled_from([PUT, PUT, DELETED]),
            st.none() | st.integers(0, 9),
        ),
        max_size=60,
    ),
    max_size=4,
)


def live(layers: list[Layer], instant: int | None) -> Layer:
    merged: Layer = {}
    for layer in layers:
        merged |= layer
    return {
        key: row
        for key, row in sorted(merged.items(), key=lambda item: in_order(item[0]))
        if row[1] == PUT and (row[2] is None or instant is None or row[2] > instant)
    }


@given(
    layers=layers_of_rows,
    turned=st.lists(st.booleans(), min_size=4, max_size=4),
    size=st.integers(1, 50),
    prefixes=st.lists(st.integers(0, 9), max_size=12),
    instant=st.none() | st.integers(0, 9),
    limit=st.none() | st.integers(1, 30),
    last=st.booleans(),
)
def test_a_stack_of_runs_answers_like_dictionaries(
    *,
    layers: list[Layer],
    turned: list[bool],
    size: int,
    prefixes: list[int],
    instant: int | None,
    limit: int | None,
    last: bool,
) -> None:
    runs: list[Run] = [
        CutRun(stored(layer, turned=is_turned), size)
        for layer, is_turned in zip(layers, turned, strict=False)
    ]
    rows = live(layers, instant)
    expected = [
        [value for (of, _), (value, _, _) in rows.items() if of == prefix]
        for prefix in prefixes
    ]
    if limit is not None:
        kept = slice(-limit, None) if last else slice(limit)
        expected = [values[kept] for values in expected]
    assert find_all(runs, prefixes, instant=instant, limit=limit, last=last) == expected


@given(
    layers=layers_of_rows,
    turned=st.lists(st.booleans(), min_size=4, max_size=4),
    size=st.integers(1, 50),
    keys=st.lists(
        st.tuples(st.integers(0, 9), st.none() | st.integers(-22, 22)), max_size=30
    ),
    instant=st.none() | st.integers(0, 9),
)
def test_one_row_of_a_prefix_is_found_by_its_whole_key(
    layers: list[Layer],
    turned: list[bool],
    size: int,
    keys: list[tuple[int, Rest]],
    instant: int | None,
) -> None:
    runs: list[Run] = [
        CutRun(stored(layer, turned=is_turned), size)
        for layer, is_turned in zip(layers, turned, strict=False)
    ]
    matches = look_up(
        reversed(runs),
        np.array([hash_of(prefix) for prefix, _ in keys], np.uint64),
        [
            pa.array([rest for _, rest in keys], pa.int64()),
            pa.array([prefix for prefix, _ in keys], pa.int64()),
        ],
        key_columns=["rest", "prefix"],
        columns=["value"],
        instant=instant,
        rest=["rest"],
    )
    found = matches.aligned(COPIED, ["value"]).column("value").to_pylist()
    rows = live(layers, instant)
    assert found == [rows[key][0] if key in rows else None for key in keys]


def test_a_segment_sorts_its_places_only_if_its_rows_are_not_in_order() -> None:
    layer = numbered(1, 4) | numbered(4, 3) | numbered(2, 1)
    rows, turned = stored(layer), stored(layer, turned=True)
    assert Segment(rows).places_by(["rest"]) is None
    segment = Segment(turned)
    places = segment.places_by(["rest"])
    assert places is not None
    assert (
        turned.take(pa.array(places, pa.int64())).column("rest").equals(rows.column("rest"))
    )
    assert segment.places_by(["rest"]) is places


def test_a_run_remembers_which_of_its_segments_are_in_order() -> None:
    rows, in_order = stored(numbered(1, 4)), {3}
    for number in (3, 5):
        assert Segment(rows, number, in_order).places_by(["rest"]) is None
    assert in_order == {3, 5}
    assert (
        Segment(stored(numbered(1, 4), turned=True), 6, in_order).places_by(["rest"])
        is not None
    )
    assert in_order == {3, 5}
