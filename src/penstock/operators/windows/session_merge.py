"""Sessions out of rows and of earlier sessions: what belongs together. Pure.

Rows of a key belong to one session if each follows the one before by at most the gap. A
session is where its first row is, `start`, and where its last one is, `last`; it ends a gap
later. Everything is sorted by key and instant and cut where the distance exceeds the gap, so
sessions may have any length and rows may come in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from penstock.core.schema import RESERVED_PREFIX
from penstock.operators.aggregates.plan import AggregatePlan

KEY = f"{RESERVED_PREFIX}_key"
"""The number of a row's key."""
TIME = f"{RESERVED_PREFIX}_time"
"""The event time of a row in microseconds."""
SESSION = f"{RESERVED_PREFIX}_session"
"""The number of the session that a row or a fragment belongs to."""
FRAGMENT = f"{RESERVED_PREFIX}_fragment"
START, LAST, WAKES_AT = "session_start", "session_last", "session_wakes_at"


def number_keys(frame: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Return the same number for equal keys: the position of the first row that has it.

    Keys are equal as groups are: all nulls, all NaNs, and zeros of either sign.
    """
    positions = frame.select(*keys).with_row_index(KEY)
    return positions.select(pl.col(KEY).cast(pl.Int64).first().over(*keys)).to_series()


@dataclass(frozen=True, slots=True)
class Fragments:
    """What the rows of an epoch make of sessions, before others are known."""

    rows: pl.DataFrame
    """`FRAGMENT` of each row, in the order the rows were given."""
    sessions: pl.DataFrame
    """A row per fragment: `FRAGMENT`, `KEY`, `START`, `LAST` and partials."""


def fragments_of(rows: pl.DataFrame, plan: AggregatePlan, gap: int) -> Fragments:
    """Group rows with `KEY` and `TIME` that are within a gap of each other."""
    places = pl.DataFrame({KEY: rows[KEY], TIME: rows[TIME]}).with_row_index(SESSION)
    ordered = places.sort(KEY, TIME)
    is_new = (pl.col(KEY) != pl.col(KEY).shift(1)) | (
        pl.col(TIME) - pl.col(TIME).shift(1) > gap
    )
    numbered = ordered.with_columns(is_new.fill_null(value=True).cum_sum().alias(FRAGMENT))
    by_row = numbered.sort(SESSION).select(FRAGMENT)
    bounds = numbered.group_by(FRAGMENT).agg(
        pl.col(KEY).first(), pl.col(TIME).min().alias(START), pl.col(TIME).max().alias(LAST)
    )
    partials = plan.partials_of(rows.hstack(by_row), [FRAGMENT])
    return Fragments(by_row, bounds.join(partials, on=FRAGMENT))


def merge_sessions(
    fragments: pl.DataFrame, known: pl.DataFrame, plan: AggregatePlan, gap: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Merge what this epoch brings with sessions known before.

    Both have `KEY`, `START`, `LAST` and partials, `known` also `WAKES_AT`, and fragments
    `FRAGMENT`. Return the sessions by `SESSION`, and which session each fragment is in.
    """
    parts = [part.name for part in plan.partials]
    columns = [KEY, START, LAST, WAKES_AT, FRAGMENT, *parts]
    every = pl.concat([fragments, known], how="diagonal").select(columns).sort(KEY, START)
    reached = pl.col(LAST).cum_max().shift(1).over(KEY)
    # Null where a key begins.
    is_new = (pl.col(START) - reached > gap).fill_null(value=True)
    every = every.with_columns(is_new.cum_sum().alias(SESSION))
    bounds = every.group_by(SESSION).agg(
        pl.col(KEY).first(),
        pl.col(START).min(),
        pl.col(LAST).max(),
        pl.col(WAKES_AT).min(),
    )
    merged = bounds.join(plan.merge(every, [SESSION]), on=SESSION)
    placed = every.filter(pl.col(FRAGMENT).is_not_null()).select(FRAGMENT, SESSION)
    return merged, placed
