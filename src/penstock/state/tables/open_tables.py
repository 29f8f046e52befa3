"""A subtask's declared tables, bound to the parts of a checkpoint that they are made of.

Pure: nothing is read before a table is used. At an unchanged parallelism the list of a typed
table is in the subtask's own metadata, and only global tables are folded from everybody's:
merging all lists in every subtask would cost each of them time that grows with their number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import CorruptStateError, ErrorCode
from penstock.state.proto import state_pb2
from penstock.state.tables.erased import ErasedTable
from penstock.state.tables.operator_tables import merge_tables
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import TableEnvironment, View

Metadata = state_pb2.OperatorCheckpointMetadata


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
