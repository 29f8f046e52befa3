"""The files source: every file is a split, read from its first row to its last.

How it works: the driver lists the files and decides how far the epoch reads each; see
`plan_files`. A subtask reads its parts in pieces of a row group or some megabytes. The offset
of a file holds its size. A file whose size differs later was changed, and is refused, as is
one that was deleted before its end was read. After that it may be deleted, and some days
later its name is forgotten; see `GoneFiles`.

Without discovery the files are those of the first epoch. Their list is kept in the state, as
the offset of a split whose name no file can have: so a job that is started again reads the
same files and ends, whatever files were added since. Until the last of them is begun this
split holds the watermark back, because a file that waits may have the oldest rows, unless the
user says that the files are in order of time. Root and pattern are kept in the same manner,
with discovery too; see `discovery`.

With discovery the files that one listing found are read before those of later ones. The
watermark waits until all of them are begun, and moves at the latest then: in a folder that
gets more files than can be read it would stand still otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from penstock.connectors.files.csv import CsvFormat
from penstock.connectors.files.discovery import (
    DEFAULT_REMEMBER_MICROS,
    LISTING,
    ORIGIN,
    FilePattern,
    GoneFiles,
    check_origin,
)
from penstock.connectors.files.folders import infer_folders
from penstock.connectors.files.footers import NO_ROWS, in_order
from penstock.connectors.files.formats import (
    BadRow,
    FileFormat,
    FileOffset,
    SourceFile,
    plan_files,
)
from penstock.connectors.files.jsonl import JsonLinesFormat, LinesFormat
from penstock.connectors.files.parquet import ParquetFormat
from penstock.connectors.files.record_lines import is_record_format, record_lines
from penstock.connectors.formats.drift import DriftRules, OnMissing, OnNew, OnWider
from penstock.core.clock import DurationLike
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD, MAIN
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.secret_options import usable_options
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("path", pa.string()),
    ("line", pa.int64()),
    ("text", pa.string()),
    ("error", pa.string()),
]
BAD_ROWS = StreamSchema(pa.schema(_COLUMNS))
"""What the side output `BAD` of a files source holds."""

_SAMPLE_CHARACTERS = 200
_ADVICE = (
    'Correct the schema, or pass on_bad="divert" to have such rows in the side output "bad"'
)
_ADVICE_OF_DRIFT = "Correct the schema, or the rule that fails the job by such rows"


_FORMATS: Mapping[str, type[FileFormat]] = {
    "parquet": ParquetFormat,
    "jsonl": JsonLinesFormat,
    "csv": CsvFormat,
    "text": LinesFormat,
}


@dataclass(frozen=True, slots=True, repr=False)
class FilesSourceConfig(OperatorConfig):
    """The config of kind "files_source"."""

    kind: ClassVar[str] = "files_source"

    root: str
    """The URL of the store."""
    pattern: str
    format: str
    """A format of files, or of records, which lines are; see `record_lines`."""
    schema: bytes
    """The result of `StreamSchema.to_bytes`."""
    ignores_extra: bool = False
    """Skip columns that the schema does not name, instead of refusing them; see `on_new`."""
    on_new: OnNew | None = None
    """What becomes of columns that the schema does not name; None for what `ignores_extra` says."""
    on_missing: OnMissing | None = None
    """What becomes of rows and files without a column; None for what the format does by itself."""
    on_wider: OnWider | None = None
    """What becomes of values that a column's type does not hold, in JSON lines."""
    discover_micros: int | None = None
    """The interval at which new files are looked for; None for never."""
    remember_micros: int = DEFAULT_REMEMBER_MICROS
    """How long after it was read the name of a file that is gone is kept; see `GoneFiles`."""
    in_time_order: bool = False
    """Files that wait to be read do not hold the watermark back."""
    ordered_by: str | None = None
    """The column by whose least values files are read in order; None for their names."""
    diverts_bad: bool = False
    """Rows that cannot be read go to the output `BAD`, instead of failing the job."""
    record_schema: bytes | None = None
    """What a format of records is made with, as `schema` is stored: the columns of Debezium's table."""
    format_options: Mapping[str, Any] = field(default_factory=dict)
    """The options of a format of records, rules of drift among them."""
    moved_root: str | None = None
    """The URL of the store in which the files were when the job began to read them."""
    store_options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `open_store` for the store's kind."""

    @property
    def files(self) -> FilePattern:
        """The files that are read."""
        return FilePattern(self.root, self.pattern)

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"files": str(self.files), "format": self.format}
        if self.discover_micros is not None:
            facts["discover"] = str(timedelta(microseconds=self.discover_micros))
        return facts


def infer_schema(
    files: FilePattern, format_: str, store_options: Mapping[str, Any]
) -> pa.Schema:
    """Return the columns of the first file, in order of name, then those its folders tell."""
    if files.has_folder():
        store = open_store(files.root, **store_options)
        found = files.list_files(store)
        if found:
            first = SourceFile(store, found[0].path, found[0].size_bytes)
            columns = _FORMATS[format_].infer(first)
            told = infer_folders([info.path for info in found])
            more = [
                pa.field(name, kind) for name, kind in told if name not in columns.names
            ]
            return pa.schema([*columns, *more])
    raise _no_files(files)


def format_of(config: FilesSourceConfig) -> FileFormat:
    """Return what reads files as a config says."""
    if is_record_format(config.format):
        given = config.record_schema
        columns = None if given is None else StreamSchema.from_bytes(given).arrow
        return record_lines(config.format, columns, usable_options(config.format_options))
    schema = StreamSchema.from_bytes(config.schema).arrow
    on_new = config.on_new or ("ignore" if config.ignores_extra else "bad")
    return _FORMATS[config.format](
        schema,
        ignores_extra=on_new == "ignore",
        rules=DriftRules(on_new, config.on_missing or "null", config.on_wider or "bad"),
        fills_missing=config.on_missing == "null",
    )


def check_types(schema: pa.Schema, format_: str) -> None:
    """Refuse columns that files of a format cannot have, and text without any column."""
    if not schema.names and format_ != "parquet":
        raise SchemaError(
            f"schema= names no column, and {format_} without columns has no rows: name the "
            "columns to read, or leave schema= out"
        )
    _FORMATS[format_](schema, ignores_extra=True).check_types()


class FilesSource(Configured[FilesSourceConfig], SourceOperator):
    """Reads the files of a pattern. It opens its store once, when it is first needed."""

    def __init__(
        self, config: FilesSourceConfig, open_files: Callable[..., ObjectStore] = open_store
    ) -> None:
        super().__init__(config)
        self._open_files = open_files
        self._files = config.files
        self._stream = StreamSchema.from_bytes(config.schema)
        self._format: FileFormat = format_of(config)
        self._opened: ObjectStore | None = None
        self._listed: dict[str, int] = {}
        """The sizes of the files, in the order in which they are begun."""
        self._earliest: dict[str, int] = {}
        """The earliest instants of all of them, earliest first; empty if it is not known."""
        self._listed_at_micros: int | None = None
        self._gone = GoneFiles(config.remember_micros)
        self._awaited: Set[str] = frozenset()
        """With discovery: the files of the listing whose files are being begun."""

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def side_outputs(self) -> Mapping[str, StreamSchema]:
        """Return the stream of bad rows, unless they fail the job."""
        return {BAD: BAD_ROWS} if self.config.diverts_bad else {}

    @override
    def has_keys_in_several_splits(self) -> bool:
        return True

    @override
    def poll_interval(self) -> DurationLike:
        """Return how often to look for new files."""
        micros = self.config.discover_micros
        return super().poll_interval() if micros is None else micros

    @override
    def check_splits(self, known: Mapping[str, SplitState]) -> None:
        """Refuse other files than those that the job began with."""
        check_origin(known, self._files, self.config.moved_root)

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Plan the files that were begun, then others, as far as the budget goes."""
        self.check_splits(known)
        discovers = self.config.discover_micros is not None
        if discovers:
            self._discover(known, now_micros)
        elif LISTING in known:
            self._listed = dict(known[LISTING].offset[1])
            self._earliest = dict(*known[LISTING].offset[2:])
        elif not self._listed:
            self._listed = self._list()
            if not self._listed:
                raise _no_files(self._files)
            self._listed, self._earliest = in_order(
                self._listed, self._store, self.config.ordered_by
            )
        plans, has_more = plan_files(self._candidates(known), budget, self._format)
        is_held = bool(self._awaited - known.keys() - {split.name for split in plans})
        if not known.get(LISTING, SplitState(ended=discovers)).ended:
            begun = known.keys() | {split.name for split in plans}
            plans = (self._plan_listing(known, begun), *plans)
        origin = (self._files.root, self._files.pattern)
        is_kept = ORIGIN in known and tuple(known[ORIGIN].offset) == origin
        if not is_kept and (plans or (discovers and known)):
            plans = (SplitPlan(ORIGIN, None, origin), *plans)
        planned = {split.name for split in plans}
        waiting = tuple(n for n, s in known.items() if not s.ended and n not in planned)
        forgotten: tuple[str, ...] = ()
        # An epoch that reads nothing is not worth its while.
        if discovers and plans:
            forgotten = self._gone.find_forgotten(known)
        return SourcePlan(
            plans,
            not discovers,
            has_more,
            waiting=waiting,
            forgotten=forgotten,
            holds_watermark=is_held and not self.config.in_time_order,
        )

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Read what was planned, so that a second run of the epoch gives the same rows.

        The plan keeps to the budget of rows and bytes. The clock is read only to return
        before the source's deadline.
        """
        files = [split for split in ctx.splits if split.name not in (LISTING, ORIGIN)]
        for split in ctx.splits:
            if split.name == ORIGIN:
                ctx.advance(ORIGIN, split.end)
                ctx.end_split(ORIGIN)
            elif split.name == LISTING:
                listing, is_all_begun, waits_from = split.end
                if listing is not None:
                    ctx.advance(LISTING, listing)
                time_column = ctx.outputs[MAIN].time_column
                if waits_from is not None and time_column == self.config.ordered_by:
                    ctx.note_event_time(LISTING, waits_from)
                if is_all_begun:
                    ctx.end_split(LISTING)
        for split in files:
            ctx.advance(split.name, split.start)
        for index, split in enumerate(files):
            if index and ctx.budget.has_overrun():
                return
            self._read(split, ctx, collector)

    def _read(
        self, split: SplitPlan, ctx: SourceContext, collector: SourceCollector
    ) -> None:
        start = FileOffset(*split.start)
        file = SourceFile(self._store, split.name, start.size_bytes)
        file.check_size()
        for piece in self._format.read(file, start, split.end):
            for rows in piece.rows:
                collector.collect(rows, split=split.name)
            if piece.bad:
                self._handle_bad(file, piece.bad, ctx, collector)
            if piece.next is not None:
                ctx.advance(split.name, tuple(piece.next))
                if piece.is_last:
                    ctx.end_split(split.name)
                elif piece.next != start and ctx.budget.has_overrun():
                    return

    def _handle_bad(
        self,
        file: SourceFile,
        bad: Sequence[BadRow],
        ctx: SourceContext,
        collector: SourceCollector,
    ) -> None:
        failing = next((row for row in bad if row.fails), None)
        if self.config.diverts_bad and failing is None:
            columns = {
                "path": [file.path] * len(bad),
                "line": [row.line for row in bad],
                "text": [row.text.decode(errors="replace") for row in bad],
                "error": [row.error for row in bad],
            }
            ctx.count("bad_rows", len(bad))
            collector.collect(pa.table(columns, schema=BAD_ROWS.arrow), BAD)
            return
        row = failing or bad[0]
        text = row.text[: 4 * _SAMPLE_CHARACTERS].decode(errors="replace")
        if len(text) > _SAMPLE_CHARACTERS:
            text = text[:_SAMPLE_CHARACTERS] + "…"
        raise UserError(
            f"{file}, {self._format.unit} {row.line}, cannot be read: {row.error}. It is "
            f"{text!r}. {_ADVICE if failing is None else _ADVICE_OF_DRIFT}",
            code=ErrorCode.UNREADABLE_INPUT,
            path=file.path,
            line=row.line,
        )

    @override
    def can_skip_epochs(self) -> bool:
        """It reads what is planned, whoever read before."""
        return True

    @override
    def release(self) -> None:
        """Drop the store."""
        self._opened = None

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            options = usable_options(self.config.store_options)
            self._opened = self._open_files(self.config.root, **options)
        return self._opened

    def _list(self) -> dict[str, int]:
        if not self._files.has_folder():
            return {}
        return {info.path: info.size_bytes for info in self._files.list_files(self._store)}

    def _plan_listing(self, known: Mapping[str, SplitState], begun: Set[str]) -> SplitPlan:
        """Plan the split of the list, which ends when all files are begun.

        The first epoch stores the list. With discovery there is a list only if the job began
        without; it then ends at once.
        """
        listing = None
        if LISTING not in known:
            earliest = [tuple(self._earliest.items())] if self._earliest else []
            listing = (self.config.pattern, tuple(self._listed.items()), *earliest)
        is_all_begun = (
            self.config.in_time_order
            or self.config.discover_micros is not None
            or self._listed.keys() <= begun
        )
        waits = (at for n, at in self._earliest.items() if n not in begun and at < NO_ROWS)
        waits_from = next(waits, None)
        return SplitPlan(LISTING, None, (listing, is_all_begun, waits_from))

    def _discover(self, known: Mapping[str, SplitState], now_micros: int) -> None:
        """List the files again if it is time to, and refuse those that were changed."""
        interval = self.config.discover_micros or 0
        last = self._listed_at_micros
        if last is None or not last <= now_micros < last + interval:
            self._list_again(known, now_micros)
        # A file that is gone is not waited for.
        self._awaited &= self._listed.keys()
        if self._awaited <= known.keys():
            self._awaited = self._listed.keys() - known.keys()

    def _list_again(self, known: Mapping[str, SplitState], now_micros: int) -> None:
        self._listed = self._list()
        self._listed_at_micros = now_micros
        self._gone.note(known, self._listed, self._store, now_micros)
        for path, size_bytes in self._listed.items():
            state = known.get(path)
            before = None if state is None else FileOffset(*state.offset).size_bytes
            if before is not None and before != size_bytes:
                # A listing may be out of date, so the size is read from the file itself.
                SourceFile(self._store, path, before).check_size()

    def _candidates(
        self, known: Mapping[str, SplitState]
    ) -> Iterator[tuple[SourceFile, FileOffset]]:
        for path in sorted(name for name, state in known.items() if not state.ended):
            if path not in (LISTING, ORIGIN):
                start = FileOffset(*known[path].offset)
                yield SourceFile(self._store, path, start.size_bytes), start
        new = [path for path in self._listed if path not in known]
        # Those of the first listing come first, each listing in its own order.
        for path in sorted(new, key=lambda path: path not in self._awaited):
            size_bytes = self._listed[path]
            yield SourceFile(self._store, path, size_bytes), FileOffset(size_bytes)


def _no_files(files: FilePattern) -> UserError:
    return UserError(
        f"{files} names no file. Correct the path, or, if files are still to come, pass "
        "schema= and discover=True",
        code=ErrorCode.INVALID_CONFIG,
        path=str(files),
    )
