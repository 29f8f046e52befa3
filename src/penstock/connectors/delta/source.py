"""The Delta source: the table as of one version, then what later versions add, file by file.

The driver reads the log and decides how far an epoch reads each file; see `planning`. Subtasks read
row groups of data files, as the files source does. A version is read through its log entry, which
never changes, so whoever runs an epoch again reads the same rows.

Compactions move rows to other files and say so: they are passed over. A version that deletes or
rewrites rows is refused, passed over, or read as a changelog, as the user wants. Versions that
come before a refused one are read first. Which files of a changelog an epoch reads is decided in
`stretches`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from typing_extensions import override

from penstock.connectors.delta.actions import Version, check_readable
from penstock.connectors.delta.columns import have_same_type
from penstock.connectors.delta.data_files import ChangelogFormat, DeltaFile, DeltaFormat
from penstock.connectors.delta.log import TableLog, cleaned_up, vacuumed
from penstock.connectors.delta.planning import (
    TABLE,
    Offset,
    Place,
    Rewrites,
    WaitingFile,
    check_same_table,
    files_of,
    find_forgotten,
    find_upto,
    is_watermark_held,
    listed,
    read_name,
    read_place,
    tells_no_partitions,
    to_offset,
    with_partitions,
)
from penstock.connectors.delta.stretches import (
    EpochFiles,
    LeftFile,
    Stretch,
    plan_epoch,
    to_stretches,
)
from penstock.connectors.delta.table import DeltaTables, OpenTable, schema_of
from penstock.connectors.files.formats import FileOffset, Packing
from penstock.core.clock import DurationLike
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.operators.context import SourceCollector, SourceContext
from penstock.operators.operator import SourceOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.secret_options import usable_options
from penstock.operators.splits import SourceBudget, SourcePlan, SplitPlan, SplitState
from penstock.state.storage.object_store import ObjectStore
from penstock.state.storage.urls import open_store

_MOST_VERSIONS = 1_000
"""How many versions are looked at before an epoch is planned."""
_ENOUGH_FILES = 10_000
"""How many files that wait are enough to look at no further version."""


@dataclass(frozen=True, slots=True, repr=False)
class DeltaSourceConfig(OperatorConfig):
    """The config of kind "delta_source"."""

    kind: ClassVar[str] = "delta_source"

    url: str
    schema: bytes
    """The result of `StreamSchema.to_bytes`; of a changelog if `rewrites` says so."""
    version: int | str | None = None
    """The version to begin with: a number, an instant (RFC 3339), or None for the newest."""
    reads_first: bool = True
    """Read the table as of that version; else only what later versions do."""
    follow_micros: int | None = None
    """The interval at which new versions are looked for; None to end with the first."""
    rewrites: Rewrites = Rewrites.REFUSE
    ignores_extra: bool = False
    """Skip columns that the schema does not name, also those that the table gets later."""
    store_options: Mapping[str, Any] = field(default_factory=dict)

    @override
    def shown(self) -> Mapping[str, str]:
        facts = {"url": self.url}
        if self.version is not None:
            facts["version"] = str(self.version)
        if self.follow_micros is not None:
            facts["follow"] = str(timedelta(microseconds=self.follow_micros))
        if self.rewrites is not Rewrites.REFUSE:
            facts["rewrites"] = self.rewrites.value
        return facts


class DeltaSource(Configured[DeltaSourceConfig], SourceOperator):
    """Reads a Delta table. It opens its store once, when it is first needed."""

    def __init__(
        self,
        config: DeltaSourceConfig,
        open_files: Callable[..., ObjectStore] = open_store,
        open_tables: Callable[..., DeltaTables] = DeltaTables,
    ) -> None:
        super().__init__(config)
        self._open_files = open_files
        self._open_tables = open_tables
        self._stream = StreamSchema.from_bytes(config.schema)
        is_changelog = config.rewrites is Rewrites.CHANGELOG
        format_type = ChangelogFormat if is_changelog else DeltaFormat
        self._format: DeltaFormat = format_type(self._stream.arrow)
        self._opened: ObjectStore | None = None
        self._place: Place | None = None
        """Where the job stands, or begins; None before the table was looked at."""
        self._seen = -1
        """The version up to which the files are in `_waiting`."""
        self._waiting: list[WaitingFile] = []
        self._looked_at_micros: int | None = None
        self._is_behind = False
        """The log has more versions than were looked at."""
        self._refusal: UserError | None = None
        """Why the version after `_seen` cannot be read."""

    @override
    def output_schema(self) -> StreamSchema:
        return self._stream

    @override
    def has_keys_in_several_splits(self) -> bool:
        return True

    @override
    def poll_interval(self) -> DurationLike:
        """Return how often to look for new versions."""
        micros = self.config.follow_micros
        return super().poll_interval() if micros is None else micros

    @override
    def check_splits(self, known: Mapping[str, SplitState]) -> None:
        """Refuse another table than the one that the job began with, and columns it has not."""
        place = read_place(known)
        if place is None:
            return
        found = self._tables.open()
        found_id = None if found is None else found.metadata.id
        check_same_table(place, found_id, self.config.url)
        if found is not None and self._find_missing([found]):
            # An overwrite may have taken a column away that older rows have.
            kept = map(self._tables.open_kept, (place.first, place.upto))
            older = next((table for table in kept if table is not None), None)
            if older is not None:  # else they were cleaned up, and nobody can tell
                self._check_columns([found, older])

    @override
    def plan_splits(
        self, known: Mapping[str, SplitState], budget: SourceBudget, now_micros: int
    ) -> SourcePlan:
        """Plan the files that were begun, then those of the next versions."""
        place = self._begin(known)
        follows = self.config.follow_micros is not None
        if follows:
            self._follow(known, now_micros)
        self._waiting = [
            f for f in self._waiting if f.version > place.upto or f.name in known
        ]
        files = self._plan_files(known, budget)
        plans = files.plans
        if self._refusal is not None and not plans:
            raise self._refusal
        begun = frozenset({*known, *(split.name for split in plans)})
        upto = find_upto(place, self._seen, self._waiting, begun)
        times = (state.max_event_time_micros for state in known.values())
        latest = max((t for t in times if t is not None), default=None)
        held = is_watermark_held(self._waiting, begun, latest)
        if read_place(known) != (moved := place._replace(upto=upto)):
            plans = (SplitPlan(TABLE, None, tuple(moved)), *plans)
        planned = {split.name for split in plans}
        return SourcePlan(
            plans,
            not follows,
            files.has_more or self._is_behind,
            waiting=tuple(n for n, s in known.items() if not s.ended and n not in planned),
            # An epoch that reads nothing is not worth its while.
            forgotten=find_forgotten(known, place) if plans else (),
            holds_watermark=held,
            is_indivisible=files.is_indivisible,
        )

    def _plan_files(
        self, known: Mapping[str, SplitState], budget: SourceBudget
    ) -> EpochFiles:
        opened: list[str] = []

        def open_file(left: LeftFile) -> tuple[DeltaFile, Offset]:
            opened.append(left.name)
            return self._open_file(left)

        left = self._left(known)
        is_changelog = self.config.rewrites is Rewrites.CHANGELOG
        stretches = to_stretches(left) if is_changelog else [Stretch(left, may_be_cut=True)]
        try:
            return plan_epoch(stretches, Packing(budget, self._format), open_file)
        except UserError as error:
            raise self._explained(error, opened[-1] if opened else None) from error

    @override
    def run(self, ctx: SourceContext, collector: SourceCollector) -> None:
        """Read what was planned, so that a second run of the epoch gives the same rows."""
        files = [split for split in ctx.splits if split.name != TABLE]
        for split in ctx.splits:
            if split.name == TABLE:
                ctx.advance(TABLE, split.end)
                ctx.end_split(TABLE)
        for split in files:
            ctx.advance(split.name, split.start)
        for index, split in enumerate(files):
            if index and ctx.budget.has_overrun():
                return
            try:
                self._read(split, ctx, collector)
            except UserError as error:
                raise self._explained(error, split.name) from error

    def _read(
        self, split: SplitPlan, ctx: SourceContext, collector: SourceCollector
    ) -> None:
        offset = to_offset(split.start)
        start = FileOffset(*offset[:3])
        file = self._data_file(split.name, offset)
        file.check_size()
        for piece in self._format.read(file, start, split.end):
            for part in piece.rows:
                collector.collect(part, split=split.name)
            if piece.bad:
                row = piece.bad[0]
                raise UserError(
                    f"{file}, row {row.line}, cannot be read: {row.error}. The table was written "
                    "against its own schema: correct it there",
                    code=ErrorCode.UNREADABLE_INPUT,
                    path=file.path,
                )
            if piece.next is not None:
                ctx.advance(split.name, (*piece.next, offset.partition))
                if piece.is_last:
                    ctx.end_split(split.name)
                elif piece.next != start and ctx.budget.has_overrun():
                    return

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
            self._opened = self._open_files(
                self.config.url, **usable_options(self.config.store_options)
            )
        return self._opened

    @property
    def _tables(self) -> DeltaTables:
        return self._open_tables(self.config.url, self.config.store_options)

    def _begin(self, known: Mapping[str, SplitState]) -> Place:
        """Return where the job stands; at first, look at the table."""
        stored = read_place(known)
        if self._place is not None:
            return self._place if stored is None else stored
        config = self.config
        first = config.version if stored is None else stored.first
        begins_whole = config.reads_first if stored is None else stored.upto < stored.first
        if begins_whole or stored is None:
            table = self._open(first)
            upto = table.version - 1 if config.reads_first else table.version
            place = (
                Place(table.metadata.id, table.version, upto) if stored is None else stored
            )
            check_same_table(place, table.metadata.id, config.url)
            check_readable(config.url, table.metadata.configuration, table.reader_features)
            if stored is None:
                # A column that the table got later is null in the rows of this version.
                follows = config.follow_micros is not None and config.version is not None
                self._check_columns([table, *([self._open(None)] if follows else [])])
            if begins_whole:
                time = self._stream.time_column
                self._waiting = listed(place.first, table.files(), config.url, time)
        else:
            self.check_splits(known)
            place = stored
        self._place = place
        self._seen = max(place.first, place.upto)
        # Versions that were begun are read to their end, whether later ones are followed or not.
        begun = max((read_name(n)[0] for n in known if n != TABLE), default=self._seen)
        for version in TableLog(self._store).read_after(self._seen, begun - self._seen):
            self._take(version)
        return place

    def _check_columns(self, versions: Sequence[OpenTable]) -> None:
        """Refuse a schema that names columns which none of these versions of the table has."""
        names = [name for table in versions for name in table.schema.names]
        missing = self._find_missing(versions)
        if missing:
            raise SchemaError(
                f"the Delta table {self.config.url} has no column {missing[0]!r}"
                f"{did_you_mean(missing[0], names)}: correct schema=, or leave it out",
                column=missing[0],
            )

    def _find_missing(self, versions: Sequence[OpenTable]) -> list[str]:
        known = {CHANGE_COLUMN, *(n for table in versions for n in table.schema.names)}
        return [name for name in self._stream.arrow.names if name not in known]

    def _open(self, version: int | str | None) -> OpenTable:
        found = self._tables.open(version)
        if found is not None:
            return found
        if isinstance(version, int) and self._tables.open() is not None:
            raise cleaned_up(self.config.url, version)
        raise no_table(self.config.url)

    def _follow(self, known: Mapping[str, SplitState], now_micros: int) -> None:
        """Look at the next versions, unless it is too early or enough files wait."""
        last, interval = self._looked_at_micros, self.config.follow_micros or 0
        is_early = last is not None and last <= now_micros < last + interval
        waits = sum(file.name not in known for file in self._waiting)
        if (
            self._refusal is not None
            or waits >= _ENOUGH_FILES
            or (is_early and not self._is_behind)
        ):
            return
        self._looked_at_micros = now_micros
        seen, enough = self._seen, len(self._waiting) + _ENOUGH_FILES
        self._is_behind = False
        for version in TableLog(self._store).read_after(seen, _MOST_VERSIONS):
            try:
                self._take(version)
            except UserError as error:
                self._refusal = error
                break
            if len(self._waiting) >= enough or version.number == seen + _MOST_VERSIONS:
                self._is_behind = True
                break
        is_last_gone = self._seen == seen and not TableLog(self._store).has(seen)
        if self._place is not None and (self._seen > seen or is_last_gone):
            # An entry of another table, that was made anew here, would be taken for the next.
            table = self._tables.open()
            found_id = None if table is None else table.metadata.id
            check_same_table(self._place, found_id, self.config.url)

    def _take(self, version: Version) -> None:
        """Add the files of the next version to those that wait, or refuse it."""
        config, time = self.config, self._stream.time_column
        if version.metadata is not None:
            if self._place is not None:
                check_same_table(self._place, version.metadata.id, config.url)
            check_readable(config.url, version.metadata.configuration, ())
            self._check_schema(version)
        if version.protocol is not None:
            check_readable(config.url, {}, version.protocol.reader_features)
        if config.rewrites is Rewrites.CHANGELOG and tells_no_partitions(version):
            before = self._open(version.number - 1)
            version = with_partitions(version, before.files())
        self._waiting += files_of(version, config.rewrites, config.url, time)
        self._seen = version.number

    def _check_schema(self, version: Version) -> None:
        """Refuse a version from which on the table has other columns than are read."""
        if version.metadata is None:
            return
        found, read = schema_of(version.metadata), self._stream.arrow
        problems = [
            f"column {column.name!r} is {column.type}, and {read.field(column.name).type} is read"
            for column in found
            if column.name in read.names
            and not have_same_type(column.type, read.field(column.name).type)
        ]
        if not self.config.ignores_extra:
            problems += [
                f"there is a new column {column.name!r}"
                for column in found
                if column.name not in read.names
            ]
        if problems:
            raise SchemaError(
                f"version {version.number} changes the columns of the Delta table "
                f"{self.config.url}: {'; '.join(problems)}. Start the program again: it reads the "
                "table with the columns it has then. Or pass schema= with the columns to read, to "
                "skip others",
                version=version.number,
            )

    def _left(self, known: Mapping[str, SplitState]) -> Iterator[LeftFile]:
        """Yield the files that have rows left: those that were begun, then those that wait."""
        for name in sorted(n for n, s in known.items() if not s.ended and n != TABLE):
            version, rows, _ = read_name(name)
            yield LeftFile(name, version, rows, to_offset(known[name].offset))
        for file in self._waiting:
            if file.name not in known:
                yield LeftFile(file.name, file.version, file.rows, file)

    def _open_file(self, left: LeftFile) -> tuple[DeltaFile, Offset]:
        at = left.at
        if isinstance(at, WaitingFile):
            size = self._store.size(at.path) if at.size_bytes is None else at.size_bytes
            if size is None:
                raise vacuumed(self.config.url, at.path, at.version)
            at = Offset(size, partition=dict(at.partition))
        return self._data_file(left.name, at), at

    def _data_file(self, name: str, offset: Offset) -> DeltaFile:
        _, rows, path = read_name(name)
        size, partition = offset.size_bytes, offset.partition or {}
        return DeltaFile(self._store, path, size, partition, rows)

    def _explained(self, error: UserError, split: str | None) -> UserError:
        """Return what a data file that is gone, of the split that was read, means for a table."""
        path = error.context.get("path")
        is_gone = error.code is ErrorCode.INPUT_CHANGED and isinstance(path, str)
        if not is_gone or split is None or "version" in error.context:
            return error
        return vacuumed(self.config.url, str(path), read_name(split)[0])


def no_table(url: str) -> UserError:
    """Return the error for a place where there is no table."""
    return UserError(
        f"there is no Delta table at {url}. Correct the path, or create the table first: a source "
        "must know its columns",
        code=ErrorCode.INVALID_CONFIG,
        url=url,
    )
