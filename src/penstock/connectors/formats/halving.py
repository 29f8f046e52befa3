"""Finds the bad ones of many rows: what cannot be parsed at once is cut at the bad one, or halved.

Parsing millions of rows one at a time would be a hundred times slower than parsing them all at
once, and a parser that meets a bad row gives up. So a stretch of rows is parsed at once. Only if
that fails is it cut, at the row that the parser names if it names one, and halved otherwise, until
the rows that cannot be parsed stand alone. The others are parsed in stretches as long as possible.

    good good bad  good good good good good      fails as a whole
    good good bad  good | good good good good    the left half fails, the right one is parsed
    good good | bad  good |                      the left quarter is parsed
                bad | good |                     the bad one stands alone

A parser may name a wrong row: each part is parsed again, so that costs time and nothing else. What
follows a row that was named is halved, too. If all rows are bad, each would else be found by
a look at all that follow it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock.connectors.formats.drift import DriftError
from penstock.connectors.formats.record_format import BadRecord, Decoded, Places

_ROW_OF_STRETCH = re.compile(r"Row #\d+: |\.? in row \d+")
"""Matches the row number in Arrow's messages: it counts from the start of the parsed text."""


_NAMED_ROW = re.compile(r" in row (\d+)$")


class BadRowError(ValueError):
    """A row of a stretch that cannot be parsed."""

    def __init__(self, reason: str, row: int) -> None:
        super().__init__(reason)
        self.row = row
        """Counted from the start of the stretch."""


class BadRowsError(ValueError):
    """Several rows of a stretch that cannot be taken, all that there are of one kind."""

    def __init__(self, reasons: Mapping[int, str], *, fails: bool) -> None:
        super().__init__(f"{len(reasons)} rows cannot be taken")
        self.reasons = reasons
        """By row, counted from the start of the stretch, in order."""
        self.fails = fails
        """They fail the job by a rule of schema drift."""

    def at(self, places: Sequence[int]) -> "BadRowsError":
        """Return the same for rows that are at these places of the stretch."""
        reasons = {places[row]: reason for row, reason in self.reasons.items()}
        return BadRowsError(reasons, fails=self.fails)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The rows `[first, stop)`, parsed; or one row that cannot be, with the reason."""

    first: int
    stop: int
    rows: pa.Table | None
    """None if the row is bad."""
    reason: str = ""
    fails: bool = False
    """The row fails the job by a rule of schema drift."""


def parse_stretches(
    cuts: Sequence[int], parse: Callable[[int, int], pa.Table]
) -> Iterator[Stretch]:
    """Parse rows in order, in stretches as long as possible; none goes across one of the cuts.

    The first and the last cut are where all rows begin and end. `parse` gets the first and the stop of a stretch, and raises an Arrow error or ValueError
    if one of its rows is bad. A call costs a fraction of a millisecond however short the
    stretch is, so where most rows are bad this takes seconds.

    >>> def parse(first, stop):
    ...     if first <= 2 < stop:
    ...         raise ValueError("bad")
    ...     return pa.table({"row": list(range(first, stop))})
    >>> [(s.first, s.stop, s.reason) for s in parse_stretches([0, 4], parse)]
    [(0, 2, ''), (2, 3, 'bad'), (3, 4, '')]
    """
    waiting: list[tuple[int, int] | Stretch] = []
    waiting += [(a, b) for a, b in pairwise(cuts) if a < b][::-1]
    """Stretches still to be parsed, and rows that are known to be bad; the next one last."""
    while waiting:
        following = waiting.pop()
        if isinstance(following, Stretch):
            yield following
            continue
        first, stop = following
        try:
            rows = parse(first, stop)
        except BadRowsError as error:
            waiting += [*_take_out(first, stop, error)][::-1]
        except (pa.ArrowException, ValueError) as error:
            if stop - first > 1:
                waiting += _cut(first, stop, _named_row(error))[::-1]
                continue
            reason = _ROW_OF_STRETCH.sub("", str(error))
            yield Stretch(first, stop, None, reason, isinstance(error, DriftError))
        else:
            yield Stretch(first, stop, rows)


def _take_out(
    first: int, stop: int, error: BadRowsError
) -> Iterator[tuple[int, int] | Stretch]:
    """Yield the bad rows of a stretch, and what is between them, in order."""
    begin = first
    for row, reason in error.reasons.items():
        if begin < first + row:
            yield begin, first + row
        begin = first + row + 1
        yield Stretch(first + row, begin, None, reason, error.fails)
    if begin < stop:
        yield begin, stop


def _named_row(error: Exception) -> int | None:
    """Return which row of a stretch an error is about, if it says so."""
    if isinstance(error, BadRowError):
        return error.row
    named = _NAMED_ROW.search(str(error))
    return int(named[1]) if named else None


def _cut(first: int, stop: int, named: int | None) -> list[tuple[int, int]]:
    """Return the parts of a stretch that failed, in order."""
    bad = stop if named is None else first + named
    cuts = [first, bad, bad + 1, (bad + 1 + stop) // 2, stop]
    if not first <= bad < stop:
        cuts = [first, (first + stop) // 2, stop]
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def check_nulls(rows: pa.Table, schema: pa.Schema) -> None:
    """Raise ValueError if a column is null that the schema does not allow to be."""
    for column in schema:
        if not column.nullable and rows.column(column.name).null_count:
            raise ValueError(
                f"column {column.name!r} is null, and the schema does not allow that"
            )


def collect_stretches(
    stretches: Sequence[Stretch], schema: pa.Schema, places: Places | None, count: int
) -> Decoded:
    """Put stretches of records together.

    `places` are the records that were parsed; None for all `count` of them.
    """
    good = [stretch.rows for stretch in stretches if stretch.rows is not None]
    rows = pa.concat_tables(good) if good else schema.empty_table()
    if places is None and rows.num_rows == count:
        return Decoded(rows)
    at = np.arange(count) if places is None else places
    is_good = np.ones(len(at), dtype=np.bool_)
    bad = []
    for stretch in stretches:
        if stretch.rows is None:
            is_good[stretch.first] = False
            bad.append(BadRecord(int(at[stretch.first]), stretch.reason, stretch.fails))
    return Decoded(rows, at[is_good], tuple(bad))
