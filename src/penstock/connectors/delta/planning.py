"""Which files of a Delta table are to be read, and how far the versions have come. Pure.

Every data file of a version is a split. Its name says what its rows are, and never changes:

    0000000007+day=1/part-0.parquet     rows that version 7 adds
    0000000007-day=1/part-0.parquet     rows that it deletes, all of the file
    0000000007~_change_data/x.parquet   changes that it made, as the file itself says

The first version is read as a whole: all its files count as added by it. A split `#table` holds
the table's id and the version up to which all files were begun; splits of these versions that
have ended are forgotten, so the state holds about the files that are being read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from penstock.connectors.delta.actions import (
    AddedFile,
    ChangeFile,
    PartitionValues,
    RemovedFile,
    Version,
    check_without_vector,
    read_bound,
)
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SplitState

TABLE = "#table"
"""The split whose offset is a `Place`; no object path holds a `#`."""
_NAME = re.compile(r"(\d{10})([+~-])(.+)", re.DOTALL)


class RowsAre(StrEnum):
    """What the rows of a file are; the sign that is in the name of its split."""

    ADDED = "+"
    DELETED = "-"
    CHANGES = "~"


class Place(NamedTuple):
    """How far a table was read. Stored as a list, so fields are only ever appended."""

    table_id: str
    first: int
    """The version that is read as a whole, or the last one that is not read at all."""
    upto: int
    """The version up to which all files were begun; less than `first` before."""


class Offset(NamedTuple):
    """How far a file was read. Stored as a list, so fields are only ever appended."""

    size_bytes: int
    position: int = 0
    lines: int = 0
    partition: PartitionValues | None = None


@dataclass(frozen=True)
class WaitingFile:
    """A file of a version, to be read as one split."""

    version: int
    rows: RowsAre
    path: str
    size_bytes: int | None
    """None if the log does not tell: of files that were removed."""
    partition: PartitionValues
    from_micros: int | None = None
    """The least event time of its rows; None if it is not known."""
    to_micros: int | None = None

    @cached_property
    def name(self) -> str:
        """The name of its split."""
        return f"{self.version:010}{self.rows.value}{self.path}"


def read_name(name: str) -> tuple[int, RowsAre, str]:
    """Return the version, the kind of rows and the path that a split's name tells.

    >>> read_name("0000000007+day=1/a.parquet")
    (7, <RowsAre.ADDED: '+'>, 'day=1/a.parquet')
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"the checkpoint has the split {name!r}, which is none of a Delta table: another "
            "source was read under this name. Give the step another name",
            code=ErrorCode.UNKNOWN_SPLIT,
        )
    return int(match[1]), RowsAre(match[2]), match[3]


def read_place(known: Mapping[str, SplitState]) -> Place | None:
    """Return how far the table was read; None before the first epoch."""
    state = known.get(TABLE)
    return None if state is None or state.offset is None else Place(*state.offset)


class Rewrites(StrEnum):
    """What is done about a version that deletes or rewrites rows."""

    REFUSE = "refuse"
    SKIP = "skip"
    CHANGELOG = "changelog"


def files_of(
    version: Version, rewrites: Rewrites, url: str, time_column: str | None
) -> list[WaitingFile]:
    """Return what to read of a version, or refuse one that deletes or rewrites rows."""
    number = version.number
    if rewrites is not Rewrites.CHANGELOG:
        if version.lost_files and rewrites is Rewrites.REFUSE:
            raise rewritten(version, url)
        skipped = bool(version.lost_files)
        return [] if skipped else listed(number, version.new_files, url, time_column)
    if version.changes:
        # They say all of what the version did, and its files would say it again.
        return [_waiting(number, RowsAre.CHANGES, file) for file in version.changes]
    found = listed(number, version.new_files, url, time_column)
    for file in version.lost_files:
        check_without_vector(file, url)
        found.append(_waiting(number, RowsAre.DELETED, file))
    return found


def tells_no_partitions(version: Version) -> bool:
    """Return whether a version removes files without saying in which partitions they were."""
    lost = () if version.changes else version.lost_files
    return any(file.partition_values is None for file in lost)


def with_partitions(version: Version, before: Iterable[AddedFile]) -> Version:
    """Return a version with the partitions of the files that it removes, as they were before it."""
    known = {file.path: file.partition_values for file in before}
    removed = tuple(
        msgspec.structs.replace(file, partition_values=known.get(file.path))
        if file.partition_values is None
        else file
        for file in version.removed
    )
    return msgspec.structs.replace(version, removed=removed)


def listed(
    number: int, files: Iterable[AddedFile], url: str, time_column: str | None
) -> list[WaitingFile]:
    """Return files whose rows a version adds, in order of time where it is known, else of path."""
    found = []
    for file in files:
        check_without_vector(file, url)
        found.append(_waiting(number, RowsAre.ADDED, file, time_column))
    if any(file.from_micros is None for file in found):
        return sorted(found, key=lambda file: file.path)
    return sorted(found, key=lambda file: (file.from_micros, file.path))


def _waiting(
    number: int,
    rows: RowsAre,
    file: AddedFile | RemovedFile | ChangeFile,
    time_column: str | None = None,
) -> WaitingFile:
    low = high = None
    if time_column is not None and isinstance(file, AddedFile):
        low = read_bound(file.stats, time_column, is_upper=False)
        high = read_bound(file.stats, time_column, is_upper=True)
    return WaitingFile(
        number, rows, file.path, file.size, file.partition_values or {}, low, high
    )


def rewritten(version: Version, url: str) -> UserError:
    """Return the error for a version that deletes or rewrites rows."""
    return UserError(
        f"version {version.number} of the Delta table {url} ({version.info.operation}) deletes or "
        f"rewrites rows: it removes {len(version.lost_files)} file(s). Rows that were read before "
        'would have to be taken back. Pass rewrites="changelog" to read the table as a changelog, '
        'or rewrites="skip" to pass over such versions, with the rows that they add',
        code=ErrorCode.INPUT_CHANGED,
        url=url,
        version=version.number,
    )


def find_upto(
    place: Place, seen: int, waiting: Sequence[WaitingFile], begun: frozenset[str]
) -> int:
    """Return the version up to which all files are begun, of those up to `seen`."""
    open_versions = [file.version for file in waiting if file.name not in begun]
    reached = min(open_versions) - 1 if open_versions else seen
    return max(place.upto, reached)


def is_watermark_held(
    waiting: Sequence[WaitingFile],
    begun: frozenset[str],
    latest_micros: int | None,
) -> bool:
    """Return whether a file that waits may have rows older than those that are read.

    Files of later versions do not count: their rows come later. Where the statistics of all files
    that wait tell that their rows are not older, event time goes on.
    """
    begun_versions = [file.version for file in waiting if file.name in begun]
    newest = max(begun_versions, default=-1)
    left = [file for file in waiting if file.name not in begun and file.version <= newest]
    if not left:
        return False
    lows = [file.from_micros for file in left if file.from_micros is not None]
    highs = [file.to_micros for file in waiting if file.name in begun]
    if len(lows) < len(left) or None in highs:
        return True
    latest = max([*(h for h in highs if h is not None), latest_micros or 0])
    return min(lows) < latest


def find_forgotten(known: Mapping[str, SplitState], place: Place) -> tuple[str, ...]:
    """Return the splits that are not needed any longer: read to the end, of versions all begun.

    The one with the latest event time stays, by which the source's event time is known.
    """
    times = ((s.max_event_time_micros, n) for n, s in known.items())
    kept = max(((t, n) for t, n in times if t is not None), default=(0, TABLE))[1]
    return tuple(
        name
        for name, state in sorted(known.items())
        if state.ended and name not in (TABLE, kept) and read_name(name)[0] <= place.upto
    )


def check_same_table(place: Place, found_id: str | None, url: str) -> None:
    """Refuse to go on with another table than the one that the job began with."""
    if found_id == place.table_id:
        return
    now = "there is none" if found_id is None else f"the table there has the id {found_id}"
    raise UserError(
        f"the job has begun to read the Delta table {url} with the id {place.table_id}, and now "
        f"{now}: it was deleted or made anew. Versions of another table mean other rows. Bring "
        "the table back, or start a job of another name, or delete this one's checkpoints, to "
        "read the new one from its beginning",
        code=ErrorCode.INPUT_CHANGED,
        url=url,
    )


def to_offset(stored: Any) -> Offset:
    """Return a stored offset of a file."""
    return Offset(*stored)
