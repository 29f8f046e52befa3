"""Which windows and panes hold an instant: the arithmetic of tumbling and sliding windows. Pure.

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
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Micros: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

FIRST_MICROS = -62_135_596_800_000_000
"""0001-01-01: rows before it have no event time that a window could hold."""
END_MICROS = 253_402_300_800_000_000
"""10000-01-01: nor do rows from here on."""
LONGEST_MICROS = END_MICROS - FIRST_MICROS
"""The longest width, slide or gap."""


@dataclass(frozen=True, slots=True)
class WindowGrid:
    """The windows of one step. The numbers are known to be sound: see `find_grid_problems`."""

    width_micros: int
    slide_micros: int
    offset_micros: int = 0

    @property
    def meaning(self) -> str:
        """What panes stand for. Kept in checkpoints: panes of another grid hold other rows."""
        return (
            f"panes of windows {self.width_micros} us wide, every {self.slide_micros} us, "
            f"from {self.offset_micros} us"
        )

    @property
    def has_gaps(self) -> bool:
        """Tell whether there are instants in no window."""
        return self.slide_micros > self.width_micros

    @property
    def is_pane_per_window(self) -> bool:
        """Tell whether windows do not overlap."""
        return self.slide_micros >= self.width_micros

    @property
    def windows_per_pane(self) -> int:
        """How many windows share a pane, at most."""
        return -(-self.width_micros // self.slide_micros)

    def pane_starts(self, times: Micros) -> Micros:
        """Return where the pane of each instant starts."""
        starts = self.last_starts(times)
        if not self.is_pane_per_window:
            cut = self.width_micros % self.slide_micros
            if cut:
                starts += np.where(times - starts >= cut, cut, 0)
        return starts

    def panes_between(
        self, first: int, last: int, *, limit: int
    ) -> list[tuple[int, int]] | None:
        """Return `[start, end)` of the panes from one instant to another; None beyond a limit."""
        if (last - first) // self.slide_micros > limit:
            return None
        cut = 0 if self.is_pane_per_window else self.width_micros % self.slide_micros
        panes: list[tuple[int, int]] = []
        start = self._round_down(first)
        while start <= last:
            end = start + self.slide_micros
            panes += [(start, start + cut), (start + cut, end)] if cut else [(start, end)]
            start = end
        held = [pane for pane in panes if pane[0] <= last and pane[1] > first]
        return held if len(held) <= limit else None

    def last_starts(self, times: Micros) -> Micros:
        """Return where the last window starts that has begun at each instant."""
        starts = times - self.offset_micros
        starts //= self.slide_micros
        starts *= self.slide_micros
        starts += self.offset_micros
        return starts

    def first_starts(self, times: Micros) -> Micros:
        """Return where the first window starts that has not ended at each instant."""
        return self.last_starts(times - self.width_micros) + self.slide_micros

    def first_start(self, micros: int) -> int:
        """Return where the first window starts that has not ended at an instant."""
        return self._round_down(micros - self.width_micros) + self.slide_micros

    def last_ends(self, times: Micros) -> Micros:
        """Return where that window ends: when a pane that starts then has served them all."""
        return self.last_starts(times) + self.width_micros

    def is_outside(self, times: Micros) -> Flags:
        """Tell which instants no window holds."""
        return times - self.last_starts(times) >= self.width_micros

    def open_from(self, watermark_micros: int | None) -> int:
        """Return the first instant whose last window is still open: all earlier ones are late."""
        if watermark_micros is None:
            return FIRST_MICROS
        latest_closed = self._round_down(watermark_micros - self.width_micros)
        return min(latest_closed + self.slide_micros, END_MICROS)

    def closing(
        self, previous_micros: int | None, watermark_micros: int | None
    ) -> tuple[int, int] | None:
        """Return the first and the last end of windows that close between two watermarks.

        That is `previous < end <= watermark`. None if there is none; windows beyond what
        can hold a row are left out.
        """
        if watermark_micros is None:
            return None
        earliest, latest = FIRST_MICROS, END_MICROS + self.width_micros
        previous = earliest if previous_micros is None else max(previous_micros, earliest)
        watermark = min(watermark_micros, latest)
        first = self._round_down(previous - self.width_micros) + self.slide_micros
        last = self._round_down(watermark - self.width_micros)
        if last < first:
            return None
        return first + self.width_micros, last + self.width_micros

    def _round_down(self, micros: int) -> int:
        steps = (micros - self.offset_micros) // self.slide_micros
        return steps * self.slide_micros + self.offset_micros


def find_grid_problems(width: int, slide: int, offset: int) -> list[str]:
    """Say what keeps windows of these numbers of microseconds from being computed."""
    problems = find_length_problems({"width": width, "slide": slide})
    if not -LONGEST_MICROS <= offset <= LONGEST_MICROS:
        problems.append(
            f"an offset of {offset} microseconds is not possible: it must be at most 9999 years"
        )
    return problems


def find_length_problems(lengths: Mapping[str, int]) -> list[str]:
    """Say which lengths of windows, in microseconds and by what they are, are not possible."""
    return [
        f"a {what} of {micros} microseconds is not possible: it must be positive and at most "
        "9999 years"
        for what, micros in lengths.items()
        if not 0 < micros <= LONGEST_MICROS
    ]
