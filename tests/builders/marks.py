"""Marks: empty files by which processes of one test tell each other what has happened."""

import os
import time
from pathlib import Path

PATIENCE_SECONDS = 120.0
"""Far more than anything takes here; a test that has to wait so long fails."""


def claim(folder: str | Path, name: str) -> bool:
    """Make a mark; tell whether this call was the first to do so."""
    try:
        handle = os.open(Path(folder) / name, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.close(handle)
    return True


def wait_for_mark(folder: str | Path, pattern: str) -> str:
    """Wait until there is a mark of such a name; return its name."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for path in Path(folder).glob(pattern):
            return path.name
        time.sleep(0.005)
    raise AssertionError(f"nobody made the mark {pattern!r} in {folder}")


def marks_in(folder: Path) -> set[str]:
    """Return the names of all marks."""
    return {path.name for path in folder.iterdir()}
