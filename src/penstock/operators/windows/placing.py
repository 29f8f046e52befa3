"""Placing rows: which are in an open window, which are late, which are in no window. Pure.

Every row is exactly one of: bad, outside of all windows, late, kept. A row is late iff all
its windows had closed when the epoch began.
"""

from dataclasses import dataclass

from penstock.operators.windows.assignment import Flags, WindowGrid
from penstock.operators.windows.event_times import EventTimes


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Where the rows of a batch belong."""

    kept: Flags | None
    """Those some open window holds; None for all."""
    late: Flags | None
    """Those whose windows have all closed; None for none."""
    outside: Flags | None
    """Those between windows; None for none."""


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
    """Return what is still kept without the chosen rows, and which of them were kept before."""
    if kept is not None:
        chosen = chosen & kept
    if not chosen.any():
        return kept, None
    return (~chosen if kept is None else kept & ~chosen), chosen
