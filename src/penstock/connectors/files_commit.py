"""Committing staged files: each gets its final name once, then the epoch's list is written.

    list there and the same?  → done before: only tidy up
    copy every staged file to its final name, which is created once
    create the list           → from here on readers see the epoch, all of it
    remove what was staged

Every step may be repeated at any time, by another process too. A staged file that is gone
while its final one is there was copied before. Staging is tidied last and only as far as it
can matter to nobody: an acknowledged epoch's files have their final names by then, and no
attempt at it or at an earlier epoch can count any more.
"""

import logging

from penstock.connectors.files_layout import (
    read_staged_name,
    record_path,
    staging_folder,
)
from penstock.connectors.files_records import (
    CommittedEpoch,
    StagedFile,
    decode_record,
    encode_record,
    format_checksum,
)
from penstock.core.ids import Epoch, TaskInfo
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    StorageError,
    UnknownOutcomeError,
)
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)


def commit_files(
    store: ObjectStore, task: TaskInfo, record: CommittedEpoch, staged: list[StagedFile]
) -> None:
    """Make an acknowledged epoch's files visible: all of them, once."""
    path = record_path(Epoch(record.epoch), task.operator)
    if not _is_listed(store, path, record):
        for file in staged:
            _place(store, file)
        _write_list(store, path, record)
    _tidy(store, task, record.epoch, staged)


def _place(store: ObjectStore, file: StagedFile) -> None:
    """Give a staged file its final name, or make sure that it has it."""
    lost: UnknownOutcomeError | None = None
    try:
        copied = store.copy(file.staged, file.path)
    except UnknownOutcomeError as error:
        lost, copied = error, False
    if copied:
        return
    checksum = store.checksum(file.path)
    if checksum is None:
        raise lost or CorruptStateError(
            f"{file.path!r} of {store.url} cannot be committed: there is neither that file "
            f"nor the staged one ({file.staged!r}). If something removed them, restore them; "
            "its rows are lost otherwise",
            code=ErrorCode.OBJECT_MISSING,
            path=file.path,
        )
    if format_checksum(checksum) != file.checksum:
        raise CorruptStateError(
            f"{file.path!r} of {store.url} exists and holds something else than the epoch "
            f"staged (checksum {format_checksum(checksum)} instead of {file.checksum}). "
            f"Nothing was overwritten. {_ADVICE}",
            code=ErrorCode.CHECKSUM_MISMATCH,
            path=file.path,
        )


_ADVICE = (
    "Another job, or an earlier one of this name, writes to this folder: give each job its "
    "own, or move the old output away"
)


def _is_listed(store: ObjectStore, path: str, record: CommittedEpoch) -> bool:
    """Tell whether the epoch's list is there; one of something else is refused."""
    data = store.read(path)
    if data is None:
        return False
    found = decode_record(data, f"{path!r} of {store.url}")
    if found == record:
        return True
    raise CorruptStateError(
        f"{path!r} of {store.url} lists other files than epoch {record.epoch} of job "
        f"{record.job!r} staged. Nothing was changed. {_ADVICE}",
        code=ErrorCode.FOREIGN_OBJECT,
        path=path,
    )


def _write_list(store: ObjectStore, path: str, record: CommittedEpoch) -> None:
    lost: UnknownOutcomeError | None = None
    try:
        if store.create(path, encode_record(record)):
            return
    except UnknownOutcomeError as error:
        lost = error
    if not _is_listed(store, path, record):
        raise lost or StorageError(
            f"{path!r} of {store.url} was refused because it exists, and it does not: does "
            "something delete the lists of committed files?",
            code=ErrorCode.STORAGE_UNSAFE,
            path=path,
        )


def _tidy(store: ObjectStore, task: TaskInfo, epoch: int, staged: list[StagedFile]) -> None:
    """Remove what this sink staged up to this epoch; what cannot be removed is left for later."""
    try:
        for file in staged:
            store.delete(file.staged)
        for info in store.list(staging_folder(task.job)):
            found = read_staged_name(info.path)
            if found is not None and found[0] <= epoch and found[1] == task.operator:
                store.delete(info.path)
    except (StorageError, UnknownOutcomeError) as error:
        _log.warning(
            "staged files of epoch %s could not all be removed; a later commit tries again: "
            "%s",
            epoch,
            error,
            extra={"job": str(task.job), "operator": str(task.operator), "epoch": epoch},
        )
