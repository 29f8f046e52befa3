"""What starting an operator on a checkpoint means for each of its tables. The dry run.

Compares what the operator declares with what the checkpoint holds, before any file is
read: which tables go on unchanged, which files would be migrated by which steps, which
are new, which would be dropped, and which cannot work. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from penstock.errors import ErrorCode, StateError
from penstock.state.files.migration import plan_migration
from penstock.state.proto import state_pb2
from penstock.state.tables.compatibility import find_mismatch
from penstock.state.tables.erased import ErasedKind
from penstock.state.tables.global_keyed_files import KeyValueTypes
from penstock.state.tables.operator_tables import tables_by_name
from penstock.state.tables.specs import TableSpec


class TableFate(Enum):
    """What happens to a table."""

    UNCHANGED = "unchanged"
    MIGRATED = "migrated"
    NEW = "new"
    DROPPED = "dropped"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table's fate, with what a person needs to judge it."""

    table: str
    fate: TableFate
    detail: str
    migrated_files: tuple[str, ...] = ()
    """Files that would be migrated whenever they are read."""
    code: ErrorCode | None = None
    """Why it is refused, for programs; None for what is not."""


def plan_table_restore(
    specs: Iterable[TableSpec],
    restored: Mapping[int, state_pb2.OperatorCheckpointMetadata],
) -> tuple[TablePlan, ...]:
    """Say for every table declared or stored what would happen to it, in order of name.

    `restored` is the operator's metadata by subtask, as the checkpoint holds it.
    """
    declared = tables_by_name(specs)
    stored: dict[str, state_pb2.TableConfig] = {}
    for metadata in restored.values():
        stored.update(metadata.table_configs)
    plans = []
    for name in sorted({*declared, *stored}):
        if name not in declared:
            detail, code = (
                "the operator no longer declares it",
                ErrorCode.NO_REGISTERED_TABLE,
            )
            plans.append(TablePlan(name, TableFate.DROPPED, detail, code=code))
        elif name not in stored:
            plans.append(TablePlan(name, TableFate.NEW, "it starts empty"))
        else:
            plans.append(_plan_stored(declared[name], stored[name], restored))
    return tuple(plans)


def check_restorable(
    operator: str, plans: Iterable[TablePlan], *, allow_dropped: bool = False
) -> None:
    """Refuse a start that cannot work or would silently lose state, naming every table."""
    refused = [
        plan
        for plan in plans
        if plan.fate is TableFate.INCOMPATIBLE
        or (plan.fate is TableFate.DROPPED and not allow_dropped)
    ]
    if refused:
        problems = [f"table {p.table!r} is {p.fate.value}: {p.detail}" for p in refused]
        raise StateError(
            f"operator {operator!r} does not fit its checkpoint: {'; '.join(problems)}. Nothing "
            "was changed; declare the tables as they were, give changed ones a new name, or "
            "allow dropped tables explicitly",
            code=refused[0].code,
            operator=operator,
        )


def _plan_stored(
    spec: TableSpec,
    stored: state_pb2.TableConfig,
    restored: Mapping[int, state_pb2.OperatorCheckpointMetadata],
) -> TablePlan:
    mismatch = find_mismatch(spec, stored)
    if mismatch is not None:
        return _refused(spec, mismatch.detail, mismatch.code)
    kind = ErasedKind(spec.name, spec.to_config())
    versions: dict[str, int] = {}
    for metadata in restored.values():
        part = metadata.table_checkpoint_metadata.get(spec.name)
        if part is not None:
            versions.update((file.path, file.state_version) for file in kind.files_in(part))
    return _plan_versions(spec, versions)


def _plan_versions(spec: TableSpec, versions: Mapping[str, int]) -> TablePlan:
    steps: dict[str, None] = {}
    migrated = []
    for path, version in sorted(versions.items()):
        try:
            needed = plan_migration(version, _migrated_type(spec), table=spec.name)
        except StateError as error:
            return _refused(spec, str(error), error.code)
        if needed:
            migrated.append(path)
            steps.update(dict.fromkeys(str(step) for step in needed))
    if not migrated:
        return TablePlan(spec.name, TableFate.UNCHANGED, f"{len(versions)} files")
    detail = f"{len(migrated)} of {len(versions)} files by {', '.join(steps)}"
    return TablePlan(spec.name, TableFate.MIGRATED, detail, tuple(migrated))


def _refused(spec: TableSpec, detail: str, code: ErrorCode) -> TablePlan:
    return TablePlan(spec.name, TableFate.INCOMPATIBLE, detail, code=code)


def _migrated_type(spec: TableSpec) -> Any:
    if isinstance(spec.state_type, KeyValueTypes):
        return spec.state_type.value_type
    return spec.state_type
