"""Tests how ranges of partitions are planned, by pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.kafka.positions import (
    Held,
    Loss,
    Partition,
    PartitionOffset,
    Selection,
    Start,
    StartKind,
    check_decided,
    check_not_shrunk,
    check_same_topics,
    fill_evenly,
    find_losses,
    lag_of,
    plan_ends,
)
from penstock.errors import ExternalError, UserError
from penstock.operators.splits import Lag, SourceBudget, SplitPlan, deal_splits


def at(next_: int, record_bytes: int = 100, **more: int) -> PartitionOffset:
    return PartitionOffset("id", next_, record_bytes, **more)


def test_a_split_is_named_by_topic_and_partition() -> None:
    partition = Partition("shop.bids-1", 12)
    assert partition.split == "shop.bids-1/12"
    assert Partition.of_split(partition.split) == partition


@pytest.mark.parametrize("kind", ["group", "time", "after-time"])
def test_a_start_at_a_place_that_is_not_decided_yet_is_tried_again(kind: StartKind) -> None:
    start = Start(kind, group="readers")
    check_decided(start, {"a/0": 9}, {"a/0": Held(0, 9)})
    with pytest.raises(ExternalError, match=r"a/0 .*offset 10.* ends at 9"):
        check_decided(start, {"a/0": 10}, {"a/0": Held(0, 9)})
    check_decided(Start("offsets"), {"a/0": 10}, {"a/0": Held(0, 9)})


def test_a_plan_reads_to_the_last_stable_offset() -> None:
    known, held = {"a/0": at(5), "a/1": at(7)}, {"a/0": Held(0, 9), "a/1": Held(3, 7)}
    assert plan_ends(known, held, SourceBudget()) == {"a/0": 9}


def test_a_full_budget_is_shared_evenly_and_who_needs_little_leaves_the_rest() -> None:
    known = {f"a/{n}": at(0) for n in range(3)}
    held = {"a/0": Held(0, 10), "a/1": Held(0, 1_000), "a/2": Held(0, 1_000)}
    ends = plan_ends(known, held, SourceBudget(rows=100))
    assert ends == {"a/0": 10, "a/1": 45, "a/2": 45}


def test_bytes_limit_a_plan_as_rows_do() -> None:
    known, held = {"a/0": at(0, 1_000)}, {"a/0": Held(0, 1_000)}
    assert plan_ends(known, held, SourceBudget(size_bytes=50_000)) == {"a/0": 50}


def test_a_partition_of_unknown_size_is_guessed_by_its_neighbours() -> None:
    known, held = (
        {"a/0": at(0, 0), "a/1": at(9, 10_000)},
        {"a/0": Held(0, 99), "a/1": Held(0, 9)},
    )
    assert plan_ends(known, held, SourceBudget(size_bytes=100_000)) == {"a/0": 10}


def test_a_bounded_partition_is_read_to_its_own_end() -> None:
    known, held = (
        {"a/0": at(5, end=8), "a/1": at(8, end=8)},
        {"a/0": Held(0, 99), "a/1": Held(0, 9)},
    )
    assert plan_ends(known, held, SourceBudget()) == {"a/0": 8}


offsets = st.integers(0, 1 << 40)
partitions = st.dictionaries(
    st.builds(Partition, st.sampled_from(["a", "b"]), st.integers(0, 30)).map(
        lambda each: each.split
    ),
    st.tuples(offsets, st.integers(0, 1 << 30), st.integers(0, 1 << 20)),
    max_size=20,
)


@given(
    partitions,
    st.integers(1, 1 << 21),
    st.integers(1, 1 << 28),
    st.integers(1, 5),
)
def test_a_plan_keeps_to_the_budget_of_each_subtask_and_leaves_nobody_out(
    found: dict[str, tuple[int, int, int]], rows: int, size_bytes: int, subtasks: int
) -> None:
    known = {name: at(first, size) for name, (first, _, size) in found.items()}
    held = {name: Held(0, first + rest) for name, (first, rest, _) in found.items()}
    budget = SourceBudget(rows=rows, size_bytes=size_bytes, subtasks=subtasks)
    ends = plan_ends(known, held, budget)
    assert ends.keys() == {name for name, (_, rest, _) in found.items() if rest}
    assert all(known[name].next < ends[name] <= held[name].end for name in ends)
    plans = [SplitPlan(name) for name in known]
    for part in deal_splits(plans, subtasks):
        read = {
            split.name: ends[split.name] - known[split.name].next
            for split in part
            if split.name in ends
        }
        # One record of each partition is read, whatever it takes.
        assert sum(read.values()) <= rows + len(read)
        sizes = sum(known[name].record_bytes * (count - 1) for name, count in read.items())
        assert sizes <= size_bytes
        whole = all(ends[name] == held[name].end for name in read)
        used = max(
            sum(read.values()) / rows,
            sum((known[name].record_bytes or 1_000_000) * n for name, n in read.items())
            / size_bytes,
        )
        assert whole or used > 0.1


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 10), max_size=8))
def test_filling_gives_no_more_than_there_is_and_is_fair(demands: dict[str, float]) -> None:
    given_ = fill_evenly(demands)
    assert given_.keys() == demands.keys()
    assert sum(given_.values()) <= 1 + 1e-9
    level = max(given_.values(), default=0)
    for name, share in given_.items():
        assert share <= demands[name]
        assert share == demands[name] or share >= level - 1e-9


def test_offsets_that_are_gone_are_found() -> None:
    known = {"a/0": at(5), "a/1": at(5), "a/2": at(5, end=7), "a/3": at(7, end=7)}
    held = {"a/0": Held(5, 9), "a/1": Held(8, 9), "a/2": Held(8, 9), "a/3": Held(8, 9)}
    losses = find_losses(known, held)
    assert losses == (Loss("a/1", 5, 8), Loss("a/2", 5, 7))
    assert str(losses[0]) == "offsets 5 to 7 of a/1"
    after = known["a/1"].without(losses[0])
    assert (after.next, after.lost) == (8, 3)
    assert find_losses({"a/1": after}, held) == ()


def test_a_partition_that_shrank_is_tried_again() -> None:
    with pytest.raises(
        ExternalError, match="ends at offset 3, and this job has read it up to 5"
    ):
        check_not_shrunk({"a/0": at(5)}, {"a/0": Held(0, 3)})
    check_not_shrunk({"a/0": at(5)}, {"a/0": Held(0, 5)})


def test_lag_is_what_the_plan_leaves() -> None:
    known = {"a/0": at(5, last_millis=1_000), "a/1": at(5, last_millis=500), "a/2": at(5)}
    held = {"a/0": Held(0, 9), "a/1": Held(0, 9), "a/2": Held(0, 6)}
    assert lag_of(known, held, {"a/0": 8, "a/1": 9, "a/2": 6}, 3_000_000) == Lag(
        1, 2_000_000
    )
    assert lag_of(known, held, {"a/0": 9, "a/1": 9, "a/2": 6}, 3_000_000) == Lag(0, 0)
    # How old records are that nobody has read is not known.
    assert lag_of(known, held, {"a/0": 8, "a/1": 9}, 3_000_000) == Lag(2, None)


def test_a_topic_that_was_read_must_be_named_again() -> None:
    check_same_topics(["a/0", "b/3"], Selection(("a", "b", "c")))
    check_same_topics(["bids-1/0"], Selection(pattern="bids-.*"))
    with pytest.raises(UserError, match="has read the topic 'b' before"):
        check_same_topics(["a/0", "b/3"], Selection(("a",)))
    with pytest.raises(UserError, match=r"the pattern 'bids-\.'"):
        check_same_topics(["bids-10/0"], Selection(pattern="bids-."))


@pytest.mark.parametrize("name", ["__consumer_offsets", "penstock.markers.job.out"])
def test_a_pattern_passes_over_topics_of_kafka_itself_and_of_markers(name: str) -> None:
    assert not Selection(pattern=".*").has(name)
    assert Selection((name,)).has(name)
