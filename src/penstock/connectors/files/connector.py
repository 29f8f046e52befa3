"""`files`, the function by which users name files to read or to write, by path or glob.

    p.read("bids", files("s3://lake/bids/*.parquet", discover="10s"))
    stream.write("out", files("out", format="parquet", partition_by=["day"]))

The reading itself is in `source`, the writing in `sink`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

import pyarrow as pa

from penstock.connectors.files.discovery import (
    DEFAULT_REMEMBER_MICROS,
    find_moved_root,
    parse_pattern,
)
from penstock.connectors.files.formats import FormatName
from penstock.connectors.files.sink import DEFAULT_TARGET_BYTES, FilesSinkConfig
from penstock.connectors.files.source import FilesSourceConfig, check_types, infer_schema
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.core.spellings import OnBad, diverts_bad
from penstock.errors import ErrorCode, UserError, did_you_mean, hide_secrets
from penstock.graph.logical import OperatorSpec, Plain
from penstock.operators.frames import SchemaLike, as_schema, column_name
from penstock.state.storage.urls import absolute_url, to_options, to_url

_ENDINGS: Mapping[str, FormatName] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
_FORMATS = ("parquet", "jsonl", "csv")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".snappy")
_MIN_DISCOVER_MICROS = 1_000


def files(
    path: str | PathLike[str],
    format: FormatName | None = None,  # noqa: A002 (what users call it everywhere)
    *,
    schema: SchemaLike = None,
    discover: bool | DurationLike = False,
    remember: DurationLike = "7d",
    in_time_order: bool = False,
    on_bad: OnBad = "fail",
    moved_from: str | PathLike[str] | None = None,
    partition_by: str | Sequence[str] = (),
    target_bytes: int | None = None,
    store_options: Mapping[str, Plain] | None = None,
) -> "FilesSpec":
    """Name files: for `Pipeline.read` by a path or glob, for `Stream.write` by a folder.

    `format` is "parquet", "jsonl" (JSON lines) or "csv" (with a header, read only); unless it
    is given, it follows from the ending of the path. `store_options` are those of the store,
    such as `endpoint`; docs/connectors.md lists them.

    Reading: `schema` is Arrow's, Polars' or types by name. Without it the columns are those of
    the first file by name, and all files must have exactly these. With it, other columns are
    skipped. Folders named `column=value` behind the first wildcard are columns, too.
    `discover=True` looks for new files for ever, every second; a duration such as "10s" sets
    another interval. Otherwise the files are those there at the first epoch, and the job ends
    with them. The watermark waits until the files that were found are begun, unless
    `in_time_order` promises that files sorted by name are in order of time. A row that cannot
    be read fails the job, or with `on_bad="divert"` goes to the side output `BAD`, with the
    columns path, line, text and error.
    A job goes on only with the files it began with; if they were moved to another folder,
    `moved_from` is the path that named them before.

    With discovery the name of a file that was read is kept as long as the file is there, and
    for the time `remember` after it was read; see `docs/connectors.md`.

    Writing: `partition_by` names the columns whose values become folders; a file is closed
    at about `target_bytes`.

    >>> files("s3://lake/bids/**/*.jsonl", on_bad="divert").format
    'jsonl'
    """
    path = to_url(path)
    problems = []
    given: object = format
    if not (given is None or (isinstance(given, str) and given in _FORMATS)):
        close = did_you_mean(str(given), _FORMATS)
        problems.append(f"format {given!r:.80} is unknown{close}")
        format = None  # noqa: A001 (what users call it everywhere)
    if path.endswith(_COMPRESSED) and format != "parquet":
        problems.append(
            "compressed text has no offsets to go on from: decompress it, or use Parquet"
        )
    discover_micros, remember_micros, diverts = None, DEFAULT_REMEMBER_MICROS, False
    try:
        diverts = diverts_bad(on_bad)
    except UserError as error:
        problems.append(error.message)
    try:
        if discover is not False:
            interval = "1s" if discover is True else discover
            discover_micros = to_micros(interval, "discover interval")
        remember_micros = to_micros(remember, "remember")
    except UserError as error:
        problems.append(error.message)
    if discover_micros is not None and discover_micros < _MIN_DISCOVER_MICROS:
        problems.append(f"discover is {discover!r}: it must be at least 1ms")
    listed = partition_by if isinstance(partition_by, list | tuple) else [partition_by]
    names = [column_name(one) for one in listed]
    if None in names:
        problems.append(f"partition_by={partition_by!r:.80} are no columns: name them")
    if problems:
        raise UserError(
            f"files {path!r} cannot be named so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
            problems=tuple(problems),
        )
    return FilesSpec(
        path,
        format or next((f for end, f in _ENDINGS.items() if path.endswith(end)), None),
        schema=as_schema(schema),
        discover_micros=discover_micros,
        remember_micros=remember_micros,
        in_time_order=in_time_order,
        diverts_bad=diverts,
        moved_from=None if moved_from is None else to_url(moved_from),
        partition_by=tuple(name for name in names if name is not None),
        target_bytes=target_bytes,
        store_options=to_options(store_options),
    )


@dataclass(frozen=True, slots=True, repr=False)
class FilesSpec:
    """Files of a graph, not yet read or listed. Made by `files`, which explains the fields."""

    path: str
    format: FormatName | None
    """None if it is not known, which is an error only if the files are read."""
    schema: StreamSchema | pa.Schema | None = None
    discover_micros: int | None = None
    remember_micros: int = DEFAULT_REMEMBER_MICROS
    in_time_order: bool = False
    diverts_bad: bool = False
    moved_from: str | None = None
    partition_by: Sequence[str] = ()
    target_bytes: int | None = None
    """None for the sink's default."""
    store_options: Mapping[str, Plain] = field(default_factory=dict)

    def __repr__(self) -> str:
        # The other fields may hold credentials.
        return f"FilesSpec(path={hide_secrets(self.path)!r}, format={self.format!r}, …)"

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads them; without a schema this reads the first file."""
        return self.source_config().to_operator_spec()

    def source_config(self) -> FilesSourceConfig:
        """Return the config of that source."""
        if self.format is None:
            raise UserError(
                f"the format of {self.path!r} is not known: pass format=, one of "
                f"{', '.join(map(repr, _FORMATS))}",
                code=ErrorCode.INVALID_CONFIG,
            )
        pattern = parse_pattern(self.path)
        moved_root = None
        if self.moved_from is not None:
            moved_root = find_moved_root(pattern, self.moved_from)
        schema = self.schema
        if schema is None:
            schema = infer_schema(pattern, self.format, self.store_options)
        stream = schema if isinstance(schema, StreamSchema) else StreamSchema(schema)
        check_types(stream.arrow, self.format)
        return FilesSourceConfig(
            pattern.root,
            pattern.pattern,
            self.format,
            stream.to_bytes(),
            ignores_extra=self.schema is not None,
            discover_micros=self.discover_micros,
            remember_micros=self.remember_micros,
            in_time_order=self.in_time_order,
            diverts_bad=self.diverts_bad,
            moved_root=moved_root,
            store_options=dict(self.store_options),
        )

    def sink_spec(self) -> OperatorSpec:
        """Return the sink that writes them, exactly once."""
        if self.format == "csv":
            raise UserError(
                f"CSV is only read, so {self.path!r} cannot be written: use 'parquet' or "
                "'jsonl'",
                code=ErrorCode.INVALID_CONFIG,
            )
        reading = {
            "discover": self.discover_micros is not None,
            "remember": self.remember_micros != DEFAULT_REMEMBER_MICROS,
            "in_time_order": self.in_time_order,
            'on_bad="divert"': self.diverts_bad,
            "moved_from": self.moved_from is not None,
        }
        asked = [option for option, is_set in reading.items() if is_set]
        if asked:
            raise UserError(
                f"{self.path!r} is written here, and {', '.join(asked)} says how files are "
                "read: leave it out, or name the files anew for reading",
                code=ErrorCode.INVALID_CONFIG,
            )
        config = FilesSinkConfig(
            absolute_url(self.path),
            format=self.format or "parquet",
            partition_by=self.partition_by,
            target_bytes=(
                DEFAULT_TARGET_BYTES if self.target_bytes is None else self.target_bytes
            ),
            store_options=dict(self.store_options),
        )
        return config.to_operator_spec()
