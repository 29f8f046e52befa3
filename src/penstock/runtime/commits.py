"""Commits: handing every sink what an acknowledged epoch holds for it, once per operator.

Everything comes from the epoch's metadata objects, so a commit can be repeated by any later
driver. Runs on the driver only, and only with a permit.
"""

import logging
from collections.abc import Mapping

from penstock.core.ids import Epoch, OperatorId, Subtask, TaskInfo
from penstock.errors import ErrorCode, PenstockError, StateError, UserCodeError
from penstock.graph.logical import LogicalGraph
from penstock.operators.context import CommitContext
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Registry
from penstock.runtime.worker import Metadata
from penstock.state.checkpoints.backend import ParquetBackend
from penstock.state.protocol.publication import CommitPermit
from penstock.state.storage.object_store import ObjectStore

_log = logging.getLogger(__name__)

CommitData = Mapping[str, Mapping[int, bytes]]
"""By table and subtask."""


def commit_sinks(
    permit: CommitPermit,
    graph: LogicalGraph,
    registry: Registry,
    store: ObjectStore,
    *,
    identity: str,
    metadata: Mapping[OperatorId, Mapping[int, Metadata]] | None = None,
) -> int:
    """Call `handle_commit` of every operator that staged something; return how many did.

    `metadata` is that of the epoch, for who has just written it; otherwise it is read.
    Raises at the first failure: the epoch stays open and is committed again at the next
    start, all sinks of it.
    """
    backend = ParquetBackend(store)
    committed = 0
    for entry in permit.manifest.operators:
        if metadata is None:
            parts = [
                backend.read_operator_checkpoint_metadata(ref) for ref in entry.subtasks
            ]
        else:
            parts = [part for _, part in sorted(metadata.get(entry.operator, {}).items())]
        data = _commit_data(parts)
        if data:
            subtask = Subtask(0, max(1, entry.parallelism))
            task = TaskInfo(permit.ref.job, entry.operator, subtask)
            sink = _sink(entry.operator, graph, registry, permit)
            _commit(
                sink,
                permit.ref.epoch,
                data,
                CommitContext(task, store, identity),
            )
            committed += 1
    return committed


def _commit_data(metadata: list[Metadata]) -> dict[str, dict[int, bytes]]:
    found: dict[str, dict[int, bytes]] = {}
    for index, part in enumerate(metadata):
        for table, data in part.commit_data.items():
            found.setdefault(table, {})[index] = data
    return found


def _commit(
    sink: ArrowOperator, epoch: Epoch, data: CommitData, context: CommitContext
) -> None:
    operator = context.task.operator
    try:
        sink.handle_commit(epoch, data, context)
    except PenstockError as error:
        error.context.setdefault("operator", str(operator))
        error.context.setdefault("epoch", int(epoch))
        raise
    except Exception as error:
        raise UserCodeError(
            f"operator {operator!r} raised {type(error).__name__} in handle_commit of epoch "
            f"{epoch}: {error}. The epoch is acknowledged; it is committed again at the next "
            "start",
            operator=str(operator),
            epoch=int(epoch),
            hook="handle_commit",
        ) from error
    finally:
        try:
            sink.release()
        except Exception:  # noqa: BLE001 (the boundary to user code)
            _log.exception("operator %r failed in release", str(operator))


def _sink(
    operator: OperatorId, graph: LogicalGraph, registry: Registry, permit: CommitPermit
) -> ArrowOperator:
    for node in graph.nodes:
        if node.operator == operator:
            made = registry.construct(node.spec).operator
            if isinstance(made, ArrowOperator):
                return made
    raise StateError(
        f"{permit.ref} was acknowledged with output of operator {operator!r} that is not yet "
        "committed, and the graph has no such sink: start the job once with the graph it had",
        code=ErrorCode.NOT_RESTORABLE,
        operator=str(operator),
    )
