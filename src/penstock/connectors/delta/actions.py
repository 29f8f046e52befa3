"""What a version of a Delta table did: the actions of its log entry, decoded and checked. Pure.

A version is a file of JSON lines, each of them one action:

    {"commitInfo": …}   who made it; ours also hold `penstock`: see `Mark`
    {"metaData": …}     the table's id, schema, partitioning and properties; only if they change
    {"protocol": …}     what a reader must be able to do; only if it changes
    {"add": …}          a data file that is a part of the table from this version on
    {"remove": …}       one that is not any longer
    {"cdc": …}          a file with the changes of rows, if the change data feed is on

`dataChange` is false for files that hold rows which were there before, as after a compaction.
Paths are relative to the table's folder and escaped as in a URL; here they are plain.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from penstock.connectors.delta.marks import Mark
from penstock.errors import CorruptStateError, ErrorCode, UserError

PartitionValues = Mapping[str, str | None]
"""The values of the partition columns as text, by column."""

MERGE = "MERGE"
"""The operation of a version that merges rows."""
RESTORE = "RESTORE"
"""The operation of a version that makes the table as it was before."""
READABLE_FEATURES = frozenset(
    {
        "deletionVectors",  # each file says whether it has one
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""What tables may ask of their readers; what else they ask changes how data files are read."""


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """An action of a log entry; fields that are not named here are skipped."""


class AddedFile(_Action, frozen=True):
    """A data file that a version adds."""

    path: str
    size: int
    partition_values: PartitionValues = msgspec.field(default_factory=dict)
    data_change: bool = True
    stats: str | None = None
    deletion_vector: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def has_deleted_rows(self) -> bool:
        """Whether rows of the file are deleted, which only its deletion vector tells."""
        return bytes(self.deletion_vector) != b"null"


class RemovedFile(_Action, frozen=True):
    """A data file that a version removes."""

    path: str
    data_change: bool = True
    size: int | None = None
    partition_values: PartitionValues | None = None
    deletion_vector: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def has_deleted_rows(self) -> bool:
        """As of `AddedFile`."""
        return bytes(self.deletion_vector) != b"null"


class ChangeFile(_Action, frozen=True):
    """A file with changes of rows, of the change data feed."""

    path: str
    size: int
    partition_values: PartitionValues = msgspec.field(default_factory=dict)


class TableMetadata(_Action, frozen=True):
    """What a table is, from a version on."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str | None] = msgspec.field(default_factory=dict)


class TableProtocol(_Action, frozen=True):
    """What a table asks of its readers, from a version on."""

    min_reader_version: int
    reader_features: tuple[str, ...] = ()


class CommitInfo(_Action, frozen=True):
    """Who made a version."""

    operation: str = "an unknown operation"
    operation_parameters: Any = None
    """What the writer says about it, in whatever form."""
    penstock: Mark | None = None


class _Line(_Action, frozen=True):
    add: AddedFile | None = None
    remove: RemovedFile | None = None
    cdc: ChangeFile | None = None
    meta_data: TableMetadata | None = None
    protocol: TableProtocol | None = None
    commit_info: CommitInfo | None = None


class Version(msgspec.Struct, frozen=True):
    """What one version of a table did."""

    number: int
    added: tuple[AddedFile, ...] = ()
    removed: tuple[RemovedFile, ...] = ()
    changes: tuple[ChangeFile, ...] = ()
    metadata: TableMetadata | None = None
    protocol: TableProtocol | None = None
    info: CommitInfo = CommitInfo()

    @property
    def new_files(self) -> tuple[AddedFile, ...]:
        """The files whose rows were not there before."""
        return tuple(file for file in self.added if file.data_change)

    @property
    def lost_files(self) -> tuple[RemovedFile, ...]:
        """The files whose rows are changed or deleted, not only moved to other files."""
        return tuple(file for file in self.removed if file.data_change)


def decode_version(number: int, data: bytes, url: str) -> Version:
    """Return what a log entry says, or raise with the line that cannot be read."""
    found: dict[str, list[Any]] = {}
    for index, text in enumerate(data.splitlines()):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_Line)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptStateError(
                f"version {number} of the Delta table {url} cannot be read: line {index + 1} of "
                f"its log entry is no action: {error}. Restore the table's log",
                code=ErrorCode.UNDECODABLE,
                version=number,
            ) from error
        for name in ("add", "remove", "cdc", "meta_data", "protocol", "commit_info"):
            action = getattr(line, name)
            if action is not None:
                found.setdefault(name, []).append(action)
    return Version(
        number,
        tuple(_plain(file) for file in found.get("add", ())),
        tuple(_plain(file) for file in found.get("remove", ())),
        tuple(_plain(file) for file in found.get("cdc", ())),
        next(iter(found.get("meta_data", ())), None),
        next(iter(found.get("protocol", ())), None),
        next(iter(found.get("commit_info", ())), CommitInfo()),
    )


def _plain(file: Any) -> Any:
    return msgspec.structs.replace(file, path=unquote(file.path))


def find_reader_problems(
    configuration: Mapping[str, str | None], features: Sequence[str]
) -> list[str]:
    """Return why the data files of a table cannot be read as they are."""
    problems = [
        f"it needs the reader feature {feature!r}"
        for feature in sorted({*features} - READABLE_FEATURES - {"columnMapping"})
    ]
    mode = configuration.get("delta.columnMapping.mode") or "none"
    if mode != "none":
        problems.append(
            f"its columns have other names in the files (column mapping {mode!r})"
        )
    return problems


def check_readable(
    url: str, configuration: Mapping[str, str | None], features: Sequence[str]
) -> None:
    """Refuse a table whose data files cannot be read as they are."""
    problems = find_reader_problems(configuration, features)
    if problems:
        raise UserError(
            f"the Delta table {url} cannot be read: {'; '.join(problems)}. Copy its rows to a "
            "table without, with the engine that writes it, or drop the feature there",
            code=ErrorCode.UNREADABLE_INPUT,
            url=url,
        )


def check_without_vector(file: AddedFile | RemovedFile, url: str) -> None:
    """Refuse a file of which some rows are deleted by a deletion vector."""
    if file.has_deleted_rows:
        raise UserError(
            f"rows of {file.path!r} of the Delta table {url} are deleted by a deletion vector, "
            "which cannot be read: rewrite the files (REORG TABLE … APPLY (PURGE)) and set "
            "delta.enableDeletionVectors to false, then start the job anew",
            code=ErrorCode.UNREADABLE_INPUT,
            path=file.path,
        )


def read_bound(stats: str | None, column: str, *, is_upper: bool) -> int | None:
    """Return the least or the latest time of a column in a file, in microseconds; None if unknown."""
    try:
        told = json.loads(stats or "{}")
        text = told["maxValues" if is_upper else "minValues"][column]
        found = datetime.fromisoformat(text)
    except (ValueError, KeyError, TypeError):
        return None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    # Writers may cut bounds down to milliseconds, so the latest row may be a bit later.
    return micros + 999 if is_upper else micros


def to_stat(value: Any) -> Any:
    """Return a bound of a column as statistics hold it; None if it is not told."""
    if isinstance(value, datetime):
        text = value.isoformat(timespec="microseconds")
        return text.replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= 32 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
