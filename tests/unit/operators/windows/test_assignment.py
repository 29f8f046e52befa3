"""The arithmetic of windows agrees with looking at every window in turn."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.watermark import MAX_MICROS
from penstock.operators.windows.assignment import (
    END_MICROS,
    FIRST_MICROS,
    LONGEST_MICROS,
    WindowGrid,
    find_grid_problems,
)
from tests.builders.windows import WindowModel

grids = st.builds(WindowGrid, st.integers(1, 40), st.integers(1, 40), st.integers(0, 50))
times = st.lists(st.integers(-200, 200), min_size=1, max_size=30)


def windows_of(grid: WindowGrid, at: int) -> list[int]:
    model = WindowModel(grid.width_micros, grid.slide_micros, grid.offset_micros)
    return model.windows_of(at)


@given(grids, times)
def test_instants_of_one_pane_are_in_the_same_windows(
    grid: WindowGrid, instants: list[int]
) -> None:
    starts = grid.pane_starts(np.array(instants, np.int64)).tolist()
    for at, pane in zip(instants, starts, strict=True):
        assert pane <= at
        if windows_of(grid, at):
            assert windows_of(grid, pane) == windows_of(grid, at)


@given(grids, times)
def test_rows_outside_of_windows_are_those_that_no_window_holds(
    grid: WindowGrid, instants: list[int]
) -> None:
    outside = grid.is_outside(np.array(instants, np.int64)).tolist()
    assert outside == [not windows_of(grid, at) for at in instants]


@given(grids, times, st.integers(-200, 200))
def test_a_row_is_late_when_all_its_windows_have_closed(
    grid: WindowGrid, instants: list[int], watermark: int
) -> None:
    for at in instants:
        windows = windows_of(grid, at)
        if windows:
            is_late = all(start + grid.width_micros <= watermark for start in windows)
            assert is_late == (at < grid.open_from(watermark))


@given(grids, st.integers(-200, 200), st.integers(0, 100))
def test_windows_that_close_are_those_the_watermark_passes(
    grid: WindowGrid, previous: int, step: int
) -> None:
    ends = range(-400, 400)
    passed = [
        end
        for end in ends
        if (end - grid.width_micros - grid.offset_micros) % grid.slide_micros == 0
        and previous < end <= previous + step
    ]
    expected = (passed[0], passed[-1]) if passed else None
    assert grid.closing(previous, previous + step) == expected


@given(grids, st.integers(-200, 200), st.integers(0, 100), st.integers(1, 20))
def test_panes_between_instants_are_those_their_instants_are_in(
    grid: WindowGrid, first: int, length: int, limit: int
) -> None:
    instants = np.arange(first, first + length + 1)
    expected = sorted(set(grid.pane_starts(instants).tolist()))
    panes = grid.panes_between(first, first + length, limit=limit)
    if len(expected) > limit:
        assert panes is None
    elif panes is not None:
        assert [start for start, _ in panes] == expected
        assert all(a[1] == b[0] for a, b in pairwise(panes))


@pytest.mark.parametrize("width", [1, 7, 10_000_000, LONGEST_MICROS])
@pytest.mark.parametrize("slide", [1, 7, 3_000_000, LONGEST_MICROS])
@pytest.mark.parametrize("offset", [0, LONGEST_MICROS])
def test_the_first_and_the_last_year_are_placed_without_overflow(
    width: int, slide: int, offset: int
) -> None:
    grid = WindowGrid(width, slide, offset)
    extremes = [FIRST_MICROS, END_MICROS - 1]
    instants = np.array(extremes, np.int64)
    starts = [_last_start(grid, at) for at in extremes]
    assert grid.last_starts(instants).tolist() == starts
    assert grid.last_ends(instants).tolist() == [start + width for start in starts]
    assert (grid.first_starts(instants) <= instants + slide).all()
    assert (instants < grid.open_from(MAX_MICROS)).all()
    closing = grid.closing(None, MAX_MICROS)
    assert closing is not None
    # A window that ends before the first instant or starts after the last one holds no row.
    assert FIRST_MICROS < closing[0] <= FIRST_MICROS + slide
    assert END_MICROS - slide < closing[1] - width <= END_MICROS


def _last_start(grid: WindowGrid, at: int) -> int:
    step = (at - grid.offset_micros) // grid.slide_micros
    return step * grid.slide_micros + grid.offset_micros


def test_impossible_numbers_are_all_named() -> None:
    assert find_grid_problems(1, 1, 0) == []
    problems = find_grid_problems(0, -1, 2 * LONGEST_MICROS)
    assert [problem.split()[1] for problem in problems] == ["width", "slide", "offset"]
