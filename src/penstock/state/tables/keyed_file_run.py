"""A state file as a run: only its visible rows, in the current version, a row group at a time."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.hash_kernels import Hashes
from penstock.errors import CorruptStateError, ErrorCode, SchemaError
from penstock.state.files.cache import CacheKey
from penstock.state.files.migration import MigrationStep, migrate_rows, plan_migration
from penstock.state.files.reader import StateFileReader, rows_in_range
from penstock.state.files.state_file import StateFile
from penstock.state.tables.arrow_layout import have_same_values, relay
from penstock.state.tables.key_equality import Positions
from penstock.state.tables.keyed_rows import take_rows
from penstock.state.tables.keyed_run import OpenSegments, Run, Segment, clip_hashes
from penstock.state.tables.keyed_schema import OPERATION, RESERVED_COLUMNS, KeyedSchema
from penstock.state.tables.older_rows import as_declared
from penstock.state.tables.table import DataOperation, TableEnvironment


class FileRun(Run):
    """One entry of a table's file list. Opens lazily and keeps only the footer."""

    def __init__(
        self,
        file: StateFile,
        schema: KeyedSchema,
        environment: TableEnvironment,
        open_segments: OpenSegments,
        *,
        state_version: int,
        state_type: type | None = None,
    ) -> None:
        """Bind the entry; a version that cannot be migrated is refused here."""
        self.file = file
        self.identity = file.identity
        self.reader = StateFileReader(environment.store, environment.cache, file)
        self._cache = environment.cache
        self._schema = schema
        self._open_segments = open_segments
        self._steps: tuple[MigrationStep, ...] = ()
        if file.state_version != state_version:
            self._steps = plan_migration(
                file.state_version, state_type, table=schema.table_name
            )

    @cached_property
    def _segments(self) -> tuple[tuple[int, int, int], ...]:
        """Index, lowest and highest hash of each row group that holds visible rows."""
        found = []
        for segment in self.reader.visible_segments:
            if segment.min_key_hash is not None and segment.max_key_hash is not None:
                found.append((segment.index, segment.min_key_hash, segment.max_key_hash))
            elif segment.row_count:
                raise CorruptStateError(
                    f"row group {segment.index} of {self.file.path} does not say which key "
                    "hashes it holds, so its rows could not be found. Nothing was changed; "
                    "restore an older epoch or a savepoint",
                    path=self.file.path,
                    epoch=self.file.epoch,
                )
        return tuple(found)

    @cached_property
    def first_hashes(self) -> Hashes:
        """The lowest visible hash of each row group, or a little less."""
        return self._clipped([low for _, low, _ in self._segments])

    @cached_property
    def last_hashes(self) -> Hashes:
        """The highest visible hash of each row group, or a little more."""
        return self._clipped([high for _, _, high in self._segments])

    def may_hold(self, first: int, last: int) -> bool:
        """Tell from the list entry alone whether hashes in `[first, last]` may be found here."""
        file = self.file
        if file.min_key_hash is None or file.max_key_hash is None:
            return file.row_count > 0
        lowest = max(file.min_key_hash, file.visible.start)
        return lowest <= last and first <= min(file.max_key_hash, file.visible.end - 1)

    def read_segment(self, index: int) -> Segment:
        """Return the visible rows of one row group at the current version."""
        key = (self.identity, index)
        found = self._open_segments.find(key)
        if found is None:
            fetched = self.reader.bytes_read
            found = Segment(self._read(index))
            if self.reader.bytes_read == fetched or not self._is_cached(index):
                self._open_segments.keep(key, found)
        return found

    def _is_cached(self, index: int) -> bool:
        """Tell whether the next read maps the rows: then no copy of them should be kept."""
        number = self._segments[index][0]
        return not self._steps and self._cache.holds(CacheKey(self.file.checksum, number))

    def _clipped(self, hashes: Sequence[int]) -> Hashes:
        visible = self.file.visible
        return clip_hashes(np.array(hashes, np.uint64), visible.start, visible.end - 1)

    def _read(self, index: int) -> pa.RecordBatch:
        number, low, high = self._segments[index]
        rows = self.reader.read_segment(number)
        if low not in self.file.visible or high not in self.file.visible:
            rows = rows_in_range(rows, self.file.visible)
        if self._steps:
            return self._migrated(rows)
        if rows.schema.equals(self._schema.stored):
            return rows
        return self._relaid(rows)

    def _migrated(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Bring rows to the current version. The user's code never sees a tombstone."""
        operations = rows.column(OPERATION).to_numpy()
        puts: Positions = np.flatnonzero(operations == DataOperation.UPSERT.value)
        values = rows.select([n for n in rows.schema.names if n not in RESERVED_COLUMNS])
        migrated = migrate_rows(
            as_declared(
                take_rows(values, puts),
                self._steps[0].from_type,
                table=self._schema.table_name,
                path=self.file.path,
            ),
            self._steps,
            key_columns=self._schema.key_columns,
            table=self._schema.table_name,
            path=self.file.path,
        )
        columns: list[Any] = self._schema.columns_of(migrated)
        if len(puts) < rows.num_rows:
            columns = self._with_tombstones(rows, columns, puts)
        columns += [rows.column(name) for name in RESERVED_COLUMNS]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.stored)

    def _with_tombstones(
        self, rows: pa.RecordBatch, columns: list[Any], puts: Positions
    ) -> list[Any]:
        """Put migrated rows back to their places among tombstones, which keep only their keys."""
        source = np.full(rows.num_rows, -1, dtype=np.int64)
        source[puts] = np.arange(len(puts))
        picked = pa.array(source, mask=source < 0)
        return [
            rows.column(field.name)
            if field.name in self._schema.key_columns
            else column.take(picked)
            for field, column in zip(self._schema.declared, columns, strict=True)
        ]

    def _relaid(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Adapt rows whose columns are the declared ones in another order or layout."""
        stored = self._schema.stored
        columns = []
        for field in stored:
            index = rows.schema.get_field_index(field.name)
            if index < 0 or not have_same_values(rows.schema.field(index).type, field.type):
                raise self._changed(rows.schema)
            columns.append(relay(rows.column(index), field.type))
        if rows.num_columns != len(stored):
            raise self._changed(rows.schema)
        return pa.RecordBatch.from_arrays(columns, schema=stored)

    def _changed(self, found: pa.Schema) -> SchemaError:
        def listed(schema: pa.Schema) -> str:
            return ", ".join(
                f"{f.name}: {f.type}" for f in schema if f.name not in RESERVED_COLUMNS
            )

        return SchemaError(
            f"table {self._schema.table_name!r} is declared with the columns "
            f"({listed(self._schema.stored)}), but {self.file.path} holds ({listed(found)}) in "
            f"the same state version {self.file.state_version}: give the new columns a state "
            "class of the next version with a migration, or restore the old declaration",
            code=ErrorCode.SCHEMA_MISMATCH,
            table=self._schema.table_name,
            path=self.file.path,
        )
