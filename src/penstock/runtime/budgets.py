"""Budgets: how much a source may read, so that an epoch takes about as long as wanted. Pure."""

from dataclasses import replace

from penstock.operators.splits import SourceBudget

_FASTEST_GROWTH = 2.0
_FASTEST_FALL = 0.5
MIN_ROWS = 1_000
MAX_ROWS = 100_000_000


def adapt_budget(
    budget: SourceBudget, *, duration_micros: int, target_micros: int, was_spent: bool
) -> SourceBudget:
    """Return the next epoch's budget, given how long the last one took.

    It grows only if the budget was what ended the epoch: a source without data says nothing
    about how much could be read. Steps are bounded, so that one odd epoch does little harm.
    """
    ratio = target_micros / max(duration_micros, 1)
    if ratio >= 1 and not was_spent:
        return budget
    factor = min(max(ratio, _FASTEST_FALL), _FASTEST_GROWTH)
    # Bounds for adapting, not for what a user chose: a budget beyond them stays there.
    lowest, highest = min(MIN_ROWS, budget.rows), max(MAX_ROWS, budget.rows)
    rows = min(max(int(budget.rows * factor), lowest), highest)
    return replace(budget, rows=rows)
