"""Plans which files of a Delta table go, and which come back, when versions are undone. Pure.

Of files that other writers have taken out meanwhile, the version that did so tells where their
rows are:

    a RESTORE of the table            they are gone: the table went back to before them
    a sink that undid epochs          they are gone: these were abandoned
    a version that adds nothing       they are gone: whole files were deleted
    a compaction (dataChange false)   they are in the files that it added
    any other                         some of them may be in the files that it added

Files that were added were perhaps taken out, too, by later versions, which then tell it. So it is
with files that others have put back since: what became of them then is theirs to say.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from penstock.connectors.delta.actions import (
    MERGE,
    RESTORE,
    AddedFile,
    RemovedFile,
    Version,
)
from penstock.connectors.delta.commit import Reversal


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
        self._fates: dict[str, tuple[int, Fate]] = {}
        for version in others:
            # Files that it added were taken out by newer versions: their fates are known.
            fates = {
                kind: self._find_left(version, is_change=kind) for kind in (True, False)
            }
            for file in version.removed:
                self._fates.setdefault(file.path, (version.number, fates[file.data_change]))

    def find(self, path: str, version: int) -> Fate:
        """Return the fate of a file that a version had added, and the table has no more."""
        return self.find_since(path, version) or Fate.REWRITTEN  # the log does not tell it

    def find_since(self, path: str, version: int) -> Fate | None:
        """Return the fate of a file if others have taken it out after a version; None if not."""
        taker, fate = self._fates.get(path, (-1, Fate.REWRITTEN))
        return fate if taker > version else None

    def _find_left(self, taker: Version, *, is_change: bool) -> Fate:
        """Return where the rows are of files that a version has removed."""
        if taker.info.operation == RESTORE or _is_of_appends(taker):
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


def _is_of_appends(version: Version) -> bool:
    """Return whether a sink has made a version, and no merge: it removes only what it undoes."""
    return version.info.penstock is not None and version.info.operation != MERGE


_MOVED = "files of version(s) {} were compacted since, so their rows cannot be told apart from others"
_REWRITTEN = (
    "files of version(s) {} were rewritten by other writers since, and which rows these have left "
    "cannot be told"
)
_VECTOR = "files of version(s) {} have a deletion vector, so they cannot be put back as they were before"
_TAKEN = (
    "files of version(s) {} were taken out by other writers since, so those that they had replaced "
    "cannot be put back"
)
_STAYS = (_MOVED, _REWRITTEN, _VECTOR)
"""Why rows stay in the table, each with the versions that had added them."""
_KEPT = (Fate.MOVED, Fate.REWRITTEN)
_BY_FATE = {Fate.GONE: _TAKEN, Fate.MOVED: _MOVED, Fate.REWRITTEN: _REWRITTEN}


@dataclass(slots=True)
class _Touched:
    """What the versions that are to be undone have done with one file."""

    newest: int
    """The version that has touched it last."""
    was_left: bool
    """Whether that one left it in the table."""
    first: AddedFile | RemovedFile
    """What the oldest version did: if it has removed the file, it was there before."""
    is_undoing: bool
    """Whether the oldest version undid others, and did nothing else."""
    is_altered: bool
    """Whether some of its rows were deleted, which only a deletion vector tells."""


def plan_reversal(
    versions: Iterable[Version],
    active: Collection[str],
    is_there: Callable[[str], bool],
    *,
    vectored: Collection[str] = (),
    others: Iterable[Version] = (),
    merges: bool = False,
    is_void: Callable[[str], bool] = lambda _: False,
) -> Reversal:
    """Return what undoes these versions, the newest first, in a table with these files.

    Of the files that are `active`, those that are `vectored` have a deletion vector. `others` are
    the versions of other writers since, the newest first. If the sink `merges`, rows of one key
    are in files that versions removed and in those that they added: if others have taken such
    files out, nothing can be put back beside what they left. Files that are void were added by
    abandoned epochs, even if no version tells it any more: they are not put back.
    """
    files, fates = _find_touched(versions), Fates(others, active)
    added: list[AddedFile] = []
    removed: list[RemovedFile] = []
    missing: list[str] = []
    stays: dict[str, set[int]] = {reason: set() for reason in (*_STAYS, _TAKEN)}
    for path, file in files.items():
        first, is_active = file.first, path in active
        if isinstance(first, AddedFile):
            if file.is_altered or path in vectored:
                stays[_VECTOR].add(file.newest)
            elif is_active:
                values = first.partition_values
                removed.append(RemovedFile(path, size=first.size, partition_values=values))
            elif file.was_left:
                stays[_BY_FATE[fates.find(path, file.newest)]].add(file.newest)
        elif is_active:  # it is back already
            if path in vectored:
                stays[_VECTOR].add(file.newest)
        elif file.was_left or fates.find_since(path, file.newest) in _KEPT:
            continue  # others have rewritten rows that are to stay: they are where they put them
        elif is_void(path):
            continue
        elif file.is_altered or first.size is None or not is_there(path):
            missing.append(path)
        else:
            added.append(AddedFile(path, first.size, first.partition_values or {}))
    reasons = _STAYS + ((_TAKEN,) if merges and added else ())
    told = {reason: stays[reason] for reason in reasons if stays[reason]}
    return Reversal(
        tuple(added),
        tuple(removed),
        "; ".join(_show(reason, numbers) for reason, numbers in told.items()) or None,
        tuple(missing),
        brings_back=any(file.is_undoing for file in files.values()),
        is_certain=told.keys() != {_REWRITTEN},
    )


def _show(reason: str, versions: Iterable[int]) -> str:
    return reason.format(", ".join(map(str, sorted(versions))))


def _find_touched(versions: Iterable[Version]) -> dict[str, _Touched]:
    files: dict[str, _Touched] = {}
    for version in versions:
        mark = version.info.penstock
        is_undoing = mark is not None and mark.undoes_for is not None
        actions: list[AddedFile | RemovedFile] = [*version.new_files, *version.lost_files]
        for action in actions:
            known = files.get(action.path)
            is_altered = action.has_deleted_rows
            if known is None:
                was_left = isinstance(action, AddedFile)
                files[action.path] = _Touched(
                    version.number, was_left, action, is_undoing, is_altered
                )
            else:
                known.first, known.is_undoing = action, is_undoing
                known.is_altered |= is_altered
    return files
