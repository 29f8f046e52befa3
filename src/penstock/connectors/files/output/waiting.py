"""Rows that wait in the state of a files sink, so that several epochs become visible in one file.

| table | kind | what |
|---|---|---|
| `waiting` | keyed | the rows, in pieces of compressed Arrow IPC, by place, epoch and number |
| `waits` | global | how much waits at each place, and since when |

Rows that wait are in the checkpoint, not in files of the output. So a restore, a savepoint, a
branch or another folder finds those that waited then, and nobody has to know how long to keep
files for them.

A place is a number whose hash a subtask owns. It is where the subtask keeps its rows, and after
a rescale the new owner of the hash finds them. All subtasks see the same `waits`, as of the
epoch before, and the same processing time. So all decide alike in which epoch the rows of all
of them become visible, and an epoch is never visible in part.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.connectors.files.committed import schema_of, schema_text
from penstock.core.ids import TaskInfo, Token
from penstock.core.key_hash import hash_keys, owners_of
from penstock.errors import ErrorCode, StateError
from penstock.operators.context import OperatorContext
from penstock.state.tables.specs import TableSpec, global_table, keyed_table

WAITING = "waiting"
WAITS = "waits"
PIECE_BYTES = 4 << 20
"""Rows are put into the table at about this size, as Arrow holds them."""
_COLUMNS: dict[str, pa.DataType] = {
    "place": pa.int64(),
    "epoch": pa.int64(),
    "number": pa.int64(),
    "rows": pa.large_binary(),
}
_PIECES = pa.schema(_COLUMNS)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")


class Wait(msgspec.Struct, frozen=True):
    """What waits at one place."""

    since_micros: int
    """The processing time of the first epoch whose rows wait there."""
    bytes: int
    """The size of the pieces, which is about what the rows take in a Parquet file."""
    schema: str = ""
    """The columns of the rows that came last: an Arrow IPC schema in base64. Earlier ones fit."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long rows wait: until they are so large, or so old, whichever comes first."""

    min_bytes: int | None = None
    delay_micros: int | None = None

    def is_over(self, waits: Collection[Wait], now_micros: int) -> bool:
        """Decide whether what waits becomes visible. Pure."""
        if not waits:
            return False
        is_old = self.delay_micros is not None and (
            now_micros - min(wait.since_micros for wait in waits) >= self.delay_micros
        )
        size_bytes = sum(wait.bytes for wait in waits)
        return is_old or (self.min_bytes is not None and size_bytes >= self.min_bytes)

    def ends_at(
        self, waits: Collection[Wait], expected_bytes: int, now_micros: int
    ) -> int | None:
        """Return when an epoch is needed even if no row comes; None if that is not known. Pure.

        `expected_bytes` is what may wait in all: other subtasks' rows of this epoch are not
        known yet.
        """
        if not waits:
            return None
        if self.min_bytes is not None and expected_bytes >= self.min_bytes:
            return now_micros
        if self.delay_micros is None:
            return None
        return min(wait.since_micros for wait in waits) + self.delay_micros


def waiting_tables() -> list[TableSpec]:
    """Declare the tables. A sink has them whatever its options: rows may wait from before."""
    return [
        keyed_table(
            WAITING,
            _PIECES,
            key_columns=["place", "epoch", "number"],
            routed_by=["place"],
        ),
        waits_table(),
    ]


def waits_table() -> TableSpec:
    """Declare the table that tells whether rows wait."""
    return global_table(WAITS, int, Wait)


def places_of(task: TaskInfo, places: Sequence[int]) -> list[int]:
    """Return which of the places a subtask owns."""
    if not places:
        return []
    hashes = hash_keys([pa.array(places, pa.int64())])
    owned = owners_of(hashes, task.subtask.parallelism) == task.subtask.index
    return [places[int(index)] for index in np.flatnonzero(owned)]


def own_place(task: TaskInfo) -> int:
    """Return the first place that a subtask owns."""
    count = 8 * task.subtask.parallelism
    while not (owned := places_of(task, range(count))):
        count *= 2
    return owned[0]


class WaitingRows:
    """The rows of one attempt at one epoch, and those that waited before. Used once."""

    def __init__(self, ctx: OperatorContext, schema: pa.Schema) -> None:
        self.attempt: Token = ctx.attempt
        """The attempt that these rows belong to."""
        self._ctx = ctx
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._put = 0
        self._put_bytes = 0
        self._waits = ctx.get_global_keyed_state(WAITS)
        self._known: Mapping[int, Wait] = dict(self._waits.items())
        """What waited after the epoch before, at all places."""

    @property
    def has_rows(self) -> bool:
        """Return whether this subtask has rows, of this epoch or from before."""
        return bool(self._batches or self._put or self._own_places())

    @cached_property
    def _place(self) -> int:
        return own_place(self._ctx.task)

    def is_over(self, patience: Patience) -> bool:
        """Return whether what waited before becomes visible: the same for all subtasks."""
        return patience.is_over(self._known.values(), self._ctx.processing_time_micros)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of this epoch."""
        self._batches.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= PIECE_BYTES:
            self._put_piece()

    def keep(self, patience: Patience) -> None:
        """Let the rows of this epoch wait, and ask for the epoch that ends the wait.

        Rows of other columns than those that wait are refused before they wait, too: behind them
        neither the pipeline of before nor that of now could write all that waits.
        """
        self._put_piece()
        ctx, waits = self._ctx, dict(self._known)
        schema = schema_text(self._schema)
        for other in {wait.schema for wait in waits.values()} - {schema, ""}:
            _check_fit(schema_of(other), self._schema, ctx.task)
        now_micros = ctx.processing_time_micros
        if self._put:
            before = waits.get(self._place, Wait(now_micros, 0))
            wait = Wait(before.since_micros, before.bytes + self._put_bytes, schema)
            waits[self._place] = wait
            self._waits.insert(self._place, wait)
        known_bytes = sum(wait.bytes for wait in self._known.values())
        expected = known_bytes + self._put_bytes * ctx.task.subtask.parallelism
        wakes_at = patience.ends_at(waits.values(), expected, now_micros)
        if wakes_at is not None:
            ctx.wake_at(wakes_at)

    def release(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield all rows of this subtask with their epochs, the oldest first; none waits then."""
        places = self._own_places()
        if self._put and self._place not in places:
            places.append(self._place)
        if places:
            table = self._ctx.get_keyed_state(WAITING)
            found = table.get_all({"place": places}).rows.sort_by(
                [("epoch", "ascending"), ("place", "ascending"), ("number", "ascending")]
            )
            epochs: list[Any] = found.column("epoch").to_pylist()
            for epoch, piece in zip(epochs, found.column("rows"), strict=True):
                for batch in _from_piece(piece.as_buffer()):
                    yield epoch, _fit(batch, self._schema, self._ctx.task)
            table.delete(found.select(["place", "epoch", "number"]))
        for batch in self._batches:
            yield int(self._ctx.epoch), batch
        for place in places:
            self._waits.remove(place)
        self._batches, self._held_bytes = [], 0

    def _own_places(self) -> list[int]:
        return places_of(self._ctx.task, sorted(self._known))

    def _put_piece(self) -> None:
        """Move the rows that are held into the table."""
        if not self._batches:
            return
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._schema, options=_OPTIONS) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        data = out.getvalue().to_pybytes()
        columns: list[Any] = [[self._place], [int(self._ctx.epoch)], [self._put], [data]]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, _PIECES, strict=True)
        ]
        piece = pa.RecordBatch.from_arrays(arrays, schema=_PIECES)
        self._ctx.get_keyed_state(WAITING).put(piece)
        self._put += 1
        self._put_bytes += len(data)
        self._batches, self._held_bytes = [], 0


def _from_piece(data: pa.Buffer) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def _fit(batch: pa.RecordBatch, schema: pa.Schema, task: TaskInfo) -> pa.RecordBatch:
    """Return rows that waited in the columns that the sink has: new ones may be null."""
    if batch.schema.equals(schema):
        return batch
    _check_fit(batch.schema, schema, task)
    there = set(batch.schema.names)
    columns: list[Any] = [
        batch.column(field.name)
        if field.name in there
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_fit(waiting: pa.Schema, schema: pa.Schema, task: TaskInfo) -> None:
    """Raise `StateError` unless rows that wait have a form in the columns of the sink."""
    types = {field.name: field.type for field in schema}
    is_kept = all(types.get(field.name) == field.type for field in waiting)
    added = [field for field in schema if field.name not in waiting.names]
    if is_kept and all(field.nullable for field in added):
        return

    def shown(columns: pa.Schema) -> str:
        return ", ".join(f"{field.name}: {field.type}" for field in columns)

    raise StateError(
        f"rows wait in the state of sink {task.operator!r} to be written, with the columns "
        f"({shown(waiting)}), and the sink's are ({shown(schema)}): columns may be added if they "
        "can be null, nothing else. Start the job with the pipeline it had and stop it: a stop "
        "writes the rows that wait. Then start the new one",
        code=ErrorCode.SCHEMA_MISMATCH,
        operator=str(task.operator),
    )
