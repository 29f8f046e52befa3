"""Starts a job: checks that the graph fits its state, claims it, and finds where it goes on.

All that a start can be refused for is found by `inspect_start` before the job is claimed, so
that nothing is damaged and a driver that runs is not disturbed: whether the state fits
(`fitness`), and what sources and sinks themselves have against it. `Pipeline.check` shows the
same.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from penstock.core.clock import new_token
from penstock.core.ids import OperatorId, Subtask, TaskInfo
from penstock.errors import CorruptStateError, PenstockError, StateError, UserError
from penstock.graph.logical import Node
from penstock.operators.context import StartContext
from penstock.operators.operator import (
    ArrowOperator,
    SourceOperator,
    splits_table,
)
from penstock.operators.secret_options import find_secrets
from penstock.operators.splits import SplitState
from penstock.operators.user_functions import to_failure
from penstock.runtime.driver.committing import CommittingSinks
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.fitness import (
    Fate,
    StartCheck,
    decide_fates,
    misfit_error,
    shown_time,
)
from penstock.runtime.driver.outcomes import fenced_error
from penstock.runtime.driver.policies import is_transient
from penstock.runtime.driver.renames import (
    find_renames,
    rename_metadata,
    restored_and_renamed,
)
from penstock.runtime.driver.restores import (
    find_restored,
    has_finished,
    is_done,
    tell_done,
    warn_of_output,
)
from penstock.state.checkpoints import JobCheckpoints, Metadata
from penstock.state.protocol.publication import CommitPermit
from penstock.state.protocol.records import (
    FIRST_GENERATION,
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    Fenced,
)
from penstock.state.protocol.retention import Epochs
from penstock.state.protocol.takeover import Recovered, TakenOver
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import Frontier, TableEnvironment
from penstock.state.tables.table_manager import TableManager

_log = logging.getLogger(__name__)


def check_start(
    environment: JobEnvironment, checkpoints: JobCheckpoints, restore: CheckpointRef | None
) -> None:
    """Refuse a start that cannot work, before the claim fences a driver that can."""
    inspect_start(environment, checkpoints, restore).require()


def preview_start(environment: JobEnvironment, restore: Epochs | None) -> StartCheck:
    """Return what a start would do, as a value: it claims and changes nothing."""
    checkpoints = environment.open_checkpoints()
    notes = []
    try:
        if restore is not None and is_done(checkpoints, restore):
            notes = [tell_done(checkpoints, restore) or ""]
            restore = None
        ref = find_restored(environment, checkpoints, restore)
    except StateError as error:
        return StartCheck(str(environment.graph.job), None, problems=(error,))
    check = inspect_start(environment, checkpoints, ref)
    notes += _notes(environment, checkpoints, ref)
    return replace(check, notes=tuple(filter(None, notes)))


def prepare_restore(environment: JobEnvironment, restore: Epochs | None) -> Epochs | None:
    """Return what is still to be restored: a restore that was done before is left out."""
    checkpoints = environment.open_checkpoints()
    if restore is None or not is_done(checkpoints, restore):
        return restore
    _warn_of_done(checkpoints, restore)
    return None


def _warn_of_done(checkpoints: JobCheckpoints, restore: Epochs) -> None:
    if (told := tell_done(checkpoints, restore)) is not None:
        _log.warning("%s", told, extra={"job": str(checkpoints.job)})


def warn_of_running(environment: JobEnvironment) -> None:
    """Warn, before the claim, of a driver that may still run. It is no proof, so no decision."""
    told = _tell_running(environment, environment.open_checkpoints())
    if told is not None:
        _log.warning("%s", told, extra={"job": str(environment.graph.job)})


def _tell_running(environment: JobEnvironment, checkpoints: JobCheckpoints) -> str | None:
    claim = checkpoints.running()
    if claim is None:
        return None
    try:
        newest = checkpoints.newest()
    except CorruptStateError:
        newest = None  # a restore may be about to abandon it
    last = max(claim.created_at_micros, 0 if newest is None else newest.created_at_micros)
    seconds = max(0, environment.clock.now_micros() - last) // 1_000_000
    return (
        f"another driver of job {str(claim.job)!r} (generation {claim.generation}, claimed "
        f"{shown_time(claim.created_at_micros)}) has not said that it ended; its last sign is "
        f"{seconds} s old. It has died, or it still runs: then a start takes the job over, and "
        "it stops"
    )


def _notes(
    environment: JobEnvironment, checkpoints: JobCheckpoints, restore: CheckpointRef | None
) -> Iterator[str]:
    """Yield what else somebody should know before a start."""
    running = _tell_running(environment, checkpoints)
    if running is not None:
        yield running
    base = checkpoints.base(restore=restore)
    if base is None:
        return
    if base.epoch != checkpoints.last_epoch():
        if restore is None:
            yield f"epoch {base.epoch} is restored: an earlier start has asked for that"
    elif has_finished(environment.graph, checkpoints.newest()):
        yield "the job has finished: a start changes nothing"


def inspect_start(
    environment: JobEnvironment,
    checkpoints: JobCheckpoints,
    restore: CheckpointRef | None = None,
) -> StartCheck:
    """Return what a start would do and all it would be refused for. This only reads."""
    _ = environment.job, environment.tables  # raise what is wrong with the graph itself
    ref = checkpoints.base(restore=restore)
    while True:
        try:
            manifest = None if ref is None else checkpoints.manifest(ref)
            is_restored = ref is not None and (
                ref == restore or ref.epoch != checkpoints.last_epoch()
            )
            return _inspect(environment, checkpoints, manifest, is_restored=is_restored)
        except CorruptStateError:
            # A driver that still runs may have collected the epoch that was the newest.
            before, ref = ref, checkpoints.base(restore=restore)
            if ref == before:
                raise


def _inspect(
    environment: JobEnvironment,
    checkpoints: JobCheckpoints,
    manifest: CheckpointManifest | None,
    *,
    is_restored: bool,
) -> StartCheck:
    settings, problems = environment.settings, list[PenstockError]()
    entries = () if manifest is None else manifest.operators
    renames: dict[OperatorId, OperatorId] = {}
    try:
        names = [str(entry.operator) for entry in entries]
        renames = find_renames(settings.renamed, environment.graph, names)
        if renames and manifest is not None and is_restored:
            raise restored_and_renamed(manifest.ref, renames)
    except UserError as error:
        problems.append(error)
    stored = {}
    for entry in entries:
        if entry.subtasks:
            parts, name = environment.read_metadata(entry), renames.get(entry.operator)
            stored[name or entry.operator] = rename_metadata(parts, name) if name else parts
    states = decide_fates(
        environment.tables,
        stored,
        allow_dropped=settings.allow_dropped_state,
        renamed={new: old for old, new in renames.items()},
    )
    if manifest is not None and (misfit := misfit_error(manifest, states)) is not None:
        problems.insert(0, misfit)
    unfit = {state.step for state in states if state.fate is Fate.REFUSED}
    for node in environment.graph.nodes:
        if node.operator not in unfit:
            problems += _ask(environment, checkpoints, node, stored.get(node.operator, {}))
    return StartCheck(
        str(environment.graph.job),
        None if manifest is None else int(manifest.ref.epoch),
        None if manifest is None else manifest.created_at_micros,
        states,
        tuple(problems),
    )


def _ask(
    environment: JobEnvironment,
    checkpoints: JobCheckpoints,
    node: Node,
    parts: Mapping[int, Metadata],
) -> Iterator[PenstockError]:
    """Yield what a source or sink itself has against a start; a failure that may pass is raised."""
    unreadable = list(_check_secrets(node))
    if unreadable:
        yield from unreadable
        return
    made = environment.registry.construct(node.spec).operator
    is_source, step = isinstance(made, SourceOperator), str(node.operator)
    hook = "check_splits" if is_source else "check_output"
    if getattr(type(made), hook) in (
        SourceOperator.check_splits,
        ArrowOperator.check_output,
    ):
        return  # it has nothing to check
    known = read_splits(environment, node.operator, parts) if is_source else {}
    unread: list[CorruptStateError] = []

    def read(spec: TableSpec) -> Mapping[Any, Any]:
        try:
            return _read_global(environment, node.operator, parts, spec)
        except CorruptStateError as error:
            unread.append(error)
            raise

    try:
        if isinstance(made, SourceOperator):
            made.check_splits(known)
        else:
            subtask = Subtask(0, node.parallelism)
            task = TaskInfo(environment.graph.job, node.operator, subtask)
            identity = checkpoints.identity()
            made.check_output(
                StartContext(task, identity, checkpoints.last_epoch, node.inputs, read)
            )
    except Exception as error:  # noqa: BLE001 (the boundary to user code)
        if unread:  # the epoch may have been collected meanwhile: see `inspect_start`
            raise unread[0] from None
        message = f"step {step!r} raised {type(error).__name__} in {hook}: {error}"
        failure = to_failure(error, message, operator=step, hook=hook)
        if is_transient(failure):
            raise failure from failure.__cause__
        yield failure
    finally:
        _release(made, step)


def _check_secrets(node: Node) -> Iterator[PenstockError]:
    """Yield which secrets of a step the driver cannot read; it connects only after the start."""
    step = str(node.operator)
    for secret in find_secrets(node.spec.config):
        try:
            secret.read()
        except PenstockError as error:
            message = f"{secret!r} of step {step!r} cannot be read: {error.message}"
            facts = {**error.context, "operator": step}
            failure = type(error)(message, code=error.code, **facts)
            if is_transient(failure):
                raise failure from None
            yield failure


def _release(made: ArrowOperator | SourceOperator, step: str) -> None:
    try:
        made.release()
    except Exception:  # noqa: BLE001 (the boundary to user code)
        _log.exception("operator %r failed in release", step)


def read_splits(
    environment: JobEnvironment, operator: OperatorId, parts: Mapping[int, Metadata]
) -> dict[str, SplitState]:
    """Read how far a source has come by the metadata of a checkpoint; it needs no claim."""
    return _read_global(environment, operator, parts, splits_table())


def _read_global(
    environment: JobEnvironment,
    operator: OperatorId,
    parts: Mapping[int, Metadata],
    spec: TableSpec,
) -> dict[Any, Any]:
    if not parts:
        return {}
    task = TaskInfo(environment.graph.job, operator, Subtask(0, 1))
    tables = TableEnvironment(
        task, FIRST_GENERATION, new_token(), environment.store, environment.cache
    )
    manager = TableManager.load(tables, [spec], parts, allow_dropped=True)
    with closing(manager):
        manager.begin_epoch(Frontier())
        return dict(manager.get_global_keyed_state(spec.name).items())


def take_over_job(
    environment: JobEnvironment,
    restore: Epochs | None,
    sinks: CommittingSinks,
    *,
    is_last_attempt: bool = False,
) -> tuple[ClaimRecord, Recovered]:
    """Claim a job: check that the graph fits, claim, replay commits that were left open.

    A commit that fails does not block a restore: an error that may pass is raised, to be tried
    again, unless this is the last attempt. The warning about a restore comes after the claim:
    until then the job's driver may go on.
    """
    checkpoints = environment.open_checkpoints()
    ref = find_restored(environment, checkpoints, restore)
    check = inspect_start(environment, checkpoints, ref)
    check.require()
    taken = checkpoints.take_over(restore=ref)
    if isinstance(taken, Fenced):
        raise fenced_error(environment.graph.job, taken)
    if restore is not None and taken.claim.restore is None:
        _warn_of_done(checkpoints, restore)  # another start has asked for it meanwhile
    with leaving_if_it_fails(checkpoints, taken.claim):
        decision = _replay_commits(
            checkpoints, taken, sinks, is_last_attempt=is_last_attempt
        )
    request = decision.restore
    if request is not None and request.restore is not None:
        plan = checkpoints.plan_restore(Epochs(request.restore.epoch))
        warn_of_output(environment, checkpoints, plan)
    for state in check.states:
        if state.is_news:
            _log.warning("job %s goes on: %s", check.job, state, extra={"job": check.job})
    return taken.claim, decision


def _replay_commits(
    checkpoints: JobCheckpoints,
    taken: TakenOver | Fenced,
    sinks: CommittingSinks,
    *,
    is_last_attempt: bool,
) -> Recovered:
    """Commit what is left open, and return where a driver goes on that has claimed the job."""
    while isinstance(taken, TakenOver) and isinstance(taken.decision, CommitPermit):
        permit, failure = taken.decision, None
        try:
            sinks.commit(permit)
            checkpoints.complete_commit(permit)
        except PenstockError as error:
            if is_transient(error) and not is_last_attempt:
                raise
            failure = error
        skipped = None if failure is None else permit.ref
        taken = checkpoints.resume(taken.claim, unreplayable=skipped)
        if failure is not None and isinstance(taken, TakenOver):
            if isinstance(taken.decision, CommitPermit):
                raise failure  # no restore is in force, so the commit cannot be skipped
            _warn_of_skipped(permit.ref, failure)
    if isinstance(taken, Fenced):
        raise fenced_error(checkpoints.job, taken)
    assert isinstance(taken.decision, Recovered)  # noqa: S101 (the loop above ended)
    return taken.decision


@contextmanager
def leaving_if_it_fails(checkpoints: JobCheckpoints, claim: ClaimRecord) -> Iterator[None]:
    """Note that a driver has ended whose start fails behind its claim; it may start again."""
    try:
        yield
    except Exception:
        leave(checkpoints, claim)
        raise


def leave(checkpoints: JobCheckpoints, claim: ClaimRecord) -> None:
    """Note that a driver has ended. It may fail: a successor is then warned for nothing."""
    try:
        checkpoints.leave(claim)
    except PenstockError as error:
        _log.debug("that the driver has ended could not be noted: %s", error)


def _warn_of_skipped(ref: CheckpointRef, failure: PenstockError) -> None:
    _log.warning(
        "epoch %s of job %s could not be committed, and the restore goes on without it: a part "
        "of its output may have left the job. The commit failed with: %s",
        ref.epoch,
        ref.job,
        failure,
        extra={"job": str(ref.job), "epoch": int(ref.epoch)},
    )


def find_finished(environment: JobEnvironment) -> CheckpointManifest | None:
    """Return the last checkpoint of a finished job, which a start would not change; else None.

    A pipeline that does not fit is refused as if the job were not finished. A job whose restore
    was claimed, but whose next epoch was not published, is not finished.
    """
    checkpoints = environment.open_checkpoints()
    base = checkpoints.base()
    # The newest epoch is not even read if a restore abandons it: it may be damaged.
    if base is None or base.epoch != checkpoints.last_epoch():
        return None
    manifest = checkpoints.newest()
    if manifest is None or not has_finished(environment.graph, manifest):
        return None
    if manifest.ref != base or not checkpoints.is_committed(manifest):
        return None
    check_start(environment, checkpoints, None)
    return manifest
