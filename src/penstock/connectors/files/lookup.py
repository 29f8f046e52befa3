"""`lookup_files`: files as the right side of a lookup join, read whole and again now and then.

    stream.join("with-country", lookup_files("countries/*.parquet", reload="10m"), on="country")

A file is read by one call, so it is either as it was or as it is. Whoever replaces several files
may be seen in the middle: the files are listed before and after they are read, and if paths or
sizes differ, or a file has gone, everything is read anew.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.connector import FilesSpec, files
from penstock.connectors.files.discovery import FilePattern, parse_pattern
from penstock.connectors.files.formats import (
    Allowance,
    FileFormat,
    FileOffset,
    SourceFile,
)
from penstock.connectors.files.source import FilesSourceConfig, format_of
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, ExternalError, UserError
from penstock.operators.frames import SchemaLike
from penstock.operators.joins.lookup_join import Lookup, TableLookupConfig, to_reload_micros
from penstock.operators.secret_options import usable_options
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store

_ATTEMPTS = 5
"""How often files are listed and read anew that change while they are read."""
_EVERYTHING = Allowance(1 << 62, 1 << 62, is_first=True)


def lookup_files(
    path: str | PathLike[str],
    format: str | None = None,  # noqa: A002 (what users call it everywhere)
    *,
    reload: DurationLike | None = None,
    schema: SchemaLike = None,
    store_options: Mapping[str, Any] | None = None,
) -> "FilesLookup":
    """Name files to look up rows in, for `Stream.join`: "parquet", "jsonl", "csv" and others.

    All files together are the table. Every worker process has it in memory, once for all its
    subtasks, and loads it again every `reload`, by the driver's clock; without `reload` only
    when a process starts. Without a `schema` the columns are those of the first file by name,
    and all files must have exactly these; with it, other columns are skipped.

    If files cannot be read, the job fails; a process that has read them before uses what it has
    for three further intervals, with a warning. Replace files by renaming whole ones.

    >>> str(lookup_files("lake/countries/*.parquet", reload="10m"))
    'files lake/countries/*.parquet, reloaded every 10m'
    """
    spec = files(path, format, schema=schema, store_options=store_options)
    return FilesLookup(
        spec, to_reload_micros(reload), None if reload is None else str(reload)
    )


@dataclass(frozen=True, slots=True)
class FilesLookup(Lookup):
    """Files to look up rows in. Made by `lookup_files`, which explains the fields."""

    spec: FilesSpec
    reload_micros: int | None
    shown_reload: str | None

    def __str__(self) -> str:
        often = "" if self.shown_reload is None else f", reloaded every {self.shown_reload}"
        return f"files {self.spec.path}{often}"

    @property
    @override
    def schema(self) -> StreamSchema:
        columns = StreamSchema.from_bytes(self._files().schema)
        return StreamSchema(columns.arrow)

    @override
    def config(self, common: Mapping[str, Any]) -> "FilesLookupConfig":
        return FilesLookupConfig(
            **common, reload_micros=self.reload_micros, files=self._files()
        )

    def _files(self) -> FilesSourceConfig:
        """Return how files are read; without a schema there must be a file that tells it."""
        spec = self.spec
        if spec.schema is None and spec.format is not None:
            pattern = parse_pattern(spec.path)
            if not _list(pattern, open_store(pattern.root, **spec.store_options)):
                raise _no_files(pattern)
        return spec.source_config()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FilesLookupConfig(TableLookupConfig):
    """The config of kind "lookup_files"."""

    kind: ClassVar[str] = "lookup_files"

    files: FilesSourceConfig

    @property
    @override
    def source(self) -> Hashable:
        read = self.files
        options = tuple(sorted((name, str(v)) for name, v in read.store_options.items()))
        rows = (read.format, read.schema, read.record_schema)
        return self.kind, read.root, read.pattern, *rows, options

    @override
    def load(self) -> pa.Table:
        options = usable_options(self.files.store_options)
        store = open_store(self.files.root, **options)
        return load_files(self.files, store)

    @override
    def shown_source(self) -> str:
        return str(self.files.files)


def load_files(config: FilesSourceConfig, store: ObjectStore) -> pa.Table:
    """Return all rows of files as they are at one time, or refuse what cannot be read."""
    for _ in range(_ATTEMPTS):
        before = _list(config.files, store)
        if not before:
            raise _no_files(config.files)
        held = {path: store.read(path) for path in before}
        sizes = {path: len(data) for path, data in held.items() if data is not None}
        if sizes == before and _list(config.files, store) == before:
            return _read({p: data for p, data in held.items() if data is not None}, config)
    raise ExternalError(
        f"{config.files} changed while it was read, {_ATTEMPTS} times in a row. Replace files "
        "less often, or write them to a new folder and rename it",
        code=ErrorCode.INPUT_CHANGED,
    )


def _list(files: FilePattern, store: ObjectStore) -> dict[str, int]:
    if not files.has_folder():
        return {}
    return {info.path: info.size_bytes for info in files.list_files(store)}


def _no_files(files: FilePattern) -> UserError:
    return UserError(
        f"{files} names no file: correct the path. A table without rows is a file without rows",
        code=ErrorCode.INVALID_CONFIG,
        path=str(files),
    )


def _read(held: Mapping[str, bytes], config: FilesSourceConfig) -> pa.Table:
    """Return the rows of files that are in memory."""
    format_ = format_of(config)
    store = MemoryStore(held)
    tables = [
        table
        for path, data in sorted(held.items())
        for table in _rows_of(SourceFile(store, path, len(data)), format_, config)
    ]
    schema = StreamSchema.from_bytes(config.schema).arrow
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])


def _rows_of(
    file: SourceFile, format_: FileFormat, config: FilesSourceConfig
) -> list[pa.Table]:
    start = FileOffset(file.size_bytes)
    reach = format_.reach(file, start, _EVERYTHING)
    tables = [pa.Table.from_pylist([], schema=format_.schema)]
    for piece in format_.read(file, start, 0 if reach is None else reach.end):
        if piece.bad:
            row = piece.bad[0]
            raise UserError(
                f"{config.files.root}/{file.path}, {format_.unit} {row.line}, cannot be read: "
                f"{row.error}. Correct the file, or the schema",
                code=ErrorCode.UNREADABLE_INPUT,
                path=file.path,
            )
        tables += [
            rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
            for rows in piece.rows
        ]
    return tables
