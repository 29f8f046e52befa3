"""Renamed steps: state that was kept under another name goes on under the new one.

State is found by the name of its step. A user who renames a step says so (`renamed={"old":
"new"}`). The first start after that publishes an epoch of its own, before any task runs: it holds
what its parent holds, with the new names. From then on nothing remembers the old ones, and the
same `renamed` changes nothing.

An epoch is published or it is not, so a crash leaves the job before the rename or after it. A
restore at the same time is refused: sinks learn from the first epoch after a restore, which they
take part in, which epochs were abandoned.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from penstock.core.ids import OperatorId
from penstock.errors import ErrorCode, StorageError, UserError, did_you_mean
from penstock.graph.logical import LogicalGraph
from penstock.runtime.driver.environment import JobEnvironment
from penstock.runtime.driver.outcomes import fenced_error
from penstock.state.checkpoints import JobCheckpoints, Metadata
from penstock.state.protocol.publication import LostEpoch, ReadyCheckpoint
from penstock.state.protocol.records import (
    CheckpointManifest,
    CheckpointRef,
    ClaimRecord,
    Fenced,
    OperatorEntry,
)
from penstock.state.protocol.takeover import Recovered

_PARTS_OF_STEPS = ("", "-combiner")
"""What the names of the operators that a step is made of end with."""


def find_renames(
    renamed: Mapping[str, str], graph: LogicalGraph, stored: Collection[str]
) -> dict[OperatorId, OperatorId]:
    """Return the operators of a checkpoint that go on under other names. Pure.

    A name that the checkpoint does not have was renamed before, or has no state.
    """
    steps = {str(node.operator) for node in graph.nodes}
    found: dict[OperatorId, OperatorId] = {}
    for old, new in renamed.items():
        if new not in steps:
            raise UserError(
                f"renamed says that step {old!r} is {new!r}, which the pipeline does not have"
                f"{did_you_mean(new, steps)}",
                code=ErrorCode.INVALID_CONFIG,
                operator=new,
            )
        if old in steps:
            raise UserError(
                f"renamed says that step {old!r} is {new!r}, and the pipeline has both: state "
                "can go on in one step only. Leave it out of renamed, or remove one of them",
                code=ErrorCode.INVALID_CONFIG,
                operator=old,
            )
        for part in _PARTS_OF_STEPS:
            before, after = f"{old}{part}", f"{new}{part}"
            if before in stored and after not in stored and after in steps:
                found[OperatorId(before)] = OperatorId(after)
    return found


def rename_entries(
    manifest: CheckpointManifest, renames: Mapping[OperatorId, OperatorId]
) -> tuple[OperatorEntry, ...]:
    """Return the operators of a manifest under their new names. Pure."""
    return tuple(
        replace(
            entry,
            operator=renames.get(entry.operator, entry.operator),
            input_watermarks=tuple(
                replace(known, producer=_rename_producer(known.producer, renames))
                for known in entry.input_watermarks
            ),
        )
        for entry in manifest.operators
    )


def _rename_producer(producer: str, renames: Mapping[OperatorId, OperatorId]) -> str:
    for old, new in renames.items():
        if producer.startswith(f"{old}."):
            return f"{new}{producer.removeprefix(old)}"
    return producer


def rename_metadata(
    parts: Mapping[int, Metadata], operator: OperatorId
) -> dict[int, Metadata]:
    """Return an operator's metadata under another name, without what was to be committed."""
    found = {}
    for index, part in parts.items():
        renamed = Metadata()
        renamed.CopyFrom(part)
        renamed.operator_metadata.operator_id = operator
        renamed.commit_data.clear()
        found[index] = renamed
    return found


def restored_and_renamed(
    ref: CheckpointRef, renames: Mapping[OperatorId, OperatorId]
) -> UserError:
    """Return the error of a start that goes back to an epoch and renames its steps at once."""
    names = ", ".join(f"{old!r} to {new!r}" for old, new in renames.items())
    return UserError(
        f"a start cannot go back to epoch {ref.epoch} of job {ref.job!r} and rename steps "
        f"({names}) at once. Start the job with the old names first, until it has published "
        "an epoch, then with the new ones",
        code=ErrorCode.INVALID_CONFIG,
        job=str(ref.job),
    )


def rename_base(
    environment: JobEnvironment,
    checkpoints: JobCheckpoints,
    claim: ClaimRecord,
    start: Recovered,
) -> Recovered:
    """Publish the epoch that holds the base under new names, if there is something to rename."""
    if start.base is None or not environment.settings.renamed:
        return start
    base = checkpoints.manifest(start.base.ref)
    names = [str(entry.operator) for entry in base.operators]
    renames = find_renames(environment.settings.renamed, environment.graph, names)
    if not renames:
        return start
    if start.restore is not None:
        raise restored_and_renamed(start.base.ref, renames)
    ref = CheckpointRef(claim.job, claim.generation, start.next_epoch)
    entries = []
    for entry, before in zip(rename_entries(base, renames), base.operators, strict=True):
        subtasks = entry.subtasks
        if entry.operator != before.operator:
            parts = rename_metadata(environment.read_metadata(before), entry.operator)
            write = environment.backend.write_operator_checkpoint_metadata
            calls = [partial(write, ref, parts[index]) for index in sorted(parts)]
            subtasks = tuple(environment.side_work.run_all(calls))
        entries.append(replace(entry, subtasks=subtasks))
    manifest = CheckpointManifest(
        ref,
        base.ref,
        environment.clock.now_micros(),
        base.processing_time_micros,
        needs_commit=False,
        operators=tuple(entries),
    )
    outcome = checkpoints.publish(claim, manifest, start.base)
    if isinstance(outcome, Fenced):
        raise fenced_error(claim.job, outcome)
    if isinstance(outcome, LostEpoch):
        raise StorageError(
            f"epoch {ref.epoch} of job {claim.job!r} was published by another driver while "
            "steps were being renamed; it is tried again on top of it",
            code=ErrorCode.TORN_EPOCH,
            job=str(claim.job),
        )
    return Recovered(ReadyCheckpoint(ref), ref.epoch.next())
