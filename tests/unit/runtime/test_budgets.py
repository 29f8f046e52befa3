from hypothesis import given
from hypothesis import strategies as st

from penstock.operators.splits import SourceBudget
from penstock.runtime.plan.epoch_plan import (
    MAX_ROWS,
    MIN_ROWS,
    Pace,
    adapt_budget,
    do_rows_matter,
)

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


def budgets_over(epochs: int, *, fixed_seconds: float, seconds_per_row: float) -> list[int]:
    """Return the budgets of a source with plenty of rows on a machine of these costs."""
    budget, before, seen = SourceBudget(rows=1_000_000), None, []
    for _ in range(epochs):
        seen.append(budget.rows)
        seconds = fixed_seconds + seconds_per_row * budget.rows
        now = Pace(budget.rows, int(seconds * SECOND))
        budget = adapt_budget(
            budget,
            duration_micros=now.duration_micros,
            target_micros=SECOND,
            was_spent=True,
            rows_matter=do_rows_matter(before, now),
        )
        before = now
    return seen


def test_epochs_that_cost_more_than_they_should_without_any_rows_go_on_reading() -> None:
    budgets = budgets_over(50, fixed_seconds=1.5, seconds_per_row=1e-6)
    assert min(budgets) >= 250_000


def test_what_is_slow_by_the_row_is_read_in_small_pieces() -> None:
    budgets = budgets_over(20, fixed_seconds=0.2, seconds_per_row=5e-3)
    assert set(budgets[-8:]) == {MIN_ROWS}


def test_otherwise_epochs_come_to_take_as_long_as_they_should() -> None:
    budgets = budgets_over(40, fixed_seconds=0.3, seconds_per_row=1e-6)
    assert all(600_000 <= rows <= 800_000 for rows in budgets[-10:])


def test_rows_matter_unless_a_clear_change_of_them_changed_little() -> None:
    before = Pace(100_000, SECOND)
    assert do_rows_matter(None, before)
    assert do_rows_matter(before, Pace(90_000, SECOND))
    assert do_rows_matter(before, Pace(50_000, SECOND // 2))
    assert do_rows_matter(before, Pace(0, SECOND))
    assert do_rows_matter(before, Pace(200_000, 2 * SECOND))
    assert not do_rows_matter(before, Pace(50_000, SECOND * 9 // 10))
    assert not do_rows_matter(before, Pace(50_000, 2 * SECOND))
    assert not do_rows_matter(before, Pace(200_000, SECOND))
