"""Files of a global table: two Binary columns, folded in order of epoch and subtask.

The order is one over *all* subtasks' files, because any subtask may write any key and the
last writer wins. For the same reason compaction merges whole epochs from the oldest on:
merging the files of one subtask alone, say of epochs 3 and 7, would carry its version of
epoch 3 past what another subtask wrote in epoch 5, or its version of 7 before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import ErrorCode, StateError
from penstock.state.files.migration import MigrationStep, migrate_value, plan_migration
from penstock.state.files.reader import StateFileReader
from penstock.state.files.state_file import StateFile
from penstock.state.tables.compaction import CompactionPlan
from penstock.state.tables.table import CompactionConfig, TableEnvironment
from penstock.state.tables.value_codec import ValueCodec

GLOBAL_KEY_VALUE_SCHEMA = pa.schema(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())]
)
"""msgpack of key and value; a null value is a tombstone."""

_CHEAP_SHARE = 4
"""Deltas are merged once they hold the base's bytes divided by this, …"""
_EPOCH_LIMIT = 16
"""… or once there are this many epochs of them."""


@dataclass(frozen=True, slots=True)
class KeyValueTypes:
    """The types of a global table: what its `state_type` is."""

    key_type: Any = Any
    value_type: Any = Any


@dataclass(frozen=True, slots=True)
class GlobalFileReader:
    """Reads and folds the files of one global table at its current version."""

    table_name: str
    environment: TableEnvironment
    types: KeyValueTypes
    state_version: int

    def fold(
        self,
        files: Sequence[StateFile],
        base: Mapping[bytes, bytes] | None = None,
        *,
        known: Mapping[str, Mapping[bytes, bytes | None]] | None = None,
    ) -> dict[bytes, bytes]:
        """Fold files in order on top of `base`: the last write of a key counts.

        `known` holds, by path, the contents of files that need not be read.
        """
        folded = dict(base or {})
        for file in files:
            remembered = (known or {}).get(file.path)
            rows = (
                self.load_with_version(file) if remembered is None else remembered.items()
            )
            for key, value in rows:
                if value is None:
                    folded.pop(key, None)
                else:
                    folded[key] = value
        return folded

    def load_with_version(self, file: StateFile) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield keys and values of one file at the current version, tombstones as None.

        A file of an older version is migrated value by value; keys never change.
        """
        keys, values = self._read(file)
        steps: tuple[MigrationStep, ...] = ()
        if file.state_version != self.state_version:
            steps = plan_migration(
                file.state_version, self.types.value_type, table=self.table_name
            )
        if not steps:
            yield from zip(keys, values, strict=True)
            return
        what = f"value of table {self.table_name!r}"
        old = ValueCodec(steps[0].from_type, what=what)
        new = ValueCodec(self.types.value_type, what=what)
        for key, value in zip(keys, values, strict=True):
            if value is None:
                yield key, None
                continue
            migrated = migrate_value(
                old.decode(value), steps, table=self.table_name, path=file.path
            )
            yield key, new.encode(migrated)

    def _read(self, file: StateFile) -> tuple[list[Any], list[Any]]:
        rows = StateFileReader(self.environment.store, self.environment.cache, file).read()
        if not rows.schema.equals(GLOBAL_KEY_VALUE_SCHEMA):
            raise StateError(
                f"{file.path} does not hold the state of a global table: its columns are "
                f"{rows.schema.names}. Table {self.table_name!r} cannot be read from it",
                code=ErrorCode.WRONG_TABLE_KIND,
                table=self.table_name,
                path=file.path,
            )
        return rows.column("key").to_pylist(), rows.column("value").to_pylist()


def to_rows(changes: Mapping[bytes, bytes | None]) -> pa.Table:
    """Return changes as rows of a file, in order of key."""
    keys = sorted(changes)
    return pa.table(
        [
            pa.array(keys, pa.binary()),
            pa.array([changes[key] for key in keys], pa.binary()),
        ],
        schema=GLOBAL_KEY_VALUE_SCHEMA,
    )


def carrier_of(file: StateFile, parallelism: int) -> int:
    """Return the subtask whose metadata lists a file: its writer, or 0 once that is gone."""
    return file.subtask_index if file.subtask_index < parallelism else 0


def plan_global_compaction(
    files: Sequence[StateFile], config: CompactionConfig
) -> CompactionPlan | None:
    """Plan to merge the whole list, if its deltas are worth rewriting the base for."""
    deltas = [file for file in files if file.level == 0]
    epochs = {file.epoch for file in deltas}
    if len(epochs) < max(2, config.min_compaction_epochs):
        return None
    levels = config.compact_generations
    if levels is not None and any(file.level not in levels for file in files):
        return None
    base_bytes = sum(file.size_bytes for file in files if file.level > 0)
    delta_bytes = sum(file.size_bytes for file in deltas)
    if delta_bytes * _CHEAP_SHARE < base_bytes and len(epochs) < _EPOCH_LIMIT:
        return None
    return CompactionPlan(tuple(files), drops_deleted=True)
