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
            detail = "the operator no longer declares it"
            plans.append(TablePlan(name, TableFate.DROPPED, detail))
        elif name not in stored:
            plans.append(TablePlan(name, TableFate.NEW, "it starts empty"))
        else:
            plans.append(_plan_stored(declared[name], stored[name], restored))
    return tuple(plans)


def check_restorable(
    operator: str, plans: Iterable[TablePlan], *, allow_dropped: bool = False
) -> None:
    """Refuse a start that cannot work or would silently lose state, naming every table."""
    problems = [
        f"table {plan.table!r} is {plan.fate.value}: {plan.detail}"
        for plan in plans
        if plan.fate is TableFate.INCOMPATIBLE
        or (plan.fate is TableFate.DROPPED and not allow_dropped)
    ]
    if problems:
        raise StateError(
            f"operator {operator!r} does not fit its checkpoint: {'; '.join(problems)}. Nothing "
            "was changed; declare the tables as they were, give changed ones a new name, or "
            "allow dropped tables explicitly",
            code=ErrorCode.NO_REGISTERED_TABLE,
            operator=operator,
        )


def _plan_stored(
    spec: TableSpec,
    stored: state_pb2.TableConfig,
    restored: Mapping[int, state_pb2.OperatorCheckpointMetadata],
) -> TablePlan:
    problem = _find_mismatch(spec, stored)
    if problem is not None:
        return TablePlan(spec.name, TableFate.INCOMPATIBLE, problem)
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
            return TablePlan(spec.name, TableFate.INCOMPATIBLE, str(error))
        if needed:
            migrated.append(path)
            steps.update(dict.fromkeys(str(step) for step in needed))
    if not migrated:
        return TablePlan(spec.name, TableFate.UNCHANGED, f"{len(versions)} files")
    detail = f"{len(migrated)} of {len(versions)} files by {', '.join(steps)}"
    return TablePlan(spec.name, TableFate.MIGRATED, detail, tuple(migrated))


def _migrated_type(spec: TableSpec) -> Any:
    if isinstance(spec.state_type, KeyValueTypes):
        return spec.state_type.value_type
    return spec.state_type


def _find_mismatch(spec: TableSpec, stored: state_pb2.TableConfig) -> str | None:
    """Tell why stored state cannot be read through a declaration, whatever its version."""
    if stored.table_type != spec.table_type:
        names = state_pb2.TableEnum.Name
        return f"it was a {names(stored.table_type)} and is declared a {names(spec.table_type)}"
    if stored.state_version > spec.state_version:
        return (
            f"it was written with state version {stored.state_version}, newer than the declared "
            f"{spec.state_version}"
        )
    before: Any = ErasedKind(spec.name, stored).config_message
    after: Any = ErasedKind(spec.name, spec.to_config()).config_message
    if spec.table_type == state_pb2.GLOBAL_KEYED_TABLE:
        return None
    if list(before.key_columns) != list(after.key_columns):
        return (
            f"its key columns were {list(before.key_columns)} and are declared "
            f"{list(after.key_columns)}; keys decide where state lives and cannot change"
        )
    if (
        before.arrow_schema != after.arrow_schema
        and stored.state_version == spec.state_version
    ):
        return "its columns changed without a new state version and a migration"
    return None
