"""Undoes the versions of abandoned epochs after a restore, or refuses to: their files go again.

A restore goes back to an older epoch. The rows of the epochs after it are in the table, and come
again under new numbers. The log tells which versions are of these epochs, and what each did:

    version    4          5          6                  7                       8
    did        epoch 2    epoch 3    compaction by      epoch 4                 epoch 5, after a
                                     another writer                             restore of epoch 2
                                                                                removes what 7 added

The undoing is a part of the first commit after the restore, so it is done once or not at all. What
a version added is removed, and what it removed is added again: so a restore can be undone by
another one. Several versions may have touched one file: the oldest of them tells whether it was
there before them all.

**What cannot be taken out** stays. Files of epoch 3 in the picture were rewritten by a compaction:
which rows of the new file were theirs cannot be told. Then the user is warned, with the versions,
and decides; where the rows are gone, as the table itself went back, there is nothing to warn of:
see `undoing`. So it is if another writer has deleted rows of a file by a deletion vector: neither
removing the file nor adding it again would leave the table as it was.

**What cannot be put back** would be missing for good, as nobody writes those rows again: a restore
had taken a file out, a vacuum has removed it since, and now that restore is to be undone. Such a
commit is refused before it changes anything, with the epochs that can be restored instead. So it is
if the table itself went back behind an epoch that is to stay. Merges are undone as a whole or not
at all, as files that they replaced hold the same keys.

What is done with which file is planned in `undoing`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from penstock.connectors.delta.actions import Version
from penstock.connectors.delta.commit import Reversal, find_recorded
from penstock.connectors.delta.log import Abandoned, TableLog
from penstock.connectors.delta.marks import Began
from penstock.connectors.delta.table import OpenTable
from penstock.connectors.delta.undoing import plan_reversal
from penstock.connectors.files.committed import EpochRange
from penstock.connectors.files.names import read_part_epoch
from penstock.core.ids import TaskInfo
from penstock.errors import ErrorCode, StateError
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)
_CUT_OFF = (
    "the table's log does not reach back far enough to tell which rows are theirs, and which of "
    "earlier epochs they had taken out: such rows may be missing"
)


def reversing(
    store: ObjectStore,
    task: TaskInfo,
    app: str,
    abandoned: Sequence[EpochRange],
    epoch: int,
    *,
    began: Began | None = None,
    merges: bool = False,
) -> Callable[[OpenTable], Reversal]:
    """Return what finds the undoing that the commit of an epoch has to do; usually nothing.

    If the sink `merges`, its versions are undone as a whole or not at all: a file that a merge has
    removed holds keys of the one that it added.
    """
    ranges = [each for each in abandoned if each[1] == epoch]

    def find(table: OpenTable) -> Reversal:
        if not ranges:
            return Reversal()
        recorded = find_recorded(table, app, began)
        # With the epoch before this one all that were abandoned count as committed.
        must_record = recorded is None or recorded + 1 < epoch
        # A version that only undoes records the epoch before the one it belongs to.
        if recorded is None or recorded + 1 < ranges[0][0]:
            return Reversal(must_record=must_record)
        log = TableLog(store)
        found = log.read_marked(table.version, app, ranges[0], began, abandoned)
        plan = _planning(store, table, abandoned, merges=merges)
        planned = plan(found)
        if merges and not found.is_whole:
            # What a version removed may have been added by one of which nothing is known.
            planned = replace(planned, problem=planned.problem or _CUT_OFF)
        if found.lost or would_lose_rows(planned, merges=merges):
            every = log.read_marked(table.version, app, (0, epoch), began)
            raise _not_put_back(
                table.url,
                task,
                ranges[0],
                planned,
                every=replace(every, lost=found.lost),
                restorable=find_restorable(
                    replace(every, lost=found.lost), ranges[0][0], plan, merges=merges
                ),
            )
        problem, verb = planned.problem, "stay" if planned.is_certain else "may stay"
        if planned.missing and problem is None:
            problem = "files that they had replaced were vacuumed since"
        if merges and problem is not None:
            planned = Reversal()
        if (
            table.metadata.configuration.get("delta.appendOnly") == "true"
            and planned.removed
        ):
            planned = Reversal(planned.added)
            problem = "the table takes appends only (delta.appendOnly)"
        if problem is None and not found.is_whole:
            problem = _CUT_OFF
        if problem is not None:
            warn_of_rest(table.url, task, ranges[0], f"{verb} in", problem)
        undoes, late = _find_lives(found, table, epoch, app, began)
        return replace(
            planned, must_record=must_record or bool(late), undoes=undoes, late=late
        )

    return find


def _find_lives(
    found: Abandoned, table: OpenTable, epoch: int, app: str, began: Began | None
) -> tuple[tuple[Began, ...], tuple[str, ...]]:
    """Return the other lives of a sink that an epoch undoes, and apps that must be recorded.

    A driver that was thought dead may still commit an epoch of such a life, under any of its
    apps. A number that is recorded already is never replaced by a lower one.
    """
    marks = [v.info.penstock for v in found.versions if v.info.penstock is not None]
    lives = {m.began for m in marks if m.began is not None} - {began}
    apps = {m.app for m in marks} | {life.record for life in lives}
    apps -= {app} if began is None else {app, began.record}
    late = [each for each in apps if (table.recorded_epoch(each) or 0) < epoch - 1]
    return (
        tuple(sorted(lives, key=lambda life: (life.epoch, life.app))),
        tuple(sorted(late)),
    )


def _planning(
    store: ObjectStore, table: OpenTable, abandoned: Sequence[EpochRange], *, merges: bool
) -> Callable[[Abandoned], Reversal]:
    """Return what plans to undo versions in a table; the store is asked once about each file.

    Where the log was cleaned up, the version is perhaps unknown that had added a file: names of
    files that were appended tell their epochs.
    """
    files = table.files()
    active = {file.path for file in files}
    vectored = {file.path for file in files if file.has_deleted_rows}

    @cache
    def is_there(path: str) -> bool:
        return store.size(path) is not None

    def is_void(path: str) -> bool:
        epoch = read_part_epoch(path)
        return epoch is not None and any(s <= epoch < end for s, end in abandoned)

    return lambda found: plan_reversal(
        found.versions,
        active,
        is_there,
        vectored=vectored,
        others=found.others,
        merges=merges,
        is_void=(lambda _: False) if merges or found.is_whole else is_void,
    )


def would_lose_rows(planned: Reversal, *, merges: bool) -> bool:
    """Return whether rows would be missing that nobody writes again.

    A merge that stays in the table has all rows of the files that it replaced. Versions that only
    undid others have not: they must be undone.
    """
    if merges:
        return planned.brings_back and bool(planned.missing or planned.problem)
    return bool(planned.missing)


def find_restorable(
    every: Abandoned,
    start: int,
    plan: Callable[[Abandoned], Reversal],
    *,
    merges: bool,
) -> int | None:
    """Return the newest epoch below some that can be restored without loss; None if unknown.

    `every` has all versions that the sink has made. Pure.
    """
    known = {*map(_epoch_of, every.versions), *map(_epoch_of, every.lost)}
    # Without the versions before the oldest one nobody could tell what to undo.
    numbers = sorted(known, reverse=True)[: None if every.is_whole else -1]
    limit = min(map(_epoch_of, every.lost), default=start)
    for number in (n for n in numbers if 1 < n < start and n <= limit):
        undone = [v for v in every.versions if _epoch_of(v) >= number]
        planned = plan(replace(every, versions=undone))
        if not would_lose_rows(planned, merges=merges):
            return number - 1
    return None


def _epoch_of(version: Version) -> int:
    mark = version.info.penstock
    return -1 if mark is None else mark.belongs_to


def _not_put_back(
    url: str,
    task: TaskInfo,
    abandoned: EpochRange,
    planned: Reversal,
    *,
    every: Abandoned,
    restorable: int | None,
) -> StateError:
    """Return the error for rows that were taken out of the table and cannot be put back."""
    start, epoch = abandoned
    missing, lost = planned.missing, every.lost
    writers = {_epoch_of(version) for version in lost} or {
        _epoch_of(version)
        for version in every.versions
        if _epoch_of(version) < start
        and not {file.path for file in version.added}.isdisjoint(missing)
    }
    whose = (
        f"epoch(s) {', '.join(map(str, sorted(writers)))}"
        if writers
        else "epochs before it"
    )
    ways = []
    if restorable is not None:
        ways.append(
            f"restore epoch {restorable} or an earlier one, and they are written again"
        )
    newest = every.versions[0].info.penstock if every.versions else None
    if newest is not None and newest.undoes_for is None:
        ways.append(
            f"restore epoch {newest.epoch}, which the table holds, and the job goes on from there"
        )
    taker = "an earlier restore"
    if lost:
        taker, why = "a RESTORE of the table", "it went back behind their versions"
        last = max(version.number for version in lost)
        ways.append(
            f"go back to version {last} of the table (RESTORE), and start the job again"
        )
    elif missing:
        shown = ", ".join(map(repr, sorted(missing)[:3])) + (", …" if missing[3:] else "")
        why = f"{len(missing)} file(s) that held them are gone, as after a vacuum: {shown}"
        ways.append("bring the files back, and start the job again")
    else:
        why = str(planned.problem)
        ways.append("go back to a version of the table that has them (RESTORE)")
    return StateError(
        f"epoch {epoch} of step {str(task.operator)!r} follows epoch {start - 1}, and rows of "
        f"{whose} are not in the Delta table {url} any more: {taker} took them out, "
        f"and they cannot be put back ({why}). Nothing was changed. To go on, "
        f"{'; or '.join(ways)}",
        code=ErrorCode.NOT_RESTORABLE,
        operator=str(task.operator),
        url=url,
    )


def warn_of_rest(
    url: str, task: TaskInfo, abandoned: EpochRange, verb: str, problem: str
) -> None:
    """Warn that rows of abandoned epochs stay in the table, or may."""
    start, end = abandoned
    _log.warning(
        "after the restore of an earlier epoch, rows of the abandoned epochs %s to %s %s the "
        "Delta table %s: %s. Their rows are written again, and may be there twice. To correct it, "
        "delete them there by a condition, or go back to an older version of the table (RESTORE) "
        "and restore the job to the epoch that it held",
        start,
        end - 1,
        verb,
        url,
        problem,
        extra={"job": str(task.job), "operator": str(task.operator), "epoch": end},
    )
