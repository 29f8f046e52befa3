"""An operator's tables over all its subtasks: their kinds, their lists, what is merged next.

Pure except `run_compactions`: opening a table reads no file. Every message names the kind of
its table, and a message of another kind is refused before it is decoded. If the parallelism
is unchanged, the list of a typed table is read from the subtask's own metadata, and only
shared tables are merged from the metadata of all subtasks: merging all lists in every subtask
would cost each of them time that grows with the number of subtasks.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.ids import Epoch, KeyRange, TaskInfo
from penstock.errors import CorruptStateError, ErrorCode, StateError, UserError
from penstock.state.files.migration import resolve_chain
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.proto import state_pb2
from penstock.state.protocol.paths import slot_of
from penstock.state.protocol.records import RULES, ProtocolRules
from penstock.state.tables.column_groups import ColumnGroups
from penstock.state.tables.compaction import CompactionPlan, cut_runs
from penstock.state.tables.expiry import is_expired
from penstock.state.tables.global_keyed import GlobalKeyedTable
from penstock.state.tables.keyed import KeyedTable
from penstock.state.tables.specs import TableSpec, TimeDomain, follow_groups
from penstock.state.tables.table import (
    CompactionConfig,
    Files,
    Frontier,
    Table,
    TableEnvironment,
    encode_list,
    files_of,
    kind_name,
)
from penstock.state.tables.time_keyed import TimeKeyedTable

Metadata = state_pb2.OperatorCheckpointMetadata

TABLE_KINDS: Mapping[state_pb2.TableEnum, type[Table[Any]]] = {
    kind.table_type: kind for kind in (GlobalKeyedTable, TimeKeyedTable, KeyedTable)
}
"""The kind of table behind each durable type number."""


def table_kind_of(table_type: state_pb2.TableEnum, *, table: str) -> type[Table[Any]]:
    """Return the kind that a table is declared as."""
    kind = TABLE_KINDS.get(table_type)
    if kind is None:
        raise StateError(
            f"table {table!r} is of the unknown kind {kind_name(table_type)}: a newer Penstock "
            "wrote it; upgrade",
            code=ErrorCode.TABLE_TYPE_MISMATCH,
            table=table,
            found=kind_name(table_type),
        )
    return kind


def open_table(
    spec: TableSpec, environment: TableEnvironment, files: Files = ()
) -> Table[Any]:
    """Bind a declared table to the files of the whole table that its subtask folds."""
    kind = table_kind_of(spec.table_type, table=spec.name)
    config = kind.config_message.FromString(spec.config)
    state_type, declared = spec.state_type, spec.state_version
    if state_type is not None and not isinstance(state_type, ColumnGroups):
        version = resolve_chain(spec.migrated_type).current_version
        if version != declared:
            raise StateError(
                f"table {spec.name!r} is declared with state version {declared}, but its state "
                f"class has version {version}: build the config from the table's spec",
                code=ErrorCode.UNSUPPORTED_STATE_VERSION,
                table=spec.name,
                found=version,
                expected=declared,
            )
    return kind.from_config(config, environment, files, declared, state_type)


def tables_by_name(specs: Iterable[TableSpec]) -> dict[str, TableSpec]:
    """Return an operator's declarations by name; declaring a name twice is refused."""
    declared: dict[str, TableSpec] = {}
    for spec in specs:
        if spec.name in declared:
            raise UserError(
                f"an operator declares the table {spec.name!r} twice: one of them would lose "
                "its state to the other. Give each a name of its own",
                code=ErrorCode.INVALID_NAME,
                table=spec.name,
            )
        declared[spec.name] = spec
    return declared


def follow_stored(spec: TableSpec, metadata: Iterable[Metadata]) -> TableSpec:
    """Return a declaration that can read what an operator's checkpoint holds of its table."""
    for part in metadata:
        if spec.name in part.table_configs:
            return follow_groups(spec, part.table_configs[spec.name])[0]
    return spec


def merge_table(spec: TableSpec, task: TaskInfo, metadata: Mapping[int, Metadata]) -> Files:
    """Return the list that holds a subtask's table, merged from as few lists as possible."""
    kind = table_kind_of(spec.table_type, table=spec.name)
    subtask = task.subtask
    is_in_own_list = len(metadata) == subtask.parallelism and not kind.is_shared
    parts = [metadata[subtask.index]] if is_in_own_list else metadata.values()
    name, expected = spec.name, kind.table_type
    return kind.merge_checkpoint_metadata(
        files_of(part.table_checkpoint_metadata[name], table=name, expected=expected)
        for part in parts
        if name in part.table_checkpoint_metadata
    )


def unlisted(
    spec: TableSpec,
    known: Iterable[StateFile],
    wanted: Iterable[StateFile],
    metadata: Mapping[int, Metadata],
) -> set[int]:
    """Return the checksums of a subtask's `known` files that no list holds any more.

    `wanted` is the subtask's list. After a rescale other subtasks hold parts of the same files,
    and keep them longer. Their lists are read only if such a file is gone.
    """
    still = {file.checksum for file in wanted}
    gone = {file.checksum: file for file in known if file.checksum not in still}
    if any(not _is_seen_whole(file) for file in gone.values()):
        for part in metadata.values():
            held = part.table_checkpoint_metadata.get(spec.name)
            if held is not None:
                still.update(file.checksum for file in files_of(held, table=spec.name))
    return gone.keys() - still


def _is_seen_whole(file: StateFile) -> bool:
    """Tell whether one list sees all rows of a file; then no other list holds the file."""
    first, last = file.min_key_hash, file.max_key_hash
    if first is None or last is None:
        return False
    return file.visible.covers(KeyRange(first, last + 1))


@dataclass(frozen=True, slots=True)
class TableCompaction:
    """One table's merge that is due. It is pickled and sent to executors."""

    spec: TableSpec
    plan: CompactionPlan


def plan_compactions(
    specs: Iterable[TableSpec],
    task: TaskInfo,
    config: CompactionConfig,
    metadata: Mapping[int, Metadata],
) -> tuple[TableCompaction, ...]:
    """Plan the merges that are due in one subtask's tables. Subtask 0 merges shared tables."""
    planned = []
    for declared in specs:
        spec = follow_stored(declared, metadata.values())
        kind = table_kind_of(spec.table_type, table=spec.name)
        if kind.is_shared and task.subtask.index != 0:
            continue
        files = merge_table(spec, task, metadata)
        if not kind.is_shared:
            files = restrict(files, task.key_range)
        plan = kind.plan_compaction(files, config)
        if plan is not None:
            planned.append(TableCompaction(spec, plan))
    return tuple(planned)


def run_compactions(
    planned: Iterable[TableCompaction],
    environment: TableEnvironment,
    config: CompactionConfig,
) -> dict[str, state_pb2.TableCheckpointMetadata]:
    """Merge as planned; return the new files by table."""
    compacted = {}
    for due in planned:
        table = open_table(due.spec, environment)
        compacted[str(due.spec.name)] = state_pb2.TableCheckpointMetadata(
            table_type=due.spec.table_type,
            data=encode_list(table.compact_data(due.plan, config)),
        )
    return compacted


def is_overfull(metadata: Metadata, max_runs: int) -> bool:
    """Tell whether the next epoch must wait for a compaction of a subtask's tables.

    Shared tables do not count: they are always folded whole.
    """
    return any(
        len(cut_runs(files_of(part, table=name))) > max_runs
        for name, part in metadata.table_checkpoint_metadata.items()
        if not table_kind_of(metadata.table_configs[name].table_type, table=name).is_shared
    )


def expired_inputs(
    planned: Iterable[TableCompaction], frontier: Frontier
) -> frozenset[str]:
    """Return which inputs of merges may have left a list that was written at `frontier`."""
    clocks = {
        None: None,
        TimeDomain.EVENT_TIME: frontier.watermark_micros,
        TimeDomain.PROCESSING_TIME: frontier.processing_time_micros,
    }
    return frozenset(
        file.identity
        for due in planned
        for file in due.plan.inputs
        if is_expired(file, clocks[due.spec.expires_by])
    )


def apply_compaction(
    metadata: Mapping[int, Metadata],
    compacted: Mapping[str, state_pb2.TableCheckpointMetadata],
    *,
    epoch: Epoch,
    rules: ProtocolRules = RULES,
    expired: Collection[str] = (),
) -> dict[int, Metadata]:
    """Swap compacted files into the metadata about to be published as `epoch`.

    A swap needs the exact inputs still in the list, except those that have `expired`, and an
    epoch that may adopt files from the slot of the outputs: for a later epoch, a collector may
    already have swept them.
    Subtasks that are not in the result are unchanged. This must not be called after a restore
    of an older epoch.
    """
    changed: dict[int, Metadata] = {}
    for name, message in compacted.items():
        current = {**metadata, **changed}
        configs = (
            p.table_configs[name] for p in current.values() if name in p.table_configs
        )
        config = next(configs, None)
        if config is None:
            continue
        kind = table_kind_of(config.table_type, table=name)
        outputs = files_of(message, table=name, expected=kind.table_type)
        slots = [slot_of(file.path) for file in outputs]
        if not all(slot and rules.may_adopt(slot.ref.epoch, epoch) for slot in slots):
            continue
        lists = {
            index: files_of(
                part.table_checkpoint_metadata[name], table=name, expected=kind.table_type
            )
            for index, part in current.items()
            if name in part.table_checkpoint_metadata
        }
        for index, files in kind.apply_compacted_checkpoint(
            outputs, lists, expired
        ).items():
            if files != lists.get(index):
                changed[index] = Metadata()
                changed[index].CopyFrom(current[index])
                set_list(changed[index], name, kind.table_type, files)
    return changed


def set_list(
    metadata: Metadata, name: str, table_type: state_pb2.TableEnum, files: Files
) -> None:
    """Store the list of one table in a subtask's metadata."""
    metadata.table_checkpoint_metadata[name].CopyFrom(
        state_pb2.TableSubtaskCheckpointMetadata(
            subtask_index=metadata.operator_metadata.subtask_index,
            table_type=table_type,
            data=encode_list(files),
        )
    )


def check_complete(operator: str, restored: Mapping[int, Metadata]) -> None:
    """Refuse metadata unless it is of exactly all subtasks: a gap would silently lose state."""
    for index, metadata in restored.items():
        found = metadata.operator_metadata
        if (
            found.operator_id != operator
            or found.subtask_index != index
            or index >= len(restored)
            or found.parallelism != len(restored)
        ):
            raise CorruptStateError(
                f"the checkpoint of operator {operator!r} is incomplete: entry {index} of "
                f"{len(restored)} is subtask {found.subtask_index} of {found.parallelism} of "
                f"{found.operator_id!r}. Nothing was changed; restore another epoch",
                code=ErrorCode.PROTOCOL_VIOLATION,
                operator=operator,
            )
