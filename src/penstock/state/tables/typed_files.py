"""Files of typed tables: read at the current version, described, merged by key hash.

This is the work on files that keyed and time-keyed tables share. All files are sorted by key
hash; rows of equal hash are in the order in which they were written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import have_same_values, relay
from penstock.core.ids import Epoch
from penstock.errors import CorruptStateError, ErrorCode, StateError
from penstock.state.files.migration import (
    MigrationStep,
    as_declared,
    migrate_rows,
    plan_migration,
)
from penstock.state.files.parquet import KEY_HASH
from penstock.state.files.reader import StateFileReader
from penstock.state.files.state_file import StateFile
from penstock.state.files.writer import FileDescription, StateFileWriter, write_state_file
from penstock.state.tables.column_groups import ColumnGroups
from penstock.state.tables.columns import EXPIRES_AT, OPERATION, TypedSchema
from penstock.state.tables.compaction import CompactionPlan, plan_compaction
from penstock.state.tables.sorted_rows import Positions, hashes_of, take_rows
from penstock.state.tables.table import (
    CompactionConfig,
    ConfigT,
    DataOperation,
    Files,
    Table,
    TableData,
)

SchemaT = TypeVar("SchemaT", bound=TypedSchema)


class TypedTable(Table[ConfigT], Generic[ConfigT, SchemaT]):
    """One subtask's part of a table whose rows have declared columns."""

    kind: ClassVar[str]
    """The name of the kind in error messages."""
    schema_type: ClassVar[type[Any]]
    all_rows_expire: ClassVar[bool] = False

    @cached_property
    def schema(self) -> SchemaT:
        """The columns, as declared and as stored."""
        data = self.config.SerializeToString(deterministic=True)
        schema: SchemaT = self.schema_type.from_config(data)
        return schema

    @classmethod
    @override
    def plan_compaction(
        cls, files: Sequence[StateFile], config: CompactionConfig
    ) -> CompactionPlan | None:
        least = config.min_expiring_epochs
        if cls.all_rows_expire and least is not None:
            # Such a table waits for more files, as they may expire before a merge pays.
            config = replace(config, min_compaction_epochs=least)
        return plan_compaction(files, config)

    def write_delta(self, rows: pa.Table, epoch: Epoch) -> Files:
        """Write what this subtask changed in an epoch as one file, and cache it."""
        store, cache = self.environment.store, self.environment.cache
        path, description = self.path_for(epoch), self._describe_delta(epoch)
        return (write_state_file(store, path, rows, description, cache=cache),)

    def delta_writer(
        self, epoch: Epoch, target_bytes: int, *, cut_anywhere: bool = False
    ) -> StateFileWriter:
        """Return the writer of a delta that is too large for one file."""
        return StateFileWriter(
            self.environment.store,
            lambda part: self.path_for(epoch, part=part),
            self.schema.stored,
            self._describe_delta(epoch),
            target_bytes=target_bytes,
            cut_anywhere=cut_anywhere,
        )

    def _describe_delta(self, epoch: Epoch) -> FileDescription:
        return FileDescription(
            epoch=epoch,
            subtask_index=self.environment.task.subtask.index,
            state_version=self.state_version,
            visible=self.environment.task.key_range,
            time_column=self.schema.event_time_column,
            expiry_column=EXPIRES_AT,
        )

    def merged_writer(
        self,
        plan: CompactionPlan,
        config: CompactionConfig,
        *,
        first_part: int = 0,
        cut_anywhere: bool = False,
        **described: Any,
    ) -> StateFileWriter:
        """Return the writer of a plan's outputs; `described` replaces fields of the plan."""
        return StateFileWriter(
            self.environment.store,
            lambda part: self.path_for(
                config.epoch, compacted=True, part=first_part + part
            ),
            self.schema.stored,
            plan.describe(
                self.state_version,
                time_column=self.schema.event_time_column,
                expiry_column=EXPIRES_AT,
                **described,
            ),
            target_bytes=config.target_file_bytes,
            cut_anywhere=cut_anywhere,
        )

    def checked_rows(self, data: TableData) -> pa.RecordBatch:
        """Return inserted data, which must be a record batch."""
        if isinstance(data, pa.RecordBatch):
            return data
        name = self.schema.table_name
        raise StateError(
            f"{self.kind} table {name!r} stores record batches, not {type(data).__name__}; use a "
            "global table for values and commit data",
            code=ErrorCode.WRONG_TABLE_KIND,
            table=name,
        )


class TypedFile:
    """One list entry of a typed table, whose rows are migrated to the current version."""

    def __init__(self, file: StateFile, table: TypedTable[Any, Any]) -> None:
        """Bind one of the table's files; a version that cannot be migrated is refused."""
        store, cache = table.environment.store, table.environment.cache
        self.file = file
        self.reader = StateFileReader(store, cache, file)
        self.steps: tuple[MigrationStep, ...] = ()
        """The migration of the rows; empty if the file has the current version."""
        self._schema: TypedSchema = table.schema
        groups = table.state_type
        self._groups = groups if isinstance(groups, ColumnGroups) else None
        self._is_older = file.state_version != table.state_version
        if self._is_older and self._groups is None:
            name = table.schema.table_name
            self.steps = plan_migration(file.state_version, table.state_type, table=name)

    def current(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the file as the current version stores them."""
        stored = self._schema.stored
        if not rows.schema.equals(stored):
            self._check_own_columns(rows.schema)
        if not self.steps:
            is_current = rows.schema.equals(stored) and not self._is_older
            return rows if is_current else self._relaid(rows)
        own = [field.name for field in self._schema.own_fields]
        values = rows.select([name for name in rows.schema.names if name not in own])
        puts: Positions | None = None
        if OPERATION in own:
            # User code must not see tombstones: they have no values to migrate.
            operations = rows.column(OPERATION).to_numpy()
            puts = np.flatnonzero(operations == DataOperation.UPSERT.value)
            values = take_rows(values, puts)
        names = {"table": self._schema.table_name, "path": self.file.path}
        columns = self._schema.columns_of(
            migrate_rows(
                as_declared(values, self.steps[0].from_type, **names),
                self.steps,
                key_columns=self._schema.key_columns,
                **names,
            )
        )
        if puts is not None and len(puts) < rows.num_rows:
            # Migrated rows go back to their places between tombstones, which have only keys.
            source = np.full(rows.num_rows, -1, dtype=np.int64)
            source[puts] = np.arange(len(puts))
            picked = pa.array(source, mask=source < 0)
            columns = [
                rows.column(name)
                if name in self._schema.key_columns
                else column.take(picked)
                for name, column in zip(self._schema.declared.names, columns, strict=True)
            ]
        columns += [rows.column(name) for name in own]
        return pa.RecordBatch.from_arrays(columns, schema=stored)

    def _check_own_columns(self, found: pa.Schema) -> None:
        """Refuse a file that lacks a column which the table itself puts into every file."""
        names = set(found.names)
        missing = [f.name for f in self._schema.own_fields if f.name not in names]
        if missing:
            raise CorruptStateError(
                f"state file {self.file.path} (epoch {self.file.epoch}) has the right checksum "
                f"and lacks the columns {missing}, which every file of table "
                f"{self._schema.table_name!r} has: something else was put in its place. Nothing "
                "was changed; epochs that do not use this file stay restorable",
                code=ErrorCode.UNDECODABLE,
                table=self._schema.table_name,
                path=self.file.path,
            )

    def _relaid(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Adapt rows whose columns differ in order or layout only, or in their column groups."""
        stored, found = self._schema.stored, rows.schema
        columns: list[Any] = []
        if self._groups is not None:
            read = self._groups.read(rows, stored, self.file.state_version)
            if read is not None:
                return pa.RecordBatch.from_arrays(read, schema=stored)
        for field in stored:
            index = found.get_field_index(field.name)
            if index < 0 or not have_same_values(found.field(index).type, field.type):
                break
            if rows.column(index).null_count and not field.nullable:
                break
            columns.append(relay(rows.column(index), field.type))
        if len(columns) == len(stored) == rows.num_columns:
            return pa.RecordBatch.from_arrays(columns, schema=stored)
        own = [field.name for field in self._schema.own_fields]
        declared_columns, found_columns = (
            ", ".join(f"{f.name}: {f.type}" for f in schema if f.name not in own)
            for schema in (stored, found)
        )
        raise CorruptStateError(
            f"table {self._schema.table_name!r} is declared with the columns "
            f"({declared_columns}), but {self.file.path} holds ({found_columns}) in "
            f"the same state version {self.file.state_version}. If the declaration is the one "
            "that state was written with, something else was put in the file's place: put the "
            "original back or restore an older epoch. If not, restore the declaration, or give "
            "the new columns a state class of the next version with a migration",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=self._schema.table_name,
            path=self.file.path,
        )


class Cursor:
    """How far one stream of rows, sorted by key hash, has been merged."""

    def __init__(self, source: Iterator[pa.RecordBatch]) -> None:
        self._source = source
        self._rows = pa.RecordBatch.from_pydict({KEY_HASH: pa.array([], pa.uint64())})

    def fill(self) -> bool:
        """Load rows unless some are left; return False at the end of the stream."""
        while self._rows.num_rows == 0:
            following = next(self._source, None)
            if following is None:
                return False
            self._rows = following
        return True

    @property
    def last_hash(self) -> int:
        """The last hash of the loaded rows."""
        return int(hashes_of(self._rows)[-1])

    def take(self, bound: int, side: Literal["left", "right"]) -> pa.RecordBatch:
        """Remove and return the loaded rows with hashes below `bound`; "right" includes it."""
        count = int(np.searchsorted(hashes_of(self._rows), np.uint64(bound), side))
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken
