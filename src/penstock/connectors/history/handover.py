"""The hand-over point: which rows are history's, and where the live side begins. Pure.

| kind     | history gives                                   | live begins                              |
|----------|-------------------------------------------------|------------------------------------------|
| time     | rows whose column is before the instant          | with rows at or after it                 |
| offsets  | rows before the offsets, if it has such columns  | at the offsets, which were given         |
| columns  | all its rows                                     | behind the highest offsets of these rows |

Offsets are by partition, named `topic/number`. A partition without one begins at 0: history has
none of its rows. Highest offsets are found by the rows that are read, and kept with the state of
the split that they were in, or of the hand-over once the split has ended; so they count as the
rows do, once an epoch counts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.arrow_types import is_text, to_micros_within_reach
from penstock.errors import ErrorCode, SchemaError, UserError

HandoverKind: TypeAlias = Literal["time", "offsets", "columns"]
DEFAULT_SKEW_MICROS = 3_600_000_000
"""An hour: see `Handover.skew_micros`."""


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """The columns of history that say where in the live stream a row was."""

    partition: str
    offset: str
    topic: str | None = None
    """None if all rows are of one topic, the only one of the live side."""

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [
            name for name in (self.topic, self.partition, self.offset) if name is not None
        ]


@dataclass(frozen=True, slots=True)
class Handover:
    """Where history ends and live begins. Plain data, part of the config."""

    kind: HandoverKind
    micros: int | None = None
    """Of kind "time": the instant."""
    by: str | None = None
    """Of kind "time": the column that is compared with it, on both sides."""
    skew_micros: int | None = DEFAULT_SKEW_MICROS
    """Of kind "time": how much earlier than `by` says the live stream may have got a row.

    A row is there at the earliest when it happens, but clocks differ. None if nothing is known.
    """
    offsets: Mapping[str, int] = field(default_factory=dict)
    """The first offset of live, by partition; of kind "columns" only once history was read."""
    columns: OffsetColumns | None = None
    only_topic: str | None = None
    """The topic of all rows, if the live side has no other."""

    @property
    def identity(self) -> tuple[str | int | None, ...]:
        """What must not change while a job goes on; kept in its state."""
        if self.kind == "time":
            return (self.kind, self.by, self.micros)
        if self.kind == "columns":
            return (self.kind, *(self.columns.names if self.columns else ()))
        return (self.kind, *(f"{name}={at}" for name, at in sorted(self.offsets.items())))

    def goes_on_from(
        self, identity: tuple[str | int | None, ...], *, is_found: bool
    ) -> bool:
        """Return whether a job may go on whose state has this identity.

        The names of columns do not count once the point was found in them (`is_found`), nor if
        the state is of a version that did not keep them.
        """
        if self.kind == "columns" and (is_found or identity == (self.kind,)):
            return identity[0] == self.kind
        return identity == self.identity


KAFKA_COLUMNS = OffsetColumns("kafka_partition", "kafka_offset", "kafka_topic")
"""The names that a Kafka source gives to these columns."""
WAYS = (
    "give at=, an instant (with by=, the column to compare with it) or offsets "
    "({'topic': {0: 17}}); or let history have the columns "
    f"{KAFKA_COLUMNS.partition!r} and {KAFKA_COLUMNS.offset!r}, or others, by offset_columns="
)


def resolve(handover: Handover, schema: pa.Schema) -> Handover:
    """Return a point with the columns that it goes by; refuse one that the rows do not allow."""
    names = set(schema.names)
    if handover.kind == "time":
        by = str(handover.by)
        kind = schema.field(by).type if by in names else None
        if kind is None or not pa.types.is_timestamp(kind):
            what = "there is none of that name" if kind is None else f"it is {kind}"
            raise _wrong(f"by={by!r} must name a column of timestamps: {what}")
        return handover
    columns, is_given = handover.columns, handover.columns is not None
    if columns is None and {KAFKA_COLUMNS.partition, KAFKA_COLUMNS.offset} <= names:
        columns = KAFKA_COLUMNS
        if KAFKA_COLUMNS.topic not in names:
            columns = OffsetColumns(columns.partition, columns.offset)
    if columns is None:
        if handover.kind == "columns":
            raise _wrong(f"nothing says where history ends and live begins: {WAYS}")
        return handover
    for name in columns.names:
        kind = schema.field(name).type if name in names else None
        is_right = kind is not None and (
            is_text(kind) if name == columns.topic else pa.types.is_integer(kind)
        )
        if not is_right:
            what = "is missing" if kind is None else f"is {kind}"
            raise _wrong(
                f"the column {name!r} of offsets {what}: topics are text, partitions and offsets "
                "whole numbers"
            )
    if columns.topic is None and handover.only_topic is None:
        if handover.kind == "offsets" and not is_given:
            return handover
        raise _wrong(
            "the live side reads several topics, so history must say of which a row is: name "
            "the column in offset_columns={'topic': …}"
        )
    return replace(handover, columns=columns)


def _wrong(problem: str) -> UserError:
    return UserError(f"concat_sources: {problem}", code=ErrorCode.INVALID_CONFIG)


def keep_history(rows: pa.RecordBatch, handover: Handover) -> pa.RecordBatch:
    """Return the rows of a batch of history that come before the point."""
    if handover.kind == "time":
        return _filtered(rows, _is_before(rows, handover, "history"))
    if handover.kind == "offsets" and handover.columns is not None:
        partitions, offsets = _places_of(rows, handover)
        named = list(handover.offsets)
        limits = np.array([handover.offsets[name] for name in named] + [0], np.int64)
        index = pc.index_in(partitions, pa.array(named, pa.string()))
        found = np.asarray(pc.fill_null(index, len(named)))
        return _filtered(rows, np.asarray(offsets) < limits[found])
    return rows


def keep_live(rows: pa.RecordBatch, handover: Handover) -> pa.RecordBatch:
    """Return the rows of a batch of live that come at or after the point."""
    if handover.kind != "time":
        return rows
    return _filtered(rows, ~_is_before(rows, handover, "the live side"))


def find_ends(rows: pa.RecordBatch, handover: Handover) -> dict[str, int]:
    """Return the offsets behind the highest ones of some rows, by partition."""
    partitions, offsets = _places_of(rows, handover)
    table = pa.table({"partition": partitions, "offset": offsets})
    found = table.group_by("partition").aggregate([("offset", "max")])
    named: list[str] = [str(name) for name in found.column("partition").to_pylist()]
    highest: Any = found.column("offset_max").to_numpy()
    return {name: int(offset) + 1 for name, offset in zip(named, highest, strict=True)}


def merge_ends(found: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the highest of each partition.

    >>> merge_ends([{"a/0": 3}, {"a/0": 2, "a/1": 7}])
    {'a/0': 3, 'a/1': 7}
    """
    merged: dict[str, int] = {}
    for ends in found:
        for partition, end in ends.items():
            merged[partition] = max(end, merged.get(partition, 0))
    return dict(sorted(merged.items()))


def _is_before(rows: pa.RecordBatch, handover: Handover, side: str) -> Any:
    column = rows.column(str(handover.by))
    if column.null_count:
        raise SchemaError(
            f"{column.null_count} rows of {side} have no value in {handover.by!r}, so it cannot "
            "be told on which side of the hand-over they are: fill the column, or hand over by "
            "offsets",
            code=ErrorCode.UNREADABLE_INPUT,
        )
    # A time between two microseconds belongs to the earlier one, on both sides.
    return to_micros_within_reach(column) < int(handover.micros or 0)


def _places_of(rows: pa.RecordBatch, handover: Handover) -> tuple[Any, Any]:
    """Return the partition, as `topic/number`, and the offset of every row."""
    columns = handover.columns or KAFKA_COLUMNS
    missing = [name for name in columns.names if rows.column(name).null_count]
    if missing:
        raise SchemaError(
            f"rows of history have no value in {missing[0]!r}, so it is not known where the live "
            "stream has them: fill the column, or give the offsets with at=",
            code=ErrorCode.UNREADABLE_INPUT,
        )
    numbers: Any = rows.column(columns.partition).cast(pa.int64()).cast(pa.string())
    topic: Any = (
        pa.scalar(str(handover.only_topic))
        if columns.topic is None
        else rows.column(columns.topic).cast(pa.string())
    )
    partitions: Any = pc.binary_join_element_wise(topic, numbers, "/")
    return partitions, rows.column(columns.offset).cast(pa.int64())


def _filtered(rows: pa.RecordBatch, mask: Any) -> pa.RecordBatch:
    return rows if mask.all() else rows.filter(pa.array(mask))
