"""Plans how the versions of abandoned epochs are undone after a restore: their files go again.

A restore goes back to an older epoch. The rows of the epochs after it are in the table, and come
again under new numbers. The log tells which versions are of these epochs, and what each did:

    version    4          5          6                  7                       8
    did        epoch 2    epoch 3    compaction by      epoch 4                 epoch 5, after a
                                     another writer                             restore of epoch 2
                                                                                removes what 7 added

The undoing is a part of the first commit after the restore, so it is done once or not at all. What
a version added is removed, and what it removed is added again: so a restore can be undone by
another one. Files of epoch 3 in the picture were rewritten by a compaction: which rows of the new
file were theirs cannot be told. Then the user is warned, with the versions, and decides. So it is if
another writer has deleted rows of a file by a deletion vector: neither removing the file nor adding
it again would leave the table as it was.

`plan_reversal` is pure.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.connectors.delta.actions import AddedFile, RemovedFile, Version
from penstock.connectors.delta.commit import Reversal
from penstock.connectors.delta.log import TableLog
from penstock.connectors.delta.table import OpenTable
from penstock.connectors.files.committed import EpochRange
from penstock.core.ids import TaskInfo
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)


def plan_reversal(
    versions: Iterable[Version],
    active: Collection[str],
    is_there: Callable[[str], bool],
    *,
    vectored: Collection[str] = (),
) -> Reversal:
    """Return what undoes these versions, the newest first, in a table with these files.

    Of the files that are `active`, those that are `vectored` have a deletion vector.
    """

    def is_altered(file: AddedFile | RemovedFile) -> bool:
        return file.has_deleted_rows or file.path in vectored

    added: dict[str, AddedFile] = {}
    removed: dict[str, RemovedFile] = {}
    rewritten: list[int] = []
    for version in versions:
        new = [file for file in version.new_files if not is_altered(file)]
        lost = [file for file in version.lost_files if not is_altered(file)]
        if len(new) + len(lost) < len(version.new_files) + len(version.lost_files):
            rewritten.append(version.number)
        for file in new:
            if file.path in added:
                del added[file.path]
            elif file.path in active:
                removed[file.path] = RemovedFile(
                    file.path, size=file.size, partition_values=file.partition_values
                )
            else:
                rewritten.append(version.number)
        for gone in lost:
            if gone.path in removed:
                del removed[gone.path]
            elif gone.path in active:
                continue  # it is back already
            elif gone.size is not None and is_there(gone.path):
                values = gone.partition_values or {}
                added[gone.path] = AddedFile(gone.path, gone.size, values)
            else:
                rewritten.append(version.number)
    problem = None
    if rewritten:
        listed = ", ".join(map(str, sorted(set(rewritten))))
        problem = (
            f"files of version(s) {listed} were rewritten or vacuumed since, or have a deletion "
            "vector, so their rows cannot be told apart from others"
        )
    return Reversal(tuple(added.values()), tuple(removed.values()), problem)


def reversing(
    store: ObjectStore,
    task: TaskInfo,
    app: str,
    abandoned: Sequence[EpochRange],
    epoch: int,
) -> Callable[[OpenTable], Reversal]:
    """Return what finds the undoing that the commit of an epoch has to do; usually nothing."""
    ranges = [each for each in abandoned if each[1] == epoch]

    def find(table: OpenTable) -> Reversal:
        recorded = table.recorded_epoch(app) if ranges else None
        # A version that only undoes records the epoch before the one it belongs to.
        if recorded is None or recorded + 1 < ranges[0][0]:
            return Reversal()
        versions, is_whole = TableLog(store).read_marked(table.version, app, ranges[0])
        files = table.files()
        planned = plan_reversal(
            versions,
            {file.path for file in files},
            lambda path: store.size(path) is not None,
            vectored={file.path for file in files if file.has_deleted_rows},
        )
        problem = planned.problem
        if (
            table.metadata.configuration.get("delta.appendOnly") == "true"
            and planned.removed
        ):
            planned, problem = Reversal(), "the table takes appends only (delta.appendOnly)"
        if problem is None and not is_whole:
            problem = "the table's log does not reach back far enough to tell which rows are theirs"
        if problem is not None:
            warn_of_rest(table.url, task, ranges[0], problem)
        return planned

    return find


def warn_of_rest(url: str, task: TaskInfo, abandoned: EpochRange, problem: str) -> None:
    """Warn that rows of abandoned epochs stay in the table."""
    start, end = abandoned
    _log.warning(
        "after the restore of an earlier epoch, rows of the abandoned epochs %s to %s stay in the "
        "Delta table %s: %s. Their rows are written again, and may be there twice. To correct it, "
        "delete them there by a condition, or go back to an older version of the table (RESTORE) "
        "and restore the job to the epoch that it held",
        start,
        end - 1,
        url,
        problem,
        extra={"job": str(task.job), "operator": str(task.operator), "epoch": end},
    )
