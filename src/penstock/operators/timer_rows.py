"""Timer rows: how timers are kept in a table, and which of several rows of a timer counts.

Pure. A row is a key, an instant, and whether the timer is set or cancelled; of several rows
of one key and instant the last one counts. `fires_at` is `due`, or for a timer that was set
too late for its own instant, the next instant of the clock. A row expires with it: rows are
never deleted, the clock passes them.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.batch import to_batches
from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.core.signals import MAX_MICROS
from penstock.errors import ErrorCode, UserError
from penstock.state.tables.hash_order import stable_order
from penstock.state.tables.keyed_rows import join_rows, newest_per_key

FIRES_AT, DUE, IS_SET = "fires_at", "due", "is_set"
_KEY_PREFIX = "key."
_MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}

Micros: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def timer_schema(keyed: StreamSchema) -> pa.Schema:
    """Return the columns of a timer table; prefixed keys never meet the table's own columns."""
    keys = [
        keyed.schema.field(name).with_name(key_column(name)).remove_metadata()
        for name in keyed.key_columns
    ]
    return pa.schema(
        [
            *keys,
            pa.field(FIRES_AT, pa.timestamp("us"), nullable=False),
            pa.field(DUE, pa.timestamp("us"), nullable=False),
            pa.field(IS_SET, pa.bool_(), nullable=False),
        ]
    )


def key_column(name: str) -> str:
    """Return what a key column of the input is called in a timer table."""
    return _KEY_PREFIX + name


def keys_of(rows: pa.RecordBatch, keyed: StreamSchema) -> pa.RecordBatch:
    """Return the keys of timer rows as the input has them."""
    fields = [keyed.schema.field(name) for name in keyed.key_columns]
    columns = [rows.column(key_column(name)) for name in keyed.key_columns]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def micros_in(rows: pa.RecordBatch, name: str) -> Micros:
    """Return an instant of each row."""
    column: Any = rows.column(name)
    micros: Micros = column.view(pa.int64()).to_numpy()
    return micros


def to_rows(
    keys: pa.RecordBatch, due_micros: Any, keyed: StreamSchema, *, is_set: bool
) -> pa.RecordBatch:
    """Return timer rows as a user asks for them, each timer once, firing when they are due."""
    schema = timer_schema(keyed)
    due = pa.array(to_instants(due_micros, keys.num_rows)).view(pa.timestamp("us"))
    columns = [*keyed.keys_of(keys), due, due, pa.array(np.full(len(due), is_set))]
    named: pa.RecordBatch = pa.RecordBatch.from_arrays(columns, names=schema.names)
    rows = to_batches(named, schema)
    return newest_rows(join_rows(rows)) if rows else named.slice(0, 0)


def fire_later(rows: pa.RecordBatch, floor_micros: int | None) -> pa.RecordBatch:
    """Return the rows with instants that the clock has passed moved behind `floor_micros`."""
    if floor_micros is None:
        return rows
    moved = np.maximum(micros_in(rows, DUE), next_instant(floor_micros))
    index = rows.schema.get_field_index(FIRES_AT)
    column = pa.array(moved).view(pa.timestamp("us"))
    return rows.set_column(index, rows.schema.field(index), column)


def newest_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the last row of each key and instant, in the order they were written."""
    if rows.num_rows < 2:
        return rows
    names = [n for n in rows.schema.names if n not in (FIRES_AT, IS_SET)]
    identity: list[Any] = [rows.column(name) for name in names]
    hashes = hash_keys(identity)
    newest = newest_per_key(hashes, identity, stable_order(hashes))
    if len(newest) == rows.num_rows:
        return rows
    return rows.take(pa.array(np.sort(newest), pa.int64()))


def set_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return those of the newest rows that say that a timer is set."""
    return rows.filter(rows.column(IS_SET))


def in_firing_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows earliest first; those of one instant by the hash of their key."""
    keys: list[Any] = [
        rows.column(n) for n in rows.schema.names if n.startswith(_KEY_PREFIX)
    ]
    order = np.lexsort((hash_keys(keys), micros_in(rows, DUE)))
    return rows.take(pa.array(order, pa.int64()))


def next_instant(micros: int) -> int:
    """Return the instant after this one; the last one has none."""
    return min(micros + 1, MAX_MICROS)


def to_instants(due_micros: Any, row_count: int) -> Micros:
    """Return one instant per row in microseconds: finer timestamps are rounded down."""
    if isinstance(due_micros, int) and not isinstance(due_micros, bool):
        if abs(due_micros) > MAX_MICROS:
            raise _refusal(f"{due_micros} microseconds do not fit 64 bits")
        return np.full(row_count, due_micros, np.int64)
    column = _to_arrow(due_micros)
    if len(column) != row_count:
        raise _refusal(f"{row_count} keys were given with {len(column)} instants")
    if column.null_count:
        first = column.is_null().index(True).as_py()
        raise _refusal(f"{column.null_count} instants are null, first in row {first}")
    if pa.types.is_timestamp(column.type):
        return _timestamps_in_micros(column)
    if pa.types.is_integer(column.type):
        try:
            whole = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise _refusal(str(error)) from error
        return np.asarray(whole.to_numpy(), np.int64)
    raise _refusal(f"the instants are of type {column.type}")


def _to_arrow(values: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray) and values.ndim == 1:
        try:
            return pa.array(values)
        except pa.ArrowException as error:
            raise _refusal(str(error)) from error
    raise _refusal(f"{type(values).__name__} is neither a number nor an array of instants")


def _timestamps_in_micros(column: Any) -> Micros:
    values: Micros = column.view(pa.int64()).to_numpy()
    if column.type.unit == "ns":
        return values // 1_000
    factor = _MICROS_PER_UNIT[column.type.unit]
    limit = MAX_MICROS // factor
    if len(values) and (int(values.min()) < -limit or int(values.max()) > limit):
        raise _refusal("an instant is further from 1970 than 2**63 microseconds")
    return values * factor


def _refusal(problem: str) -> UserError:
    return UserError(
        f"timers cannot be set or cancelled so: {problem}. Give microseconds since 1970 as one "
        "number for all keys, or one per key as a NumPy array of whole numbers or an Arrow "
        "array of int64 or timestamps",
        code=ErrorCode.INVALID_NUMBER,
    )
