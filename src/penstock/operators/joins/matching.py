"""How a join takes the rows of an epoch, keeps those of both sides, and finds partners.

`JoinSide` is one side in one subtask: the rows of this epoch, and a table by time and key of
those that are kept. It decides neither for how long they are kept nor which are late. A row
with a null in its key has no partners; it is kept all the same if it is emitted without one.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import Micros, relay
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS, MIN_MICROS, EventTime
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import BAD, LATE
from penstock.operators.context import ArrowCollector, OperatorContext
from penstock.operators.expressions import read_expression
from penstock.operators.joins.sides import (
    BAD_RIGHT,
    LATE_RIGHT,
    SIDES,
    JoinRules,
    Pick,
    plain,
)
from penstock.operators.operator import ArrowOperator
from penstock.operators.registry import Configured, OperatorConfig
from penstock.operators.windows.assignment import (
    END_MICROS,
    Flags,
    read_event_times,
    refuse_bad_times,
)
from penstock.state.tables.sorted_rows import Positions, take_rows
from penstock.state.tables.specs import TableSpec, time_keyed_table
from penstock.state.tables.time_keyed_view import TimeKeyedView

_ROWS_WORTH_A_SEARCH = 1 << 14
"""Smaller batches are joined before partners are looked for."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one side in plain layouts, with their event times."""

    batch: pa.RecordBatch
    micros: Micros

    def where(self, kept: Flags) -> "Rows":
        """Return only those for which `kept` is true."""
        if kept.all():
            return self
        return Rows(self.batch.filter(pa.array(kept)), self.micros[kept])

    def pick(self, places: Positions) -> Pick:
        """Return some of them, perhaps repeatedly."""
        return Pick(self.batch, self.micros, places)

    @property
    def whole(self) -> Pick:
        """All of them."""
        return Pick(self.batch, self.micros, np.arange(len(self.micros)), is_whole=True)


class JoinSide:
    """One side of a join in one subtask."""

    def __init__(
        self, index: int, stream: StreamSchema, *, diverts_bad: bool, keeps_null_keys: bool
    ) -> None:
        self.name = SIDES[index]
        self.stream = stream
        self._late, self._bad = ((LATE, BAD), (LATE_RIGHT, BAD_RIGHT))[index]
        self._diverts_bad = diverts_bad
        self._keeps_null_keys = keeps_null_keys
        self._fresh: list[Rows] = []

    def side_outputs(self, stream: StreamSchema) -> Mapping[str, StreamSchema]:
        """Return where late rows and, if they are diverted, bad ones go."""
        bad = {self._bad: StreamSchema(stream.arrow)} if self._diverts_bad else {}
        return {self._late: stream.keyed_by(), **bad}

    def table(self, description: str, meaning: str, *more: "pa.Field[Any]") -> TableSpec:
        """Declare the table of kept rows, which may have one more column to be found by."""
        time = more[0].name if more else self.stream.time_column
        return time_keyed_table(
            self.name,
            pa.schema([*self.stream.arrow, *more]),
            key_columns=self.stream.key_columns,
            time_column=time or "",
            description=f"rows of the {self.name} side of {description}",
            meaning=meaning,
        )

    def view(self, ctx: OperatorContext) -> TimeKeyedView:
        """Return the kept rows."""
        return ctx.get_time_keyed_state(self.name)

    def read_times(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> tuple[pa.RecordBatch, Micros]:
        """Return the rows whose event time is good, and their times; others are put aside."""
        name = self.stream.time_column or ""
        times = read_event_times(batch.column(name))
        if times.bad is None:
            return batch, times.micros
        if not self._diverts_bad:
            raise refuse_bad_times(times.bad, batch.column(name), name)
        ctx.count("bad_rows", int(times.bad.sum()))
        collector.collect(batch.filter(pa.array(times.bad)), self._bad)
        return batch.filter(pa.array(~times.bad)), times.micros[~times.bad]

    def put_late_aside(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Send late rows to their side output, in the layouts in which they came."""
        if batch.num_rows:
            ctx.count("late_rows", batch.num_rows)
            for rows in _laid_out(batch, ctx.outputs[self._late].arrow):
                collector.collect(rows, self._late)

    def buffer(self, batch: pa.RecordBatch, micros: Micros) -> None:
        """Keep rows until the epoch's are complete, without those that nobody needs."""
        arrays: list[Any] = [
            relay(column, field.type)
            for column, field in zip(batch.columns, self.stream.arrow, strict=True)
        ]
        rows = Rows(pa.RecordBatch.from_arrays(arrays, schema=self.stream.arrow), micros)
        if not self._keeps_null_keys:
            rows = rows.where(self.has_key(rows.batch))
        if len(rows.micros):
            self._fresh.append(rows)

    def take_fresh(self) -> list[Rows]:
        """Return this epoch's rows, in one piece if they fit, and forget them."""
        fresh, self._fresh = self._fresh, []
        return joined(fresh, self.stream.arrow)

    def take_fresh_pieces(self) -> list[Rows]:
        """Return this epoch's rows in pieces that are worth a search each, and forget them.

        Batches of such a size are not copied.
        """
        fresh, self._fresh = self._fresh, []
        pieces: list[Rows] = []
        small: list[Rows] = []
        waiting = 0
        for rows in fresh:
            small.append(rows)
            waiting += len(rows.micros)
            if waiting >= _ROWS_WORTH_A_SEARCH:
                pieces += joined(small, self.stream.arrow)
                small, waiting = [], 0
        return [*pieces, *joined(small, self.stream.arrow)]

    def insert(
        self,
        ctx: OperatorContext,
        parts: Sequence[Rows],
        expires_at: Callable[[Micros], Micros],
    ) -> None:
        """Keep rows, each until event time has reached an instant that follows from its own."""
        for rows in joined(parts, self.stream.arrow):
            if len(rows.micros):
                self.view(ctx).insert(rows.batch, expires_at(rows.micros))

    def kept_between(self, ctx: OperatorContext, start: int, end: int) -> list[Rows]:
        """Return the kept rows with a time in `[start, end)`, in few pieces."""
        start, end = max(start, MIN_MICROS), min(end, MAX_MICROS)
        if start >= end:
            return []
        found = self.view(ctx).rows(start, end).combine_chunks()
        return [self.to_rows(batch) for batch in found.to_batches() if batch.num_rows]

    def to_rows(self, batch: pa.RecordBatch) -> Rows:
        """Return rows of the table with their event times."""
        columns = batch.select(self.stream.arrow.names)
        return Rows(columns, self.stream.event_times_of(columns))

    def partners_of(
        self,
        ctx: OperatorContext,
        keys: Sequence[str],
        pick: Pick,
        bounds: tuple[Micros, Micros],
        *,
        first_only: bool = False,
    ) -> Iterator[tuple[Positions, Pick]]:
        """Yield the rows kept here that have the key of a row of the other side.

        `keys` names the other side's key columns. Each of the picked rows is looked for at
        times in its own `[start, end)`. A result holds positions in `pick.places` and the rows
        found; it has a bounded size. With `first_only` one partner of a row may stand for all.
        """
        starts, ends = bounds
        columns = [pick.column(key) for key in keys]
        probes = pa.RecordBatch.from_arrays(columns, names=list(self.stream.key_columns))
        places: Positions | None = None
        has_key = without_nulls(columns)
        if has_key is not None:
            places = np.flatnonzero(has_key)
            probes = take_rows(probes, places)
            starts, ends = starts[places], ends[places]
        for found in self.view(ctx).get_between(
            probes, starts, ends, first_only=first_only
        ):
            numbers = found.probes if places is None else places[found.probes]
            yield numbers, Pick(found.rows, found.times, found.places)

    def has_key(self, batch: pa.RecordBatch) -> Flags:
        """Tell which rows have no null in their key."""
        found = without_nulls([batch.column(name) for name in self.stream.key_columns])
        return np.ones(batch.num_rows, np.bool_) if found is None else found


def _laid_out(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows in the layouts of a schema, in halves if an index type is too small for all."""
    try:
        arrays = [relay(batch.column(field.name), field.type) for field in schema]
    except pa.ArrowInvalid:
        if batch.num_rows == 1:
            raise
        half = batch.num_rows // 2
        yield from _laid_out(batch.slice(0, half), schema)
        yield from _laid_out(batch.slice(half), schema)
    else:
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def without_nulls(columns: Sequence[Any]) -> Flags | None:
    """Tell which rows have no null in some columns; None for all."""
    nulls = [c.is_null().to_numpy(zero_copy_only=False) for c in columns if c.null_count]
    return ~np.logical_or.reduce(nulls) if nulls else None


def joined(parts: Sequence[Rows], schema: pa.Schema) -> list[Rows]:
    """Return the same rows in as few pieces as their columns fit into."""
    if len(parts) <= 1:
        return list(parts)
    micros = np.concatenate([part.micros for part in parts])
    table = pa.Table.from_batches([part.batch for part in parts], schema).combine_chunks()
    pieces, start = [], 0
    for batch in table.to_batches():
        pieces.append(Rows(batch, micros[start : start + batch.num_rows]))
        start += batch.num_rows
    return pieces


def in_one_piece(parts: Sequence[Rows], schema: pa.Schema) -> Rows:
    """Return the same rows as one batch, or refuse more than it can hold."""
    pieces = joined(parts, schema)
    if len(pieces) > 1:
        raise UserError(
            "a column has more than 2 GiB of text in one epoch: let epochs be smaller, with a "
            "trigger by rows or bytes, or cast it to large_string",
            code=ErrorCode.INVALID_CONFIG,
        )
    empty = Rows(pa.RecordBatch.from_pylist([], schema=schema), np.empty(0, np.int64))
    return pieces[0] if pieces else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinConfig(OperatorConfig):
    """What the configs of all joins by event time hold."""

    left: bytes
    """The schema of the left side with its keys, as `StreamSchema.to_bytes` returns it."""
    right: bytes
    how: str
    suffix: str
    where: bytes | None
    """The result of `Expr.meta.serialize`."""
    diverts_bad: bool

    @abstractmethod
    def rules(self) -> JoinRules:
        """Return what is emitted."""

    def sides(self) -> tuple[StreamSchema, StreamSchema]:
        """Return both sides in plain layouts, with their keys."""
        left, right = (StreamSchema.from_bytes(data) for data in (self.left, self.right))
        return plain(left), plain(right)

    def predicate(self) -> pl.Expr | None:
        """Return the residual predicate."""
        return None if self.where is None else read_expression("join", self.where)

    def shown_keys(self) -> Mapping[str, str]:
        """Return what `explain` prints about any join: how, by which keys, and the predicate."""
        left, right = self.sides()
        pairs = zip(left.key_columns, right.key_columns, strict=True)
        keys = ", ".join(
            one if one == other else f"{one} = {other}" for one, other in pairs
        )
        where = {} if self.where is None else {"where": str(self.predicate())}
        return {"how": self.how, "on": keys, **where}


JoinConfigT = TypeVar("JoinConfigT", bound=JoinConfig)


class TimedJoin(Configured[JoinConfigT], ArrowOperator, Generic[JoinConfigT]):
    """What all joins by event time do alike: schemas, side outputs, and the sorting of rows."""

    def __init__(self, config: JoinConfigT) -> None:
        super().__init__(config)
        self.rules = config.rules()
        self.how = self.rules.how
        streams = self.rules.left, self.rules.right
        self.left, self.right = (
            JoinSide(index, stream, diverts_bad=config.diverts_bad, keeps_null_keys=keeps)
            for index, (stream, keeps) in enumerate(
                zip(streams, self.how.emits_unmatched, strict=True)
            )
        )

    @override
    def output_schema(self, inputs: Sequence[StreamSchema]) -> StreamSchema:
        """Return what the rules say, if the inputs are those that the join was made for."""
        for side, given in zip((self.left, self.right), inputs, strict=True):
            if plain(given) != side.stream:
                raise UserError(
                    f"the {side.name} side of the join is another stream than it was made for",
                    code=ErrorCode.INVALID_GRAPH,
                )
        return self.rules.output

    @override
    def side_outputs(self, inputs: Sequence[StreamSchema]) -> Mapping[str, StreamSchema]:
        return {
            **self.left.side_outputs(inputs[0]),
            **self.right.side_outputs(inputs[1]),
        }

    @override
    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        """Take rows of the left side; a join has two inputs."""
        self.process_batch_index(0, 2, batch, ctx, collector)

    @override
    def process_batch_index(
        self,
        index: int,
        total_inputs: int,
        batch: pa.RecordBatch,
        ctx: OperatorContext,
        collector: ArrowCollector,
    ) -> None:
        """Buffer rows until the epoch's are complete; bad and late ones go to side outputs."""
        side = (self.left, self.right)[index]
        batch, micros = side.read_times(batch, ctx, collector)
        late = self.late_rows(micros, ctx)
        if late is not None and late.any():
            side.put_late_aside(batch.filter(pa.array(late)), ctx, collector)
            batch, micros = batch.filter(pa.array(~late)), micros[~late]
        if batch.num_rows:
            side.buffer(batch, micros)

    def late_rows(self, micros: Micros, ctx: OperatorContext) -> Flags | None:
        """Tell which rows are late, by how far event time had come when the epoch began."""
        del micros, ctx
        return None


def beyond_all(watermark: EventTime | None) -> int | None:
    """Return a watermark in microseconds; behind the year 9999 no row can follow at all."""
    if watermark is None:
        return None
    return MAX_MICROS if watermark.micros >= END_MICROS else watermark.micros
