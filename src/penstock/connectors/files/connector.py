"""`files`, the function by which users name files to read or to write, by path or glob.

    p.read("bids", files("s3://lake/bids/*.parquet", discover="10s"))
    stream.write("out", files("out", format="parquet", partition_by=["day"]))

The reading itself is in `source`, the writing in `sink`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import pyarrow as pa

from penstock.connectors.files.compressed import COMPRESSIONS, UNREADABLE
from penstock.connectors.files.discovery import (
    DEFAULT_REMEMBER_MICROS,
    find_moved_root,
    parse_pattern,
)
from penstock.connectors.files.formats import FORMAT_NAMES, OutputFormat
from penstock.connectors.files.output.parts_sink import DEFAULT_TARGET_BYTES
from penstock.connectors.files.record_lines import (
    RECORD_FORMATS,
    UPSERTS_NEED_KEYS,
    is_record_format,
    record_lines,
)
from penstock.connectors.files.sink import FilesSinkConfig
from penstock.connectors.files.source import FilesSourceConfig, check_types, infer_schema
from penstock.connectors.formats.drift import (
    OPTIONS,
    DriftRules,
    OnMissing,
    OnNew,
    OnWider,
)
from penstock.core.clock import DurationLike, to_micros
from penstock.core.schema import StreamSchema
from penstock.core.secrets import refuse_literal_secrets
from penstock.core.spellings import OnBad, diverts_bad
from penstock.errors import ErrorCode, UserError, did_you_mean, hide_secrets
from penstock.graph.logical import OperatorSpec
from penstock.operators.frames import SchemaLike, as_schema, column_names
from penstock.operators.secret_options import plain_options, usable_options
from penstock.state.storage.urls import absolute_url, to_options, to_url

_ENDINGS: Mapping[str, str] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
_ONLY_READ = {"csv": "CSV is", "text": "text is", "debezium": "lines of Debezium are"}
_FORMATS = (*FORMAT_NAMES, *RECORD_FORMATS)
_LIKE_DEBEZIUM = ", whose lines of what to_debezium() gives are Debezium's"
_MIN_DISCOVER_MICROS = 1_000


def files(
    path: str | PathLike[str],
    format: str | None = None,  # noqa: A002 (what users call it everywhere)
    *,
    schema: SchemaLike = None,
    format_options: Mapping[str, Any] | None = None,
    discover: bool | DurationLike = False,
    remember: DurationLike = "7d",
    in_time_order: bool = False,
    time_column: str | None = None,
    on_bad: OnBad = "fail",
    on_new: OnNew | None = None,
    on_missing: OnMissing | None = None,
    on_wider: OnWider | None = None,
    moved_from: str | PathLike[str] | None = None,
    partition_by: str | Sequence[str] = (),
    target_bytes: int | None = None,
    min_bytes: int | None = None,
    visible_after: DurationLike | None = None,
    store_options: Mapping[str, Any] | None = None,
) -> "FilesSpec":
    """Name files: for `Pipeline.read` by a path or glob, for `Stream.write` by a folder.

    `format` is "parquet", "jsonl" (JSON lines), "csv" (with a header) or "text" (each line a row
    of one column); unless it is given, it follows from the ending of the path. Lines may also be
    records as Kafka has them: "debezium", "bytes", or a `RecordFormat` of your own by its
    "package.module:Name", with its `format_options`. Parquet and JSON lines are written, too.
    `store_options` are those of the store, such as `endpoint`; docs/connectors/stores.md lists them.

    Reading: `schema` is Arrow's, Polars' or types by name. Without it the columns are those of
    the first file by name, and all files must have exactly these. With it, other columns are
    skipped. Folders named `column=value` behind the first wildcard are columns, too.
    `discover=True` looks for new files for ever, every second; a duration such as "10s" sets
    another interval. Otherwise the files are those there at the first epoch, and the job ends
    with them. The watermark waits until the files that were found are begun, unless
    `in_time_order` promises that files sorted by name are in order of time. `time_column` is
    the event time; Parquet files are read in its order, by their footers, and the watermark
    follows them. A row that cannot
    be read fails the job, or with `on_bad="divert"` goes to the side output `BAD`, with the
    columns path, line, text and error. Rows, or whole files, whose columns are not those of the
    schema are treated as `on_new`, `on_missing` and `on_wider` say; docs/connectors/formats.md has
    the rules.
    A job goes on only with the files it began with; if they were moved to another folder,
    `moved_from` is the path that named them before.

    With discovery the name of a file that was read is kept as long as the file is there, and
    for the time `remember` after it was read, which has no use otherwise; see `docs/connectors/files.md`.

    Writing: `partition_by` names the columns whose values become folders; a file is closed
    at about `target_bytes`. For fewer files, rows of several epochs are written together, when
    about `min_bytes` of them wait, or the first has waited for `visible_after`, such as "5m".

    >>> files("s3://lake/bids/**/*.jsonl", on_bad="divert").format
    'jsonl'
    """
    path = to_url(path)
    problems = []
    unknown = _find_format_problems(format)
    problems += unknown
    if unknown:
        format = None  # noqa: A001 (what users call it everywhere)
    refuse_literal_secrets("files(format_options=…)", format_options or {})
    if path.endswith(UNREADABLE) and format != "parquet":
        read = ", ".join(COMPRESSIONS)
        problems.append(
            f"text that is compressed so is not read: compress it as one of {read}, or use "
            "Parquet"
        )
    drift = {"on_new": on_new, "on_missing": on_missing, "on_wider": on_wider}
    rules = {name: rule for name, rule in drift.items() if rule is not None}
    problems += _find_drift_problems(format or _format_of(path), rules)
    if format_options and not unknown:
        problems += _find_option_problems(format, format_options, rules)
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
    delay_micros = None
    try:
        if visible_after is not None:
            delay_micros = to_micros(visible_after, "visible_after")
    except UserError as error:
        problems.append(error.message)
    problems += _find_size_problems(target_bytes=target_bytes, min_bytes=min_bytes)
    names = column_names(partition_by)
    if names is None:
        problems.append(f"partition_by={partition_by!r:.80} are no columns: name them")
    if problems:
        raise UserError(
            f"files {path!r} cannot be named so: {'; '.join(problems)}",
            code=ErrorCode.INVALID_CONFIG,
            problems=tuple(problems),
        )
    return FilesSpec(
        path,
        format or _format_of(path),
        schema=as_schema(schema),
        discover_micros=discover_micros,
        remember_micros=remember_micros,
        in_time_order=in_time_order,
        time_column=time_column,
        diverts_bad=diverts,
        on_new=on_new,
        on_missing=on_missing,
        on_wider=on_wider,
        format_options=dict(format_options or {}),
        moved_from=None if moved_from is None else to_url(moved_from),
        partition_by=names or (),
        target_bytes=target_bytes,
        min_bytes=min_bytes,
        visible_after_micros=delay_micros,
        store_options=to_options(store_options),
    )


def _find_size_problems(**sizes: object) -> list[str]:
    """Return which sizes are none."""
    return [
        f"{name}={size!r:.80} is no whole number of bytes, such as 16 * 2**20"
        for name, size in sizes.items()
        if not (size is None or isinstance(size, int)) or isinstance(size, bool)
    ]


def _find_format_problems(given: object) -> list[str]:
    """Return why a format is none of files."""
    if given is None or (isinstance(given, str) and (given in _FORMATS or ":" in given)):
        return []
    if isinstance(given, str) and given == "upsert":  # a column may be given by mistake
        return [UPSERTS_NEED_KEYS]
    return [f"format {given!r:.80} is unknown{did_you_mean(str(given), _FORMATS)}"]


def _find_option_problems(
    format_: str | None, options: Mapping[str, Any], rules: Mapping[str, str]
) -> list[str]:
    """Return why options of a format of records cannot be used."""
    if format_ is None or not is_record_format(format_):
        needed = "'debezium', or one of your own as 'package.module:Name'"
        return [f"format_options are for records, whose format= is named: {needed}"]
    twice = sorted(options.keys() & rules)
    return [f"{', '.join(twice)} is given twice, in format_options and beside it"] * bool(
        twice
    )


def _find_drift_problems(format_: str | None, rules: Mapping[str, Any]) -> list[str]:
    """Return why rules of schema drift cannot be used for files of a format."""
    problems = []
    try:
        DriftRules(**rules)
    except UserError as error:
        problems.append(error.message)
    if "on_wider" in rules and format_ in ("csv", "parquet"):
        problems.append(f"on_wider is for JSON lines, and these files are {format_}")
    if format_ in ("text", "bytes") and rules:
        problems.append(
            f"lines of {format_} have one column, so there are no rules about columns"
        )
    if format_ is not None and ":" in format_ and rules:
        problems.append(
            f"{', '.join(rules)} is a rule of JSON, and the format is your own: give its options "
            "as format_options="
        )
    return problems


def _format_of(path: str) -> str | None:
    """Return the format that the ending of a path tells, in front of one of a compression."""
    ending = next((end for end in COMPRESSIONS if path.endswith(end)), "")
    path = path.removesuffix(ending)
    found = next((f for end, f in _ENDINGS.items() if path.endswith(end)), None)
    return None if ending and found == "parquet" else found


@dataclass(frozen=True, slots=True, repr=False)
class FilesSpec:
    """Files of a graph, not yet read or listed. Made by `files`, which explains the fields."""

    path: str
    format: str | None
    """None if it is not known, which is an error only if the files are read."""
    schema: StreamSchema | pa.Schema | None = None
    discover_micros: int | None = None
    remember_micros: int = DEFAULT_REMEMBER_MICROS
    in_time_order: bool = False
    time_column: str | None = None
    diverts_bad: bool = False
    on_new: OnNew | None = None
    on_missing: OnMissing | None = None
    on_wider: OnWider | None = None
    format_options: Mapping[str, Any] = field(default_factory=dict)
    moved_from: str | None = None
    partition_by: Sequence[str] = ()
    target_bytes: int | None = None
    """None for the sink's default."""
    min_bytes: int | None = None
    visible_after_micros: int | None = None
    store_options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        # The other fields may hold credentials.
        return f"FilesSpec(path={hide_secrets(self.path)!r}, format={self.format!r}, …)"

    def in_order_of(self, column: str) -> "FilesSpec":
        """Return the same files, read in the order of a column that is their event time."""
        own = self.time_column
        if own is None and isinstance(self.schema, StreamSchema):
            own = self.schema.time_column
        return replace(self, time_column=column if own is None else own)

    def source_spec(self) -> OperatorSpec:
        """Return the source that reads them; without a schema this reads the first file."""
        return self.source_config().to_operator_spec()

    def source_config(self) -> FilesSourceConfig:
        """Return the config of that source."""
        writing = {
            "partition_by": bool(self.partition_by),
            "target_bytes": self.target_bytes is not None,
            "min_bytes": self.min_bytes is not None,
            "visible_after": self.visible_after_micros is not None,
        }
        asked = [option for option, is_set in writing.items() if is_set]
        if asked:
            raise UserError(
                f"{self.path!r} is read here, and {', '.join(asked)} says how files are "
                "written: leave it out, or name the files anew for writing",
                code=ErrorCode.INVALID_CONFIG,
            )
        if self.discover_micros is None and self.remember_micros != DEFAULT_REMEMBER_MICROS:
            raise UserError(
                f"remember= says when names of files are forgotten, and without discover= none "
                f"is: leave it out of the files {self.path!r}, or pass discover=True",
                code=ErrorCode.INVALID_CONFIG,
            )
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
        of_records: dict[str, Any] = {}
        if is_record_format(self.format):
            stream, of_records = self._find_records(self.format)
        else:
            if schema is None:
                schema = infer_schema(pattern, self.format, self.store_options)
            stream = schema if isinstance(schema, StreamSchema) else StreamSchema(schema)
            check_types(stream.arrow, self.format)
        if self.time_column is not None:
            stream = replace(stream, time_column=self.time_column)
        return FilesSourceConfig(
            pattern.root,
            pattern.pattern,
            self.format,
            stream.to_bytes(),
            ignores_extra=self.schema is not None,
            discover_micros=self.discover_micros,
            remember_micros=self.remember_micros,
            in_time_order=self.in_time_order,
            ordered_by=self._order_column(),
            diverts_bad=self.diverts_bad,
            on_new=self.on_new,
            on_missing=self.on_missing,
            on_wider=self.on_wider,
            moved_root=moved_root,
            store_options=plain_options(self.store_options),
            **of_records,
        )

    def _find_records(self, format_: str) -> tuple[StreamSchema, dict[str, Any]]:
        """Return the rows of a format of records, and what of the config makes the format."""
        given = (
            StreamSchema(self.schema) if isinstance(self.schema, pa.Schema) else self.schema
        )
        rules = {n: getattr(self, n) for n in OPTIONS if getattr(self, n) is not None}
        options = plain_options(
            {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in {**self.format_options, **rules}.items()
            }
        )
        columns = None if given is None else given.arrow
        rows = record_lines(format_, columns, usable_options(options)).schema
        stream = StreamSchema(rows, None if given is None else given.time_column)
        made_with = None if given is None else given.to_bytes()
        return stream, {"record_schema": made_with, "format_options": options}

    def _order_column(self) -> str | None:
        """Return the column that orders the files: footers tell it, and there is one listing."""
        is_told = self.format == "parquet" and self.discover_micros is None
        return self.time_column if is_told else None

    def sink_spec(self) -> OperatorSpec:
        """Return the sink that writes them, exactly once."""
        if self.format not in (None, "parquet", "jsonl"):
            named = _ONLY_READ.get(self.format, f"lines of {self.format} are")
            raise UserError(
                f"{named} only read, so {self.path!r} cannot be written: use 'parquet' or 'jsonl'"
                + _LIKE_DEBEZIUM * (self.format == "debezium"),
                code=ErrorCode.INVALID_CONFIG,
            )
        written: OutputFormat = "jsonl" if self.format == "jsonl" else "parquet"
        reading = {
            "schema": self.schema is not None,
            "discover": self.discover_micros is not None,
            "remember": self.remember_micros != DEFAULT_REMEMBER_MICROS,
            "in_time_order": self.in_time_order,
            "time_column": self.time_column is not None,
            'on_bad="divert"': self.diverts_bad,
            "on_new": self.on_new is not None,
            "on_missing": self.on_missing is not None,
            "on_wider": self.on_wider is not None,
            "format_options": bool(self.format_options),
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
            format=written,
            partition_by=self.partition_by,
            target_bytes=(
                DEFAULT_TARGET_BYTES if self.target_bytes is None else self.target_bytes
            ),
            min_bytes=self.min_bytes,
            visible_after_micros=self.visible_after_micros,
            store_options=plain_options(self.store_options),
        )
        return config.to_operator_spec()
