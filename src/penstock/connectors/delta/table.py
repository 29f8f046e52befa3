"""Opens, creates and commits to Delta tables: the only place that calls their client.

`DeltaTables` names a table by URL and store options; `OpenTable` is one version of it. A commit
is made on the version that was opened: whoever read from it which epochs are recorded, and
commits on it, cannot be overtaken unnoticed. If another commit of the same app came in between,
the client refuses with a conflict.

The client's exceptions do not reach users: see `client`. A commit that was not answered is an
`UnknownOutcomeError`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.delta.actions import AddedFile, RemovedFile, TableMetadata
from penstock.connectors.delta.client import (
    NO_VERSION,
    library,
    shown_error,
    to_client_options,
    translate,
)
from penstock.connectors.delta.marks import Mark
from penstock.core.clock import SystemClock
from penstock.errors import (
    ErrorCode,
    PenstockError,
    UnknownOutcomeError,
    UserError,
    without_secrets,
)
from penstock.operators.secret_options import resolve_options


class CommitOutcome(Enum):
    """What became of a commit that was answered."""

    DONE = "done"
    CONFLICT = "conflict"
    """Another commit came first that this one must see: open the table again and look."""


class DeltaTables:
    """Names one table, which may not be there yet. Holds no connection, and no secret."""

    def __init__(self, url: str, store_options: Mapping[str, Any]) -> None:
        self.url = url
        self._store_options = store_options

    @property
    def _options(self) -> dict[str, str]:
        """The options as the client takes them; secrets are read for each call."""
        return to_client_options(self.url, resolve_options(self._store_options))

    def open(self, version: int | str | None = None) -> "OpenTable | None":
        """Return the table as of a version, an instant (RFC 3339) or now; None if there is none."""
        client = library()
        try:
            if isinstance(version, str):
                table = client.DeltaTable(self.url, storage_options=self._options)
                table.load_as_version(version)
            else:
                table = client.DeltaTable(
                    self.url, version=version, storage_options=self._options
                )
        except client.exceptions.TableNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 (raised again, as an error of ours)
            if version is not None and NO_VERSION.search(str(error)):
                raise self._no_version(version) from without_secrets(error)
            raise self._failed("opened", error) from without_secrets(error)
        return OpenTable(self.url, table)

    def open_kept(self, version: int) -> "OpenTable | None":
        """Return the table as of a version; None if that was cleaned up."""
        try:
            return self.open(version)
        except UserError as error:
            if error.context.get("version") == version:
                return None
            raise

    def _no_version(self, version: int | str) -> UserError:
        return UserError(
            f"the Delta table {self.url} has no version {version}: it is still to come, or was "
            "cleaned up. Name another one, or none for the newest",
            code=ErrorCode.INVALID_CONFIG,
            url=self.url,
            version=version,
        )

    def create(
        self,
        schema: pa.Schema,
        partition_by: Sequence[str],
        properties: Mapping[str, str | None],
    ) -> None:
        """Create the table, without rows, unless somebody else just did."""
        client = library()
        try:
            client.DeltaTable.create(
                self.url,
                client.Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(properties),
                storage_options=self._options,
            )
        except client.exceptions.CommitFailedError:
            return  # somebody else was first
        except Exception as error:  # noqa: BLE001 (raised again, as an error of ours)
            raise self._failed("created", error) from without_secrets(error)

    def _failed(self, verb: str, error: Exception) -> PenstockError:
        return translate(f"the Delta table {self.url} could not be {verb}", error)


class OpenTable:
    """One version of a table. Used by one thread, for one decision, then dropped."""

    def __init__(self, url: str, table: Any) -> None:
        self.url = url
        self._table = table

    @property
    def version(self) -> int:
        """The number of the version."""
        return int(self._table.version())

    @cached_property
    def metadata(self) -> TableMetadata:
        """The table's id, schema, partitioning and properties."""
        with self._reading():
            found = self._table.metadata()
            return TableMetadata(
                str(found.id),
                self._table.schema().to_json(),
                tuple(found.partition_columns),
                dict(found.configuration),
            )

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return schema_of(self.metadata)

    @property
    def reader_features(self) -> tuple[str, ...]:
        """What the table asks of its readers."""
        return tuple(self._table.protocol().reader_features or ())

    @property
    def writer_features(self) -> tuple[str, ...]:
        """What the table asks of its writers."""
        return tuple(self._table.protocol().writer_features or ())

    def recorded_epoch(self, app: str) -> int | None:
        """Return the last epoch that an app has committed; None if it has none."""
        with self._reading():
            found = self._table.transaction_version(app)
            return None if found is None else int(found)

    def files(self) -> list[AddedFile]:
        """Return the data files of this version."""
        with self._reading():
            listed = pa.table(self._table.get_add_actions(flatten=False))
            has_vectors = "deletionVectors" in self.reader_features
            vectors: Any = self._table.deletion_vectors() if has_vectors else ()
            deleted = {
                unquote(row["filepath"].rpartition("/")[2])
                for batch in vectors
                for row in pa.record_batch(batch).to_pylist()
            }
        columns = self.metadata.partition_columns
        texts: list[Any] = [
            to_partition_texts(pc.struct_field(listed["partition"], [column]))
            for column in columns
        ]
        found = []
        names = ["path", "size_bytes", "num_records", "min", "max"]
        told = [
            listed[name].to_pylist()
            if name in listed.column_names
            else [None] * len(listed)
            for name in names
        ]
        for index, (path, size, rows, low, high) in enumerate(zip(*told, strict=True)):
            plain = unquote(path)
            vector = b"{}" if plain.rpartition("/")[2] in deleted else b"null"
            found.append(
                AddedFile(
                    plain,
                    size,
                    {c: column[index] for c, column in zip(columns, texts, strict=True)},
                    stats=_stats_text(rows, low, high),
                    deletion_vector=msgspec.Raw(vector),
                )
            )
        return found

    def commit(
        self,
        added: Iterable[AddedFile],
        removed: Iterable[RemovedFile],
        marks: Sequence[Mark],
    ) -> CommitOutcome:
        """Add and remove files in one new version that records an epoch; all of it or nothing."""
        client = library()
        now_millis = SystemClock().now_micros() // 1_000
        actions = [
            client.transaction.AddAction(
                path=file.path,
                size=file.size,
                partition_values=dict(file.partition_values),
                modification_time=now_millis,
                data_change=True,
                stats=file.stats or "{}",
            )
            for file in added
        ]
        actions += [
            client.transaction.RemoveAction(
                file.path,
                data_change=True,
                deletion_timestamp=now_millis,
                size=file.size,
                partition_values=dict(file.partition_values or {}),
            )
            for file in removed
        ]
        with self._committing():
            try:
                self._table.create_write_transaction(
                    actions,
                    "append",
                    self._table.schema(),
                    partition_by=list(self.metadata.partition_columns),
                    commit_properties=_properties(marks, now_millis),
                )
            except client.exceptions.CommitFailedError:
                return CommitOutcome.CONFLICT
        return CommitOutcome.DONE

    def merge(
        self, rows: pa.RecordBatchReader, plan: "MergePlan", marks: Sequence[Mark]
    ) -> CommitOutcome:
        """Update, insert and delete rows by key in one new version that records an epoch."""
        client = library()
        change = f"s.{_quote(plan.change_column)}"
        is_upsert = f"{change} <> '{plan.delete}'"
        values = {_quote(name): f"s.{_quote(name)}" for name in plan.columns}
        same_key = (f"t.{_quote(k)} IS NOT DISTINCT FROM s.{_quote(k)}" for k in plan.key)
        with self._committing():
            try:
                merger = self._table.merge(
                    rows,
                    predicate=" AND ".join(same_key),
                    source_alias="s",
                    target_alias="t",
                    max_spill_size=plan.memory_bytes,
                    commit_properties=_properties(
                        marks, SystemClock().now_micros() // 1_000
                    ),
                )
                merger.when_matched_delete(
                    f"{change} = '{plan.delete}'"
                ).when_matched_update(values, predicate=is_upsert).when_not_matched_insert(
                    values, predicate=is_upsert
                ).execute()
            except client.exceptions.CommitFailedError:
                return CommitOutcome.CONFLICT
        return CommitOutcome.DONE

    def add_columns(self, fields: Sequence["pa.Field[Any]"]) -> None:
        """Add columns, which are null in all rows; a conflict means that somebody else did."""
        client = library()
        given = [field.with_nullable(True) for field in fields]  # noqa: FBT003 (Arrow's signature)
        with self._committing():
            try:
                self._table.alter.add_columns(
                    list(client.Schema.from_arrow(pa.schema(given)).fields)
                )
            except client.exceptions.CommitFailedError:
                return

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001 (raised again, as an error of ours)
            raise translate(
                f"the Delta table {self.url} could not be read", error
            ) from without_secrets(error)

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Turn a failure of a commit into one whose outcome is not known, unless it is refused."""
        client = library()
        try:
            yield
        except PenstockError:
            raise
        except (
            client.exceptions.DeltaProtocolError,
            client.exceptions.SchemaMismatchError,
        ) as error:
            raise translate(
                f"a commit to the Delta table {self.url} failed", error
            ) from without_secrets(error)
        except Exception as error:  # noqa: BLE001 (raised again, as an error of ours)
            if "Resources exhausted" in str(error):
                # The rows are computed before anything is committed.
                raise UserError(
                    f"a merge into the Delta table {self.url} needs more memory than "
                    f"merge_bytes= allows: raise it, or make epochs smaller "
                    f"({shown_error(error)})",
                    code=ErrorCode.INVALID_CONFIG,
                    url=self.url,
                ) from without_secrets(error)
            raise UnknownOutcomeError(
                f"no certain answer to a commit to the Delta table {self.url}: "
                f"{shown_error(error)}. It may have landed; it is looked for before it is tried "
                "again",
                url=self.url,
            ) from without_secrets(error)


@dataclass(frozen=True, slots=True)
class MergePlan:
    """How changes are merged into a table."""

    key: tuple[str, ...]
    columns: tuple[str, ...]
    """All columns that changes set, the key included."""
    change_column: str
    delete: str
    """The value of that column which deletes a row; with any other it is updated or inserted."""
    memory_bytes: int
    """How much memory the client may use before it writes to the disk."""


def _properties(marks: Sequence[Mark], now_millis: int) -> Any:
    client = library()
    return client.CommitProperties(
        custom_metadata={"penstock": msgspec.to_builtins(marks[0])},
        app_transactions=[
            client.Transaction(mark.app, mark.epoch, now_millis) for mark in marks
        ],
    )


def schema_of(metadata: TableMetadata) -> pa.Schema:
    """Return the columns that a table's metadata tells."""
    try:
        return pa.schema(library().Schema.from_json(metadata.schema_string).to_arrow())
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001 (raised again, as an error of ours)
        raise translate(
            "the schema of the Delta table cannot be read", error
        ) from without_secrets(error)


def to_partition_texts(values: Any) -> list[str | None]:
    """Return values of a partition column as Delta writes them; the empty text is null there.

    >>> to_partition_texts(pa.array([0, None], pa.timestamp("us", "UTC")))
    ['1970-01-01 00:00:00.000000', None]
    """
    if pa.types.is_timestamp(values.type):
        values = pc.cast(values, pa.timestamp("us", values.type.tz))
        texts = [None if t is None else t.removesuffix("Z") for t in _texts(values)]
    else:
        texts = _texts(values)
    return [text or None for text in texts]


def _texts(values: Any) -> list[str | None]:
    found: list[str | None] = pc.cast(values, pa.string()).to_pylist()
    return found


def _stats_text(rows: int | None, low: Any, high: Any) -> str | None:
    """Return statistics as log entries hold them, of what the client tells about a file."""
    if rows is None:
        return None
    told = {"numRecords": rows, "minValues": low or {}, "maxValues": high or {}}
    return json.dumps(told, default=_shown)


def _shown(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _quote(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
