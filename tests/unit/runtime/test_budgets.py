from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.splits import SourceBudget
from penstock.runtime.budgets import MAX_ROWS, MIN_ROWS, adapt_budget

SECOND = 1_000_000


def adapted(rows: int, seconds: float, *, was_spent: bool = True) -> int:
    budget = SourceBudget(rows=rows)
    return adapt_budget(
        budget,
        duration_micros=int(seconds * SECOND),
        target_micros=SECOND,
        was_spent=was_spent,
    ).rows


def test_a_slow_epoch_reads_less_next_time_and_a_fast_one_more() -> None:
    assert adapted(100_000, 1.25) == 80_000
    assert adapted(100_000, 0.8) == 125_000
    assert adapted(100_000, 1.0) == 100_000


def test_one_odd_epoch_at_most_halves_or_doubles() -> None:
    assert adapted(100_000, 3_600) == 50_000
    assert adapted(100_000, 0) == 200_000


def test_a_source_that_had_no_more_is_not_given_more() -> None:
    assert adapted(100_000, 0.001, was_spent=False) == 100_000


def test_a_slow_epoch_counts_even_if_the_budget_was_not_spent() -> None:
    assert adapted(100_000, 2.0, was_spent=False) == 50_000


def test_it_stays_within_bounds() -> None:
    assert adapted(MIN_ROWS, 10) == MIN_ROWS
    assert adapted(MAX_ROWS, 0.1) == MAX_ROWS


@given(st.integers(1, 4 * MAX_ROWS), st.integers(0, 10 * SECOND), st.booleans())
def test_it_never_grows_by_a_slow_epoch_nor_shrinks_by_a_fast_one(
    rows: int, duration: int, was_spent: bool
) -> None:
    """Also of a budget that the user chose outside of the usual bounds."""
    after = adapt_budget(
        SourceBudget(rows=rows),
        duration_micros=duration,
        target_micros=SECOND,
        was_spent=was_spent,
    ).rows
    assert rows // 2 <= after <= 2 * rows
    assert after >= 1
    if duration >= SECOND:
        assert after <= rows
    else:
        assert after >= rows
    if after > rows:
        assert was_spent
