"""Commits staged files and lists them: each gets its final name once, then the list is written.

    (parts have merged staged files, if they were to be merged: see `merging`)
    list there and the same?  → committed before: only remove what was staged
    copy every staged file to its final name, which is created once
    create the list           → from here on readers see the epoch, all of it
    remove what was staged

Every step may be repeated at any time, by another process too. A staged file that is gone
while its final one is there was copied before. Staged files are removed last, and only up to
this epoch: the files of acknowledged epochs have their final names by then, and files of other
attempts at these epochs are not needed.

`StagedParts` travels as commit data, in the checkpoint. `CommittedEpoch` (in `committed`) is a
JSON object beside the output, created once, after all files it lists. So a reader that follows
the lists, as `committed_files` and `read_committed` do, sees neither a part of an epoch nor one
that was not acknowledged.

After a restore the first list, and every later one, names the epochs that were abandoned; see
`staging`. So a reader sees the old output until that epoch is committed, the new one from then
on, and no row twice. This is safe against crashes and replaced drivers, because lists are of
acknowledged epochs only and the same for every driver that commits them.
"""

import logging
from collections.abc import Sequence

import msgspec

from penstock.connectors.files.committed import (
    PLAIN_VERSION,
    VERSION,
    CommittedEpoch,
    decode_list,
    encode_list,
    format_checksum,
    schema_hash_of,
    schema_of,
)
from penstock.connectors.files.names import COMMITTED, read_record_name, record_path
from penstock.connectors.files.output.merging import (
    Group,
    StagedFile,
    find_merged,
    plan_groups,
)
from penstock.connectors.files.output.parts import StagedParts
from penstock.connectors.files.output.staging import tidy_staging
from penstock.core.ids import Epoch, TaskInfo
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    StateError,
    StorageError,
    UnknownOutcomeError,
)
from penstock.operators.context import CommitContext, StartContext
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)


def groups_of(parts: Sequence[StagedParts]) -> list[Group]:
    """Return which staged files of an epoch become one. Pure."""
    files = [file for part in parts for file in part.files]
    return plan_groups(files, parts[0].merge_bytes)


def commit_files(
    store: ObjectStore, epoch: Epoch, parts: Sequence[StagedParts], ctx: CommitContext
) -> None:
    """Make an acknowledged epoch's files visible: all of them, once."""
    first, path = parts[0], record_path(epoch, ctx.task.operator)
    listed = store.read(path)
    try:
        found, staged = _find_staged(store, path, listed, parts)
    except CorruptStateError:
        # Another driver may have come to the end of this commit meanwhile, and have tidied up.
        listed = store.read(path)
        if listed is None:
            raise
        found, staged = _find_staged(store, path, listed, parts)
    is_plain = all(file.epochs is msgspec.UNSET for file in staged)
    record = CommittedEpoch(
        version=PLAIN_VERSION if is_plain else VERSION,
        job=str(ctx.task.job),
        identity=str(ctx.identity),
        operator=str(ctx.task.operator),
        epoch=int(epoch),
        format=first.format,
        schema=first.schema,
        schema_hash=schema_hash_of(schema_of(first.schema)),
        partition_by=first.partition_by,
        rows=sum(file.rows for file in staged),
        bytes=sum(file.bytes for file in staged),
        files=tuple(file.listed() for file in staged),
        abandoned=tuple(sorted({found for part in parts for found in part.abandoned})),
    )
    if listed is None and not staged and not _ends_range(record) and _has_list(store, ctx):
        # The last epoch of a job, without rows: earlier lists tell the columns already.
        return
    if listed is None:
        for file in staged:
            _place(store, file)
        listed = create_own(store, path, encode_list(record))
        found = None if listed is None else decode_list(listed, path, store.url)
    if found is not None and not _is_list_of(record, found):
        raise CorruptStateError(
            f"{path!r} of {store.url} lists other files than epoch {record.epoch} of job "
            f"{record.job!r} staged. Nothing was changed. {_ADVICE}",
            code=ErrorCode.FOREIGN_OBJECT,
            path=path,
        )
    merged = [file for part in parts for file in part.files if file not in staged]
    done = [file.staged for file in (*staged, *merged)]
    tidy_staging(store, ctx.task, record.epoch, done)


def _find_staged(
    store: ObjectStore, path: str, listed: bytes | None, parts: Sequence[StagedParts]
) -> tuple[CommittedEpoch | None, list[StagedFile]]:
    """Return the list of the epoch if it is there, and the files that it has or will have."""
    found = None if listed is None else decode_list(listed, path, store.url)
    staged = [
        group[0] if len(group) == 1 else find_merged(store, group, found)
        for group in groups_of(parts)
    ]
    return found, staged


def _ends_range(record: CommittedEpoch) -> bool:
    """Tell whether this list is the first that names some abandoned epochs."""
    return any(end == record.epoch for _, end in record.abandoned)


def _has_list(store: ObjectStore, ctx: CommitContext) -> bool:
    """Tell whether the sink has a list of any epoch."""
    names = (read_record_name(info.path) for info in store.list(COMMITTED))
    return any(name is not None and name[1] == ctx.task.operator for name in names)


def _is_list_of(record: CommittedEpoch, found: CommittedEpoch) -> bool:
    """Tell whether a list holds the same, perhaps in the form of an earlier version."""
    return msgspec.structs.replace(found, version=record.version) == record


def _place(store: ObjectStore, file: StagedFile) -> None:
    """Copy a staged file to its final name, unless an earlier commit did."""
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


def warn_of_lost_output(store: ObjectStore, listed: Epoch, task: TaskInfo) -> None:
    """Warn if the list of an epoch that was committed in this run is gone.

    It is no error, because who has taken the output over may remove old epochs.
    """
    path = record_path(listed, task.operator)
    try:
        is_there = store.size(path) is not None
    except StorageError:
        return
    if not is_there:
        _log.warning(
            "%r is gone from %s, where this job had written it: output was removed while the "
            "job runs. Rows of epoch %s and of those before it may be missing there, and are "
            "not written again. Put the files back, or go back to an earlier epoch (restore=) "
            "to have the rows written again",
            path,
            store.url,
            listed,
            extra={"job": str(task.job), "operator": str(task.operator), "epoch": listed},
        )


def check_unknown_epochs(store: ObjectStore, ctx: StartContext) -> None:
    """Refuse output of epochs that the checkpoint does not know, before the job writes any.

    Their numbers would be used again: the commit of the first of them would fail, and its
    epoch be acknowledged by then.
    """
    names = ((info.path, read_record_name(info.path)) for info in store.list(COMMITTED))
    found = {
        name[0]: path
        for path, name in names
        if name is not None and name[1] == ctx.task.operator
    }
    # In this order: a driver that still runs acknowledges an epoch before it commits it.
    last = ctx.read_last_epoch() if found else 0
    unknown = sorted(epoch for epoch in found if epoch > last)
    if not unknown:
        return
    job, step = ctx.task.job, ctx.task.operator
    known = f"knows none after {last}" if last else "has none of this job"
    writer = _read_writer(store, found[unknown[-1]])
    reason = "the checkpoints were deleted, or are not the ones that belong to this output"
    if writer not in (None, job):
        reason = f"job {writer!r} has written them"
    raise StateError(
        f"step {step!r} of job {job!r} writes to {store.url}, which lists {len(unknown)} "
        f"epoch(s) of a step of this name from {unknown[0]} to {unknown[-1]}, and the "
        f"checkpoint {known}: {reason}. Nothing was changed. Name the checkpoints that belong "
        "to the output, or write to another folder, or remove the old output to write it anew",
        code=ErrorCode.FOREIGN_OBJECT,
        operator=str(step),
        url=store.url,
    )


class _Writer(msgspec.Struct):
    """The part of a list that tells who wrote it."""

    job: str


def _read_writer(store: ObjectStore, path: str) -> str | None:
    """Return the job that wrote a list; None if that cannot be told."""
    try:
        return msgspec.json.decode(store.read(path) or b"", type=_Writer).job
    except (msgspec.MsgspecError, ValueError):
        return None
