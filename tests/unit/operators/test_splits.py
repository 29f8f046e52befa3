from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import ManualClock
from penstock.operators.splits import (
    BudgetMeter,
    SourceBudget,
    SplitPlan,
    SplitState,
    deal_splits,
    have_ended,
)

weights = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4), st.integers(0, 100), max_size=20
)


@given(weights, st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_split_is_dealt_once_and_the_same_way_whatever_their_order(
    given_weights: dict[str, int], parallelism: int, random: object
) -> None:
    splits = [SplitPlan(name, weight=weight) for name, weight in given_weights.items()]
    dealt = deal_splits(splits, parallelism)
    assert len(dealt) == parallelism
    assert sorted(s.name for part in dealt for s in part) == sorted(given_weights)
    random.shuffle(splits)  # type: ignore[attr-defined] # a random.Random
    assert deal_splits(splits, parallelism) == dealt


@given(weights, st.integers(1, 6))
def test_nobody_has_more_than_another_by_more_than_one_split(
    given_weights: dict[str, int], parallelism: int
) -> None:
    splits = [SplitPlan(name, weight=weight) for name, weight in given_weights.items()]
    loads = [
        sum(max(1, split.weight) for split in part)
        for part in deal_splits(splits, parallelism)
    ]
    heaviest = max((max(1, split.weight) for split in splits), default=0)
    assert max(loads) - min(loads) <= heaviest


def test_equal_splits_are_dealt_in_equal_numbers() -> None:
    dealt = deal_splits([SplitPlan(f"s{i}") for i in range(10)], 3)
    assert Counter(len(part) for part in dealt) == {3: 2, 4: 1}


def test_a_meter_is_spent_by_rows_bytes_or_time() -> None:
    clock = ManualClock(1_000)
    budget = SourceBudget(rows=10, size_bytes=100, wall_micros=50)
    meter = BudgetMeter(budget, clock)
    meter.spend(9, 99)
    spent = [meter.is_spent]
    meter.spend(3, 0)
    assert [*spent, meter.is_spent] == [False, True]
    meter = BudgetMeter(budget, clock)
    meter.spend(0, 100)
    assert meter.is_spent
    meter = BudgetMeter(budget, clock)
    clock.advance(49)
    assert (meter.elapsed_micros, meter.is_spent) == (49, False)
    clock.advance(1)
    assert (meter.elapsed_micros, meter.is_spent) == (50, True)


def test_a_source_has_ended_when_no_split_can_follow_and_all_known_ones_ended() -> None:
    going, done = SplitState(offset=3), SplitState(ended=True)
    assert have_ended({}, is_complete=True)
    assert have_ended({"a": done}, is_complete=True)
    assert not have_ended({"a": done}, is_complete=False)
    assert not have_ended({"a": done, "b": going}, is_complete=True)
