"""What a restore cannot take back: output of the epochs that it abandons, told as a warning."""

import logging
from collections.abc import Iterable, Sequence

from penstock.core.ids import OperatorId
from penstock.errors import CorruptStateError
from penstock.runtime.environment import JobEnvironment
from penstock.state.checkpoints.job_checkpoints import JobCheckpoints
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import CheckpointRef
from penstock.state.protocol.restoring import RestorePlan
from penstock.state.tables.specs import TableSpec

_log = logging.getLogger(__name__)


def warn_of_output(
    environment: JobEnvironment, checkpoints: JobCheckpoints, plan: RestorePlan
) -> None:
    """Name the abandoned epochs whose sinks have committed something. Changes nothing."""
    epochs = [ref.epoch for ref in plan.abandoned if _has_output(checkpoints, ref)]
    if not epochs:
        return
    _log.warning(
        "epoch %s of job %s is restored: epoch(s) %s%s are abandoned, and their output has left "
        "the job by its sinks%s. Files sinks leave it out of their lists from the next committed "
        "epoch on. What other sinks have passed on cannot be taken back: its rows come again "
        "with later epochs",
        plan.ref.epoch,
        plan.ref.job,
        format_epochs(epochs),
        "" if plan.complete else ", and perhaps others whose records are gone,",
        "".join(f" {name!r}" for name in _find_sinks(environment)),
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
    """Tell whether an epoch had something to commit; one that cannot be read may have had."""
    try:
        return checkpoints.manifest(ref).needs_commit
    except CorruptStateError:
        return True


def _find_sinks(environment: JobEnvironment) -> list[OperatorId]:
    """Return the operators of the graph that commit something."""
    return [name for name, tables in environment.tables.items() if _is_sink(tables)]


def _is_sink(tables: Sequence[TableSpec]) -> bool:
    return any(
        spec.table_type == state_pb2.GLOBAL_KEYED_TABLE
        and state_pb2.GlobalKeyedTableConfig.FromString(spec.config).uses_two_phase_commit
        for spec in tables
    )
