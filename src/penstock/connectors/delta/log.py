"""Reads the log of a Delta table version by version, through the table's store.

A log entry is created once and never changed, so a version reads the same for everybody. An
entry that is not there is either still to come or was cleaned up: clean-up removes only what a
checkpoint of the log covers, and `_last_checkpoint` names the last one.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from penstock.connectors.delta.actions import MERGE, RESTORE, Version, decode_version
from penstock.connectors.delta.going_back import find_target, is_taken_out
from penstock.connectors.delta.marks import Began, Lives, Mark
from penstock.connectors.files.committed import EpochRange
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.object_store import ObjectStore

LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What a log tells about the versions of abandoned epochs."""

    versions: Sequence[Version]
    """Those that are to be undone, the newest first."""
    others: Sequence[Version] = ()
    """Those between and after them, the newest first."""
    is_whole: bool = True
    """Whether the log reaches back far enough to tell all of them, and what was lost."""
    lost: Sequence[Version] = ()
    """Versions of the sink that are to stay, and are not in the table: it went back behind them."""


class TableLog:
    """The log of one table."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read(self, number: int) -> Version | None:
        """Return what a version did; None if there is no such entry (yet, or any longer)."""
        data = self._store.read(entry_path(number))
        return None if data is None else decode_version(number, data, self._store.url)

    def has(self, number: int) -> bool:
        """Return whether there is an entry of this version."""
        return self._store.size(entry_path(number)) is not None

    def read_after(self, number: int, most: int) -> Iterator[Version]:
        """Yield the versions after one, in order, up to the newest, at most so many.

        Raises if the next one was there and was cleaned up.
        """
        for wanted in range(number + 1, number + 1 + most):
            found = self.read(wanted)
            if found is None:
                # In this order: an entry that comes in between is seen by the second read.
                if self._read_checkpointed() < wanted:
                    return
                found = self.read(wanted)
                if found is None:
                    raise cleaned_up(self._store.url, wanted)
            yield found

    def read_marked(
        self,
        newest: int,
        app: str,
        epochs: EpochRange,
        began: Began | None = None,
        earlier: Sequence[EpochRange] = (),
    ) -> "Abandoned":
        """Return what is to be undone of a sink after a restore.

        `epochs` are those that the restore abandoned, and `earlier` those of others before. The log
        is read backwards from a version, up to the first one of an earlier epoch of the sink. Where
        an entry was cleaned up before that, some may be missing. Where the table went back to an
        older version, all between the two count for nothing; epochs among them that were not
        abandoned are lost. Where it cannot be told to which one it went, some may be missing, too.
        """
        entry = cache(
            self.read
        )  # a version that went back is compared with those before it
        lives = Lives(app, began, [*earlier, epochs])
        read: list[Version] = []
        lost: list[Version] = []
        number, is_whole, is_certain = newest + 1, True, True
        while number > 0:
            number -= 1
            version = entry(number)
            if version is None:
                is_whole = False
                break
            back_to = find_target(version, map(entry, range(number - 1, -1, -1)))
            if back_to is not None:
                skipped = map(entry, range(number - 1, back_to, -1))
                lost += _find_kept(skipped, lives, epochs)
                number = back_to + 1
                continue
            is_certain &= version.info.operation != RESTORE
            mark = version.info.penstock
            if mark is not None and lives.come_after(mark, epochs):
                if is_taken_out(version, read):
                    lost += _find_kept([version], lives, epochs)
                break
            read.append(version)
        lives.learn(mark for _, mark in _marked(read))
        own = [
            version
            for version, mark in _marked(read)
            if lives.have(mark) and mark.is_undone_after(epochs)
        ]
        undone = {version.number for version in own}
        others = [version for version in read if version.number not in undone]
        is_whole = is_whole or (bool(own) and _is_first(own[-1], epochs[0]))
        return Abandoned(own, others, is_whole and is_certain, lost)

    def _read_checkpointed(self) -> int:
        """Return the version of the last checkpoint of the log; -1 if there is none."""
        data = self._store.read(f"{LOG}/_last_checkpoint")
        try:
            return int(json.loads(data or b"{}").get("version", -1))
        except (ValueError, AttributeError, TypeError):
            return -1


def _marked(versions: Iterable[Version | None]) -> Iterator[tuple[Version, Mark]]:
    for version in versions:
        if version is not None and version.info.penstock is not None:
            yield version, version.info.penstock


def _find_kept(
    versions: Iterable[Version | None], lives: Lives, epochs: EpochRange
) -> list[Version]:
    """Return the versions with rows of a sink from epochs before these that are not abandoned."""
    return [
        version
        for version, mark in _marked(versions)
        if lives.have(mark)
        and mark.belongs_to < epochs[0]
        and not lives.is_abandoned(mark.belongs_to)
        and (version.new_files or version.lost_files)
    ]


def _is_first(version: Version, epoch: int) -> bool:
    """Return whether nothing of an epoch comes before a version.

    An epoch that appends has one version, and one that merges at most one more, before it.
    """
    mark = version.info.penstock
    is_merge = version.info.operation == MERGE
    return mark is not None and mark.belongs_to == epoch and not is_merge


def entry_path(number: int) -> str:
    """Return the path of a version's log entry.

    >>> entry_path(7)
    '_delta_log/00000000000000000007.json'
    """
    return f"{LOG}/{number:020}.json"


def cleaned_up(url: str, number: int) -> UserError:
    """Return the error for a version whose log entry is gone."""
    return UserError(
        f"version {number} of the Delta table {url} was cleaned up before it was read: its log "
        "entry is gone. What changed since the last version that was read cannot be told any "
        "more. Start a job of another name, or delete this one's checkpoints: it begins with "
        "the table as it is. To have more time, set the table's delta.logRetentionDuration",
        code=ErrorCode.INPUT_CHANGED,
        url=url,
        version=number,
    )


def vacuumed(url: str, path: str, number: int) -> UserError:
    """Return the error for a data file that is gone before it was read."""
    return UserError(
        f"{path!r}, a data file of version {number} of the Delta table {url}, is gone before it "
        "was read: it was vacuumed, as files are that are not part of the newest version. Start "
        "a job of another name, or delete this one's checkpoints: it begins with the table as it "
        "is. To have more time, set the table's delta.deletedFileRetentionDuration",
        code=ErrorCode.INPUT_CHANGED,
        url=url,
        path=path,
        version=number,
    )
