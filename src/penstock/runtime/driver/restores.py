"""Restores: which epoch a start goes back to, and what it tells about output that has left.

A program may name the epoch to restore, and be started again and again. So a restore is done
once: if the job was last restored to that very epoch, it goes on instead.

A restore cannot take back the output of the epochs that it abandons; a warning names them.
"""

import logging
from collections.abc import Iterable

from penstock.core.watermark import has_ended
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.graph.logical import LogicalGraph
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.plan.epoch_plan import known_inputs
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef
from penstock.state.protocol.restoring import RestorePlan
from penstock.state.protocol.retention import Epochs

_log = logging.getLogger(__name__)


def is_done(checkpoints: JobCheckpoints, restore: Epochs) -> bool:
    """Return whether a program was the last to restore this very epoch, or to ask for it."""
    last = checkpoints.last_restore()
    if last is None:
        return False
    if restore.number is not None:  # known by its number, even if it is not kept any more
        return last.epoch == restore.number
    return checkpoints.plan_restore(restore).ref == last


def tell_done(checkpoints: JobCheckpoints, restore: Epochs) -> str | None:
    """Return why a restore is not done again; None if it is still in force, and so will be."""
    last = checkpoints.last_restore()
    base = checkpoints.base()
    if last is None or base is None or base == last:
        return None
    named = repr(str(restore.savepoint)) if restore.savepoint else str(last.epoch)
    return (
        f"restore={named} is not done again: job {str(last.job)!r} was restored to epoch "
        f"{last.epoch} before, and goes on from epoch {base.epoch}. To go back once more, call "
        f"restore({named}) of pen.checkpoints(…)"
    )


def find_restored(
    environment: JobEnvironment, checkpoints: JobCheckpoints, restore: Epochs | None
) -> CheckpointRef | None:
    """Return the checkpoint that a start has to go back to; None if it goes on."""
    if restore is None:
        return None
    plan = checkpoints.plan_restore(restore)
    _check_goes_on(environment, checkpoints, plan)
    return plan.ref


def _check_goes_on(
    environment: JobEnvironment, checkpoints: JobCheckpoints, plan: RestorePlan
) -> None:
    """Refuse to go back to a finished epoch: no epoch would follow to record the restore."""
    ends = has_finished(environment.graph, checkpoints.manifest(plan.ref))
    if ends and plan.abandoned:
        raise StateError(
            f"job {plan.ref.job!r} had ended with epoch {plan.ref.epoch}: no epoch would follow "
            "it, so going back to it would change nothing. Restore an earlier epoch",
            code=ErrorCode.NOT_RESTORABLE,
            job=plan.ref.job,
            epoch=int(plan.ref.epoch),
        )


def has_finished(graph: LogicalGraph, manifest: CheckpointManifest | None) -> bool:
    """Return whether a graph has nothing left to do after a checkpoint."""
    if manifest is None:
        return False
    inputs = known_inputs(graph, manifest)
    return all(has_ended(inputs[node.operator]) for node in graph.nodes if node.inputs)


def warn_of_output(
    environment: JobEnvironment, checkpoints: JobCheckpoints, plan: RestorePlan
) -> None:
    """Name the abandoned epochs whose sinks have committed something. Changes nothing."""
    epochs = [ref.epoch for ref in plan.abandoned if _has_output(checkpoints, ref)]
    if not epochs:
        return
    sinks = dict.fromkeys(
        name
        for name, tables in environment.tables.items()
        for spec in tables
        if spec.table_type == state_pb2.GLOBAL_KEYED_TABLE
        and state_pb2.GlobalKeyedTableConfig.FromString(spec.config).uses_two_phase_commit
    )
    _log.warning(
        "epoch %s of job %s is restored: epoch(s) %s%s are abandoned, and their output has left "
        "the job by its sinks%s. Files sinks leave it out of their lists from the next committed "
        "epoch on, and Delta sinks take it out of their tables. What other sinks have passed on "
        "cannot be taken back: its rows come again with later epochs",
        plan.ref.epoch,
        plan.ref.job,
        format_epochs(epochs),
        "" if plan.complete else ", and perhaps others whose records are gone,",
        "".join(f" {name!r}" for name in sinks),
        extra={"job": str(plan.ref.job), "epoch": int(plan.ref.epoch)},
    )


def format_epochs(epochs: Iterable[int]) -> str:
    """Return numbers as text, neighbours as ranges.

    >>> format_epochs([5, 4, 3, 7])
    '3 to 5, 7'
    """
    ranges: list[tuple[int, int]] = []
    for epoch in sorted(epochs):
        if ranges and epoch == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], epoch)
        else:
            ranges.append((epoch, epoch))
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)


def _has_output(checkpoints: JobCheckpoints, ref: CheckpointRef) -> bool:
    """Return whether an epoch had something to commit; True if it cannot be read."""
    try:
        return checkpoints.manifest(ref).needs_commit
    except CorruptStateError:
        return True
