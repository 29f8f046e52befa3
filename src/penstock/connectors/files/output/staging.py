"""Staging: what sinks do alike with output that nobody sees before its commit.

Rows of an epoch are staged in objects that no reader looks at, whose names are drawn at random.
Subtasks name them in their commit data, which the checkpoint holds under `STAGED`. When the epoch
is acknowledged, whoever commits it decodes that, makes the output visible, and removes what was
staged.

A restore goes back to an older epoch, and the epochs after it are abandoned: their rows come
again under new numbers. Nothing is written at the restore itself. The first epoch after it
finds by its parent which epochs it does not descend from, and every commit from then on names
them:

    epoch    1   2   3   4   5   restore of 2   6                  7
    parent       1   2   3   4                  2                  6
    commit                                      abandoned [3, 6)   abandoned [3, 6)

A sink keeps the ranges in its state. A later restore brings back the ranges of its epoch, so
undoing a restore needs nothing more.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from penstock.connectors.files.committed import EpochRange
from penstock.connectors.files.names import read_staged_name, staging_folder
from penstock.core.ids import Epoch, TaskInfo
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    StorageError,
    UnknownOutcomeError,
)
from penstock.operators.context import CommitContext, OperatorContext
from penstock.state.storage.create import create_own
from penstock.state.storage.object_store import ObjectStore

STAGED = "staged"
"""The table whose commit data names what was staged in an epoch."""
ABANDONED = "abandoned"
"""The table of abandoned epochs: its keys are the ends of the ranges, its values their starts."""

StagedT = TypeVar("StagedT")

_log = logging.getLogger(__name__)


def create_staged(
    store: ObjectStore, path: str, data: bytes, *, others: str = "below _staging"
) -> None:
    """Create an object whose name is drawn at random; `others` says what nobody else may write."""
    if create_own(store, path, data) is not None:
        raise StorageError(
            f"{path!r} in {store.url} was to be created and holds something else: its name is "
            f"drawn at random, so something else writes {others}. Keep it away",
            code=ErrorCode.FOREIGN_OBJECT,
            path=path,
        )


def decode_subtasks(
    commit_data: Mapping[int, bytes],
    epoch: Epoch,
    ctx: CommitContext,
    *,
    decode: Callable[[bytes], StagedT],
    sink: str,
) -> list[StagedT]:
    """Return what the subtasks staged in an epoch, in their order, from their commit data."""
    try:
        return [decode(commit_data[index]) for index in sorted(commit_data)]
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptStateError(
            f"the commit data of {ctx.task.operator!r} in epoch {epoch} is not what a {sink} sink "
            f"writes there: {error}. Restore the object if something changed it; nothing was "
            "changed now",
            code=ErrorCode.UNDECODABLE,
        ) from error


def tidy_staging(
    store: ObjectStore, task: TaskInfo, epoch: int, staged: Iterable[str] = ()
) -> None:
    """Remove what a sink staged up to this epoch; what cannot be removed is left for later.

    The objects in `staged` are removed first: a listing may not show them yet.
    """
    try:
        for path in staged:
            store.delete(path)
        for info in store.list(staging_folder(task.job)):
            found = read_staged_name(info.path)
            if found is not None and found[0] <= epoch and found[1] == task.operator:
                store.delete(info.path)
    except (StorageError, UnknownOutcomeError) as error:
        _log.warning(
            "files staged up to epoch %s could not all be removed; a later commit tries "
            "again: %s",
            epoch,
            error,
            extra={"job": str(task.job), "operator": str(task.operator), "epoch": epoch},
        )


def find_abandoned(ctx: OperatorContext) -> tuple[EpochRange, ...]:
    """Return the epochs before this one that it does not descend from; store new ones.

    The first epoch after a restore is the end of a new range.
    """
    table = ctx.get_global_keyed_state(ABANDONED)
    known: set[EpochRange] = {(start, end) for end, start in table.items()}
    if ctx.parent is not None and ctx.parent + 1 < ctx.epoch:
        start, end = int(ctx.parent) + 1, int(ctx.epoch)
        known.add((start, end))
        if ctx.task.subtask.index == 0:
            table.insert(end, start)
    return tuple(sorted(known))
