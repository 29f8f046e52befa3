"""Deduplicate: emits the first row of each key at once, and drops the others.

The state is the keys that were seen, and with a time to live by event time the instant of the
row that was emitted. A row is a duplicate if its key was seen and it is less than the time to
live behind that row; so is a row that comes later though its event time is earlier:

    ttl = 10m        a@0   a@3   a@9   a@12 │ a@11   a@25        │ the next epoch
    emitted          a@0               a@12 │        a@25

Of several rows of a key in one epoch the earliest is the first, of several at one instant the
least one by its columns. A key is forgotten when the watermark has passed its time to live: a row
that is late may then be a duplicate of something forgotten. So late rows of unknown keys are not
emitted: they go to the side output LATE. By processing time a key is forgotten a time to live
after the epoch that emitted its row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros, relay, stored_type, to_micros_within_reach
from penstock.core.figures import show_duration
from penstock.core.key_hash import hash_keys
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.errors import SchemaError
from penstock.graph.logical import LATE, MAIN, OperatorSpec
from penstock.operators.aggregates.frames import (
    check_groupable,
    decoded,
    frame_schema,
    in_plain_layouts,
)
from penstock.operators.changelogs.settling import first_equal_rows
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.operator import EpochOperator
from penstock.operators.ranking.order import RankOrder
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.updating.lifetimes import Expiry
from penstock.operators.windows.assignment import refuse_bad_times
from penstock.state.tables.sorted_rows import Positions, equal_keys, stable_order, take_rows
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table

TABLE = "keys"
FIRST_SEEN = "deduplicate.first_seen"
"""The column of the state with the event time of the row that was emitted."""
_MICROS = pa.timestamp("us")
_NEVER = np.int64(MAX_MICROS)


@dataclass(frozen=True, slots=True)
class DeduplicateConfig(OperatorConfig):
    """The config of operators that emit the first row of each key."""

    kind: ClassVar[str] = "deduplicate"

    rows: bytes
    """The input's schema, as `StreamSchema.to_bytes` returns it; its key tells rows apart."""
    ttl_micros: int | None = None
    ttl_domain: Literal["event-time", "processing-time"] = "event-time"

    @property
    def by_event_time(self) -> bool:
        """Whether keys are forgotten by the watermark."""
        return self.ttl_micros is not None and self.ttl_domain == "event-time"

    @override
    def shown(self) -> Mapping[str, str]:
        key = ", ".join(StreamSchema.from_bytes(self.rows).key_columns)
        kept = "keys for ever"
        if self.ttl_micros is not None:
            kept = f"keys for {show_duration(self.ttl_micros)} by {self.ttl_domain}"
        return {"on": key, "emits": "the first row", "keeps": kept}


def deduplicate_spec(rows: StreamSchema, expiry: Expiry | None) -> OperatorSpec:
    """Emit the first row of each key; rows come by key."""
    if FIRST_SEEN in rows.key_columns:
        raise SchemaError(
            f"the key column {FIRST_SEEN!r} is called like a column of the state: rename it",
            column=FIRST_SEEN,
        )
    ttl: dict[str, Any] = {}
    if expiry is not None:
        ttl = {"ttl_micros": expiry.micros, "ttl_domain": expiry.domain.value}
    return DeduplicateConfig(rows.to_bytes(), **ttl).to_operator_spec()


class Deduplicate(Configured[DeduplicateConfig], EpochOperator):
    """Looks the keys of an epoch up once, and emits the rows of those it does not know."""

    def __init__(self, config: DeduplicateConfig) -> None:
        super().__init__(config)
        self._stream = stream = StreamSchema.from_bytes(config.rows)
        self._keys = stream.key_columns
        keys = decoded(pa.schema([stream.arrow.field(name) for name in self._keys]))
        own = [pa.field(FIRST_SEEN, _MICROS)] if config.by_event_time else []
        self._stored = pa.schema([*keys, *own])
        self._order = _order_of(stream)

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        check_groupable(inputs[0].arrow, self._keys)
        return inputs[0].keyed_by()

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        return {LATE: inputs[0].keyed_by()} if self.config.by_event_time else {}

    @override
    def tables(self) -> Sequence[TableSpec]:
        config = self.config
        ttl: dict[str, Any] = {}
        if config.ttl_micros is not None:
            ttl = {"ttl": config.ttl_micros, "ttl_domain": TimeDomain(config.ttl_domain)}
        if config.by_event_time:
            ttl["time_column"] = FIRST_SEEN
        return [
            keyed_table(
                TABLE,
                self._stored,
                key_columns=self._keys,
                description="keys that were seen",
                **ttl,
            )
        ]

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the epoch's first rows of keys that are not known."""
        given, rows = rows, in_plain_layouts(rows).combine_chunks()
        times = self._times_of(rows)
        firsts, groups = self._first_rows(rows, times)
        keys = take_rows(rows.select(list(self._keys)), firsts)
        table = ctx.get_keyed_state(TABLE)
        known = table.get(keys)
        if times is None or not self.config.by_event_time:
            places = firsts[~known.found]
            _collect(given, rows, places, collector)
            table.put(take_rows(rows.select(self._stored.names), places))
            return
        seen: Any = known.rows.column(FIRST_SEEN)
        ends = np.where(known.found, self._end_of(to_micros_within_reach(seen)), -_NEVER)
        reached = ctx.previous_watermark
        watermark = -_NEVER if reached is None else reached.micros
        late = ~known.found & (times[firsts] < watermark)
        if late.any():
            # Later rows of these keys may be on time: they are looked at one by one.
            ends[late] = watermark
            is_late = late[groups] & (times < watermark)
            ctx.count("late_rows", int(is_late.sum()))
            _collect(given, rows, np.flatnonzero(is_late), collector, LATE)
        emitted, last = self._emitted(rows, times, (firsts, groups), ends)
        _collect(given, rows, np.sort(emitted), collector)
        table.put(self._to_stored(rows, last, times))

    def _to_stored(self, rows: pa.Table, places: Positions, times: Micros) -> pa.Table:
        keys = take_rows(rows.select(list(self._keys)), places)
        seen = pa.array(times[places]).view(_MICROS)
        return keys.append_column(pa.field(FIRST_SEEN, _MICROS), seen)

    def _times_of(self, rows: pa.Table) -> Micros | None:
        """Return event times in microseconds; None if the stream has none."""
        name = self._stream.time_column
        if name is None:
            return None
        column: Any = rows.column(name).combine_chunks()
        if column.null_count and self.config.by_event_time:
            bad = column.is_null().to_numpy(zero_copy_only=False)
            raise refuse_bad_times(bad, column, name)
        times = to_micros_within_reach(column)
        if column.null_count:
            times[column.is_null().to_numpy(zero_copy_only=False)] = MAX_MICROS
        return times

    def _end_of(self, times: Micros) -> Micros:
        """Return from when on a row is no duplicate of one at an instant."""
        ttl = self.config.ttl_micros or 0
        return np.minimum(times, MAX_MICROS - ttl) + ttl

    def _first_rows(
        self, rows: pa.Table, times: Micros | None
    ) -> tuple[Positions, Positions]:
        """Return the first row of each key, and for each row the number of its key.

        Keys are numbered in order of their hashes, as they are looked up and stored.
        """
        order = np.arange(rows.num_rows)
        if times is not None and (times[1:] < times[:-1]).any():
            order = np.argsort(times, kind="stable")
        numbers, places = _number_keys(rows.select(list(self._keys)), order)
        first = places[numbers]
        tied = first != np.arange(rows.num_rows)
        if times is not None:
            tied &= times == times[first]
        if tied.any():
            # Of equal instants the least row is the first one.
            tied[places[np.unique(numbers[tied])]] = True
            some = np.flatnonzero(tied)
            least = some[self._order.first_rows(take_rows(rows, some), numbers[some], 1)]
            places[numbers[least]] = least
        return places, numbers

    def _emitted(
        self,
        rows: pa.Table,
        times: Micros,
        found: tuple[Positions, Positions],
        ends: Micros,
    ) -> tuple[Positions, Positions]:
        """Return the rows that are no duplicates, and of each of their keys the last such row.

        `ends` says from when on rows of each key are none. Where rows of a key in one epoch are
        further apart than the time to live, several of them are first ones.
        """
        firsts, groups = found
        is_new = times[firsts] >= ends
        emitted, last, has_row = [firsts[is_new]], firsts.copy(), is_new.copy()
        ends = np.where(is_new, self._end_of(times[firsts]), ends)
        active = np.unique(groups[times >= ends[groups]])
        if not len(active):
            return emitted[0], last[has_row]
        # Only these keys have more: their rows are put in order once, then searched.
        some = np.flatnonzero(np.isin(groups, active))
        inside = self._order.first_rows(take_rows(rows, some), groups[some], len(some))
        ranked = some[inside]
        instants, ranks = np.unique(times[ranked], return_inverse=True)
        steps = len(instants) + 1
        keys = groups[ranked]
        places = keys * steps + ranks
        while len(active):
            wanted = active * steps + np.searchsorted(instants, ends[active])
            at = np.searchsorted(places, wanted)
            is_found = at < len(keys)
            is_found[is_found] = keys[at[is_found]] == active[is_found]
            active, next_rows = active[is_found], ranked[at[is_found]]
            emitted.append(next_rows)
            last[active], has_row[active] = next_rows, True
            ends[active] = self._end_of(times[next_rows])
        return np.concatenate(emitted), last[has_row]


def _collect(
    given: pa.Table,
    rows: pa.Table,
    places: Positions,
    collector: ArrowCollector,
    output: str = MAIN,
) -> None:
    """Emit rows in the layouts in which they were given; `rows` are the same in plain ones."""
    if rows.schema.equals(given.schema):
        collector.collect(take_rows(rows, places), output)
        return
    # Each batch has dictionaries of its own, which may not fit into one.
    start, ordered = 0, np.sort(places)
    for batch in given.to_batches():
        first, last = np.searchsorted(ordered, [start, start + batch.num_rows])
        if first < last:
            collector.collect(take_rows(batch, ordered[first:last] - start), output)
        start += batch.num_rows


def _number_keys(keys: pa.Table, order: Positions) -> tuple[Positions, Positions]:
    """Return the number of each row's key, and the first row of each key in some order.

    Rows of equal hash are side by side when sorted by it; that their keys are equal is checked.
    """
    columns: list[Any] = [_in_one_piece(column) for column in keys.columns]
    hashes = hash_keys(columns, row_count=keys.num_rows)
    by_hash = order[stable_order(hashes[order])]
    is_first = np.ones(len(by_hash), np.bool_)
    is_first[1:] = hashes[by_hash[1:]] != hashes[by_hash[:-1]]
    numbers = np.empty(len(by_hash), np.int64)
    numbers[by_hash] = np.cumsum(is_first) - 1
    places = by_hash[is_first]
    if equal_keys(columns, np.arange(len(numbers)), columns, places[numbers]).all():
        return numbers, places
    # Different keys have one hash: compare the keys themselves.
    equal = first_equal_rows(take_rows(keys, by_hash), keys.column_names)
    is_first = equal == np.arange(len(equal))
    numbers[by_hash] = (np.cumsum(is_first) - 1)[equal]
    return numbers, by_hash[is_first]


def _in_one_piece(column: Any) -> Any:
    piece = column.combine_chunks()
    return relay(piece, stored_type(piece.type))


def _order_of(stream: StreamSchema) -> RankOrder:
    """Return the order of rows of one key: by event time, then by their columns."""
    time = () if stream.time_column is None else (stream.time_column,)
    known = {*time, *stream.key_columns}
    types = frame_schema(stream.arrow)
    ties = [n for n in stream.arrow.names if n not in known and types[n] != pl.Object]
    return RankOrder(time, (False,) * len(time), tuple(ties))
