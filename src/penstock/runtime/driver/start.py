"""Starts a job: checks that the graph fits its state, claims it, and finds where it goes on.

**Fitness** is checked before the job is claimed, so that nothing is damaged. State is kept
under the operator's name. An operator that is gone, a table that changed its kind, or a state
version that cannot be read would lose state silently. Such a start is refused, with all
problems at once, unless dropping is allowed explicitly.

A restore cannot take back the output of the epochs that it abandons; a warning names them.
"""

import logging
from collections.abc import Iterable

from penstock.core.watermark import has_ended
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.graph.logical import LogicalGraph
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import damage_while_owned, fenced_error
from penstock.runtime.driver.publish import CommittingSinks
from penstock.runtime.plan.epoch_plan import known_inputs
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.proto import state_pb2
from penstock.state.protocol.publication import CommitPermit
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    Fenced,
)
from penstock.state.protocol.restoring import RestorePlan
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import Recovered, TakenOver
from penstock.state.tables.fit import check_restorable, plan_table_restore

_log = logging.getLogger(__name__)


def check_start(
    environment: JobEnvironment, checkpoints: JobCheckpoints, restore: CheckpointRef | None
) -> None:
    """Refuse a graph that does not fit, before the claim fences a driver whose graph fits."""
    _ = environment.job, environment.tables  # raise what is wrong with the graph itself
    manifest = checkpoints.newest() if restore is None else checkpoints.manifest(restore)
    while manifest is not None:
        try:
            _check_fitness(environment, manifest)
        except CorruptStateError:
            # A driver that still runs may have collected the epoch that was the newest.
            newest = checkpoints.newest()
            if restore is not None or newest is None or newest.ref == manifest.ref:
                raise
            manifest = newest
        else:
            return


def _check_fitness(environment: JobEnvironment, manifest: CheckpointManifest) -> None:
    """Refuse a graph that cannot go on from a checkpoint; name everything that differs."""
    allow_dropped = environment.settings.allow_dropped_state
    problems: list[tuple[str, ErrorCode]] = []
    for entry in manifest.operators:
        if not entry.subtasks:
            continue
        if entry.operator in environment.tables:
            parts = environment.read_metadata(entry)
            plans = plan_table_restore(environment.tables[entry.operator], parts)
            try:
                check_restorable(entry.operator, plans, allow_dropped=allow_dropped)
            except StateError as error:
                problems.append((error.message, error.code))
        elif not allow_dropped:
            text = (
                f"operator {entry.operator!r} has state, and the graph has no such operator"
            )
            problems.append((text, ErrorCode.NO_REGISTERED_TABLE))
    if problems:
        raise StateError(
            f"the graph does not fit {manifest.ref}:\n  "
            + "\n  ".join(text for text, _ in problems)
            + "\nNothing was changed. Keep operator names and tables as they were, or allow "
            "dropping state explicitly",
            code=problems[0][1],
            job=manifest.ref.job,
            epoch=int(manifest.ref.epoch),
        )


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
        "epoch on. What other sinks have passed on cannot be taken back: its rows come again "
        "with later epochs",
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


def take_over_job(
    environment: JobEnvironment, restore: Epochs | None, sinks: CommittingSinks
) -> tuple[ClaimRecord, Recovered]:
    """Claim a job: check that the graph fits, claim, replay commits that were left open.

    The warning about a restore comes after the claim: until then the job's driver may go on.
    """
    checkpoints = environment.open_checkpoints()
    ref = None
    if restore is not None:
        plan = checkpoints.plan_restore(restore)
        _check_goes_on(environment, checkpoints, plan)
        ref = plan.ref
    check_start(environment, checkpoints, ref)
    taken = checkpoints.take_over(restore=ref)
    while isinstance(taken, TakenOver) and isinstance(taken.decision, CommitPermit):
        permit = taken.decision
        skipped: CheckpointRef | None = None
        with damage_while_owned(checkpoints, taken.claim):
            try:
                sinks.commit(permit)
                checkpoints.complete_commit(permit)
            except CorruptStateError:
                # A restore may skip an open commit that is damaged.
                if ref is None:
                    raise
                skipped = permit.ref
        taken = checkpoints.resume(taken.claim, unreplayable=skipped)
    if isinstance(taken, Fenced):
        raise fenced_error(environment.graph.job, taken)
    assert isinstance(taken.decision, Recovered)  # noqa: S101 (the loop above ended)
    if ref is not None:
        plan = checkpoints.plan_restore(Epochs(ref.epoch))
        warn_of_output(environment, checkpoints, plan)
    return taken.claim, taken.decision


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


def find_finished(environment: JobEnvironment) -> CheckpointManifest | None:
    """Return the last checkpoint of a finished job, which a start would not change; else None.

    A job whose restore was claimed, but whose next epoch was not published, is not finished.
    """
    checkpoints = environment.open_checkpoints()
    manifest = checkpoints.newest()
    if manifest is None or not has_finished(environment.graph, manifest):
        return None
    if checkpoints.is_to_be_restored(manifest):
        return None
    return manifest if checkpoints.is_committed(manifest) else None
