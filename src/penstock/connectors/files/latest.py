"""read_latest: the table that the committed changes of a files sink lead to.

Epochs are read from the newest to the oldest, many at a time. The newest epoch that speaks of a
key decides: it has the row if it adds one, and else the row is gone. So what is held is the
table, the keys that are gone, and the changes that are read at a time, not the history.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.files.committed import read_epochs
from penstock.core.schema import CHANGE_COLUMN
from penstock.errors import ErrorCode, SchemaError, StateError, UserError, did_you_mean
from penstock.operators.aggregates.frames import check_groupable, columns_to_frame
from penstock.operators.changelogs.envelopes import AFTER, BEFORE, DELETED, OP
from penstock.operators.changes import are_added
from penstock.operators.frames import to_names
from penstock.state.storage.urls import StorePlace
from penstock.state.tables.sorted_rows import take_rows

_ROWS_AT_A_TIME = 1_000_000
_EPOCH, _ADDED = "_penstock_epoch", "_penstock_added"
_OWN = (_EPOCH, _ADDED)
_PLACE = "_penstock_place"


def read_latest(
    url: StorePlace,
    *,
    key: str | Sequence[str] | None = None,
    store_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return the table that the changes which a sink committed to a folder lead to.

    The changes are a changelog, records of `to_debezium` or rows of `to_upserts`; `key` names the
    columns that tell the rows of the table apart. Without it equal rows are counted, as the
    changes of a union need it; upserts always need it.

    >>> import penstock as pen
    >>> p = pen.Pipeline("p")
    >>> sales = p.read("sales", pen.list_source([{"user": "ada", "price": 7}] * 2))
    >>> spent = sales.key_by("user").aggregate("spent", total=pen.sum("price"))
    >>> spent.write("out", pen.files("doctest-of-read-latest", format="parquet"))
    >>> status = p.run_in_process("memory:")
    >>> pen.read_latest("doctest-of-read-latest", key="user").to_pylist()
    [{'user': 'ada', 'total': 14}]
    """
    keys = [] if key is None else list(to_names("key", key, where="read_latest: "))
    if key is not None and not keys:
        raise UserError(
            "read_latest: key is empty: name the columns that tell rows apart, or leave it out",
            code=ErrorCode.INVALID_CONFIG,
        )
    schema: pa.Schema | None = None
    folded = _Counted() if key is None else _ByKey(keys)
    for rows in _parts(url, store_options, has_key=key is not None):
        if schema is None:
            schema = pa.schema([f for f in rows.schema if f.name not in _OWN])
            _check_key(keys, schema, str(url))
        folded.add(rows)
    if schema is None:
        return pa.table({})
    found = folded.result()
    if found is None:
        return schema.empty_table()
    return found.select(schema.names).cast(schema)


class _ByKey:
    """The newest row of each key, of changes that come from the newest epochs to the oldest."""

    def __init__(self, key: list[str]) -> None:
        self._key = key
        self._parts: list[pa.Table] = []
        self._seen: pl.DataFrame | None = None

    def add(self, rows: pa.Table) -> None:
        key = self._key
        keys = _grouped(rows, [*key, *_OWN]).with_row_index(_PLACE)
        if self._seen is not None:
            keys = keys.cast(self._seen.schema)
            keys = keys.join(self._seen, on=key, how="anti", nulls_equal=True)
        newest = keys.filter(pl.col(_EPOCH) == pl.col(_EPOCH).max().over(key))
        added = newest.filter(pl.col(_ADDED))
        is_twice = added.select(key).is_duplicated()
        places = added.get_column(_PLACE).to_numpy().astype(np.int64)
        if is_twice.any():
            (shown,) = take_rows(rows, places[is_twice.to_numpy()][:1]).to_pylist()
            found = {name: value for name, value in shown.items() if name not in _OWN}
            raise StateError(
                f"the changes have two rows of one key in one epoch, such as {found}: the "
                "columns named as key do not tell the rows of the table apart. Name more of "
                "them, or leave key out",
                code=ErrorCode.SCHEMA_MISMATCH,
            )
        # Values stay as they are: Polars has not all types of Arrow.
        self._parts.append(take_rows(rows.drop_columns(list(_OWN)), places))
        seen = newest.select(key).unique()
        self._seen = seen if self._seen is None else pl.concat([self._seen, seen])

    def result(self) -> pa.Table | None:
        if not self._parts:
            return None
        return pa.concat_tables(self._parts, promote_options="permissive")


class _Counted:
    """Rows without a key, with how often each is there."""

    def __init__(self) -> None:
        self._rows: pl.DataFrame | None = None

    def add(self, rows: pa.Table) -> None:
        names = [name for name in rows.column_names if name not in _OWN]
        sign = pl.when(pl.col(_ADDED)).then(1).otherwise(-1).alias(_ADDED)
        signed = _grouped(rows, [*names, _ADDED]).select(*names, sign)
        if self._rows is not None:
            signed = pl.concat([self._rows, signed], how="diagonal_relaxed")
        counted = signed.group_by(names, maintain_order=True).agg(pl.col(_ADDED).sum())
        self._rows = counted.filter(pl.col(_ADDED) != 0)

    def result(self) -> pa.Table | None:
        if self._rows is None:
            return None
        times = self._rows.get_column(_ADDED).clip(lower_bound=0).to_numpy()
        places = np.repeat(np.arange(self._rows.height), times)
        return self._rows.select(pl.exclude(_ADDED).gather(places)).to_arrow()


def _grouped(rows: pa.Table, names: Sequence[str]) -> pl.DataFrame:
    """Return columns that rows are told apart by as a frame."""
    check_groupable(rows.schema, names)
    return columns_to_frame(rows.to_batches(), names)


def _parts(
    url: StorePlace, store_options: Mapping[str, Any] | None, *, has_key: bool
) -> Iterator[pa.Table]:
    """Yield the changes of many whole epochs at a time, the newest first, in one form."""
    held: list[pa.Table] = []
    count, newest = 0, None
    for epoch, rows in read_epochs(url, store_options):
        # The two rows of an update may be in several files: those of an epoch stay together.
        if epoch != newest and count >= _ROWS_AT_A_TIME:
            yield pa.concat_tables(held, promote_options="permissive")
            held, count = [], 0
        flat = _flat(rows, has_key=has_key)
        number = pa.array([epoch], pa.int64()).take(pa.array([0] * flat.num_rows))
        held.append(flat.append_column(_EPOCH, number))
        count, newest = count + flat.num_rows, epoch
    if held:
        yield pa.concat_tables(held, promote_options="permissive")


def _flat(rows: pa.Table, *, has_key: bool) -> pa.Table:
    """Return changes of any form as rows of the table, and whether each is added or removed."""
    names = rows.column_names
    if CHANGE_COLUMN in names:
        added: Any = are_added(rows)
        return rows.drop_columns([CHANGE_COLUMN]).append_column(_ADDED, added)
    if DELETED in names:
        if not has_key:
            raise UserError(
                "these changes are upserts, of which the last one of each key counts: name the "
                "key of the table, as read_latest(url, key=…)",
                code=ErrorCode.INVALID_CONFIG,
            )
        deleted: Any = pc.fill_null(rows.column(DELETED), pa.scalar(False))  # noqa: FBT003 (Arrow's signature)
        added = pc.invert(deleted)
        return rows.drop_columns([DELETED]).append_column(_ADDED, added)
    if {BEFORE, AFTER, OP} <= set(names):
        # Columns beside the envelope are keys: changes were written so before they were flat.
        beside = [name for name in names if name not in (BEFORE, AFTER, OP)]
        parts = [_side(rows, beside, side) for side in (BEFORE, AFTER)]
        return pa.concat_tables(parts)
    raise SchemaError(
        f"the rows of this folder have the columns ({', '.join(names)}), and are no changes: a "
        f"changelog has the column {CHANGE_COLUMN!r}. read_committed returns rows as they are"
    )


def _side(rows: pa.Table, beside: list[str], side: str) -> pa.Table:
    """Return the rows that envelopes hold as `before`, which are removed, or as `after`."""
    there = rows.filter(rows.column(side).is_valid())
    struct: Any = there.column(side).combine_chunks()
    parts = dict(zip([f.name for f in struct.type], struct.flatten(), strict=True))
    columns = {name: there.column(name) for name in beside} | parts
    is_added = pa.array(np.full(there.num_rows, side == AFTER))
    return pa.table(columns).append_column(_ADDED, is_added)


def _check_key(keys: Sequence[str], schema: pa.Schema, url: str) -> None:
    for name in keys:
        if name not in schema.names:
            raise UserError(
                f"the changes in {url} have no column {name!r}"
                f"{did_you_mean(name, schema.names)}: name columns of the table as its key",
                code=ErrorCode.SCHEMA_MISMATCH,
            )
