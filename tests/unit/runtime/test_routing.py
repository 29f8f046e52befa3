from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph.logical import Exchange
from penstock.runtime.plan.physical import peers_of, route_rows
from tests.builders.scripted import BY_USER, PLAIN, SCHEMA, numbers_in

users = st.sampled_from(["ann", "bob", "cid", "dan", None, ""])
batches = st.lists(users, min_size=1, max_size=30).map(
    lambda names: pa.RecordBatch.from_pylist(
        [{"user": name, "n": n, "at": n} for n, name in enumerate(names)], schema=SCHEMA
    )
)


def routed(
    batch: pa.RecordBatch, exchange: Exchange, parallelism: int, turn: int = 0
) -> dict[int, list[int]]:
    schema = BY_USER if exchange is Exchange.BY_KEY else PLAIN
    found: dict[int, list[int]] = {}
    for index, part in route_rows(
        batch, exchange, schema, subtask=0, parallelism=parallelism, turn=turn
    ):
        assert part.num_rows > 0
        assert index not in found
        found[index] = numbers_in([part])
    return found


@given(batches, st.sampled_from([Exchange.BY_KEY, Exchange.REBALANCE]), st.integers(1, 5))
def test_every_row_goes_to_one_consumer_and_keeps_its_order(
    batch: pa.RecordBatch, exchange: Exchange, parallelism: int
) -> None:
    parts = routed(batch, exchange, parallelism)
    assert set(parts) <= set(range(parallelism))
    assert sorted(n for part in parts.values() for n in part) == list(range(batch.num_rows))
    assert all(part == sorted(part) for part in parts.values())


@given(batches, st.integers(1, 5))
def test_rows_of_one_key_meet_at_its_owner_in_whatever_batch_they_come(
    batch: pa.RecordBatch, parallelism: int
) -> None:
    at_once = routed(batch, Exchange.BY_KEY, parallelism)
    for position in range(batch.num_rows):
        (alone,) = routed(batch.slice(position, 1), Exchange.BY_KEY, parallelism)
        assert position in at_once[alone]


@given(batches, st.integers(1, 5), st.integers(0, 10))
def test_rebalanced_rows_are_shared_evenly(
    batch: pa.RecordBatch, parallelism: int, turn: int
) -> None:
    parts = routed(batch, Exchange.REBALANCE, parallelism, turn)
    sizes = [len(parts.get(index, ())) for index in range(parallelism)]
    assert max(sizes) - min(sizes) <= 1


def test_single_rows_in_turn_reach_everybody() -> None:
    row: Any = pa.RecordBatch.from_pylist([{"user": "a", "n": 0, "at": 0}], schema=SCHEMA)
    reached = [next(iter(routed(row, Exchange.REBALANCE, 3, turn))) for turn in range(3)]
    assert sorted(reached) == [0, 1, 2]


@given(batches)
def test_a_broadcast_reaches_all_and_a_forward_edge_only_the_same_subtask(
    batch: pa.RecordBatch,
) -> None:
    everything = list(range(batch.num_rows))
    parts = routed(batch, Exchange.BROADCAST, 3)
    assert parts == {0: everything, 1: everything, 2: everything}
    (only,) = route_rows(batch, Exchange.FORWARD, PLAIN, subtask=2, parallelism=3, turn=0)
    assert only == (2, batch)


@pytest.mark.parametrize("exchange", list(Exchange))
def test_producers_and_consumers_know_of_each_other(exchange: Exchange) -> None:
    sources, targets = (3, 3) if exchange is Exchange.FORWARD else (2, 3)
    heard = {(s, t) for t in range(targets) for s in peers_of(exchange, sources, t)}
    spoken = {(s, t) for s in range(sources) for t in peers_of(exchange, targets, s)}
    assert heard == spoken
    assert len(heard) == (3 if exchange is Exchange.FORWARD else 6)
