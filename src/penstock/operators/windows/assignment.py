"""Finds the windows and panes of an instant, and the rows that are late or in no window. Pure.

Windows are `[start, end)` with `start = offset + k * slide` and `end = start + width`, so
they are aligned to 1970-01-01 UTC. Time is cut into **panes** at every start and every end
of a window: no window holds a part of a pane, and windows share the panes they have in
common. There are two panes per slide, however width and slide relate, and one if the slide
divides the width.

        slide 4, width 10      ├───────────────────┤         a window
                                       ├───────────────────┤
        panes                  ├───┼───┼───┼───┼───┼───┼───┤
                               0   2   4   6   8  10  12  14

If windows do not overlap, a pane is a window; where the slide exceeds the width there are
rows in no window. All instants are whole microseconds. Those of `FIRST_MICROS <= t <
END_MICROS` can be placed without overflow, whatever the window.

Every row is exactly one of: bad (its event time is null or outside of these years), outside
of all windows, late, kept. A row is late if all its windows had closed when the epoch began.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.arrow_types import Micros, units_in
from penstock.core.watermark import MIN_MICROS
from penstock.errors import SchemaError

Flags: TypeAlias = npt.NDArray[np.bool_]
InstantsT = TypeVar("InstantsT", int, Micros)
"""One instant, or one per row."""

FIRST_MICROS = -62_135_596_800_000_000
"""0001-01-01: no window holds an earlier event time."""
END_MICROS = 253_402_300_800_000_000
"""10000-01-01: no window holds this event time or a later one."""
LONGEST_MICROS = END_MICROS - FIRST_MICROS
"""The longest width, slide or gap."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """The windows of one step. `find_grid_problems` must have accepted its numbers."""

    width_micros: int
    slide_micros: int
    offset_micros: int = 0

    @property
    def meaning(self) -> str:
        """The grid as text. Checkpoints keep it, because panes of another grid hold other rows."""
        return (
            f"panes of windows {self.width_micros} us wide, every {self.slide_micros} us, "
            f"from {self.offset_micros} us"
        )

    @property
    def has_gaps(self) -> bool:
        """Return whether there are instants in no window."""
        return self.slide_micros > self.width_micros

    @property
    def is_pane_per_window(self) -> bool:
        """Return whether windows do not overlap."""
        return self.slide_micros >= self.width_micros

    @property
    def cut_micros(self) -> int:
        """Return where a slide is cut into two panes; 0 if it is one pane."""
        return 0 if self.is_pane_per_window else self.width_micros % self.slide_micros

    def pane_starts(self, times: Micros) -> Micros:
        """Return where the pane of each instant starts."""
        starts, cut = self.last_starts(times), self.cut_micros
        if cut:
            starts += np.where(times - starts >= cut, cut, 0)
        return starts

    def panes_between(
        self, first: int, last: int, *, limit: int
    ) -> list[tuple[int, int]] | None:
        """Return `[start, end)` of the panes from one instant to another; None beyond a limit."""
        if (last - first) // self.slide_micros > limit:
            return None
        cut = self.cut_micros
        panes: list[tuple[int, int]] = []
        start = self.last_starts(first)
        while start <= last:
            end = start + self.slide_micros
            panes += [(start, start + cut), (start + cut, end)] if cut else [(start, end)]
            start = end
        held = [pane for pane in panes if pane[0] <= last and pane[1] > first]
        return held if len(held) <= limit else None

    def last_starts(self, times: InstantsT) -> InstantsT:
        """Return the start of the last window that has begun at an instant, or at each."""
        starts = times - self.offset_micros
        starts //= self.slide_micros
        starts *= self.slide_micros
        starts += self.offset_micros
        return starts

    def first_starts(self, times: InstantsT) -> InstantsT:
        """Return the start of the first window that has not ended at an instant, or at each."""
        return self.last_starts(times - self.width_micros) + self.slide_micros

    def next_end(self, instant: int) -> int:
        """Return where the first window that has not ended at an instant ends."""
        return self.first_starts(instant) + self.width_micros

    def last_ends(self, times: Micros) -> Micros:
        """Return the end of the last window that has begun at each instant.

        A pane that starts at that instant is needed until then.
        """
        return self.last_starts(times) + self.width_micros

    def is_outside(self, times: Micros) -> Flags:
        """Return which instants no window holds."""
        return times - self.last_starts(times) >= self.width_micros

    def open_from(self, watermark_micros: int | None) -> int:
        """Return the first instant whose last window is still open: all earlier ones are late.

        Panes are compared with it, too, and the first ones start before the year 1.
        """
        if watermark_micros is None:
            return MIN_MICROS
        if watermark_micros >= END_MICROS:
            return END_MICROS
        return max(MIN_MICROS, min(self.first_starts(watermark_micros), END_MICROS))

    def closing(
        self, previous_micros: int | None, watermark_micros: int | None
    ) -> tuple[int, int] | None:
        """Return the first and the last end of windows that close between two watermarks.

        That is `previous < end <= watermark`. None if there is none; windows beyond what
        can hold a row are left out. Behind the year 9999 no row can follow, so a watermark
        there closes all windows, also those that end later.
        """
        if watermark_micros is None:
            return None
        earliest, latest = FIRST_MICROS, END_MICROS + self.width_micros
        previous = earliest if previous_micros is None else max(previous_micros, earliest)
        if previous >= END_MICROS:
            return None
        watermark = latest if watermark_micros >= END_MICROS else watermark_micros
        first = self.first_starts(previous)
        last = self.last_starts(watermark - self.width_micros)
        if last < first:
            return None
        return first + self.width_micros, last + self.width_micros


def reached_before(watermark_micros: int | None, lateness_micros: int) -> int | None:
    """Return the instant that a watermark was beyond when it was so much earlier.

    Windows that end until then take no row any more, if rows may be so late. Behind the year
    9999 no row can follow at all.
    """
    if watermark_micros is None or watermark_micros >= END_MICROS:
        return watermark_micros
    return max(MIN_MICROS, watermark_micros - lateness_micros)


def years_in(zone: str | None) -> tuple[int, int]:
    """Return the first and the last instant that Python's `datetime` holds in a time zone."""
    first, last = FIRST_MICROS, END_MICROS - 1
    if zone is None:
        return first, last
    tzinfo: Any = pa.lib.string_to_tzinfo(zone)
    ends = datetime.min.replace(tzinfo=tzinfo), datetime.max.replace(tzinfo=tzinfo)
    behind, ahead = ((end.utcoffset() or timedelta()) // _MICROSECOND for end in ends)
    # Both the local time and that in UTC must be in these years.
    return max(first, first - behind), min(last, last - ahead)


def find_grid_problems(width: int, slide: int, offset: int) -> list[str]:
    """Return the reasons why windows of these lengths in microseconds are not possible."""
    problems = find_length_problems({"width": width, "slide": slide})
    if not -LONGEST_MICROS <= offset <= LONGEST_MICROS:
        problems.append(
            f"an offset of {offset} microseconds is not possible: it must be at most 9999 years"
        )
    return problems


def find_length_problems(lengths: Mapping[str, int]) -> list[str]:
    """Return which lengths of windows, given in microseconds by name, are not possible."""
    return [
        f"a {what} of {micros} microseconds is not possible: it must be positive and at most "
        "9999 years"
        for what, micros in lengths.items()
        if not 0 < micros <= LONGEST_MICROS
    ]


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The event time of each row of a batch."""

    micros: Micros
    """Undefined where it is bad."""
    bad: Flags | None
    """Marks rows whose time is null or outside of the years 1 to 9999; None for no row."""
    first_micros: int
    """The earliest one that is not bad."""


def read_event_times(column: Any) -> EventTimes:
    """Return the event times in a timestamp column of any unit, rounded down to microseconds."""
    is_null: Flags | None = None
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
    # Values stay in the column's own unit: a multiplication could overflow.
    values, per_unit = units_in(column)
    if per_unit is None:
        values, per_unit = values // 1_000, 1
    earliest, end = FIRST_MICROS // per_unit, END_MICROS // per_unit
    if not len(values):
        return EventTimes(values, None, END_MICROS)
    first, last = int(values.min()), int(values.max())
    bad = is_null
    if first < earliest or last >= end:
        outside = (values < earliest) | (values >= end)
        bad = outside if is_null is None else is_null | outside
        values = np.where(outside, 0, values)
    micros = values if per_unit == 1 else values * per_unit
    if bad is None:
        return EventTimes(micros, None, first * per_unit)
    good = micros[~bad]
    return EventTimes(micros, bad, int(good.min()) if len(good) else END_MICROS)


def refuse_bad_times(
    bad: Flags, column: Any, name: str, *, can_divert: bool = True
) -> SchemaError:
    """Return the error for rows that no window can hold; `bad` marks them.

    A step that can divert has a side output for such rows.
    """
    first = int(np.argmax(bad))
    found = column[first]
    shown = "null" if not found.is_valid else str(found.cast(pa.string()))
    diverted = ", or give the step on_bad='divert' and read its side output BAD"
    way_out = diverted if can_divert else ""
    return SchemaError(
        f"{int(bad.sum())} of {len(column)} rows have an event time that no window can hold: "
        f"column {name!r} is null or outside of the years 1 to 9999, first in row {first}, "
        f"where it is {shown}. Filter such rows out before{way_out}",
        column=name,
    )


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Where the rows of a batch belong."""

    kept: Flags | None
    """The rows that some open window holds; None for all."""
    late: Flags | None
    """The rows whose windows have all closed; None for none."""
    outside: Flags | None
    """The rows between windows; None for none."""


def place_rows(
    times: EventTimes, grid: WindowGrid, watermark_micros: int | None
) -> PlacedRows:
    """Place rows, given how far event time had come when the epoch began."""
    kept = None if times.bad is None else ~times.bad
    outside = late = None
    if grid.has_gaps:
        outside = grid.is_outside(times.micros)
        kept, outside = _take_out(outside, kept)
    open_from = grid.open_from(watermark_micros)
    if times.first_micros < open_from:
        kept, late = _take_out(times.micros < open_from, kept)
    return PlacedRows(kept, late, outside)


def _take_out(chosen: Flags, kept: Flags | None) -> tuple[Flags | None, Flags | None]:
    """Return the kept rows without the chosen ones, and which chosen ones were kept before."""
    if kept is not None:
        chosen = chosen & kept
    if not chosen.any():
        return kept, None
    return (~chosen if kept is None else kept & ~chosen), chosen
