"""Which files a job has begun to read: kept in its state, to refuse others in their place.

A file is known by its path below the root. Below another root the same path is another file,
which would be passed over; with another root or pattern the same file may have another path,
and would be read twice. So root and pattern are kept as the offset of a split, and do not
change, unless the user says that the files have moved.
"""

from collections.abc import Mapping

from penstock.connectors.files_discovery import FilePattern, parse_pattern
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SplitPlan, SplitState
from penstock.state.storage.urls import absolute_url

LISTING = "#listing"
"""The split whose offset is pattern and list of files; no object path holds a `#`."""
ORIGIN = "#origin"
"""The split whose offset is root and pattern. Older checkpoints do not have it."""


def find_moved_root(files: FilePattern, moved_from: str) -> str:
    """Return the root that files had before they moved; below it their paths were the same."""
    before = parse_pattern(moved_from)
    if before.pattern != files.pattern:
        raise UserError(
            f"files that have moved keep their paths below the folder: {str(files)!r} names "
            f"{files.pattern!r} below it, and moved_from names {before.pattern!r}. Pass the "
            "path that named them before, with another folder and otherwise as it is now",
            code=ErrorCode.INVALID_CONFIG,
        )
    return before.root


def check_origin(
    known: Mapping[str, SplitState], files: FilePattern, moved_root: str | None
) -> None:
    """Refuse to go on with other files than those that were begun."""
    before = _origin_of(known, files)
    if before == files:
        return
    # A folder that was replaced by a link to where it is now is still the same.
    root = absolute_url(before.root)
    if before.pattern == files.pattern and root in (files.root, moved_root):
        return
    advice = "Name the same files as before, or start the job anew"
    if before.pattern == files.pattern:
        advice += f". If they are the same and have moved, pass moved_from={str(before)!r}"
    raise UserError(
        f"the job has begun to read the files {before} and now names {files}. Files are known "
        "by their paths below the folder: others of the same path would not be read, or those "
        f"that were read would be read again. {advice}",
        code=ErrorCode.INVALID_CONFIG,
        path=str(files),
    )


def plan_origin(
    known: Mapping[str, SplitState], files: FilePattern
) -> tuple[SplitPlan, ...]:
    """Have root and pattern kept, if they are not yet."""
    if ORIGIN in known and FilePattern(*known[ORIGIN].offset) == files:
        return ()
    return (SplitPlan(ORIGIN, None, (files.root, files.pattern)),)


def _origin_of(known: Mapping[str, SplitState], files: FilePattern) -> FilePattern:
    """Return which files were begun; what the state does not tell is taken to be as now."""
    if ORIGIN in known:
        return FilePattern(*known[ORIGIN].offset)
    if LISTING in known:
        return FilePattern(files.root, known[LISTING].offset[0])
    return files
