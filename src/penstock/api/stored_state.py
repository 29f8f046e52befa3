"""Reads the state that an epoch holds: which tables, how large, and their rows. It needs no claim.

The rows of a table are the fold of an ordered list of files: later ones replace earlier ones, and
some rows are deleted or expired. So they are read as a subtask reads them that owns all keys.
"""

import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from penstock.api.epoch_list import StoredTable
from penstock.core.clock import new_token
from penstock.core.ids import OperatorId, Subtask, TableName, TaskInfo
from penstock.errors import ErrorCode, StateError
from penstock.runtime.driver.publish import frontier_of
from penstock.state.checkpoints import Metadata, ParquetBackend
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import FIRST_GENERATION, CheckpointManifest
from penstock.state.storage.object_store import ObjectStore
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table import TableEnvironment, files_of
from penstock.state.tables.table_manager import TableManager

Parts: TypeAlias = Mapping[int, Metadata]
"""The metadata of a step by subtask."""

_KINDS = {
    state_pb2.GLOBAL_KEYED_TABLE: "global_table",
    state_pb2.TIME_KEYED_TABLE: "time_keyed_table",
    state_pb2.KEYED_TABLE: "keyed_table",
}


def read_parts(
    store: ObjectStore,
    manifest: CheckpointManifest,
    cache: dict[str, Metadata] | None = None,
) -> dict[OperatorId, dict[int, Metadata]]:
    """Read the metadata of every subtask of every step that has state.

    Epochs share most of it: a `cache` holds what was read for others.
    """
    backend, known = ParquetBackend(store), {} if cache is None else cache
    found: dict[OperatorId, dict[int, Metadata]] = {}
    for entry in manifest.operators:
        for index, ref in enumerate(entry.subtasks):
            if ref.path not in known:
                known[ref.path] = backend.read_operator_checkpoint_metadata(ref)
            found.setdefault(entry.operator, {})[index] = known[ref.path]
    return found


@dataclass(frozen=True, slots=True)
class StoredState:
    """What one epoch holds."""

    tables: tuple[StoredTable, ...]
    files: Mapping[str, int]
    """The sizes of its state files by path."""

    @classmethod
    def of(cls, parts: Mapping[OperatorId, Parts]) -> "StoredState":
        """Sum up the lists of all subtasks; a file that several of them see counts once."""
        tables: list[StoredTable] = []
        sizes: dict[str, int] = {}
        for step, by_subtask in parts.items():
            for name, config in _configs_of(by_subtask).items():
                lists = (
                    metadata.table_checkpoint_metadata[name]
                    for metadata in by_subtask.values()
                    if name in metadata.table_checkpoint_metadata
                )
                files = {f.path: f for found in lists for f in files_of(found, table=name)}
                size_bytes = sum(file.size_bytes for file in files.values())
                row_count = sum(file.row_count for file in files.values())
                kind = _KINDS.get(config.table_type, "unknown")
                tables.append(
                    StoredTable(str(step), name, kind, len(files), size_bytes, row_count)
                )
                sizes.update({path: file.size_bytes for path, file in files.items()})
        return cls(tuple(tables), sizes)


def _configs_of(by_subtask: Parts) -> dict[str, state_pb2.TableConfig]:
    """Return the declarations of a step's tables, in order of name."""
    found: dict[str, state_pb2.TableConfig] = {}
    for metadata in by_subtask.values():
        found.update(metadata.table_configs)
    return dict(sorted(found.items()))


def read_rows(
    store: ObjectStore,
    manifest: CheckpointManifest,
    step: OperatorId,
    table: str,
    spec: TableSpec | None = None,
) -> pa.Table:
    """Return the rows of one table; `spec` declares it, if its state has versions."""
    with tempfile.TemporaryDirectory(prefix="penstock-cache-") as folder:
        cache = FileCache(Path(folder), limit_bytes=0)
        declared, manager = open_table(store, manifest, step, table, cache=cache, spec=spec)
        with closing(manager):
            return rows_of(manager, declared)


def open_table(
    store: ObjectStore,
    manifest: CheckpointManifest,
    step: OperatorId,
    table: str,
    *,
    cache: FileCache,
    spec: TableSpec | None = None,
) -> tuple[TableSpec, TableManager]:
    """Open one table as a subtask that owns all keys; close the manager afterwards."""
    parts = read_parts(store, manifest)
    declared = spec or _stored_spec(manifest, parts, step, table)
    task = TaskInfo(manifest.ref.job, step, Subtask(0, 1))
    environment = TableEnvironment(task, FIRST_GENERATION, new_token(), store, cache)
    manager = TableManager.load(
        environment, [declared], parts.get(step, {}), allow_dropped=True
    )
    manager.begin_epoch(frontier_of(manifest, step))
    return declared, manager


def _stored_spec(
    manifest: CheckpointManifest,
    parts: Mapping[OperatorId, Parts],
    step: OperatorId,
    table: str,
) -> TableSpec:
    """Return the declaration that the checkpoint itself holds."""
    ref, config = manifest.ref, _configs_of(parts.get(step, {})).get(table)
    if config is None:
        known = [f"{name}.{each}" for name in parts for each in _configs_of(parts[name])]
        raise StateError(
            f"epoch {ref.epoch} of job {ref.job!r} has no table {table!r} of step {step!r}; it "
            f"has: {', '.join(known) or 'none'}",
            code=ErrorCode.NO_REGISTERED_TABLE,
            job=str(ref.job),
            table=table,
        )
    if config.state_version:
        raise StateError(
            f"table {table!r} of step {step!r} has state version {config.state_version}: pass "
            "its declaration as spec=, which knows how to migrate older files",
            code=ErrorCode.UNSUPPORTED_STATE_VERSION,
            table=table,
        )
    return TableSpec(TableName(table), config.table_type, config.config)


def rows_of(manager: TableManager, spec: TableSpec) -> pa.Table:
    """Return all rows of an open table."""
    if spec.table_type == state_pb2.KEYED_TABLE:
        view = manager.get_keyed_state(spec.name)
        return pa.Table.from_batches(view.scan(), schema=view.schema.declared)
    if spec.table_type == state_pb2.TIME_KEYED_TABLE:
        return manager.get_time_keyed_state(spec.name).rows()
    items = list(manager.get_global_keyed_state(spec.name).items())
    columns = [[msgspec.to_builtins(item[side]) for item in items] for side in (0, 1)]
    return pa.table([_to_array(values) for values in columns], names=["key", "value"])


def _to_array(values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        # Arrow has no common type for them.
        return pa.array([msgspec.json.encode(value).decode() for value in values])
