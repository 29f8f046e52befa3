"""`delta`, the function by which users name a Delta table to read or to write.

    p.read("bids", delta("s3://lake/bids", follow="10s"))
    stream.write("out", delta("out", partition_by=["day"]))

The reading itself is in `source`, the writing in `sink`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from typing import Any

import pyarrow as pa

from penstock.connectors.delta.actions import check_readable
from penstock.connectors.delta.planning import Rewrites
from penstock.connectors.delta.sink import MODES, DeltaSinkConfig, WriteMode
from penstock.connectors.delta.source import DeltaSourceConfig, no_table
from penstock.connectors.delta.table import DeltaTables
from penstock.connectors.files.output.parts_sink import DEFAULT_TARGET_BYTES
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import ErrorCode, UserError, did_you_mean, hide_secrets
from penstock.graph.logical import OperatorSpec
from penstock.operators.changes import check_free
from penstock.operators.frames import SchemaLike, as_schema, column_names
from penstock.operators.secret_options import plain_options
from penstock.state.storage.urls import absolute_url, to_options, to_url

_MIN_FOLLOW_MICROS = 1_000


def delta(
    path: str | PathLike[str],
    *,
    version: int | datetime | None = None,
    follow: bool | DurationLike = False,
    snapshot: bool = True,
    rewrites: str = "refuse",
    key: str | Sequence[str] = (),
    schema: SchemaLike = None,
    time_column: str | None = None,
    mode: WriteMode | None = None,
    partition_by: str | Sequence[str] = (),
    evolve: bool = False,
    properties: Mapping[str, str | None] | None = None,
    target_bytes: int | None = None,
    min_bytes: int | None = None,
    visible_after: DurationLike | None = None,
    merge_bytes: int | None = None,
    store_options: Mapping[str, Any] | None = None,
) -> "DeltaSpec":
    """Name a Delta table: for `Pipeline.read` and for `Stream.write`.

    `store_options` are those of the store, such as `endpoint`; docs/connectors/stores.md lists
    them. It needs the extra `penstock[delta]`.

    Reading: the table as of `version`, a number or an instant, by default the newest; then with
    `follow=True` what later versions add, looked for every second, or at the interval given.
    `snapshot=False` leaves the table itself out and begins behind that version. A version that
    deletes or rewrites rows stops the job (`rewrites="refuse"`), is passed over (`"skip"`), or
    the whole table is read as a changelog with the columns `key` (`"changelog"`). `schema` names
    the columns to read; without it they are the table's. `time_column` is the event time; files
    are read in its order, as far as the table's statistics tell it.

    Writing: rows are appended, and changelogs merged by their key; `mode` is "append" or "merge" to
    have it said. A table that is not there is created, partitioned by `partition_by`, with
    `properties` such as `delta.enableChangeDataFeed`. With `evolve=True` columns that the table
    does not have are added to it. A data file is closed at about `target_bytes`. Rows that are
    appended become visible with their epoch, or with those of later ones, in fewer files: when
    about `min_bytes` of them wait, or the first has waited for `visible_after`, such as "5m". A
    merge may use about `merge_bytes` of the driver's memory; some of it goes to disk above
    that, and what must be in memory and is not allowed to be fails with a word about it.

    >>> delta("s3://lake/bids", follow="10s").path
    's3://lake/bids'
    """
    problems = []
    follow_micros = delay_micros = None
    try:
        if follow is not False:
            follow_micros = to_micros("1s" if follow is True else follow, "follow interval")
        if visible_after is not None:
            delay_micros = to_micros(visible_after, "visible_after")
    except UserError as error:
        problems.append(error.message)
    if follow_micros is not None and follow_micros < _MIN_FOLLOW_MICROS:
        problems.append(f"follow is {follow!r}: it must be at least 1ms")
    if not snapshot and follow_micros is None:
        problems.append("snapshot=False without follow= reads nothing: pass follow=True")
    if rewrites not in {each.value for each in Rewrites}:
        hint = did_you_mean(str(rewrites), [each.value for each in Rewrites])
        problems.append(f"rewrites={rewrites!r:.80} is unknown{hint}")
    if mode is not None and mode not in MODES:
        problems.append(f"mode={mode!r:.80} is unknown{did_you_mean(str(mode), MODES)}")
    names = {"key": column_names(key), "partition_by": column_names(partition_by)}
    problems += [
        f"{what} names no columns" for what, found in names.items() if found is None
    ]
    if not isinstance(version, datetime | None) and not _is_number(version):
        problems.append(
            f"version={version!r:.80}: it is a whole number from 0 on, or a datetime"
        )
    sizes = {
        "target_bytes": target_bytes,
        "min_bytes": min_bytes,
        "merge_bytes": merge_bytes,
    }
    problems += [
        f"{name}={size!r:.80}: it is a number of bytes, such as {64 << 20}"
        for name, size in sizes.items()
        if size is not None and not _is_number(size)
    ]
    if merge_bytes is not None and mode == "append":
        problems.append("merge_bytes= is for merges, and mode='append' has none")
    if key and rewrites != Rewrites.CHANGELOG.value:
        problems.append('key= is for rewrites="changelog": leave it out')
    if problems:
        raise UserError(
            f"the Delta table {to_url(path)!r} cannot be named so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
            problems=tuple(problems),
        )
    return DeltaSpec(
        to_url(path),
        version=_to_version(version),
        follow_micros=follow_micros,
        snapshot=snapshot,
        rewrites=Rewrites(rewrites),
        key=names["key"] or (),
        schema=as_schema(schema),
        time_column=time_column,
        mode=mode,
        partition_by=names["partition_by"] or (),
        evolve=evolve,
        properties=dict(properties or {}),
        target_bytes=target_bytes,
        min_bytes=min_bytes,
        visible_after_micros=delay_micros,
        merge_bytes=merge_bytes,
        store_options=to_options(store_options),
    )


def _is_number(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


def _to_version(given: int | datetime | None) -> int | str | None:
    if not isinstance(given, datetime):
        return given
    instant = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return instant.isoformat()


@dataclass(frozen=True, slots=True, repr=False)
class DeltaSpec:
    """A Delta table of a graph. Made by `delta`, which explains the fields."""

    path: str
    version: int | str | None = None
    follow_micros: int | None = None
    snapshot: bool = True
    rewrites: Rewrites = Rewrites.REFUSE
    key: tuple[str, ...] = ()
    schema: StreamSchema | pa.Schema | None = None
    time_column: str | None = None
    mode: WriteMode | None = None
    partition_by: tuple[str, ...] = ()
    evolve: bool = False
    properties: Mapping[str, str | None] = field(default_factory=dict)
    target_bytes: int | None = None
    min_bytes: int | None = None
    visible_after_micros: int | None = None
    merge_bytes: int | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        # The other fields may hold credentials.
        return f"DeltaSpec(path={hide_secrets(self.path)!r}, …)"

    def in_order_of(self, column: str) -> "DeltaSpec":
        """Return the same table, read in the order of a column that is its event time."""
        own = self.time_column
        if own is None and isinstance(self.schema, StreamSchema):
            own = self.schema.time_column
        return replace(self, time_column=column if own is None else own)

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads the table; without a schema this opens it."""
        return self.source_config().to_operator_spec()

    def source_config(self) -> DeltaSourceConfig:
        """Return the config of that source."""
        self._refuse(
            "read",
            {
                "mode": self.mode is not None,
                "partition_by": bool(self.partition_by),
                "evolve": self.evolve,
                "properties": bool(self.properties),
                "target_bytes": self.target_bytes is not None,
                "min_bytes": self.min_bytes is not None,
                "visible_after": self.visible_after_micros is not None,
                "merge_bytes": self.merge_bytes is not None,
            },
        )
        url = self._url()
        columns = self.schema
        if columns is None:
            table = DeltaTables(url, plain_options(self.store_options)).open(
                None if self.follow_micros is not None else self.version
            )
            if table is None:
                raise no_table(url)
            check_readable(url, table.metadata.configuration, table.reader_features)
            columns = table.schema
        return DeltaSourceConfig(
            url,
            self._stream(columns).to_bytes(),
            self.version,
            reads_first=self.snapshot,
            follow_micros=self.follow_micros,
            rewrites=self.rewrites,
            ignores_extra=self.schema is not None,
            store_options=plain_options(self.store_options),
        )

    def _stream(self, columns: StreamSchema | pa.Schema) -> StreamSchema:
        """Return the rows' schema: the table's columns, and of a changelog what they change."""
        time = self.time_column
        if isinstance(columns, StreamSchema):
            time = columns.time_column if time is None else time
            columns = columns.arrow
        if self.rewrites is not Rewrites.CHANGELOG:
            return StreamSchema(columns, time)
        check_free(columns.names)
        key = self.key or tuple(columns.names)
        schema = pa.schema([pa.field(CHANGE_COLUMN, pa.string()), *columns])
        return StreamSchema(schema, time, table_key=key, is_bag=not self.key)

    def sink_spec(self) -> OperatorSpec:
        """Return the sink that writes to the table, exactly once."""
        self._refuse(
            "written",
            {
                "version": self.version is not None,
                "follow": self.follow_micros is not None,
                "snapshot": not self.snapshot,
                "rewrites": self.rewrites is not Rewrites.REFUSE,
                "schema": self.schema is not None,
                "time_column": self.time_column is not None,
            },
        )
        default = DEFAULT_TARGET_BYTES
        config = DeltaSinkConfig(
            self._url(),
            mode=self.mode,
            partition_by=self.partition_by,
            evolve=self.evolve,
            properties=dict(self.properties),
            target_bytes=default if self.target_bytes is None else self.target_bytes,
            min_bytes=self.min_bytes,
            visible_after_micros=self.visible_after_micros,
            merge_bytes=self.merge_bytes,
            store_options=plain_options(self.store_options),
        )
        return config.to_operator_spec()

    def _url(self) -> str:
        url = absolute_url(self.path)
        if url.lower().startswith("memory:"):
            raise UserError(
                f"{self.path!r} names a store in memory, which the client of Delta tables cannot "
                "open: use a folder or a bucket",
                code=ErrorCode.INVALID_URL,
            )
        return url

    def _refuse(self, verb: str, given: Mapping[str, bool]) -> None:
        """Refuse options that have no meaning here: they would be ignored otherwise."""
        asked = [option for option, is_set in given.items() if is_set]
        if asked:
            other = "written" if verb == "read" else "read"
            raise UserError(
                f"the Delta table {self.path!r} is {verb} here, and {', '.join(asked)} says how "
                f"one is {other}: leave it out, or name the table anew for that",
                code=ErrorCode.INVALID_CONFIG,
            )
