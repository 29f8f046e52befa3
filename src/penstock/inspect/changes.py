"""Differences between two versions of a table's rows: which came, went and changed. Pure."""

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

CHANGE = "change"
"""The column that says what happened to a row: `added`, `removed`, `before` or `after`."""


def diff_rows(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows that differ, with what happened to each in front.

    Rows of equal key that changed come twice: as they were `before`, and `after`. Without keys
    rows are compared as a whole, and each counts as often as it is there.

    >>> old = pa.table({"user": ["ada", "bob"], "n": [1, 2]})
    >>> new = pa.table({"user": ["ada", "eve"], "n": [3, 4]})
    >>> for row in diff_rows(old, new, ["user"]).to_pylist():
    ...     print(row)
    {'change': 'before', 'user': 'ada', 'n': 1}
    {'change': 'after', 'user': 'ada', 'n': 3}
    {'change': 'removed', 'user': 'bob', 'n': 2}
    {'change': 'added', 'user': 'eve', 'n': 4}
    """
    old, new = pl.DataFrame(before), pl.DataFrame(after)
    shared = [name for name in new.columns if name in old.columns]
    names = list(keys) or shared
    if not keys:
        old, new = (_numbered(frame, shared) for frame in (old, new))
        names = [*shared, _COPY]
    removed = old.join(new, on=names, how="anti", nulls_equal=True)
    added = new.join(old, on=names, how="anti", nulls_equal=True)
    kept = new.join(old, on=names, how="semi", nulls_equal=True)
    changed = kept.join(
        old, on=[*shared, *([] if keys else [_COPY])], how="anti", nulls_equal=True
    )
    was = old.join(changed, on=names, how="semi", nulls_equal=True)
    parts = [
        (was, "before", 1),
        (changed, "after", 2),
        (removed, "removed", 0),
        (added, "added", 3),
    ]
    frames = [
        frame.select(
            pl.lit(said).alias(CHANGE), *shared, *_missing(frame, old, new, shared)
        ).with_columns(pl.lit(order, pl.Int8).alias(_ORDER))
        for frame, said, order in parts
    ]
    joined = pl.concat(frames, how="diagonal_relaxed")
    sortable = [name for name in names if name in joined.columns]
    return joined.sort([*sortable, _ORDER]).drop(_ORDER).to_arrow()


_COPY = "penstock.copy"
_ORDER = "penstock.order"


def _numbered(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Number equal rows, so that each of them is one of its own."""
    return frame.with_columns(pl.int_range(pl.len()).over(list(columns)).alias(_COPY))


def _missing(
    frame: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame, shared: Sequence[str]
) -> list[str]:
    """Return columns that only one of the versions has, and that this frame has."""
    only = [n for n in (*new.columns, *old.columns) if n not in shared and n != _COPY]
    return [name for name in dict.fromkeys(only) if name in frame.columns]
