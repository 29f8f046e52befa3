"""`open_state`: the state of a job as data, at any kept epoch, for people and their tools.

    with pen.open_state("checkpoints", "shop") as state:
        state.tables                                  which there are
        spent = state.table("spent")                  one of them
        spent.arrow(), spent.polars(), spent.duckdb() all rows: each key once, none expired
        spent.get(["ada", "bob"])                     some keys, without reading the others

Opening state makes no claim and keeps no epoch: a job that runs may collect it meanwhile. Then
reading raises an error that says to make a savepoint first.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import pyarrow as pa

from penstock.api.epoch_list import StoredTable
from penstock.api.stored_state import StoredState, open_table, read_parts, rows_of
from penstock.core.ids import Epoch, JobId, OperatorId, SavepointName
from penstock.core.rows import RowsLike
from penstock.errors import (
    CorruptStateError,
    ErrorCode,
    PenstockError,
    StateError,
    UserError,
    did_you_mean,
)
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.files.cache import FileCache
from penstock.state.proto import state_pb2
from penstock.state.protocol.records import CheckpointManifest
from penstock.state.protocol.retention import Epochs, is_kept
from penstock.state.storage.urls import StorePlace, to_store
from penstock.state.tables.specs import TableSpec
from penstock.state.tables.table_manager import TableManager

if TYPE_CHECKING:
    import duckdb

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_CACHE_BYTES = 1 << 30
_KINDS = {
    state_pb2.GLOBAL_KEYED_TABLE: "global_table",
    state_pb2.TIME_KEYED_TABLE: "time_keyed_table",
    state_pb2.KEYED_TABLE: "keyed_table",
}

CHANGE = "change"
"""The column that says what happened to a row: `added`, `removed`, `before` or `after`."""

_COPY = "penstock.copy"
_ORDER = "penstock.order"


def open_state(
    url: StorePlace, job: str, epoch: int | str | None = None, **store_options: Any
) -> "OpenState":
    """Open the state of a job as an epoch has it: a number, a savepoint, or the newest.

    >>> import penstock as pen
    >>> p = pen.Pipeline("shop")
    >>> sales = p.read("sales", pen.list_source([{"user": "ada", "paid": 7}]))
    >>> sales.key_by("user").aggregate("spent", total=pen.sum("paid")).write(
    ...     "out", pen.blackhole()
    ... )
    >>> status = p.run_in_process("memory:doctest-of-open-state")
    >>> with open_state("memory:doctest-of-open-state", "shop", epoch=1) as state:
    ...     state.table("spent").arrow(columns=["user"]).to_pylist()
    [{'user': 'ada'}]
    """
    checkpoints = JobCheckpoints(to_store(url, **store_options), JobId(job))
    checkpoints.require_claim()
    return OpenState(checkpoints, _find_manifest(checkpoints, epoch))


def _find_manifest(
    checkpoints: JobCheckpoints, epoch: int | str | None
) -> CheckpointManifest:
    if epoch is None:
        newest = checkpoints.newest()
        if newest is None:
            raise StateError(
                f"job {checkpoints.job!r} has no epoch yet",
                code=ErrorCode.NOT_RESTORABLE,
                job=str(checkpoints.job),
            )
        return newest
    if isinstance(epoch, str):
        named = Epochs(savepoint=SavepointName(epoch))
    else:
        named = Epochs(Epoch(epoch))
    return checkpoints.manifest(checkpoints.plan_restore(named).ref)


class OpenState:
    """The state of a job at one epoch. A context manager: leaving it deletes what was cached."""

    def __init__(self, checkpoints: JobCheckpoints, manifest: CheckpointManifest) -> None:
        self._checkpoints = checkpoints
        self._manifest = manifest
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-cache-")
        self._cache = FileCache(Path(self._folder.name), limit_bytes=_CACHE_BYTES)
        self._managers: list[TableManager] = []
        self._tables: tuple[StoredTable, ...] | None = None

    def __repr__(self) -> str:
        return f"<state of job {self.job!r} at epoch {self.epoch}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete what was cached; its tables cannot be read any more."""
        for manager in self._managers:
            manager.close()
        self._managers = []
        self._folder.cleanup()

    @property
    def job(self) -> str:
        """The name of the job."""
        return str(self._manifest.ref.job)

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return int(self._manifest.ref.epoch)

    @property
    def made_at(self) -> datetime:
        """When the epoch was made."""
        return _FIRST + timedelta(microseconds=self._manifest.created_at_micros)

    @property
    def tables(self) -> tuple[StoredTable, ...]:
        """The tables of all steps, as far as they are state and not about reading or output."""
        if self._tables is None:
            with self._noticing_collection():
                parts = read_parts(self._checkpoints.store, self._manifest)
            self._tables = StoredState.of(parts).tables
        return self._tables

    def table(
        self, step: str, table: str | None = None, *, spec: TableSpec | None = None
    ) -> "StateTable":
        """Open a table of a step; its name can be left out if the step has only one.

        `spec` is the table's declaration, needed only if its state has versions.
        """
        named = self._find(step, table)
        with self._noticing_collection():
            declared, manager = open_table(
                self._checkpoints.store,
                self._manifest,
                OperatorId(step),
                named,
                cache=self._cache,
                spec=spec,
            )
        self._managers.append(manager)
        return StateTable(self, step, declared, manager)

    def _find(self, step: str, table: str | None) -> str:
        steps = sorted({each.step for each in self.tables})
        own = [each.table for each in self.tables if each.step == step]
        if not own:
            raise _no_table(
                f"step {step!r} has no state in epoch {self.epoch} of job {self.job!r}"
                f"{did_you_mean(step, steps)}; steps with state: {', '.join(steps) or 'none'}"
            )
        if table is None and len(own) == 1:
            return own[0]
        if table is None or table not in own:
            said = "several tables" if table is None else f"no table {table!r}"
            raise _no_table(f"step {step!r} has {said}: it has {', '.join(own)}")
        return table

    @contextmanager
    def _noticing_collection(self) -> Iterator[None]:
        """Tell objects that a collection deleted from those that are damaged."""
        try:
            yield
        except CorruptStateError as error:
            if is_kept(self._checkpoints.read_retention(), self._manifest.ref):
                raise
            raise StateError(
                f"epoch {self.epoch} of job {self.job!r} was collected while it was read: make "
                "a savepoint first, and open that",
                code=ErrorCode.NOT_RESTORABLE,
                job=self.job,
            ) from error


class StateTable:
    """One table of a step, read as a subtask reads it that owns all keys."""

    def __init__(
        self, state: OpenState, step: str, spec: TableSpec, manager: TableManager
    ) -> None:
        self._state = state
        self._spec = spec
        self._manager = manager
        self.step = step
        """The step it belongs to."""
        self.name = str(spec.name)
        self.kind = _KINDS[spec.table_type]
        """`keyed_table`, `time_keyed_table` or `global_table`."""

    def __repr__(self) -> str:
        return f"<table {self.name!r} of step {self.step!r}, {self.kind}>"

    @property
    def key_fields(self) -> "list[pa.Field[Any]]":
        """The columns of its key, in order; none for a table by key and value."""
        if self._spec.table_type == state_pb2.KEYED_TABLE:
            schema: Any = self._manager.get_keyed_state(self._spec.name).schema
        elif self._spec.table_type == state_pb2.TIME_KEYED_TABLE:
            schema = self._manager.get_time_keyed_state(self._spec.name).schema
        else:
            return []
        return [schema.declared.field(name) for name in schema.key_columns]

    def arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows: each key once, none deleted or expired."""
        with self._state._noticing_collection():  # noqa: SLF001 (of this file)
            rows = rows_of(self._manager, self._spec)
        if columns is None:
            return rows
        unknown = [name for name in columns if name not in rows.column_names]
        if unknown:
            raise UserError(
                f"table {self.name!r} has no column {unknown[0]!r}"
                f"{did_you_mean(unknown[0], rows.column_names)}",
                code=ErrorCode.INVALID_CONFIG,
            )
        return rows.select(list(columns))

    def polars(self, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return all rows as a lazy frame; they are read when it is collected."""
        names = None if columns is None else list(columns)
        schema = pl.DataFrame(self.arrow(names).slice(0, 0)).schema

        def read(
            with_columns: list[str] | None,
            predicate: pl.Expr | None,
            n_rows: int | None,
            batch_size: int | None,
        ) -> Iterator[pl.DataFrame]:
            del batch_size
            frame = pl.DataFrame(self.arrow(names))
            if predicate is not None:
                frame = frame.filter(predicate)
            if with_columns is not None:
                frame = frame.select(with_columns)
            yield frame if n_rows is None else frame.head(n_rows)

        return pl.io.plugins.register_io_source(read, schema=schema)

    def pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as a pandas frame."""
        return self.arrow(columns).to_pandas()

    def duckdb(
        self, connection: "duckdb.DuckDBPyConnection | None" = None
    ) -> "duckdb.DuckDBPyRelation":
        """Return all rows as a relation of DuckDB; of `connection`, or of one of its own."""
        import duckdb

        used = duckdb.connect() if connection is None else connection
        return used.from_arrow(self.arrow())

    def get(self, keys: RowsLike) -> pa.Table:
        """Return the rows of some keys, in their order; keys without a row are left out.

        Only the parts of files are read that may hold them.
        """
        with self._state._noticing_collection():  # noqa: SLF001 (of this file)
            if self._spec.table_type == state_pb2.KEYED_TABLE:
                found = self._manager.get_keyed_state(self._spec.name).get(keys)
                return pa.Table.from_batches([found.rows]).filter(pa.array(found.found))
            if self._spec.table_type == state_pb2.TIME_KEYED_TABLE:
                return self._manager.get_time_keyed_state(self._spec.name).get(keys).rows
        raise UserError(
            f"table {self.name!r} of step {self.step!r} is a table by key and value: read it "
            "whole, it is small",
            code=ErrorCode.INVALID_CONFIG,
        )


def _no_table(message: str) -> PenstockError:
    return StateError(message, code=ErrorCode.NO_REGISTERED_TABLE)


def diff_rows(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows that differ, with what happened to each in front.

    Rows of equal key that changed come twice: as they were `before`, and `after`. Without keys
    rows are compared as a whole, and each counts as often as it is there.

    >>> old = pa.table({"user": ["ada", "bob"], "n": [1, 2]})
    >>> new = pa.table({"user": ["ada", "eve"], "n": [3, 4]})
    >>> for row in diff_rows(old, new, ["user"]).to_pylist():
    ...     print(row)
    {'change': 'before', 'user': 'ada', 'n': 1}
    {'change': 'after', 'user': 'ada', 'n': 3}
    {'change': 'removed', 'user': 'bob', 'n': 2}
    {'change': 'added', 'user': 'eve', 'n': 4}
    """
    old, new = pl.DataFrame(before), pl.DataFrame(after)
    shared = [name for name in new.columns if name in old.columns]
    names = list(keys) or shared
    if not keys:
        old, new = (_numbered(frame, shared) for frame in (old, new))
        names = [*shared, _COPY]
    removed = old.join(new, on=names, how="anti", nulls_equal=True)
    added = new.join(old, on=names, how="anti", nulls_equal=True)
    kept = new.join(old, on=names, how="semi", nulls_equal=True)
    changed = kept.join(
        old, on=[*shared, *([] if keys else [_COPY])], how="anti", nulls_equal=True
    )
    was = old.join(changed, on=names, how="semi", nulls_equal=True)
    parts = [
        (was, "before", 1),
        (changed, "after", 2),
        (removed, "removed", 0),
        (added, "added", 3),
    ]
    frames = [
        frame.select(
            pl.lit(said).alias(CHANGE), *shared, *_missing(frame, old, new, shared)
        ).with_columns(pl.lit(order, pl.Int8).alias(_ORDER))
        for frame, said, order in parts
    ]
    joined = pl.concat(frames, how="diagonal_relaxed")
    sortable = [name for name in names if name in joined.columns]
    return joined.sort([*sortable, _ORDER]).drop(_ORDER).to_arrow()


def _numbered(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Number equal rows, so that each of them is one of its own."""
    return frame.with_columns(pl.int_range(pl.len()).over(list(columns)).alias(_COPY))


def _missing(
    frame: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame, shared: Sequence[str]
) -> list[str]:
    """Return columns that only one of the versions has, and that this frame has."""
    only = [n for n in (*new.columns, *old.columns) if n not in shared and n != _COPY]
    return [name for name in dict.fromkeys(only) if name in frame.columns]
