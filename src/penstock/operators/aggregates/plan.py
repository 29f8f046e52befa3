"""AggregatePlan: several aggregates over one stream, compiled and ready to be computed.

    rows ─ partials_of ─▶ partials ─ merge ─▶ partials ─ results_of ─▶ results

Merging is associative and commutative, so partials may be made and merged anywhere, in any
order and any number of times. A plan travels in a graph as plain data: Arrow serialises its
fields, Polars its expressions.

Keys that are whole numbers close together, as ids mostly are, need no hashing:
`reduce_by_place` indexes an array by key, which takes a third of the time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.operators.aggregates.compiled import (
    AggregateConfig,
    CompiledAggregate,
    Kind,
    Reduction,
    other_column,
)
from penstock.operators.aggregates.frames import PLACES_PER_ROW, WHOLE
from penstock.state.tables.column_groups import ColumnGroup

_Array: TypeAlias = "np.typing.NDArray[Any]"

_LONGEST = 1 << 63


def reduce_by_place(
    rows: pl.DataFrame, key: str, reductions: Mapping[str, Reduction]
) -> pl.DataFrame | None:
    """Return one row per key in order of key: the key, then the reductions.

    The key indexes an array, without hashing. Returns None when this cannot be exact or would
    waste memory: columns must be numbers of up to 64 bits, without nulls, NaN or a sum that
    overflows.
    """
    keys: Any = rows[key]
    if not rows.height or keys.dtype not in WHOLE or keys.null_count():
        return None
    first = keys.min()
    span = keys.max() - first + 1
    if span > PLACES_PER_ROW * rows.height:
        return None
    columns = {name: rows[name] for _, name in reductions.values() if name is not None}
    summed = {name for kind, name in reductions.values() if kind == "sum"}
    if not all(_is_plain(c, is_summed=name in summed) for name, c in columns.items()):
        return None
    places = keys.cast(pl.Int64).to_numpy() - first
    counts = np.bincount(places, minlength=span)
    found = np.flatnonzero(counts)
    values = {name: column.to_numpy() for name, column in columns.items()}
    reduced = {
        result: _reduce(kind, None if name is None else values[name], places, counts)
        for result, (kind, name) in reductions.items()
    }
    return pl.DataFrame(
        [
            pl.Series(key, found + first).cast(keys.dtype),
            *(pl.Series(result, array[found]) for result, array in reduced.items()),
        ]
    )


def _reduce(kind: Kind, values: "_Array | None", places: _Array, counts: _Array) -> _Array:
    """Return the reduction of the values at each place; places without values are undefined."""
    span = len(counts)
    if kind == "zero":
        return np.zeros(span, np.int64)
    if kind == "count" or values is None:
        return counts
    if kind in ("min", "max"):
        lowest, highest = -np.inf, np.inf
        if values.dtype.kind != "f":
            lowest, highest = np.iinfo(values.dtype).min, np.iinfo(values.dtype).max
        pick, start = (np.minimum, highest) if kind == "min" else (np.maximum, lowest)
        extreme: _Array = np.full(span, start, values.dtype)
        pick.at(extreme, places, values)
        return extreme
    wide: Any = np.float64
    if kind == "sum":
        wide = {"i": np.int64, "u": np.uint64, "f": np.float64}[values.dtype.kind]
    totals: _Array = np.zeros(span, wide)
    if kind == "float_sum" or values.any():  # carries are mostly all 0
        np.add.at(totals, places, values.astype(wide, copy=False))
    return totals


def _is_plain(column: Any, *, is_summed: bool) -> bool:
    """Return whether a column has numbers only, and a sum of them cannot overflow."""
    if column.null_count():
        return False
    if column.dtype in (pl.Float32, pl.Float64):
        return not column.is_nan().any()
    if column.dtype not in WHOLE:
        return False
    return not is_summed or max(-column.min(), column.max()) * len(column) < _LONGEST


_Engine: TypeAlias = Literal["streaming", "in-memory"]
_PLACE = "_penstock_place"
_STREAMING_ROWS = 20_000
"""From so many rows on Polars' streaming engine is up to three times as fast; below, slower."""


@dataclass(frozen=True)
class AggregatePlan:
    """All aggregates of one step."""

    aggregates: tuple[CompiledAggregate, ...]

    @cached_property
    def _from_rows(self) -> dict[str, Reduction] | None:
        """The reductions that make partials of rows, by column; None unless all are plain."""
        reductions = [a.reductions for a in self.aggregates if a.reductions is not None]
        if len(reductions) < len(self.aggregates):
            return None
        names = (field.name for field in self.partials)
        return dict(zip(names, chain.from_iterable(reductions), strict=True))

    @cached_property
    def _from_partials(self) -> dict[str, Reduction] | None:
        """The reductions that merge partials, by column; counts are added."""
        if self._from_rows is None:
            return None
        return {
            name: Reduction("sum" if kind in ("count", "zero") else kind, name)
            for name, (kind, _) in self._from_rows.items()
        }

    @cached_property
    def _settled(self) -> tuple[pl.Expr, ...]:
        return tuple(e for a in self.aggregates for e in a.settled or ())

    @classmethod
    def from_config(cls, configs: Sequence[AggregateConfig]) -> "AggregatePlan":
        """Return the plan that went into a config."""
        return cls(tuple(map(CompiledAggregate.from_config, configs)))

    def to_config(self) -> tuple[AggregateConfig, ...]:
        """Return the plan as plain data, for the config of an operator."""
        return tuple(aggregate.to_config() for aggregate in self.aggregates)

    def without(self, result: str) -> "AggregatePlan":
        """Return the plan without the aggregate of a result."""
        return AggregatePlan(tuple(a for a in self.aggregates if a.result.name != result))

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the rows that any of them reads, each once."""
        return tuple(dict.fromkeys(name for a in self.aggregates for name in a.reads))

    @property
    def partials(self) -> tuple["pa.Field[pa.DataType]", ...]:
        """The columns of the partials."""
        return tuple(field for a in self.aggregates for field in a.partials)

    @property
    def results(self) -> tuple["pa.Field[pa.DataType]", ...]:
        """The columns of the results."""
        return tuple(a.result for a in self.aggregates)

    def partials_of(self, rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return one row per group, in any order: the columns `by`, then the partials."""
        made = [a.from_rows for a in self.aggregates]
        return self._grouped("partial", rows, by, made, self._from_rows)

    def merge(self, partials: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return one row per group of partials: the columns `by`, then their partials."""
        merged = [a.from_partials for a in self.aggregates]
        return self._grouped("merge", partials, by, merged, self._from_partials)

    def merge_pairs(self, partials: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        """Return one row per row: partials merged with those of the other frame's same row.

        A row of nulls stands for no partials; only `others` may have such rows.
        """
        names = [field.name for field in self.partials]
        renamed = others.select(pl.col(n).alias(other_column(n)) for n in names)
        pairs = [a.from_pair for a in self.aggregates if a.from_pair is not None]
        if len(pairs) == len(self.aggregates):
            both = partials.select(names).hstack(renamed)

            def compute(
                made: Sequence[pl.Expr], settled: Sequence[pl.Expr]
            ) -> pl.DataFrame:
                return both.select(made).with_columns(settled)

            return self._computed("merge", pairs, compute)
        place = pl.int_range(pl.len(), dtype=pl.UInt32).alias(_PLACE)
        is_there = pl.any_horizontal(pl.col(names).is_not_null())
        known = others.select(*names, place).filter(is_there)
        both = pl.concat([partials.select(*names, place), known])
        return self.merge(both, [_PLACE]).sort(_PLACE).select(names)

    def unmerge_pairs(self, partials: pl.DataFrame, removed: pl.DataFrame) -> pl.DataFrame:
        """Return one row per row: partials without those of the other frame's same row.

        Every aggregate must have `unmerged`. A row of nulls stands for nothing to take out.
        """
        names = [field.name for field in self.partials]
        others = removed.select(pl.col(n).alias(other_column(n)) for n in names)
        is_there = removed.select(pl.any_horizontal(pl.col(names).is_not_null()))
        some = is_there.to_series()
        if not some.any():
            return partials.select(names)
        both = partials.select(names).hstack(others).filter(some)

        def compute(made: Sequence[pl.Expr], settled: Sequence[pl.Expr]) -> pl.DataFrame:
            return both.select(made).with_columns(settled)

        unmerged = [a.unmerged or () for a in self.aggregates]
        left = self._computed("unmerge", unmerged, compute)
        merged = pl.concat([partials.select(names).filter(~some), left.select(names)])
        # Rows with something to take out were put behind the others.
        order = np.argsort(np.argsort(some.to_numpy(), kind="stable"))
        return merged.select(pl.all().gather(order))

    def of_no_rows(self, count: int) -> pl.DataFrame:
        """Return so many rows with the partials of no rows."""
        rows = [pl.DataFrame(pl.from_arrow(_read_row(a))) for a in self.aggregates]
        places = np.zeros(count, np.int64)
        return pl.concat(rows, how="horizontal").select(pl.all().gather(places))

    def results_of(self, partials: pl.DataFrame, keep: Sequence[str]) -> pl.DataFrame:
        """Return one row per row: the columns `keep`, then the results."""
        finished = [(a.finish,) for a in self.aggregates]
        # Polars may hold equal values as one, and divides by one value in another way, rounding
        # otherwise. What a changelog takes back must be what it said, to the last bit.
        plain = pl.DataFrame(partials.get_columns())
        return self._computed("final", finished, lambda made, _: plain.select(*keep, *made))

    @property
    def groups(self) -> tuple[ColumnGroup, ...]:
        """The partials of each aggregate as columns of a table that may come and go."""
        return tuple(aggregate.to_group() for aggregate in self.aggregates)

    def display(self) -> str:
        """Return them as the user writes them: `total=sum(price), n=count()`."""
        return ", ".join(f"{a.result.name}={a.shown}" for a in self.aggregates)

    def _grouped(
        self,
        method: str,
        frame: pl.DataFrame,
        by: Sequence[str],
        computed: Sequence[Sequence[pl.Expr]],
        reductions: Mapping[str, Reduction] | None,
    ) -> pl.DataFrame:
        if len(by) == 1 and reductions is not None:
            reduced = reduce_by_place(frame, by[0], reductions)
            if reduced is not None:
                return reduced
        engine: _Engine = "streaming" if frame.height >= _STREAMING_ROWS else "in-memory"
        # Without a key all rows are one group, but no rows are no group. A constant column
        # groups them: a plain select would fit single values, but not lists of them.
        given = frame.lazy() if by else frame.lazy().with_columns(pl.lit(0).alias(_PLACE))

        def compute(made: Sequence[pl.Expr], settled: Sequence[pl.Expr]) -> pl.DataFrame:
            grouped = given.group_by(*(by or [_PLACE])).agg(*made).with_columns(*settled)
            return (grouped if by else grouped.drop(_PLACE)).collect(engine=engine)

        return self._computed(method, computed, compute)

    def _computed(
        self,
        method: str,
        expressions: Sequence[Sequence[pl.Expr]],
        compute: Callable[[Sequence[pl.Expr], Sequence[pl.Expr]], pl.DataFrame],
    ) -> pl.DataFrame:
        """Compute the expressions of all aggregates; if that fails, find the one that fails."""
        try:
            return compute([e for made in expressions for e in made], self._settled)
        except Exception:  # the boundary to user code
            for aggregate, made in zip(self.aggregates, expressions, strict=True):
                try:
                    compute(made, aggregate.settled or ())
                except Exception as error:
                    raise aggregate.failure(method, error) from error
            raise


def _read_row(aggregate: CompiledAggregate) -> pa.Table:
    return pa.ipc.open_stream(aggregate.of_no_rows).read_all()
