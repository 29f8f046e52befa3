"""Finds the version to which a RESTORE of a Delta table went back. Pure.

Writers tell it if they were given a version. If they were given a time, they tell only that. Then
the files do: what a RESTORE takes out and puts back is precisely what makes the table as it was.

    version    3      4      5      6              7                     8
    did        +f3    +f4    +f5    -f5 +c         -c                    +c
                                    compaction     RESTORE: it is as 4   RESTORE: it is as 6

Several versions may have the same files. They are the same table, so the newest of them is as good
as any other. A file is told by its path and its deletion vector: statistics may be written anew.

A RESTORE that left out files which were vacuumed makes a table that there never was. Then no
version is found, and none is guessed. So it is if the log was cleaned up behind the one it went to.
What such a RESTORE took out itself is certain all the same.
"""

from collections.abc import Iterable

import msgspec

from penstock.connectors.delta.actions import RESTORE, AddedFile, RemovedFile, Version

_FileKey = tuple[str, str]
"""The path of a file, and what tells its deletion vector from others."""


def find_target(version: Version, earlier: Iterable[Version | None]) -> int | None:
    """Return the version to which one went back; None if it did not, or it cannot be told.

    `earlier` are the versions before it, the newest first and without gaps; the first None is an
    entry that is gone. No more of them are taken than are needed.
    """
    if version.info.operation != RESTORE:
        return None
    told = _read_told(version)
    return _find_equal(version, earlier) if told is None else told


def _read_told(version: Version) -> int | None:
    """Return the older version that a RESTORE names; None if it names none."""
    told = version.info.operation_parameters
    text = str(told.get("version")) if isinstance(told, dict) else ""
    return int(text) if text.isdecimal() and int(text) < version.number else None


def _find_equal(version: Version, earlier: Iterable[Version | None]) -> int | None:
    """Return the newest version before one that has the same files; None if none is known."""
    was_there = _find_touched(version)
    added = _find_added(version)
    is_there = {key: key in added for key in was_there}
    differing = {key for key in was_there if was_there[key] != is_there[key]}
    number = version.number
    for each in earlier:
        number -= 1
        if not differing:
            return number
        if each is None:
            return None
        added = _find_added(each)
        for key, was in _find_touched(each).items():
            # What no later version has touched is still as this one has left it.
            if was == is_there.setdefault(key, key in added):
                differing.discard(key)
            else:
                differing.add(key)
    return None


def is_taken_out(version: Version, later: Iterable[Version]) -> bool:
    """Return whether the table certainly went back to before a version, to wherever that was.

    Of the `later` versions, the newest first, the last that went back behind it or to it decides.
    """
    added = {file.path for file in version.new_files}
    removed = {file.path for file in version.lost_files}
    for each in later:
        if each.info.operation == RESTORE:
            back = {file.path for file in each.added}
            gone = {file.path for file in each.removed}
            if added & gone or removed & back:
                return True
            if added & back or removed & gone:
                return False
    return False


def _find_touched(version: Version) -> dict[_FileKey, bool]:
    """Return the files that a version adds or removes: whether they were there before it.

    If it adds files without a change of rows, and removes none, they were: it only tells more
    about them, such as statistics.
    """
    tells_more = version.info.operation != RESTORE and not version.removed
    touched = {_key_of(file): tells_more and not file.data_change for file in version.added}
    return touched | {_key_of(file): True for file in version.removed}


def _find_added(version: Version) -> set[_FileKey]:
    return {_key_of(file) for file in version.added}


def _key_of(file: AddedFile | RemovedFile) -> _FileKey:
    """Return what tells a file from others; writers order the fields of a vector as they like."""
    if not file.has_deleted_rows:
        return file.path, ""
    vector = msgspec.json.decode(file.deletion_vector)
    if isinstance(vector, dict):
        names = ("storageType", "pathOrInlineDv", "offset")
        vector = [vector.get(name) for name in names]
    return file.path, msgspec.json.encode(vector).decode()
