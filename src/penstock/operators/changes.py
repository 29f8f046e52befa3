"""The form of a changelog: flat rows, and a column `change` that says what each does to the table.

    change          sign
    insert           +    the row is new
    update-before    -    the row as it was; its update-after follows
    update-after     +    the row as it is
    delete           -    the row is gone

Within an epoch removals come before additions, whatever the order of rows: operators add up
signs. See `docs/design/changelogs.md`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.schema import CHANGE_COLUMN, Settling, StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.state.tables.sorted_rows import Flags

INSERT, DELETE = "insert", "delete"
UPDATE_BEFORE, UPDATE_AFTER = "update-before", "update-after"
KINDS = (INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE)
"""All kinds of changes; the place of each is its code inside of operators."""
_INSERTED, _BEFORE, _AFTER, _DELETED = range(4)


def changelog_schema(
    key: Sequence["pa.Field[Any]"],
    values: Sequence["pa.Field[Any]"],
    time_column: str | None = None,
    settling: Settling = Settling.SETTLED,
    *,
    is_bag: bool = False,
) -> StreamSchema:
    """Return the schema of the changes of a table with such a key and values."""
    fields = [*key, *values]
    check_free(field.name for field in fields)
    schema = pa.schema([pa.field(CHANGE_COLUMN, pa.string()), *fields])
    return StreamSchema(
        schema,
        time_column,
        table_key=tuple(field.name for field in key),
        settling=settling,
        is_bag=is_bag,
    )


def check_free(names: Iterable[str]) -> None:
    """Refuse a column that has the name of the one which changelogs add."""
    if CHANGE_COLUMN in set(names):
        raise SchemaError(
            f"there is a column {CHANGE_COLUMN!r}, and changelogs have one of their own by this "
            "name: rename it before",
            column=CHANGE_COLUMN,
        )


def kinds_of(codes: "np.typing.NDArray[Any]") -> "pa.Array[Any]":
    """Return the column `change` of places in `KINDS`."""
    indices: Any = codes.astype(np.int8, copy=False)
    return pa.DictionaryArray.from_arrays(indices, pa.array(KINDS)).dictionary_decode()


def are_added(rows: pa.RecordBatch | pa.Table) -> Any:
    """Return which rows of a changelog are additions, as an Arrow array; others are removals."""
    change: Any = rows.column(CHANGE_COLUMN)
    insert, before, after, delete = (pc.equal(change, pa.scalar(kind)) for kind in KINDS)
    added: Any = pc.or_(insert, after)
    is_known: Any = pc.fill_null(pc.or_(added, pc.or_(before, delete)), pa.scalar(False))  # noqa: FBT003 (Arrow's signature)
    if not pc.all(is_known, min_count=0).as_py():
        wrong = change.filter(pc.invert(is_known))[0].as_py()
        raise SchemaError(
            f"a changelog holds the change {wrong!r}: it must be one of {', '.join(KINDS)}",
            column=CHANGE_COLUMN,
        )
    return added


def to_changes(
    schema: pa.Schema,
    before: Sequence["pa.Array[Any]"],
    after: Sequence["pa.Array[Any]"],
    was: Flags,
    is_there: Flags,
) -> pa.RecordBatch:
    """Return the settled changes between two states of the same keys, row by row.

    `before` and `after` are the columns of the schema but `change`; `was` and `is_there` say
    for which keys each state has a row. A key in both is updated.
    """
    count = len(was)
    ends = np.cumsum(was.astype(np.int64) + is_there)
    total = int(ends[-1]) if count else 0
    rows = np.empty(total, np.int64)
    codes = np.empty(total, np.int8)
    places = np.arange(count)
    last = ends[is_there] - 1
    rows[last] = places[is_there] + count
    codes[last] = np.where(was[is_there], _AFTER, _INSERTED)
    first = ends[was] - 1 - is_there[was]
    rows[first] = places[was]
    codes[first] = np.where(is_there[was], _BEFORE, _DELETED)
    taken: Any = pa.array(rows)
    columns = [
        pa.concat_arrays([old, new]).take(taken)
        for old, new in zip(before, after, strict=True)
    ]
    return pa.RecordBatch.from_arrays([kinds_of(codes), *columns], schema=schema)


_HARMS = {
    "rebalance": "changes of one key must reach one subtask. Leave it out: changes are spread "
    "by key",
    "session window": "a row that is taken out may split a session, and which rows are in one is "
    "not kept. Use pen.tumbling or pen.sliding, or cut the rows that the changelog is made of",
    "window by processing time": "a row that is replaced later would have to be taken out of a "
    "window that has closed. Use windows by event time, or cut the rows that the changelog is made of",
    "async_udf": "an answer may come in a later epoch than that of the other half of an update. "
    "Call it on the rows that the changelog is made of",
    "join": "by event time, rows that were joined could not be taken out again. Leave out within= "
    "and window= to join tables, or join the rows that the changelog is made of",
    "lookup join": "what was looked up for a row is not remembered, so it could not be taken out "
    "again. Join it with another stream instead, without within= and window=: such a join of "
    "tables keeps both sides",
    "deduplicate": "a row that it dropped could not come back when the one it emitted is deleted. "
    "Deduplicate the rows that the changelog is made of",
    "from_upserts": "its rows are changes already",
    "from_debezium": "its rows are changes already",
    "to_table": "its rows are changes of a table already",
}
"""Why a step cannot follow a changelog, and what to do instead."""


def check_append_only(step: str, stream: StreamSchema) -> None:
    """Refuse a step that cannot follow a changelog."""
    if stream.is_changelog:
        raise UserError(
            f"{step} cannot follow a changelog: {_HARMS[step]}. to_rows() makes append-only rows "
            "of changes, each for itself",
            code=ErrorCode.INVALID_CONFIG,
        )


def check_changelog(step: str, stream: StreamSchema) -> tuple[str, ...]:
    """Return the key of the table whose changes a stream holds, or refuse other rows."""
    if stream.table_key is None:
        raise SchemaError(
            f"{step} needs a changelog, and these rows are append-only. Changelogs come from "
            "key_by(…).aggregate(…), to_table(…), from_upserts(…) and from_debezium(…)"
        )
    return stream.table_key


def check_change_unread(step: str, stream: StreamSchema, names: Iterable[str]) -> None:
    """Refuse to compute something of `change`: what a removed row had could not be taken out."""
    if stream.is_changelog and CHANGE_COLUMN in set(names):
        raise SchemaError(
            f"{step} looks at {CHANGE_COLUMN!r} of a changelog: a row has another value of it "
            "when it is removed than when it was added, so the result would be no table. Make "
            "append-only rows of the changes with to_rows() before",
            column=CHANGE_COLUMN,
        )


def project_changes(
    stream: StreamSchema, names: Sequence[str], computed: Sequence[str], step: str
) -> tuple[str, ...] | None:
    """Return the table key behind a step that emits these columns, some of them computed.

    A changelog must keep its key and the column `change` as they are.
    """
    key = stream.table_key
    if key is None:
        return None
    if stream.is_bag:
        # Of rows without a key every column is a part of what tells them apart.
        key = tuple(name for name in names if name != CHANGE_COLUMN)
        needed: tuple[str, ...] = (CHANGE_COLUMN,)
    else:
        needed = (CHANGE_COLUMN, *key)
    lost = [name for name in needed if name not in names]
    replaced = [name for name in needed if name in computed]
    if lost or replaced:
        problem = f"leaves out {lost}" if lost else f"replaces {replaced}"
        raise SchemaError(
            f"{step} {problem} of a changelog, which tell its rows apart: keep them, or make "
            "append-only rows of the changes with to_rows() before",
            columns=tuple(lost or replaced),
        )
    return key
