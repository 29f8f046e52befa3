"""Lifetimes of keys: how long an updating aggregate keeps a key that gets no rows.

By event time the rows of a key fall into *lives*: a row that comes a time to live or more after
all rows before it, by their event times, begins another life. Results are those of the latest
life. So they depend on the rows alone, as sessions do, and not on which watermark was known
when a row came. A key is deleted when the watermark reaches the end of its life.

    ttl = 10m      a@0  a@3 ───────── 13      a@20 ───────── 30
                   first life, ends at 13     second life, ends at 30

While the watermark has not passed the end of a life, rows may still come that join it to a later
one. Such earlier lives are kept in a table of their own; most keys have none. A row without an
event time joins the latest life that is known when it comes.

By processing time a life ends a time to live after the last epoch that brought rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import to_micros_within_reach
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_EVENT_TIME, MAX_MICROS
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.aggregates.aggregate import Aggregate, ColumnAggregate
from penstock.operators.aggregates.frames import to_batch, to_frame
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.context import OperatorContext
from penstock.state.tables.column_groups import ColumnGroup, Meaning
from penstock.state.tables.specs import TableSpec, TimeDomain, keyed_table

RESULT = "ttl"
"""The aggregate that keeps event times; no result of a user can have this name."""
LAST_SEEN = f"{RESULT}.value"
"""The column of the state with the time of a key's last row."""
FIRST_SEEN = f"{RESULT}.first"
"""The column with the event time of the first row of a life."""
EARLIER = f"{RESULT}.earlier"
"""The column with the number of earlier lives of a key that are kept."""
_EARLIEST = {
    "ns": 1 - (1 << 63),
    "us": -62_135_596_800_000_000,
    "ms": -62_135_596_800_000,
}
"""An instant before all rows by unit: the year 1, or the first that fits 64 bits."""
_LIFE, _PLACE = f"{RESULT}.life", f"{RESULT}.place"


@dataclass(frozen=True, eq=False)
class Lifetime(ColumnAggregate):
    """The event times of the last and the first row of a life."""

    function: ClassVar[str] = "max"
    wanted: ClassVar[str] = "instants"

    @override
    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        return isinstance(dtype, pl.Datetime)

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        return self.merge(pl.col(self.column), pl.col(self.column))

    @override
    def merge(self, value: pl.Expr, first: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"value": value.max(), "first": first.min()}

    @override
    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        return {
            "value": pl.max_horizontal(partials["value"], others["value"]),
            "first": pl.min_horizontal(partials["first"], others["first"]),
        }

    @override
    def final(self, value: pl.Expr, first: pl.Expr) -> pl.Expr:
        return value


@dataclass(frozen=True, slots=True)
class Expiry:
    """The time after which a key without rows is deleted, and the clock that measures it."""

    micros: int
    domain: TimeDomain

    def __post_init__(self) -> None:
        if not 0 < self.micros <= MAX_MICROS:
            raise UserError(
                f"a ttl of {self.micros} microseconds is not possible: it must be positive. "
                "Leave it out for results that are kept forever",
                code=ErrorCode.INVALID_NUMBER,
            )

    @classmethod
    def of(cls, micros: int, domain: TimeDomain | None, stream: StreamSchema) -> "Expiry":
        """Choose event time for a stream that has it, unless a time domain is given."""
        has_time = stream.time_column is not None
        if domain is None:
            domain = TimeDomain.EVENT_TIME if has_time else TimeDomain.PROCESSING_TIME
        if domain is TimeDomain.EVENT_TIME and not has_time:
            raise SchemaError(
                "ttl by event time needs a stream with event times: name its timestamp column in "
                "Pipeline.read as event_time, or take TimeDomain.PROCESSING_TIME"
            )
        return cls(micros, domain)

    @property
    def by_event_time(self) -> bool:
        """Whether the watermark is the clock."""
        return self.domain is TimeDomain.EVENT_TIME

    def hidden_aggregates(self, stream: StreamSchema) -> dict[str, Aggregate]:
        """Return the aggregates that must be kept besides the user's own."""
        if not self.by_event_time or stream.time_column is None:
            return {}
        return {RESULT: Lifetime(stream.time_column)}

    def now_micros(self, ctx: OperatorContext) -> int | None:
        """Return the time by the clock; None while nothing can expire.

        The end of data does not count as time that passes: event time stays where the rows
        have brought it.
        """
        if not self.by_event_time:
            return ctx.processing_time_micros
        watermark = ctx.watermark
        if watermark is None or watermark < MAX_EVENT_TIME:
            return None if watermark is None else watermark.micros
        return watermark.reached_micros

    def due_micros(self, last_seen: Any) -> npt.NDArray[np.int64]:
        """Return when keys last seen at some instants expire; null is never."""
        if isinstance(last_seen, pa.ChunkedArray):
            last_seen = last_seen.combine_chunks()
        # Sums of arrays wrap around, unlike integers of Python: this keeps them in range.
        micros = to_micros_within_reach(last_seen)
        due = np.minimum(micros, MAX_MICROS - self.micros) + self.micros
        due[last_seen.is_null().to_numpy(zero_copy_only=False)] = MAX_MICROS
        return np.asarray(due, np.int64)

    def end_of(self, last: pl.Expr) -> pl.Expr:
        """Return when lives end, given instants in microseconds; null of null."""
        return pl.when(last.is_not_null()).then(
            pl.min_horizontal(last, pl.lit(MAX_MICROS - self.micros)) + self.micros
        )

    def stored_fields(self, plan: AggregatePlan) -> list["pa.Field[Any]"]:
        """Return the columns of the state that are about lifetimes."""
        if not self.by_event_time:
            return [pa.field(LAST_SEEN, pa.timestamp("us"))]
        partials = [f for f in plan.partials if f.name in (LAST_SEEN, FIRST_SEEN)]
        return [*partials, pa.field(EARLIER, pa.int32())]

    def stored_group(self, plan: AggregatePlan) -> ColumnGroup:
        """Return these columns as a group: a time to live may be added to an aggregate."""
        schema = pa.schema(self.stored_fields(plan))
        row = [{field.name: 0 if field.name == EARLIER else None for field in schema}]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(row, schema=schema))
        own = [a.meaning for a in plan.aggregates if a.result.name == RESULT]
        meaning = own[0] if own else Meaning(f"{self.domain.value} of the last row")
        names, fill = tuple(schema.names), sink.getvalue().to_pybytes()
        return ColumnGroup(RESULT, names, meaning, fill, noun="time to live")


def _in_micros(column: str) -> pl.Expr:
    return pl.col(column).dt.epoch("us")


def _number_lives(
    first: pl.Expr, last: pl.Expr, key: Sequence[str], expiry: Expiry
) -> pl.Expr:
    """Return the number of the life that each row is in, counted per key from 0.

    Rows are fragments of lives, sorted by `first`, those without a time last: they are in the
    latest life. Instants are in microseconds.
    """
    is_new = (first >= expiry.end_of(last.cum_max().shift(1))).fill_null(value=False)
    number = is_new.cast(pl.Int64).cum_sum()
    return (number.over(key) if key else number).alias(_LIFE)


def partials_of_lives(
    plan: AggregatePlan, rows: pl.DataFrame, keys: Sequence[str], time: str, expiry: Expiry
) -> pl.DataFrame:
    """Return partials per key, or per life if rows of a key are too far apart for one."""
    partials = plan.partials_of(rows, keys)
    is_long = _in_micros(LAST_SEEN) >= expiry.end_of(_in_micros(FIRST_SEEN))
    if not partials.select(is_long.any()).item():
        return partials
    at = _in_micros(time)
    ordered = rows.sort(time, nulls_last=True)
    lives = ordered.with_columns(_number_lives(at, at, keys, expiry))
    return plan.partials_of(lives, [*keys, _LIFE]).drop(_LIFE)


def with_first_rows(state: pl.DataFrame) -> pl.DataFrame:
    """Return state that says when lives began; one from before that has begun before all rows."""
    if FIRST_SEEN not in state.columns:
        return state
    first = state.get_column(FIRST_SEEN)
    is_unknown = pl.col(FIRST_SEEN).is_null() & pl.col(LAST_SEEN).is_not_null()
    earliest = pl.lit(_EARLIEST[getattr(first.dtype, "time_unit", "us")], pl.Int64)
    known = pl.when(is_unknown).then(earliest.cast(first.dtype)).otherwise(FIRST_SEEN)
    return state.with_columns(known.alias(FIRST_SEEN))


def find_split(
    news: pl.DataFrame, state: pl.DataFrame, expiry: Expiry
) -> npt.NDArray[np.bool_]:
    """Return which keys may have several lives; of all others the rows can just be merged.

    Both frames have a row per key: the new partials, and those in state, or nulls.
    """
    first, last = _in_micros(FIRST_SEEN), _in_micros(LAST_SEEN)
    new = news.select(first=first, last=last, end=expiry.end_of(last))
    old = state.select(
        old_first=first,
        old_last=last,
        old_end=expiry.end_of(last),
        earlier=pl.col(EARLIER).fill_null(0),
    )
    col = pl.col
    is_split = (
        (col("last") >= expiry.end_of(col("first"))).fill_null(value=False)
        | (col("first") >= col("old_end")).fill_null(value=False)
        | (col("old_first") >= col("end")).fill_null(value=False)
        | (col("earlier") > 0)
    )
    return new.hstack(old).select(is_split).to_series().to_numpy()


TABLE = "earlier-lives"
_SLOT = f"{RESULT}.slot"


class EarlierLives:
    """The lives of keys before their latest ones, as long as rows may still join them."""

    def __init__(self, keys: pa.Schema, plan: AggregatePlan) -> None:
        self._plan = plan
        self._keys = keys
        self._probes = pa.schema([*keys, pa.field(_SLOT, pa.int32())])
        self._stored = pa.schema([*self._probes, *plan.partials])

    def table(self) -> TableSpec:
        """Return the table: a row per key and life."""
        return keyed_table(
            TABLE,
            self._stored,
            key_columns=self._probes.names,
            routed_by=self._keys.names,
            description="lives of keys before their latest one",
            groups=self._plan.groups,
        )

    def merge(
        self,
        ctx: OperatorContext,
        keys: pl.DataFrame,
        state: pl.DataFrame,
        fragments: pl.DataFrame,
        expiry: Expiry,
    ) -> pl.DataFrame:
        """Merge fragments into the lives of keys; return the latest life of each key, in order.

        `keys` and `state` have a row per key. The earlier lives of these keys are replaced by
        those that rows may still join.
        """
        names = [field.name for field in self._plan.partials]
        place = pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE)
        placed = keys.with_columns(place, state[EARLIER].fill_null(0))
        # Keys are equal as groups are: the first rows are one per key, and number the others.
        every = pl.concat([keys, fragments.select(keys.columns)]).with_row_index(_PLACE)
        number = every.select(pl.col(_PLACE).cast(pl.Int64).first().over(keys.columns))
        news = fragments.with_columns(number.to_series()[keys.height :].alias(_PLACE))
        known = state.select(*names, place).filter(
            pl.any_horizontal(pl.col(names).is_not_null())
        )
        pieces = pl.concat(
            [
                news.filter(pl.col(_PLACE) < keys.height).select(*names, _PLACE),
                known,
                self._read(ctx, placed).select(*names, _PLACE),
            ]
        )
        ordered = pieces.sort(FIRST_SEEN, nulls_last=True)
        spans = _in_micros(FIRST_SEEN), _in_micros(LAST_SEEN)
        numbered = ordered.with_columns(_number_lives(*spans, [_PLACE], expiry))
        lives = self._plan.merge(numbered, [_PLACE, _LIFE]).sort(_PLACE, _LIFE)
        is_latest = pl.col(_LIFE) == pl.col(_LIFE).max().over(_PLACE)
        kept, now = lives.filter(~is_latest), expiry.now_micros(ctx)
        if now is not None:
            kept = kept.filter(expiry.end_of(_in_micros(LAST_SEEN)) > now)
        slot = pl.int_range(pl.len(), dtype=pl.Int32).over(_PLACE).alias(_SLOT)
        kept = kept.with_columns(slot)
        self._write(ctx, placed, kept)
        counts = kept.group_by(_PLACE).agg(pl.len().cast(pl.Int32).alias(EARLIER))
        latest = lives.filter(is_latest).join(counts, on=_PLACE, how="left")
        return latest.sort(_PLACE).select(*names, pl.col(EARLIER).fill_null(0))

    def drop(self, ctx: OperatorContext, rows: pl.DataFrame) -> None:
        """Drop the earlier lives of keys, given with the number of each."""
        known = rows.filter(pl.col(EARLIER) > 0)
        if known.height:
            place = pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE)
            self._write(ctx, known.with_columns(place), None)

    def _slots(self, placed: pl.DataFrame) -> pl.DataFrame:
        """Return a row per earlier life of keys with their number."""
        slots = pl.int_ranges(0, pl.col(EARLIER)).alias(_SLOT)
        known = placed.filter(pl.col(EARLIER) > 0).with_columns(slots).explode(_SLOT)
        return known.with_columns(pl.col(_SLOT).cast(pl.Int32))

    def _read(self, ctx: OperatorContext, placed: pl.DataFrame) -> pl.DataFrame:
        probes = self._slots(placed)
        found = ctx.get_keyed_state(TABLE).get(to_batch(probes, self._probes))
        rows = to_frame(found.rows).with_columns(probes[_PLACE])
        return rows.filter(pl.Series(found.found))

    def _write(
        self, ctx: OperatorContext, placed: pl.DataFrame, kept: pl.DataFrame | None
    ) -> None:
        """Replace the earlier lives of keys; those in `kept` have a slot each."""
        view, gone = ctx.get_keyed_state(TABLE), self._slots(placed)
        if kept is not None and kept.height:
            gone = gone.join(kept, on=[_PLACE, _SLOT], how="anti")
            rows = kept.join(placed.drop(EARLIER), on=_PLACE)
            view.put(to_batch(rows, self._stored))
        if gone.height:
            view.delete(to_batch(gone, self._probes))
