"""Sides of a comparison: each runs in a fresh process, and its whole tree's memory is watched.

A side is Python, a JVM and Python workers, so its memory is the sum over the tree, with
shared pages divided among those who share them.
"""

import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.suites import Row, end_with_parent

_SECONDS_PER_SAMPLE = 1.0
"""A sample takes some 40 ms of a core and holds up those who allocate."""
WARM_UP_SECONDS, QUICK_WARM_UP_SECONDS = 20.0, 5.0


def run_side(function: Callable[..., Row], *arguments: Any, **options: Any) -> Row:
    """Run a function in a process of its own; its row gets `peak_memory_bytes`."""
    spawn = multiprocessing.get_context("spawn")
    peak = 0
    started = time.perf_counter()
    with ProcessPoolExecutor(1, spawn, end_with_parent) as pool:
        side = pool.submit(_plain_errors, function, *arguments, **options)
        while wait([side], timeout=_SECONDS_PER_SAMPLE).not_done:
            below = [pid for pid in tree_of(os.getpid()) if pid != os.getpid()]
            peak = max(peak, sum(map(memory_bytes, below)))
        row = side.result()
    return {
        **row,
        "peak_memory_bytes": peak,
        "total_seconds": round(time.perf_counter() - started, 2),
    }


def _plain_errors(function: Callable[..., Row], *arguments: Any, **options: Any) -> Row:
    """Call a function; errors that hold a JVM's objects could not leave this process."""
    try:
        return function(*arguments, **options)
    except Exception as error:  # noqa: BLE001 (whatever a side runs into)
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


def run_warm(
    function: Callable[..., Row],
    few: object,
    everything: object,
    folder: Path,
    *,
    quick: bool,
) -> Row:
    """Run a side on few rows again and again before all of them are timed.

    All sides warm up for the same time: a JVM gets fast by the second, not by the row.
    """
    warm = time.monotonic() + (QUICK_WARM_UP_SECONDS if quick else WARM_UP_SECONDS)
    while time.monotonic() < warm:
        function(few, folder / "warm-up", settled_after=0)
        shutil.rmtree(folder / "warm-up")
    return function(everything, folder)


def tree_of(root: int) -> list[int]:
    """Return a process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The name in parentheses may hold anything, spaces too.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return None  # it has ended meanwhile


def memory_bytes(pid: int) -> int:
    """Return the memory of one process; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has ended meanwhile
    return 0


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
