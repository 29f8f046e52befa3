"""Files being written: whole and flushed before anybody can name them, gone afterwards.

A writer holds a lock on its staging file. A file that nobody holds was left by a process
that died, and is removed when the store is next opened.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from penstock.core.tokens import new_token


@contextmanager
def staged_file(folder: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    """Hold `data` in a new file of `folder`, flushed if `durable`; remove it on leaving."""
    folder.mkdir(parents=True, exist_ok=True)
    path, file = _new_locked_file(folder)
    try:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
        yield path
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            file.close()


def remove_leftovers(folder: Path) -> None:
    """Remove the staging files nobody holds; what cannot be removed does no harm."""
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _new_locked_file(folder: Path) -> tuple[Path, BinaryIO]:
    """Make a file that `remove_leftovers` leaves alone while this process holds it."""
    while True:
        path = folder / new_token()
        file = path.open("xb")
        with suppress(OSError):  # where there are no locks, nothing is taken for a leftover
            fcntl.flock(file, fcntl.LOCK_EX)
        # Between open and lock, a clean-up may have taken the file for a leftover.
        if os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()
