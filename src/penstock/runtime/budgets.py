"""Budgets: how much a source may read, so that an epoch takes about as long as wanted. Pure.

An epoch costs something even if it reads nothing, and on a busy or slow machine that alone
may be more than an epoch should take. Reading less does not help then: it would go on until
hardly anything is read. So what the last change of the budget did is looked at first.
"""

from dataclasses import dataclass, replace
from math import log

from penstock.operators.splits import SourceBudget

_FASTEST_GROWTH = 2.0
_FASTEST_FALL = 0.5
_TELLING_CHANGE = 1.25
"""Rows must have changed by this factor for their effect to be told from noise."""
_HARDLY = 0.3
"""Where duration goes with this power of the rows or less, the rows hardly matter."""
MIN_ROWS = 1_000
MAX_ROWS = 100_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How many rows of a source an epoch read, and how long it took."""

    rows: int
    duration_micros: int


def adapt_budget(
    budget: SourceBudget,
    *,
    duration_micros: int,
    target_micros: int,
    was_spent: bool,
    rows_matter: bool = True,
) -> SourceBudget:
    """Return the next epoch's budget, given how long the last one took.

    It grows only if the budget was what ended the epoch: a source without data says nothing
    about how much could be read. Steps are bounded, so that one odd epoch does little harm.
    An epoch that is too long for reasons other than its rows may as well read more.
    """
    ratio = target_micros / max(duration_micros, 1)
    if ratio < 1 and not rows_matter:
        ratio = _FASTEST_GROWTH
    if ratio >= 1 and not was_spent:
        return budget
    factor = min(max(ratio, _FASTEST_FALL), _FASTEST_GROWTH)
    # Bounds for adapting, not for what a user chose: a budget beyond them stays there.
    lowest, highest = min(MIN_ROWS, budget.rows), max(MAX_ROWS, budget.rows)
    rows = min(max(int(budget.rows * factor), lowest), highest)
    return replace(budget, rows=rows)


def do_rows_matter(before: Pace | None, now: Pace) -> bool:
    """Tell whether an epoch's duration followed its rows; they do until shown otherwise."""
    if before is None or not before.rows or not now.rows:
        return True
    change = now.rows / before.rows
    if 1 / _TELLING_CHANGE < change < _TELLING_CHANGE:
        return True
    slowdown = max(now.duration_micros, 1) / max(before.duration_micros, 1)
    return log(slowdown) / log(change) > _HARDLY
