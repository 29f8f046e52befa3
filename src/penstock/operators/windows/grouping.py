"""Grouping by key and instant: many rows at few instants, or few at each of many. Pure.

Grouping by one column is several times as fast as by two. So the rows of an instant that
has many of them are grouped by key alone, in a pass of their own; all others at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import polars as pl

Compute: TypeAlias = Callable[[pl.DataFrame, Sequence[str]], pl.DataFrame]
"""Computes one row per group, given rows and the columns to group by."""

ROWS_WORTH_A_PASS = 20_000
"""Fewer rows are not worth a pass of their own, which has a fixed cost."""


def group_by_instant(
    frame: pl.DataFrame, instant: str, keys: Sequence[str], compute: Compute
) -> Iterator[pl.DataFrame]:
    """Yield one row per key and instant, in any number of frames.

    `instant` names a column of microseconds without nulls.
    """
    if not frame.height:
        return
    moments = frame[instant]
    if moments.min() == moments.max():
        yield _at(compute(frame, keys), instant, moments.item(0))
        return
    if frame.height < ROWS_WORTH_A_PASS:
        yield compute(frame, [*keys, instant])
        return
    counts = moments.value_counts(name="rows")
    is_dense = pl.col("rows") >= ROWS_WORTH_A_PASS
    for moment in counts.filter(is_dense)[instant].sort().to_list():
        yield _at(compute(frame.filter(moments == moment), keys), instant, moment)
    scattered = counts.filter(~is_dense)[instant]
    if len(scattered):
        rest = frame.filter(moments.is_in(scattered.implode()))
        yield compute(rest, [*keys, instant])


def _at(frame: pl.DataFrame, instant: str, moment: int) -> pl.DataFrame:
    return frame.with_columns(pl.lit(moment, pl.Int64).alias(instant))
