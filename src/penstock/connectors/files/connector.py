"""`files`, by which users name files to read or to write: a path, a glob or a folder.

    p.read("bids", files("s3://lake/bids/*.parquet", discover="10s"))
    stream.write("out", files("out", format="parquet", partition_by=["day"]))

The reading itself is in `source`, the writing in `sink`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import pyarrow as pa

from penstock.connectors.files.discovery import find_moved_root, parse_pattern
from penstock.connectors.files.formats import FormatName
from penstock.connectors.files.sink import DEFAULT_TARGET_BYTES, FilesSinkConfig
from penstock.connectors.files.source import FilesSourceConfig, check_types, infer_schema
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError, did_you_mean
from penstock.graph.logical import OperatorSpec, Plain
from penstock.state.storage.urls import absolute_url

_ENDINGS: Mapping[str, FormatName] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
_FORMATS = ("parquet", "jsonl", "csv")
_COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4", ".snappy")
_MIN_DISCOVER_MICROS = 1_000


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """Names files: for `Pipeline.read` by a path or glob, for `Stream.write` by a folder.

    It reads and lists nothing until a pipeline asks for its source. `format` is "parquet",
    "jsonl" (JSON lines) or "csv" (with a header, read only); unless it is given, it follows
    from the ending of the path. `store_options` are those of `open_store`.

    Reading: without `schema` the columns are those of the first file by name, and all files
    must have exactly these. With it, other columns are skipped. `discover=True` looks for new
    files for ever, every second; a duration such as "10s" sets another interval. Otherwise the
    files are those there at the first epoch, and the job ends with them. The watermark then
    waits until the last of them is begun, unless `in_time_order` promises that files sorted by
    name are in order of time. A row of text that cannot be read fails the job, or with
    `on_bad="side"` goes to the side output `BAD`, with the columns path, line, text and error.
    A job goes on only with the files it began with; if they were moved to another folder,
    `moved_from` is the path that named them before.

    Writing: `partition_by` names the columns whose values become folders; a file is closed
    at about `target_bytes`.

    >>> files("s3://lake/bids/**/*.jsonl", on_bad="side").format
    'jsonl'
    """

    path: str
    format: FormatName | None = None
    _: KW_ONLY
    schema: StreamSchema | pa.Schema | None = None
    discover: bool | DurationLike = False
    in_time_order: bool = False
    on_bad: Literal["fail", "side"] = "fail"
    moved_from: str | None = None
    partition_by: Sequence[str] = ()
    target_bytes: int | None = None
    """None for the sink's default."""
    store_options: Mapping[str, Plain] | None = None

    def __post_init__(self) -> None:
        """Refuse options that cannot work, with all problems at once."""
        path, form = self.path, self.format
        problems = []
        if form is not None and form not in _FORMATS:
            problems.append(f"format {form!r} is unknown{did_you_mean(form, _FORMATS)}")
        if path.endswith(_COMPRESSED) and form != "parquet":
            problems.append(
                "compressed text has no offsets to go on from: decompress it, or use Parquet"
            )
        if self.on_bad not in ("fail", "side"):
            problems.append(f"on_bad is {self.on_bad!r}: use 'fail' or 'side'")
        try:
            micros = self.discover_micros
            if micros is not None and micros < _MIN_DISCOVER_MICROS:
                problems.append(f"discover is {self.discover!r}: it must be at least 1ms")
        except UserError as error:
            problems.append(error.message)
        if problems:
            raise UserError(
                f"files {path!r} cannot be named so: {'; '.join(problems)}",
                code=ErrorCode.INVALID_CONFIG,
                problems=tuple(problems),
            )
        if form is None:
            form = next((f for end, f in _ENDINGS.items() if path.endswith(end)), None)
            object.__setattr__(self, "format", form)

    @property
    def discover_micros(self) -> int | None:
        """The interval at which new files are looked for; None for never."""
        if self.discover is False:
            return None
        interval = "1s" if self.discover is True else self.discover
        return to_micros(interval, "discover interval")

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads them; without a schema this reads the first file."""
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
            schema = infer_schema(pattern, self.format, self.store_options or {})
        stream = schema if isinstance(schema, StreamSchema) else StreamSchema(schema)
        check_types(stream.schema, self.format)
        config = FilesSourceConfig(
            pattern.root,
            pattern.pattern,
            self.format,
            stream.to_bytes(),
            ignores_extra=self.schema is not None,
            discover_micros=self.discover_micros,
            in_time_order=self.in_time_order,
            bad_to_side=self.on_bad == "side",
            moved_root=moved_root,
            store_options=dict(self.store_options or {}),
        )
        return config.to_operator_spec()

    def sink_spec(self) -> OperatorSpec:
        """Return the sink that writes them, exactly once."""
        if self.format == "csv":
            raise UserError(
                f"CSV is only read, so {self.path!r} cannot be written: use 'parquet' or "
                "'jsonl'",
                code=ErrorCode.INVALID_CONFIG,
            )
        config = FilesSinkConfig(
            absolute_url(self.path),
            format=self.format or "parquet",
            partition_by=self.partition_by,
            target_bytes=(
                DEFAULT_TARGET_BYTES if self.target_bytes is None else self.target_bytes
            ),
            store_options=dict(self.store_options or {}),
        )
        return config.to_operator_spec()


files = FilesSpec
"""The name that users call it by."""
