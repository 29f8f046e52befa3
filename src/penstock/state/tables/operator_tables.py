"""An operator's tables over all its subtasks, as the driver sees them: metadata only.

Merging subtasks' lists into whole tables, running one subtask's compactions, and swapping
their results in when an epoch is published. No rows pass through here but those that
`compact_subtask` merges, wherever it runs.

A subtask's declared tables, bound to the parts of a checkpoint that they are made of.

Pure: nothing is read before a table is used. At an unchanged parallelism the list of a typed
table is in the subtask's own metadata, and only global tables are folded from everybody's:
merging all lists in every subtask would cost each of them time that grows with their number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, UserError
from penstock.state.files.state_file import restrict
from penstock.state.proto import state_pb2
from penstock.state.protocol.paths import slot_of
from penstock.state.protocol.records import RULES, ProtocolRules
from penstock.state.tables.compaction import for_expiring, plan_compaction
from penstock.state.tables.erased import ErasedKind, ErasedTable
from penstock.state.tables.global_keyed_view import plan_global_compaction
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import CompactionConfig, TableEnvironment, View

Metadata = state_pb2.OperatorCheckpointMetadata


def tables_by_name(specs: Iterable[TableSpec]) -> dict[str, TableSpec]:
    """Return an operator's declarations by name; a name is declared once."""
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


def merge_tables(
    configs: Mapping[str, state_pb2.TableConfig], metadata: Mapping[int, Metadata]
) -> dict[str, state_pb2.TableCheckpointMetadata]:
    """Merge the lists of all subtasks into whole tables; a table without state is left out."""
    tables = {}
    for name, config in configs.items():
        parts = {
            index: part.table_checkpoint_metadata[name]
            for index, part in metadata.items()
            if name in part.table_checkpoint_metadata
        }
        merged = ErasedKind(name, config).merge_checkpoint_metadata(parts)
        if merged is not None:
            tables[name] = merged
    return tables


def due_bytes(
    specs: Iterable[TableSpec],
    compaction: CompactionConfig,
    metadata: Mapping[int, Metadata],
) -> int:
    """Return the size of what `compact_subtask` would merge; 0 if nothing is due. Reads nothing."""
    task = compaction.environment.task
    own = metadata[task.subtask.index]
    total = 0
    for spec in specs:
        kind = ErasedKind(spec.name, spec.to_config())
        # At an unchanged parallelism a typed table's list is in the subtask's own metadata.
        is_global = spec.table_type == state_pb2.GLOBAL_KEYED_TABLE
        parts = metadata if is_global else {task.subtask.index: own}
        if is_global and task.subtask.index != 0:
            continue
        merged = merge_tables({spec.name: spec.to_config()}, parts).get(spec.name)
        files = () if merged is None else kind.files_in(merged)
        if is_global:
            plan = plan_global_compaction(files, compaction)
        else:
            is_expiring = spec.table_type == state_pb2.TIME_KEYED_TABLE
            chosen = for_expiring(compaction) if is_expiring else compaction
            plan = plan_compaction(restrict(files, task.key_range), chosen)
        total += 0 if plan is None else sum(file.size_bytes for file in plan.inputs)
    return total


def compact_subtask(
    specs: Iterable[TableSpec],
    compaction: CompactionConfig,
    metadata: Mapping[int, Metadata],
) -> dict[str, state_pb2.TableCheckpointMetadata]:
    """Run the compactions due for one subtask; return the new files by table."""
    declared = tables_by_name(specs)
    configs = {name: spec.to_config() for name, spec in declared.items()}
    compacted = {}
    for name, table in merge_tables(configs, metadata).items():
        kind = ErasedKind(name, configs[name])
        done = kind.compact_data(compaction, table, state_type=declared[name].state_type)
        if done is not None:
            compacted[name] = done
    return compacted


def apply_compaction(
    metadata: Mapping[int, Metadata],
    compacted: Mapping[str, state_pb2.TableCheckpointMetadata],
    *,
    epoch: Epoch,
    rules: ProtocolRules = RULES,
) -> dict[int, Metadata]:
    """Swap compacted files into the metadata about to be published as `epoch`.

    Only wherever their exact inputs still stand, and only while the epoch may adopt files
    from their slot: later, a collector may already have swept them. Subtasks that are not
    in the result are unchanged. Must not be used after a restore of an older epoch.
    """
    changed: dict[int, Metadata] = {}
    for name, message in compacted.items():
        current = {**metadata, **changed}
        parts = {
            index: part.table_checkpoint_metadata[name]
            for index, part in current.items()
            if name in part.table_checkpoint_metadata
        }
        config = next(
            (
                part.table_configs[name]
                for part in current.values()
                if name in part.table_configs
            ),
            None,
        )
        if config is None:
            continue
        kind = ErasedKind(name, config)
        if not _may_adopt(kind, message, epoch, rules):
            continue
        for index, part in kind.apply_compacted_checkpoints(message, parts).items():
            if part != parts.get(index):
                updated = Metadata()
                updated.CopyFrom(current[index])
                updated.table_checkpoint_metadata[name].CopyFrom(part)
                changed[index] = updated
    return changed


def _may_adopt(
    kind: ErasedKind,
    compacted: state_pb2.TableCheckpointMetadata,
    epoch: Epoch,
    rules: ProtocolRules,
) -> bool:
    slots = [slot_of(file.path) for file in kind.files_in(compacted)]
    return all(
        slot is not None and rules.may_adopt(slot.ref.epoch, epoch) for slot in slots
    )


@dataclass(slots=True)
class OpenTable:
    """One table with its view and the part of the checkpoint it carries forward."""

    spec: TableSpec
    table: ErasedTable
    carried: state_pb2.TableSubtaskCheckpointMetadata | None
    view: View | None = None
    commit_data: bytes | None = None


def open_tables(
    environment: TableEnvironment,
    specs: Mapping[str, TableSpec],
    restored: Mapping[int, Metadata],
) -> dict[str, OpenTable]:
    """Bind each declared table to its part of the checkpoint, which may be none."""
    whole = _merge_needed(environment, specs, restored)
    tables = {}
    for name, spec in specs.items():
        checkpoint = whole.get(name)
        table = ErasedTable.from_config(
            name, spec.to_config(), environment, checkpoint, state_type=spec.state_type
        )
        carried = (
            None if checkpoint is None else table.subtask_metadata_from_table(checkpoint)
        )
        tables[name] = OpenTable(spec, table, carried)
    return tables


def _merge_needed(
    environment: TableEnvironment,
    specs: Mapping[str, TableSpec],
    restored: Mapping[int, Metadata],
) -> dict[str, state_pb2.TableCheckpointMetadata]:
    own = parent_of(environment, restored)
    needed = restored if own is None else {environment.task.subtask.index: own}
    shared: dict[str, state_pb2.TableConfig] = {}
    typed: dict[str, state_pb2.TableConfig] = {}
    for name, spec in specs.items():
        is_shared = spec.table_type == state_pb2.GLOBAL_KEYED_TABLE
        (shared if is_shared else typed)[name] = spec.to_config()
    return merge_tables(shared, restored) | merge_tables(typed, needed)


def newest_epoch(tables: Mapping[str, OpenTable]) -> int:
    """Return the newest epoch that any of the tables' files is of; 0 without files."""
    epochs = (file.epoch for table in tables.values() for file in table.table.files)
    return max(epochs, default=0)


def parent_of(
    environment: TableEnvironment, restored: Mapping[int, Metadata]
) -> Metadata | None:
    """Return the metadata of the very same subtask; None if there was another number of them."""
    subtask = environment.task.subtask
    return restored[subtask.index] if len(restored) == subtask.parallelism else None


def check_complete(operator: str, restored: Mapping[int, Metadata]) -> None:
    """Refuse metadata that is not of exactly all subtasks: a gap would silently lose state."""
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
