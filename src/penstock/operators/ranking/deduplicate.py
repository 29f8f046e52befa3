"""Deduplicate: emits the first row of each key, to come or by event time, and drops the others.

The state is the keys that were seen, and with a time to live by event time the instant of the
row that was emitted. A row is a duplicate if its key was seen and it is less than the time to
live behind that row; so is a row that comes later though its event time is earlier:

    ttl = 10m        a@0   a@3   a@9   a@12   a@11   a@25
    emitted          a@0               a@12          a@25

Rows count in the order in which they come, whatever epoch they are in. A key is forgotten when the
watermark has passed its time to live: a row that is late may then be a duplicate of something
forgotten. So late rows of unknown keys are not emitted: they go to the side output LATE. By
processing time a key is forgotten a time to live after the epoch that emitted its row.

The earliest row of a key is known only when the watermark has passed it. Rows wait for that in a
table by time; those that are due are put in order of event time, of several at one instant by
their columns, and then count in this order. So neither splits nor epochs decide. Late rows are all
put aside, because what was before them is decided.
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
from penstock.core.watermark import MAX_MICROS, MIN_MICROS, CheckpointBarrier, EventTime
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
from penstock.operators.ranking.order import RankOrder
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.stateless import EpochOperator
from penstock.operators.updating.lifetimes import Expiry
from penstock.operators.windows.assignment import END_MICROS, refuse_bad_times
from penstock.state.tables.sorted_rows import Positions, equal_keys, stable_order, take_rows
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table, time_keyed_table

TABLE = "keys"
WAITING = "waiting"
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
    keeps_earliest: bool = False
    """Whether rows wait until the watermark has passed them, and count by event time."""

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
        emits = "the first row, at once"
        if self.keeps_earliest:
            emits = "the earliest row, when the watermark has passed it"
            kept += ", and rows until then"
        return {"on": key, "emits": emits, "keeps": kept}


def deduplicate_spec(
    rows: StreamSchema, expiry: Expiry | None, *, keeps_earliest: bool = False
) -> OperatorSpec:
    """Emit the first row of each key, to come or by event time; rows come by key."""
    if FIRST_SEEN in rows.key_columns:
        raise SchemaError(
            f"the key column {FIRST_SEEN!r} is called like a column of the state: rename it",
            column=FIRST_SEEN,
        )
    ttl: dict[str, Any] = {}
    if expiry is not None:
        ttl = {"ttl_micros": expiry.micros, "ttl_domain": expiry.domain.value}
    config = DeduplicateConfig(rows.to_bytes(), **ttl, keeps_earliest=keeps_earliest)
    return config.to_operator_spec()


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
        if self.config.keeps_earliest:
            # Rows of many batches are put in order: their dictionaries may not fit into one.
            return StreamSchema(decoded(inputs[0].arrow), inputs[0].time_column)
        return inputs[0].keyed_by()

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        has_late = self.config.by_event_time or self.config.keeps_earliest
        return {LATE: self.output_schema(inputs)} if has_late else {}

    @override
    def tables(self) -> Sequence[TableSpec]:
        config = self.config
        ttl: dict[str, Any] = {}
        if config.ttl_micros is not None:
            ttl = {"ttl": config.ttl_micros, "ttl_domain": TimeDomain(config.ttl_domain)}
        if config.by_event_time:
            ttl["time_column"] = FIRST_SEEN
        keys = keyed_table(
            TABLE,
            self._stored,
            key_columns=self._keys,
            description="keys that were seen",
            **ttl,
        )
        if not config.keeps_earliest:
            return [keys]
        waiting = time_keyed_table(
            WAITING,
            decoded(self._stream.arrow),
            key_columns=self._keys,
            time_column=self._stream.time_column or "",
            description="rows that the watermark has not passed yet",
        )
        return [keys, waiting]

    @override
    def handle_checkpoint(
        self, barrier: CheckpointBarrier, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Process what was taken, or what is due of it and of what waits."""
        if self.config.keeps_earliest:
            self._taken = self._due_rows(ctx, collector)
        super().handle_checkpoint(barrier, ctx, collector)

    def _due_rows(
        self, ctx: OperatorContext, collector: ArrowCollector
    ) -> list[pa.RecordBatch]:
        """Return the rows that the watermark has passed, of each key in their order; keep others."""
        waiting = ctx.get_time_keyed_state(WAITING)
        previous, watermark = _reached(ctx.previous_watermark), _reached(ctx.watermark)
        parts = [waiting.rows(previous, watermark)]
        if self._taken:
            rows = in_plain_layouts(pa.Table.from_batches(self._taken)).combine_chunks()
            times = self._times_of(rows)
            is_late, is_due = times < previous, times < watermark
            if is_late.any():
                ctx.count("late_rows", int(is_late.sum()))
                collector.collect(rows.filter(pa.array(is_late)), LATE)
            parts.append(rows.filter(pa.array(is_due & ~is_late)))
            waits = ~is_due & ~is_late
            # A row is due when the watermark is beyond it: it must not expire before.
            waiting.insert(rows.filter(pa.array(waits)), times[waits] + 1)
        found = pa.concat_tables(parts).combine_chunks()
        if not found.num_rows:
            return []
        groups = _group_keys(found.select(list(self._keys))).numbers()
        order = self._order.first_rows(found, groups, found.num_rows)
        return take_rows(found, order).to_batches()

    @override
    def process_epoch(
        self, rows: pa.Table, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Emit the epoch's first rows of keys that are not known."""
        given, rows = rows, in_plain_layouts(rows).combine_chunks()
        groups = _group_keys(rows.select(list(self._keys)))
        firsts = groups.firsts
        keys = take_rows(rows.select(list(self._keys)), firsts)
        table = ctx.get_keyed_state(TABLE)
        known = table.get(keys, columns=self._stored.names[-1])
        if not self.config.by_event_time:
            places = firsts[~known.found]
            _collect(given, rows, places, collector)
            table.put(take_rows(rows.select(self._stored.names), places))
            return
        times = self._times_of(rows)
        seen: Any = known.rows.column(FIRST_SEEN)
        ends = np.where(known.found, self._end_of(to_micros_within_reach(seen)), -_NEVER)
        reached = ctx.previous_watermark
        watermark = -_NEVER if reached is None else reached.micros
        late = ~known.found & (times[firsts] < watermark)
        if late.any():
            # Later rows of these keys may be on time: they are looked at one by one.
            ends[late] = watermark
            others = groups.others[late[groups.of_others]]
            too_late = [firsts[late], others[times[others] < watermark]]
            places = _sorted(np.concatenate(too_late), rows.num_rows)
            ctx.count("late_rows", len(places))
            _collect(given, rows, places, collector, LATE)
        emitted, last = self._emitted(times, groups, ends)
        _collect(given, rows, _sorted(emitted, rows.num_rows), collector)
        table.put(self._to_stored(rows, last, times))

    def _to_stored(self, rows: pa.Table, places: Positions, times: Micros) -> pa.Table:
        keys = take_rows(rows.select(list(self._keys)), places)
        seen = pa.array(times[places]).view(_MICROS)
        return keys.append_column(pa.field(FIRST_SEEN, _MICROS), seen)

    def _times_of(self, rows: pa.Table) -> Micros:
        """Return event times in microseconds; rows that have none are refused."""
        name = self._stream.time_column or ""
        column: Any = rows.column(name).combine_chunks()
        if column.null_count:
            bad = column.is_null().to_numpy(zero_copy_only=False)
            raise refuse_bad_times(bad, column, name, can_divert=False)
        return to_micros_within_reach(column)

    def _end_of(self, times: Micros) -> Micros:
        """Return from when on a row is no duplicate of one at an instant."""
        ttl = self.config.ttl_micros or 0
        return np.minimum(times, MAX_MICROS - ttl) + ttl

    def _emitted(
        self, times: Micros, groups: "_Groups", ends: Micros
    ) -> tuple[Positions, Positions]:
        """Return the rows that are no duplicates, and of each of their keys the last such row.

        `ends` says from when on rows of each key are none. Where rows of a key in one epoch are
        further apart than the time to live, several of them are first ones.
        """
        firsts = groups.firsts
        is_new = times[firsts] >= ends
        emitted, last, has_row = [firsts[is_new]], firsts.copy(), is_new.copy()
        ends = np.where(is_new, self._end_of(times[firsts]), ends)
        # A first row is before the end that it sets itself.
        is_later = times[groups.others] >= ends[groups.of_others]
        if not is_later.any():
            return emitted[0], last[has_row]
        # In order of their groups, and in each of them as they came.
        ranked, numbers = groups.others[is_later], groups.of_others[is_later]
        # Every emitted row is later than all rows of its key that came before it. So only rows
        # that are later than all before them are searched, and these are in order of time.
        instants, ranks = np.unique(times[ranked], return_inverse=True)
        steps = len(instants) + 1
        places = numbers * steps + ranks
        is_latest = np.ones(len(places), np.bool_)
        is_latest[1:] = places[1:] > np.maximum.accumulate(places)[:-1]
        ranked, places, keys = ranked[is_latest], places[is_latest], numbers[is_latest]
        active = np.unique(keys)
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


def _reached(watermark: EventTime | None) -> int:
    """Return a watermark in microseconds; behind the year 9999 no row can follow at all."""
    if watermark is None:
        return MIN_MICROS
    return MAX_MICROS if watermark.micros >= END_MICROS else watermark.micros


def _sorted(places: Positions, count: int) -> Positions:
    """Return different places among so many rows in order, by a mark at each: quicker than sorting."""
    marks = np.zeros(count, np.bool_)
    marks[places] = True
    return np.flatnonzero(marks)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Rows by their key. Keys are numbered in order of their hashes, as they are stored."""

    firsts: Positions
    """The first row of each key."""
    others: Positions
    """All other rows, in order of their keys, those of a key as they came."""
    of_others: Positions
    """The number of the key of each of them."""

    def numbers(self) -> Positions:
        """Return the number of each row's key."""
        found = np.empty(len(self.firsts) + len(self.others), np.int64)
        found[self.firsts] = np.arange(len(self.firsts))
        found[self.others] = self.of_others
        return found


def _group_keys(keys: pa.Table) -> _Groups:
    """Return the rows by their key.

    Rows of equal hash are side by side when sorted by it; that their keys are equal is checked.
    """
    columns: list[Any] = [_in_one_piece(column) for column in keys.columns]
    hashes = hash_keys(columns, row_count=keys.num_rows)
    by_hash = stable_order(hashes)
    ordered = hashes[by_hash]
    is_first = np.ones(len(by_hash), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    numbers = np.cumsum(is_first) - 1
    others = np.flatnonzero(~is_first)
    if not equal_keys(columns, by_hash[others], columns, by_hash[others - 1]).all():
        # Different keys have one hash: compare the keys themselves.
        equal = first_equal_rows(take_rows(keys, by_hash), keys.column_names)
        is_first = equal == np.arange(len(equal))
        numbers = (np.cumsum(is_first) - 1)[equal]
        others = np.flatnonzero(~is_first)
        others = others[np.argsort(numbers[others], kind="stable")]
    return _Groups(by_hash[is_first], by_hash[others], numbers[others])


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
