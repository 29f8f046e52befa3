"""Rows of a key within a range of time: found among all chunks, a bounded number at a time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.state.tables.table import TableEnvironment
from penstock.state.tables.time_keyed_rows import expand_ranges
from penstock.state.tables.time_keyed_view import KeyTimeView
from tests.unit.state.tables.table_cluster import TableCluster
from tests.unit.state.tables.time_rows import PANES, Row, a_batch, inserting, rows_in

users = st.sampled_from(["a", "b", None])
instants = st.integers(-5, 5)
epochs = st.lists(
    st.lists(st.tuples(users, instants, st.integers(0, 9)), max_size=12), max_size=3
)
probes = st.lists(st.tuples(users, instants, instants), max_size=8)


def found_between(
    view: KeyTimeView, asked: list[tuple[str | None, int, int]], *, first_only: bool = False
) -> list[Any]:
    keys = pa.RecordBatch.from_pydict(
        {"user": pa.array([a[0] for a in asked], pa.string())}
    )
    starts, ends = (np.array([a[at] for a in asked], np.int64) for at in (1, 2))
    rows: list[Any] = []
    for matches in view.get_between(keys, starts, ends, first_only=first_only):
        numbers = (
            matches.rows.column("n").take(pa.array(matches.places, pa.int64())).to_pylist()
        )
        times = matches.times[matches.places].tolist()
        rows += list(zip(matches.probes.tolist(), times, numbers, strict=True))
    return sorted(rows)


@given(given_epochs=epochs, asked=probes)
def test_rows_of_a_key_in_a_range_are_those_that_a_scan_finds(
    given_epochs: list[list[Row]], asked: list[tuple[str | None, int, int]]
) -> None:
    cluster = TableCluster(PANES)
    for rows in given_epochs[:-1]:
        cluster.run_epoch(inserting(*rows))
    view = cluster.view()
    if given_epochs and given_epochs[-1]:
        view.insert(a_batch(*given_epochs[-1]), None)
    expected = sorted(
        (number, at, n)
        for number, (user, start, end) in enumerate(asked)
        for rows in given_epochs
        for found, at, n in rows
        if found == user and start <= at < end
    )
    assert found_between(view.by_key(), asked) == expected


@given(given_epochs=epochs, asked=probes)
def test_the_first_match_stands_for_all(
    given_epochs: list[list[Row]], asked: list[tuple[str | None, int, int]]
) -> None:
    cluster = TableCluster(PANES)
    for number, rows in enumerate(given_epochs):
        cluster.run_epoch(inserting(*rows, expires_at=2 + number), watermark=number)
    view = cluster.view().by_key()
    some, every = (found_between(view, asked, first_only=only) for only in (True, False))
    assert {one[0] for one in some} == {one[0] for one in every}
    assert set(some) <= set(every)


def test_only_one_match_of_many_is_looked_at() -> None:
    view = TableCluster(PANES).view()
    view.insert(a_batch(*(("a", 1, n) for n in range(100))), None)
    assert len(found_between(view.by_key(), [("a", 0, 9)], first_only=True)) == 1


def test_expired_rows_are_not_found_in_a_range() -> None:
    cluster = TableCluster(PANES)
    cluster.run_epoch(inserting(("a", 1, 1), expires_at=10))
    cluster.run_epoch(inserting(("a", 1, 2), expires_at=20))
    cluster.watermark = 10
    assert found_between(cluster.view().by_key(), [("a", 0, 9)]) == [(0, 1, 2)]


@given(
    ranges=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=9),
    limit=st.integers(1, 7),
)
def test_ranges_are_expanded_in_order_and_in_pieces(
    ranges: list[tuple[int, int]], limit: int
) -> None:
    first, counts = (np.array([r[at] for r in ranges], np.int64) for at in (0, 1))
    pieces = list(expand_ranges(first, counts, limit=limit))
    assert all(0 < len(places) <= limit for _, places in pieces)
    pairs = [pair for piece in pieces for pair in zip(*map(list, piece), strict=True)]
    assert pairs == [
        (n, start + k) for n, (start, count) in enumerate(ranges) for k in range(count)
    ]


class TightCluster(TableCluster):
    """Has no memory for rows of earlier epochs."""

    def environment(self, index: int) -> TableEnvironment:
        return replace(super().environment(index), memory_budget_bytes=1)


@given(given_epochs=epochs, parallelism=st.integers(1, 2))
def test_rows_that_are_mapped_from_their_files_are_the_same(
    given_epochs: list[list[Row]], parallelism: int
) -> None:
    tight, plenty = TightCluster(PANES, parallelism), TableCluster(PANES, parallelism)
    for number, rows in enumerate([*given_epochs, []]):
        for cluster in (tight, plenty):
            write = inserting(*rows, expires_at=number + 2)
            cluster.run_epoch(write, watermark=number, warm=True)
        for index in range(parallelism):
            found, expected = (c.view(index, warm=True) for c in (tight, plenty))
            assert sorted(map(str, rows_in(found.rows()))) == sorted(
                map(str, rows_in(expected.rows()))
            )
            assert not any(not chunk.is_mapped for chunk in found._chunks)
