"""`lookup_delta`: a Delta table as the right side of a lookup join, read whole and again now and then.

    stream.join("with-country", lookup_delta("lake/countries", reload="10m"), on="country")

The table is read as of one version, so whoever changes it is never seen in the middle. If a data
file is gone meanwhile, it was vacuumed: the table is opened anew.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.delta.actions import check_readable, check_without_vector
from penstock.connectors.delta.connector import DeltaSpec, delta
from penstock.connectors.delta.data_files import DeltaFile, DeltaFormat
from penstock.connectors.delta.source import no_table
from penstock.connectors.delta.table import DeltaTables, OpenTable
from penstock.connectors.files.formats import Allowance, FileOffset
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, ExternalError, UserError
from penstock.graph.logical import Plain
from penstock.operators.frames import SchemaLike
from penstock.operators.joins.lookup_join import Lookup, TableLookupConfig, to_reload_micros
from penstock.operators.secret_options import usable_options
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store

_ATTEMPTS = 5
"""How often a table is opened anew whose files vanish while they are read."""
_EVERYTHING = Allowance(1 << 62, 1 << 62, is_first=True)


def lookup_delta(
    path: str | PathLike[str],
    *,
    reload: DurationLike | None = None,
    version: int | datetime | None = None,
    schema: SchemaLike = None,
    store_options: Mapping[str, Plain] | None = None,
) -> "DeltaLookup":
    """Name a Delta table to look up rows in, for `Stream.join`.

    Every worker process has the table in memory, once for all its subtasks, and loads the newest
    version again every `reload`, by the driver's clock; without `reload` only when a process
    starts. With `version`, a number or an instant, it is that one for good. With a `schema` only
    its columns are loaded.

    If the table cannot be read, the job fails; a process that has read it before uses what it has
    for three further intervals, with a warning.

    >>> str(lookup_delta("lake/countries", reload="10m"))
    'Delta table lake/countries, reloaded every 10m'
    """
    spec = delta(path, version=version, schema=schema, store_options=store_options)
    if version is not None and reload is not None:
        raise UserError(
            f"version={version!r} is the same for ever, so reload={reload!r} loads nothing new: "
            "leave one of them out",
            code=ErrorCode.INVALID_CONFIG,
        )
    shown = None if reload is None else str(reload)
    return DeltaLookup(spec, to_reload_micros(reload), shown)


@dataclass(frozen=True, slots=True)
class DeltaLookup(Lookup):
    """A Delta table to look up rows in. Made by `lookup_delta`, which explains the fields."""

    spec: DeltaSpec
    reload_micros: int | None
    shown_reload: str | None

    def __str__(self) -> str:
        often = "" if self.shown_reload is None else f", reloaded every {self.shown_reload}"
        return f"Delta table {self.spec.path}{often}"

    @property
    @override
    def schema(self) -> StreamSchema:
        found = StreamSchema.from_bytes(self.spec.source_config().schema)
        return StreamSchema(found.arrow)

    @override
    def config(self, common: Mapping[str, Any]) -> "DeltaLookupConfig":
        read = self.spec.source_config()
        return DeltaLookupConfig(
            **common,
            reload_micros=self.reload_micros,
            url=read.url,
            columns=read.schema,
            version=read.version,
            store_options=dict(read.store_options),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DeltaLookupConfig(TableLookupConfig):
    """The config of kind "lookup_delta"."""

    kind: ClassVar[str] = "lookup_delta"

    url: str
    columns: bytes
    """The result of `StreamSchema.to_bytes`."""
    version: int | str | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    @override
    def source(self) -> Hashable:
        options = tuple(sorted((name, str(v)) for name, v in self.store_options.items()))
        return self.kind, self.url, self.columns, self.version, options

    @override
    def load(self) -> pa.Table:
        tables = DeltaTables(self.url, self.store_options)
        store = open_store(self.url, **usable_options(self.store_options))
        format_ = DeltaFormat(StreamSchema.from_bytes(self.columns).arrow)
        for _ in range(_ATTEMPTS):
            table = tables.open(self.version)
            if table is None:
                raise no_table(self.url)
            try:
                return read_table(table, store, format_)
            except UserError as error:
                if error.code is not ErrorCode.INPUT_CHANGED:
                    raise
        raise ExternalError(
            f"files of the Delta table {self.url} were gone before they were read, {_ATTEMPTS} "
            "times in a row: vacuum it less often, or keep files for longer",
            code=ErrorCode.INPUT_CHANGED,
        )

    @override
    def shown_source(self) -> str:
        return self.url


def read_table(table: OpenTable, store: ObjectStore, format_: DeltaFormat) -> pa.Table:
    """Return all rows of one version of a table."""
    check_readable(table.url, table.metadata.configuration, table.reader_features)
    tables = [pa.Table.from_pylist([], schema=format_.schema)]
    for added in sorted(table.files(), key=lambda each: each.path):
        check_without_vector(added, table.url)
        file = DeltaFile(store, added.path, added.size, added.partition_values)
        start = FileOffset(file.size_bytes)
        reach = format_.reach(file, start, _EVERYTHING)
        for piece in format_.read(file, start, 0 if reach is None else reach.end):
            tables += [
                (rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))
                .select(format_.schema.names)
                .cast(format_.schema)
                for rows in piece.rows
            ]
    return pa.concat_tables(tables)
