"""Sides of a comparison: each runs in a fresh process, and its whole tree's memory is watched.

A side is Python, a JVM and Python workers, so its memory is the sum over the tree, with
shared pages divided among those who share them.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.suites import Row

_SAMPLES_PER_SECOND = 4


def run_side(function: Callable[..., Row], *arguments: Any, **options: Any) -> Row:
    """Run a function in a process of its own; its row gets `peak_memory_bytes`."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=spawn) as pool:
        return pool.submit(_watched, partial(function, *arguments, **options)).result()


def _watched(function: Callable[[], Row]) -> Row:
    peak, is_over = [0], threading.Event()

    def sample() -> None:
        while not is_over.wait(1 / _SAMPLES_PER_SECOND):
            peak[0] = max(peak[0], treememory_bytes(os.getpid()))

    watcher = threading.Thread(target=sample, daemon=True)
    watcher.start()
    started = time.perf_counter()
    row = function()
    is_over.set()
    watcher.join()
    return {
        **row,
        "peak_memory_bytes": peak[0],
        "total_seconds": round(time.perf_counter() - started, 2),
    }


def treememory_bytes(root: int) -> int:
    """Return the memory of a process and all below it."""
    return sum(memory_bytes(pid) for pid in tree_of(root))


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
