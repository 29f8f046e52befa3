"""What became of the rows of a file that other writers have taken out of a Delta table. Pure.

The version that removed the file tells it:

    a RESTORE of the table            they are gone: the table went back to before them
    a version that adds nothing       they are gone: whole files were deleted
    a compaction (dataChange false)   they are in the files that it added
    any other                         some of them may be in the files that it added

Files that were added were perhaps taken out, too, by later versions, which then tell it.
"""

from collections.abc import Collection, Iterable
from enum import Enum

from penstock.connectors.delta.actions import RESTORE, Version


class Fate(Enum):
    """Where the rows of a file are that is not part of the table any more."""

    GONE = "gone"
    MOVED = "moved"
    """All of them are in other files."""
    REWRITTEN = "rewritten"
    """Some of them may be in other files."""


class Fates:
    """Tells the fates of files by the versions of other writers."""

    def __init__(self, others: Iterable[Version], active: Collection[str]) -> None:
        """Take the versions, the newest first, and the files that the table has now."""
        self._active = active
        self._takers: dict[str, tuple[Version, bool]] = {}
        for version in others:
            for file in version.removed:
                self._takers.setdefault(file.path, (version, file.data_change))

    def find(self, path: str, version: int) -> Fate:
        """Return the fate of a file that a version had added, and the table has no more."""
        taker, is_change = self._takers.get(path, (None, True))
        if taker is None or taker.number <= version:
            return Fate.REWRITTEN  # the log does not tell it
        if taker.info.operation == RESTORE:
            return Fate.GONE
        found = {
            Fate.MOVED if file.path in self._active else self.find(file.path, taker.number)
            for file in taker.added
            if file.data_change == is_change
        } - {Fate.GONE}
        if not found:
            return Fate.GONE
        is_moved = not is_change and found == {Fate.MOVED}
        return Fate.MOVED if is_moved else Fate.REWRITTEN
