"""Starting a job: does the graph fit, whose is the job, where does it go on, is it over already?"""

from penstock.core.ids import OperatorId
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.graph.logical import LogicalGraph
from penstock.operators.watermarks import has_ended
from penstock.runtime.abandoned_output import warn_of_output
from penstock.runtime.commits import commit_sinks
from penstock.runtime.environment import JobEnvironment
from penstock.runtime.fitness import check_start
from penstock.runtime.input_watermarks import known_inputs
from penstock.runtime.ownership import damage_while_owned, fenced_error
from penstock.runtime.worker import Metadata
from penstock.state.checkpoints.backend import ParquetBackend
from penstock.state.checkpoints.job_checkpoints import JobCheckpoints
from penstock.state.protocol.pinning import Epochs
from penstock.state.protocol.publication import CommitPermit
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef, ClaimRecord
from penstock.state.protocol.recovery import Recovered, ReplayCommit
from penstock.state.protocol.restoring import RestorePlan
from penstock.state.protocol.status import Fenced
from penstock.state.protocol.takeover import TakenOver


def take_over_job(
    environment: JobEnvironment, restore: Epochs | None
) -> tuple[ClaimRecord, Recovered]:
    """Claim a job: check that the graph fits, claim, replay commits that were left open.

    What a restore abandons is told when the job is claimed: until then its driver may go on.
    """
    checkpoints = checkpoints_of(environment)
    ref = None
    if restore is not None:
        plan = checkpoints.plan_restore(restore)
        _check_goes_on(environment, checkpoints, plan)
        ref = plan.ref
    check_start(environment, checkpoints, ref)
    taken = checkpoints.take_over(restore=ref)
    while isinstance(taken, TakenOver) and isinstance(taken.decision, ReplayCommit):
        permit = taken.decision.permit
        with damage_while_owned(checkpoints, taken.claim):
            skipped = _replay(environment, checkpoints, permit, or_skip=ref is not None)
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
    """Refuse to go back to an end of the job: no epoch would follow to say so."""
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
    """Tell whether a graph has nothing left to do after a checkpoint."""
    if manifest is None:
        return False
    inputs = known_inputs(graph, manifest)
    return all(has_ended(inputs[node.operator]) for node in graph.nodes if node.inputs)


def find_finished(environment: JobEnvironment) -> CheckpointManifest | None:
    """Return the last checkpoint of a job that is over: starting it again changes nothing.

    One that was asked to go back, and died before its next epoch, is not over.
    """
    checkpoints = checkpoints_of(environment)
    manifest = checkpoints.newest()
    if manifest is None or not has_finished(environment.graph, manifest):
        return None
    if checkpoints.is_to_be_restored(manifest):
        return None
    return manifest if checkpoints.is_committed(manifest) else None


def read_metadata(
    environment: JobEnvironment, manifest: CheckpointManifest | None
) -> dict[OperatorId, dict[int, Metadata]]:
    """Read the metadata of every subtask of every operator."""
    backend = ParquetBackend(environment.store)
    return {
        entry.operator: {
            index: backend.read_operator_checkpoint_metadata(ref)
            for index, ref in enumerate(entry.subtasks)
        }
        for entry in (() if manifest is None else manifest.operators)
    }


def checkpoints_of(environment: JobEnvironment) -> JobCheckpoints:
    """Return the checkpoints of the environment's job."""
    return JobCheckpoints(
        environment.store,
        environment.graph.job,
        environment.clock,
        environment.settings.rules,
    )


def _replay(
    environment: JobEnvironment,
    checkpoints: JobCheckpoints,
    permit: CommitPermit,
    *,
    or_skip: bool,
) -> CheckpointRef | None:
    """Commit what an earlier driver left open; a restore may pass over what is damaged."""
    try:
        commit_sinks(
            permit,
            environment.graph,
            environment.registry,
            environment.store,
            identity=checkpoints.identity() or "",
        )
        checkpoints.complete_commit(permit)
    except CorruptStateError:
        if not or_skip:
            raise
        return permit.ref
    return None
