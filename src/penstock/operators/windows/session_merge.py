"""Sessions out of rows and of earlier sessions: what belongs together. Pure.

Rows of a key belong to one session if each follows the one before by at most the gap. A
session is where its first row is, `start`, and where its last one is, `last`; it ends a gap
later. Everything is sorted by key and instant and cut where the distance exceeds the gap, so
sessions may have any length and rows may come in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from penstock.core.schema import RESERVED_PREFIX
from penstock.core.signals import MAX_MICROS
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.windows.assignment import Flags, Micros

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
    key, time = rows[KEY].to_numpy(), rows[TIME].to_numpy()
    order = np.argsort(_in_one_number(key, time), kind="stable")
    sorted_key, sorted_time = key[order], time[order]
    is_new = _changes(sorted_key)
    is_new[1:] |= sorted_time[1:] - sorted_time[:-1] > gap
    fragment = np.empty(len(order), np.int64)
    fragment[order] = np.cumsum(is_new) - 1
    by_row = pl.DataFrame({FRAGMENT: fragment})
    partials = plan.partials_of(rows.hstack(by_row), [FRAGMENT])
    first = np.flatnonzero(is_new)
    last = np.append(first[1:], len(order))[: len(first)] - 1
    places = partials[FRAGMENT].to_numpy()
    bounds = pl.DataFrame(
        {
            KEY: sorted_key[first][places],
            START: sorted_time[first][places],
            LAST: sorted_time[last][places],
        }
    )
    return Fragments(by_row, partials.hstack(bounds))


def merge_sessions(
    fragments: pl.DataFrame, known: pl.DataFrame, plan: AggregatePlan, gap: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Merge what this epoch brings with sessions known before.

    Both have `KEY`, `START`, `LAST` and partials, `known` also `WAKES_AT`, and fragments
    `FRAGMENT`. Return the sessions by `SESSION`, and which session each fragment is in.
    """
    parts = [part.name for part in plan.partials]
    columns = [KEY, START, LAST, WAKES_AT, FRAGMENT, *parts]
    every = pl.concat([fragments, known], how="diagonal").select(columns)
    key, start, last = (every[name].to_numpy() for name in (KEY, START, LAST))
    order = np.argsort(_in_one_number(key, start), kind="stable")
    reached = _reached(key[order], last[order])
    is_new = _changes(key[order])
    is_new[1:] |= start[order][1:] - reached[:-1] > gap
    session = np.empty(len(order), np.int64)
    session[order] = np.cumsum(is_new) - 1
    every = every.with_columns(pl.Series(SESSION, session))
    merged = plan.merge(every, [SESSION])
    first = np.flatnonzero(is_new)
    final = np.append(first[1:], len(order))[: len(first)] - 1
    wakes_at = every[WAKES_AT].fill_null(MAX_MICROS).to_numpy()[order]
    places = merged[SESSION].to_numpy()
    bounds = {
        KEY: key[order][first],
        START: start[order][first],
        LAST: reached[final],
        WAKES_AT: np.minimum.reduceat(wakes_at, first) if len(first) else wakes_at,
    }
    merged = merged.with_columns(pl.Series(n, of[places]) for n, of in bounds.items())
    is_awake = pl.col(WAKES_AT) != MAX_MICROS
    merged = merged.with_columns(pl.when(is_awake).then(WAKES_AT).alias(WAKES_AT))
    placed = every.filter(pl.col(FRAGMENT).is_not_null()).select(FRAGMENT, SESSION)
    return merged, placed


def _changes(key: Micros) -> Flags:
    """Tell which of some sorted keys differ from the one before; the first one does."""
    is_new = np.ones(len(key), np.bool_)
    np.not_equal(key[1:], key[:-1], out=is_new[1:])
    return is_new


def _reached(key: Micros, last: Micros) -> Micros:
    """Return the latest instant among each row and those of its key before it; sorted by key."""
    ranked = np.sort(last)
    rank = np.searchsorted(ranked, last)
    # Ranks of a later key are above those of an earlier one, so no key hears of another.
    highest = np.maximum.accumulate(key * len(key) + rank)
    return ranked[highest - key * len(key)]


def _in_one_number(key: Micros, instant: Micros) -> Micros:
    """Return numbers that sort as keys, and within a key as instants, do."""
    if not len(key):
        return key
    first, last = int(instant.min()), int(instant.max())
    if (int(key.max()) + 1) * (last - first + 1) >= 1 << 63:
        instant = np.searchsorted(np.sort(instant), instant)
        first, last = 0, len(key) - 1
    return key * (last - first + 1) + (instant - first)
