"""Merges rows and open sessions that are within a gap of each other, whatever their order. Pure.

Rows and sessions are sorted by key and instant, and cut where the distance exceeds the gap; so
sessions may have any length and rows may come in any order. A row exactly a gap behind is in
the same session.
"""

import numpy as np
import polars as pl

from penstock.core.arrow_types import Micros
from penstock.core.schema import RESERVED_PREFIX
from penstock.core.watermark import MAX_MICROS
from penstock.operators.aggregates.plan import AggregatePlan

KEY = f"{RESERVED_PREFIX}_key"
"""The number of a row's key."""
TIME = f"{RESERVED_PREFIX}_time"
"""The event time of a row in microseconds."""
SESSION = f"{RESERVED_PREFIX}_session"
"""The number of the session that a row or a fragment belongs to."""
FRAGMENT = f"{RESERVED_PREFIX}_fragment"
SIZE = f"{RESERVED_PREFIX}_size"
"""How many fragments and sessions have become a session."""
START, LAST, WAKES_AT = "session_start", "session_last", "session_wakes_at"


def fragments_of(
    rows: pl.DataFrame, plan: AggregatePlan, gap: int
) -> tuple[pl.Series, pl.DataFrame]:
    """Group rows with `KEY` and `TIME` that are within a gap of each other.

    Such a group is a fragment of a session, whose other rows may be in state. Return the
    fragment of each row, and `FRAGMENT`, `KEY`, `START`, `LAST` and partials of each fragment.
    """
    key, time = rows[KEY].to_numpy(), rows[TIME].to_numpy()
    order = np.argsort(in_one_number(key, time), kind="stable")
    sorted_key, sorted_time = key[order], time[order]
    fragment, first, last = cut_sessions(order, sorted_key, sorted_time, sorted_time, gap)
    by_row = pl.Series(FRAGMENT, fragment)
    partials = plan.partials_of(rows.hstack([by_row]), [FRAGMENT])
    places = partials[FRAGMENT].to_numpy()
    bounds = pl.DataFrame(
        {
            KEY: sorted_key[first][places],
            START: sorted_time[first][places],
            LAST: sorted_time[last][places],
        }
    )
    return by_row, partials.hstack(bounds)


def merge_sessions(
    fragments: pl.DataFrame, known: pl.DataFrame, plan: AggregatePlan, gap: int
) -> tuple[pl.DataFrame, pl.Series]:
    """Merge the fragments of this epoch with the sessions known before.

    Both have `KEY`, `START`, `LAST` and partials, `known` also `WAKES_AT`, and fragments
    `FRAGMENT`. Return the sessions in order of `SESSION`, which is that of key and start, and
    which session each row of both is in, those of the fragments first.
    """
    parts = [part.name for part in plan.partials]
    columns = [KEY, START, LAST, WAKES_AT, *parts]
    every = pl.concat([fragments, known], how="diagonal").select(columns)
    key, start, last = (every[name].to_numpy() for name in (KEY, START, LAST))
    order = np.argsort(in_one_number(key, start), kind="stable")
    reached = _reached(key[order], last[order])
    session, first, final = cut_sessions(order, key[order], start[order], reached, gap)
    every = every.with_columns(pl.Series(SESSION, session))
    merged = plan.merge(every, [SESSION])
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
    is_in_order = bool((places[1:] > places[:-1]).all())
    return merged if is_in_order else merged.sort(SESSION), every[SESSION]


def cut_sessions(
    order: Micros, key: Micros, start: Micros, reached: Micros, gap: int
) -> tuple[Micros, Micros, Micros]:
    """Cut sorted rows into sessions: where the key changes or the distance exceeds the gap.

    Return the session of each row, in the order the rows had before they were sorted, and the
    first and the last row of each session, in sorted order.
    """
    is_new = np.ones(len(key), np.bool_)
    is_new[1:] = (key[1:] != key[:-1]) | (start[1:] - reached[:-1] > gap)
    first = np.flatnonzero(is_new)
    last = np.append(first[1:], len(key))[: len(first)] - 1
    session = np.empty(len(key), np.int64)
    session[order] = np.cumsum(is_new) - 1
    return session, first, last


def _reached(key: Micros, last: Micros) -> Micros:
    """Return the latest instant among each row and those of its key before it; sorted by key."""
    is_behind = np.zeros(len(key), np.bool_)
    is_behind[1:] = (last[1:] < last[:-1]) & (key[1:] == key[:-1])
    if not is_behind.any():
        return last
    is_mixed = np.zeros(int(key[-1]) + 1, np.bool_)
    is_mixed[key[is_behind]] = True
    rows = np.flatnonzero(is_mixed[key])
    ranked, rank = np.unique(last[rows], return_inverse=True)
    # The ranks of a key are above those of earlier keys, so the maximum stays within a key.
    first_ranks = key[rows] * len(ranked)
    reached = last.copy()
    reached[rows] = ranked[np.maximum.accumulate(first_ranks + rank) - first_ranks]
    return reached


def in_one_number(key: Micros, instant: Micros) -> Micros:
    """Return numbers that sort by key, and within a key by instant."""
    if not len(key):
        return key
    first, last = int(instant.min()), int(instant.max())
    if (int(key.max()) + 1) * (last - first + 1) >= 1 << 63:
        instant = np.searchsorted(np.sort(instant), instant)
        first, last = 0, len(key) - 1
    return key * (last - first + 1) + (instant - first)
