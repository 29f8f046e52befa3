"""Records of Kafka as columns: their values as rows, what Kafka knows about them, and bad ones.

Messages of the client library are looked at one by one here and nowhere else: a few hundred at
a time, while they are in the processor's cache, and only for what somebody asked for. What is
kept of them is a `Chunk`. A hundred thousand records are then decoded at once.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter, methodcaller
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.formats.record_format import BadRecord, RecordFormat
from penstock.connectors.kafka.positions import Partition
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError

MetadataName: TypeAlias = Literal[
    "key", "headers", "timestamp", "topic", "partition", "offset"
]
_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
METADATA_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "headers": _HEADERS,
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}
"""What Kafka knows about a record besides its value."""

BAD_RECORDS = StreamSchema(
    pa.schema(
        [
            pa.field("value", pa.binary()),
            *(pa.field(name, kind) for name, kind in METADATA_TYPES.items()),
            pa.field("error", pa.string()),
        ]
    )
)
"""What the side output `BAD` of a Kafka source holds: a record as it was, and the reason."""

_GATHERED = frozenset({"key", "headers", "timestamp"})
"""What has to be asked of every message; the others follow from its chunk."""
_LISTED: Mapping[str, Callable[[Any], Any]] = {
    name: methodcaller(name) for name in ("key", "headers")
}
_SAMPLE_CHARACTERS = 200
_SECOND = itemgetter(1)
_LAST_MILLIS = (2**63 - 1) // 1_000


def gathered_kinds(
    metadata: Collection[str], format_: RecordFormat, *, diverts_bad: bool
) -> frozenset[str]:
    """Return what to gather of messages besides values and offsets."""
    asked = set(metadata)
    if format_.reads_keys:
        asked.add("key")
    if diverts_bad:
        asked |= _GATHERED
    return frozenset(asked) & _GATHERED


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition in the order of their offsets; there is at least one."""

    offsets: npt.NDArray[np.int64]
    values: Any
    """An Arrow array of bytes."""
    gathered: Mapping[str, list[Any]]
    """Keys and headers, if wanted, as the client library gives them."""
    millis: npt.NDArray[np.int64] | None
    """The timestamps, if wanted; -1 for a record that has none."""
    last_millis: int | None
    """The timestamp of the last record."""
    size_bytes: int
    """The size of the values."""

    @classmethod
    def of(
        cls, messages: Sequence[Any], kinds: Collection[str], *, can_be_cut: bool = False
    ) -> "Chunk":
        """Gather what is wanted of messages without errors, and what `cut` needs, if it may."""
        # The methods of the class: a fourth of what it takes to call them by name.
        message = type(messages[0])
        first, last = messages[0].offset(), messages[-1].offset()
        if last - first + 1 == len(messages):
            offsets = np.arange(first, last + 1)
        else:
            offsets = np.fromiter(map(message.offset, messages), np.int64, len(messages))
        values, size_bytes = _to_bytes(list(map(message.value, messages)))
        millis = None
        if can_be_cut or "timestamp" in kinds:
            timestamps = map(message.timestamp, messages)
            millis = np.fromiter(map(_SECOND, timestamps), np.int64, len(messages))
        return cls(
            offsets,
            values,
            {kind: list(map(_LISTED[kind], messages)) for kind in kinds if kind in _LISTED},
            millis,
            _known_millis(messages[-1].timestamp()[1]),
            size_bytes,
        )

    def cut(self, end: int) -> "tuple[Chunk | None, Chunk | None]":
        """Return the records before an offset, and those at or behind it; None for none."""
        place = int(np.searchsorted(self.offsets, end))
        if place == 0:
            return None, self
        if place == len(self.offsets):
            return self, None
        return self._part(slice(place)), self._part(slice(place, None))

    def _part(self, part: slice) -> "Chunk":
        if self.millis is None:
            raise TypeError("only a chunk made with can_be_cut=True can be cut")
        values, millis = self.values[part], self.millis[part]
        return Chunk(
            self.offsets[part],
            values,
            {kind: found[part] for kind, found in self.gathered.items()},
            millis,
            _known_millis(int(millis[-1])),
            int(pc.sum(pc.binary_length(values)).as_py() or 0),
        )


def _to_bytes(values: list[Any]) -> tuple[Any, int]:
    """Return an array of bytes, by its buffers, which is three times as fast, and its size."""
    ends: Any = np.zeros(len(values) + 1, np.int32)
    try:
        np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
    except TypeError:  # a tombstone has no length
        return pa.array(values, pa.binary()), sum(len(each or b"") for each in values)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers), int(ends[-1])


@dataclass(frozen=True)
class Piece:
    """Consecutive records of one partition, and the offset behind them."""

    partition: Partition
    chunks: Sequence[Chunk]
    """There may be none: then the offsets before `next` have no records."""
    next: int

    @cached_property
    def size_bytes(self) -> int:
        """The size of the values."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    @cached_property
    def values(self) -> Any:
        """The values, as one array of bytes."""
        return pa.concat_arrays([chunk.values for chunk in self.chunks])

    @property
    def kinds(self) -> frozenset[str]:
        """What is known of all records."""
        asked = set(self.chunks[0].gathered)
        if all(chunk.millis is not None for chunk in self.chunks):
            asked.add("timestamp")
        return frozenset(asked | (METADATA_TYPES.keys() - _GATHERED))

    def column(self, kind: str) -> Any:
        """Return what Kafka knows of the records, as an array."""
        match kind:
            case "offset":
                return pa.array(np.concatenate([chunk.offsets for chunk in self.chunks]))
            case "topic":
                return self._repeated(self.partition.topic, kind)
            case "partition":
                return self._repeated(self.partition.number, kind)
            case "timestamp":
                return _to_times(np.concatenate([chunk.millis for chunk in self.chunks]))
            case "headers":
                return pa.array([each or [] for each in self._gathered(kind)], _HEADERS)
            case _:
                return pa.array(self._gathered(kind), METADATA_TYPES[kind])

    def _gathered(self, kind: str) -> list[Any]:
        return [each for chunk in self.chunks for each in chunk.gathered[kind]]

    def _repeated(self, value: object, kind: str) -> Any:
        scalar: Any = pa.scalar(value, METADATA_TYPES[kind])
        return pa.repeat(scalar, len(self.values))


@dataclass(slots=True)
class RecordSize:
    """The average size of the records of one partition in one epoch, however they were cut."""

    records: int = 0
    size_bytes: int = 0

    def add(self, piece: Piece) -> int:
        """Take records; return the average size of all so far, which is at least 1."""
        self.records += len(piece.values)
        self.size_bytes += piece.size_bytes
        return max(1, self.size_bytes // self.records)


class Rows(NamedTuple):
    """The rows of a piece."""

    rows: pa.Table
    bad: pa.Table
    """Columns of `BAD_RECORDS`, as far as they were gathered."""
    failing: int | None
    """The first bad row that fails the job by a rule of schema drift."""


def output_schema(
    format_: RecordFormat, metadata: Mapping[str, str], time_column: str | None
) -> StreamSchema:
    """Return the rows of a format with columns of what Kafka knows, by its name for them."""
    taken = [name for name in metadata.values() if name in format_.schema.names]
    if taken:
        raise UserError(
            f"the column {taken[0]!r} is in the schema, and metadata= makes one of that name "
            "too: give it another name, as metadata={'key': 'kafka_key'}",
            code=ErrorCode.INVALID_CONFIG,
        )
    more = [pa.field(name, METADATA_TYPES[kind]) for kind, name in metadata.items()]
    return StreamSchema(pa.schema([*format_.schema, *more]), time_column)


def to_rows(piece: Piece, format_: RecordFormat, metadata: Mapping[str, str]) -> Rows:
    """Return the rows of a piece, which has at least one record; `metadata` as in a config."""
    values = piece.values
    keys = piece.column("key") if format_.reads_keys else None
    decoded = format_.decode(values, keys)
    rows = decoded.rows
    for kind, name in metadata.items():
        column = decoded.take(piece.column(kind))
        rows = rows.append_column(pa.field(name, METADATA_TYPES[kind]), column)
    bad = BAD_RECORDS.arrow.empty_table()
    if decoded.bad:
        bad = _bad_rows(piece, decoded.bad)
    failing = next((n for n, record in enumerate(decoded.bad) if record.fails), None)
    return Rows(rows, bad, failing)


def refuse_bad(bad: pa.Table, failing: int | None = None) -> UserError:
    """Return the error for the first of some bad records, or for one that fails by a rule."""
    row = bad.slice(failing or 0, 1).to_pylist()[0]
    advice = 'pass on_bad="divert" to have such records in the side output "bad"'
    if failing is not None:
        advice = "change the rule that fails the job by such records"
    value = row["value"] or b""
    text = value[: 4 * _SAMPLE_CHARACTERS].decode(errors="replace")
    if len(text) > _SAMPLE_CHARACTERS:
        text = text[:_SAMPLE_CHARACTERS] + "…"
    return UserError(
        f"the record at offset {row['offset']} of {row['topic']}/{row['partition']} cannot be "
        f"read: {row['error']}. It is {text!r}. Correct the schema or the format, or {advice}",
        code=ErrorCode.UNREADABLE_INPUT,
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
    )


def _bad_rows(piece: Piece, bad: Sequence[BadRecord]) -> pa.Table:
    places = pa.array([record.index for record in bad], pa.int64())
    known = piece.kinds
    columns = [
        piece.values.take(places),
        *(
            piece.column(kind).take(places)
            if kind in known
            else pa.array([None] * len(bad), type_)
            for kind, type_ in METADATA_TYPES.items()
        ),
        pa.array([record.reason for record in bad], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=BAD_RECORDS.arrow)


def _known_millis(millis: int) -> int | None:
    # Records of very old producers have none, which the client tells as -1.
    return None if millis < 0 else millis


def _to_times(millis: npt.NDArray[np.int64]) -> Any:
    # What no timestamp can hold is unknown, as what the record does not say.
    is_unknown = (millis < 0) | (millis > _LAST_MILLIS)
    times = pa.array(np.where(is_unknown, 0, millis) * 1_000, mask=is_unknown)
    return times.view(METADATA_TYPES["timestamp"])
