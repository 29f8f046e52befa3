"""Whether an operator's declared tables fit its checkpoint, and what a start does to each.

Pure, and the dry run of a start: it compares what the operator declares with what the
checkpoint holds, before any file is read. The result says which tables go on unchanged, which
files would be migrated by which steps, which tables are new, which would be dropped, and
which cannot work.

Declarations are compared by kind, version, keys, columns and clock. How a library encodes a
schema, the order of columns and their memory layout do not count, because a table can read
rows of either form.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from penstock.core.arrow_types import have_same_values
from penstock.core.figures import show_count, show_duration
from penstock.errors import ErrorCode, StateError
from penstock.state.files.migration import plan_migration, resolve_chain
from penstock.state.proto import state_pb2
from penstock.state.tables.column_groups import (
    ColumnGroups,
    GroupChange,
    GroupFate,
    stored_groups,
)
from penstock.state.tables.columns import domain_of
from penstock.state.tables.operator_tables import TABLE_KINDS, tables_by_name
from penstock.state.tables.specs import TableSpec, follow_groups
from penstock.state.tables.table import checked_proto_decode, files_of, kind_name


class TableFate(Enum):
    """What happens to a table."""

    UNCHANGED = "unchanged"
    MIGRATED = "migrated"
    NEW = "new"
    DROPPED = "dropped"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a start does to one table, with the reason."""

    table: str
    fate: TableFate
    detail: str
    migrated_files: tuple[str, ...] = ()
    """The files that would be migrated whenever they are read."""
    code: ErrorCode | None = None
    """The error code if the table is dropped or incompatible, else None."""
    groups: tuple[GroupChange, ...] = ()
    """What happens to its column groups, such as the aggregates of a step."""


def find_mismatch(spec: TableSpec, stored: state_pb2.TableConfig) -> TablePlan | None:
    """Return why stored state cannot be read with a declaration; None if it can."""
    if stored.table_type != spec.table_type or stored.table_type not in TABLE_KINDS:
        detail = (
            f"it was a {_kind_name(stored.table_type)} and is declared a "
            f"{_kind_name(spec.table_type)}"
        )
        return _refused(spec, detail, ErrorCode.TABLE_TYPE_MISMATCH)
    is_grouped = isinstance(spec.state_type, ColumnGroups)
    if stored.state_version > spec.state_version and not is_grouped:
        detail = (
            f"it was written with state version {stored.state_version}, newer than the declared "
            f"{spec.state_version}"
        )
        return _refused(spec, detail, ErrorCode.UNSUPPORTED_STATE_VERSION)
    kind = TABLE_KINDS[spec.table_type]
    if kind.is_shared:
        return None
    before = checked_proto_decode(
        kind.config_message,
        stored.config,
        expected=spec.table_type,
        found=stored.table_type,
        table=spec.name,
    )
    after = kind.config_message.FromString(spec.config)
    problems = (
        *_key_problems(before, after),
        *_column_problems(spec, stored, before, after),
        *_clock_problems(before, after),
    )
    return _refused(spec, problems[0], ErrorCode.SCHEMA_MISMATCH) if problems else None


def _key_problems(before: Any, after: Any) -> Iterator[str]:
    where = "decide where state lives and cannot change"
    old, new = list(before.key_columns), list(after.key_columns)
    if old != new:
        yield f"its key columns were {old} and are declared {new}; keys {where}"
        return
    if isinstance(before, state_pb2.KeyedTableConfig):
        was_routed, is_routed = list(before.routing_columns), list(after.routing_columns)
        if was_routed != is_routed:
            yield (
                f"its rows were routed by {was_routed or old} and are declared to be routed by "
                f"{is_routed or new}; that decides where state lives and cannot change"
            )
    columns_before, columns_after = _schema_of(before), _schema_of(after)
    for name in old:
        was, becomes = columns_before.field(name).type, columns_after.field(name).type
        if not have_same_values(was, becomes):
            yield f"its key column {name!r} was {was} and is declared {becomes}; keys {where}"


def _column_problems(
    spec: TableSpec, stored: state_pb2.TableConfig, before: Any, after: Any
) -> Iterator[str]:
    """Compare the stored columns with those that the program declares for their version."""
    version = stored.state_version
    is_grouped = isinstance(spec.state_type, ColumnGroups)
    if version == spec.state_version or is_grouped:
        declared = _schema_of(after)
        start = "its columns changed without a new state version and a migration"
        if is_grouped:  # aggregates: what they mean is compared apart from this
            start = "what is kept has other types than what is declared"
    else:
        chain = resolve_chain(spec.state_type)
        position = chain.position_of(version)
        if position is None:
            return  # allowed if no file has that version any more: `_plan_stored` checks files
        state_type = chain.types[position]
        declared = state_type.SCHEMA
        start = (
            f"{state_type.__name__} is version {version}, but state of that version was written "
            "with other columns"
        )
    columns = _schema_of(before)
    if is_grouped:
        columns, declared = _common_columns(spec, stored, columns, declared)
    changes = _describe_changes(columns, declared)
    if changes:
        yield f"{start}: {changes}"


def _common_columns(
    spec: TableSpec, stored: state_pb2.TableConfig, before: pa.Schema, after: pa.Schema
) -> tuple[pa.Schema, pa.Schema]:
    """Leave out columns that came, went or changed with their group; call them by their new name."""
    found, changes = follow_groups(spec, stored)
    followed: ColumnGroups = found.state_type
    changed = [change.group for change in changes if change.fate is GroupFate.CHANGED]
    others = {
        c for group in followed.stored if group.name in changed for c in group.columns
    }
    was = {
        column: group.column_in(column, stored.state_version)
        for group in followed.stored
        for column in group.columns
    }
    kept, declared = [], []
    for field in (field for field in after if field.name not in others):
        name = was.get(field.name, field.name)
        if name in before.names:
            kept.append(before.field(name).with_name(field.name))
        if name in before.names or field.name not in was:
            declared.append(field)
    # A column of no group does not come and go: without it rows are not what they were.
    grouped = {c for group in stored_groups(before, after.names) for c in group.columns}
    gone = [f for f in before if f.name not in after.names and f.name not in grouped]
    return pa.schema([*kept, *gone]), pa.schema(declared)


def _describe_changes(before: pa.Schema, after: pa.Schema) -> str:
    """Describe the columns that differ in more than order and layout; "" if none does."""
    changes = [f"{name!r} is gone" for name in before.names if name not in after.names]
    changes += [f"{name!r} is new" for name in after.names if name not in before.names]
    for was in before:
        if was.name in after.names:
            becomes = after.field(was.name)
            if not have_same_values(was.type, becomes.type):
                changes.append(f"{was.name!r} was {was.type} and is {becomes.type}")
            elif was.nullable and not becomes.nullable:
                changes.append(f"{was.name!r} may hold nulls and is declared without")
    return ", ".join(changes)


def _clock_problems(before: Any, after: Any) -> Iterator[str]:
    """Compare the clocks by which rows expire, and the meaning of rows.

    A changed time to live is allowed: it applies to new rows only. Old checkpoints hold no
    meaning, so an empty one fits any.
    """
    names = state_pb2.TimeDomain.Name
    if isinstance(before, state_pb2.TimeKeyedTableConfig):
        was, becomes = names(domain_of(before)), names(domain_of(after))
        if was != becomes:
            yield (
                f"its rows expired by {was} and are declared to expire by {becomes}: rows keep "
                "the expiry they were inserted with, so keep that clock"
            )
        if before.meaning not in ("", after.meaning):
            yield (
                f"its rows are {_in_words(before.meaning)} and are declared to be "
                f"{_in_words(after.meaning)}: one cannot go on from the other"
            )
    elif before.HasField("ttl_micros") and before.ttl_domain != after.ttl_domain:
        becomes = names(after.ttl_domain) if after.HasField("ttl_micros") else "none"
        yield (
            f"its time to live counted by {names(before.ttl_domain)} and is declared {becomes}: "
            "rows keep the expiry they were put with, so keep that clock; a very long time to "
            "live stands for none"
        )


def _in_words(meaning: str) -> str:
    """Return a stored meaning with its durations as users write them."""
    return re.sub(r"(\d+) us", lambda us: show_duration(int(us[1])), meaning)


def _kind_name(table_type: state_pb2.TableEnum) -> str:
    unknown = f"kind {int(table_type)}, which only a newer Penstock knows,"
    return kind_name(table_type) if table_type in state_pb2.TableEnum.values() else unknown


def _schema_of(config: Any) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(config.arrow_schema))


def plan_table_restore(
    specs: Iterable[TableSpec],
    restored: Mapping[int, state_pb2.OperatorCheckpointMetadata],
) -> tuple[TablePlan, ...]:
    """Return what would happen to every table that is declared or stored, in order of name.

    `restored` is the operator's metadata by subtask, as the checkpoint holds it.
    """
    declared = tables_by_name(specs)
    stored: dict[str, state_pb2.TableConfig] = {}
    for metadata in restored.values():
        stored.update(metadata.table_configs)
    plans = []
    for name in sorted({*declared, *stored}):
        if name not in declared:
            detail = "the step no longer declares it"
            code = ErrorCode.NO_REGISTERED_TABLE
            plans.append(TablePlan(name, TableFate.DROPPED, detail, code=code))
        elif name not in stored:
            plans.append(TablePlan(name, TableFate.NEW, "it starts empty"))
        else:
            plans.append(_plan_stored(declared[name], stored[name], restored))
    return tuple(plans)


def check_restorable(
    operator: str, plans: Iterable[TablePlan], *, allow_dropped: bool = False
) -> None:
    """Raise `StateError` if a start cannot work or would lose state; it names every table."""
    given = tuple(plans)
    refused = [
        plan
        for plan in given
        if plan.fate is TableFate.INCOMPATIBLE
        or (plan.fate is TableFate.DROPPED and not allow_dropped)
    ]
    problems = [f"table {p.table!r} is {p.fate.value}: {p.detail}" for p in refused]
    codes = [plan.code for plan in refused]
    for group in (group for plan in given for group in plan.groups):
        if group.fate is GroupFate.DROPPED and not allow_dropped:
            problems.append(group.detail)
            codes.append(ErrorCode.NO_REGISTERED_TABLE)
    if problems:
        raise StateError(
            f"operator {operator!r} does not fit its checkpoint: {'; '.join(problems)}. Nothing "
            "was changed; declare the tables as they were, give changed ones a new name, or "
            "allow dropped tables explicitly",
            code=codes[0],
            operator=operator,
        )


def _plan_stored(
    spec: TableSpec,
    stored: state_pb2.TableConfig,
    restored: Mapping[int, state_pb2.OperatorCheckpointMetadata],
) -> TablePlan:
    mismatch = find_mismatch(spec, stored)
    if mismatch is not None:
        return mismatch
    _, groups = follow_groups(spec, stored)
    changed = [group.detail for group in groups if group.fate is GroupFate.CHANGED]
    if changed:
        refusal = _refused(spec, "; ".join(changed), ErrorCode.SCHEMA_MISMATCH)
        return replace(refusal, groups=groups)
    versions: dict[str, int] = {}
    for metadata in restored.values():
        part = metadata.table_checkpoint_metadata.get(spec.name)
        if part is not None:
            files = files_of(part, table=spec.name, expected=spec.table_type)
            versions.update((file.path, file.state_version) for file in files)
    steps: dict[str, None] = {}
    migrated = []
    if groups:
        return TablePlan(
            spec.name, TableFate.UNCHANGED, show_count(len(versions), "file"), groups=groups
        )
    for path, version in sorted(versions.items()):
        try:
            needed = plan_migration(version, spec.migrated_type, table=spec.name)
        except StateError as error:
            return _refused(spec, str(error), error.code)
        if needed:
            migrated.append(path)
            steps.update(dict.fromkeys(str(step) for step in needed))
    if not migrated:
        return TablePlan(spec.name, TableFate.UNCHANGED, show_count(len(versions), "file"))
    detail = f"{len(migrated)} of {len(versions)} files by {', '.join(steps)}"
    return TablePlan(spec.name, TableFate.MIGRATED, detail, tuple(migrated))


def _refused(spec: TableSpec, detail: str, code: ErrorCode) -> TablePlan:
    return TablePlan(spec.name, TableFate.INCOMPATIBLE, detail, code=code)
