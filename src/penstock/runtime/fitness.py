"""Whether a graph fits a checkpoint: asked before the job is claimed, so that nothing is damaged.

State is kept under the operator's name. An operator that is gone, a table that changed its
kind, or a state version nobody can read would lose state silently: it is refused, all
problems at once, unless dropping is allowed explicitly.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from penstock.core.ids import OperatorId
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.graph.logical import LogicalGraph
from penstock.runtime.environment import JobEnvironment
from penstock.runtime.worker import Metadata
from penstock.state.checkpoints.backend import ParquetBackend
from penstock.state.checkpoints.job_checkpoints import JobCheckpoints
from penstock.state.protocol.records import CheckpointManifest, CheckpointRef
from penstock.state.tables.restore_plan import check_restorable, plan_table_restore
from penstock.state.tables.specs import TableSpec

TablesOf: TypeAlias = Mapping[OperatorId, tuple[TableSpec, ...]]


def check_start(
    environment: JobEnvironment, checkpoints: JobCheckpoints, restore: CheckpointRef | None
) -> None:
    """Refuse a graph that does not fit, before the claim fences a driver whose graph does."""
    environment.check_graph()
    tables = environment.tables
    manifest = checkpoints.newest() if restore is None else checkpoints.manifest(restore)
    while manifest is not None:
        try:
            _check(environment, tables, manifest)
        except CorruptStateError:
            # A driver that still runs may have given up what was the newest epoch.
            newest = checkpoints.newest()
            if restore is not None or newest is None or newest.ref == manifest.ref:
                raise
            manifest = newest
        else:
            return


def _check(
    environment: JobEnvironment, tables: TablesOf, manifest: CheckpointManifest
) -> None:
    entries = {entry.operator: entry.subtasks for entry in manifest.operators}
    backend = ParquetBackend(environment.store)
    check_fitness(
        environment.graph,
        tables,
        manifest,
        lambda operator: {
            index: backend.read_operator_checkpoint_metadata(ref)
            for index, ref in enumerate(entries[operator])
        },
        allow_dropped=environment.settings.allow_dropped_state,
    )


def check_fitness(
    graph: LogicalGraph,
    tables: TablesOf,
    manifest: CheckpointManifest,
    read_metadata: Callable[[OperatorId], Mapping[int, Metadata]],
    *,
    allow_dropped: bool = False,
) -> None:
    """Refuse a graph that cannot go on from a checkpoint, naming everything that differs."""
    problems: list[str] = []
    codes: list[ErrorCode] = []
    known = {node.operator for node in graph.nodes}
    for entry in manifest.operators:
        if not entry.subtasks:
            continue
        if entry.operator not in known:
            if not allow_dropped:
                problems.append(
                    f"operator {entry.operator!r} has state, and the graph has no such operator"
                )
                codes.append(ErrorCode.NO_REGISTERED_TABLE)
            continue
        plans = plan_table_restore(tables[entry.operator], read_metadata(entry.operator))
        try:
            check_restorable(entry.operator, plans, allow_dropped=allow_dropped)
        except StateError as error:
            problems.append(error.message)
            codes.append(error.code)
    if problems:
        raise StateError(
            f"the graph does not fit {manifest.ref}:\n  "
            + "\n  ".join(problems)
            + "\nNothing was changed. Keep operator names and tables as they were, or allow "
            "dropping state explicitly",
            code=codes[0],
            job=manifest.ref.job,
            epoch=int(manifest.ref.epoch),
        )
