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
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from penstock.errors import ErrorCode, PenstockError, UserError
from penstock.operators.user_functions import to_failure

Kind: TypeAlias = Literal["count", "sum", "float_sum", "min", "max"]
_Array: TypeAlias = "np.typing.NDArray[Any]"

PLACES_PER_ROW = 4
"""The most places per row: with more, most of the array would be empty."""
_LONGEST = 1 << 63
_WHOLE = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32)
"""Whole numbers that fit into 64 bits with a sign."""


class Reduction(NamedTuple):
    """The reduction of a column within a group, or of the rows themselves without a column."""

    kind: Kind
    column: str | None


def reduce_by_place(
    rows: pl.DataFrame, key: str, reductions: Mapping[str, Reduction]
) -> pl.DataFrame | None:
    """Return one row per key in order of key: the key, then the reductions.

    The key indexes an array, without hashing. Returns None when this cannot be exact or would
    waste memory: columns must be numbers of up to 64 bits, without nulls, NaN or a sum that
    overflows.
    """
    keys: Any = rows[key]
    if not rows.height or keys.dtype not in _WHOLE or keys.null_count():
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
        result: counts
        if name is None or kind == "count"
        else _reduce(kind, values[name], places, span)
        for result, (kind, name) in reductions.items()
    }
    return pl.DataFrame(
        [
            pl.Series(key, found + first).cast(keys.dtype),
            *(pl.Series(result, array[found]) for result, array in reduced.items()),
        ]
    )


def _reduce(kind: Kind, values: _Array, places: _Array, span: int) -> _Array:
    """Return the reduction of the values at each place; places without values are undefined."""
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
    np.add.at(totals, places, values.astype(wide, copy=False))
    return totals


def _is_plain(column: Any, *, is_summed: bool) -> bool:
    """Return whether a column has numbers only, and a sum of them cannot overflow."""
    if column.null_count():
        return False
    if column.dtype in (pl.Float32, pl.Float64):
        return not column.is_nan().any()
    if column.dtype not in _WHOLE:
        return False
    return not is_summed or max(-column.min(), column.max()) * len(column) < _LONGEST


_Engine: TypeAlias = Literal["streaming", "in-memory"]
_PLACE = "_penstock_place"
_READ_ERRORS = (pl.exceptions.PolarsError, pa.ArrowException, ValueError, TypeError)
_UNFIT = ("conversion from", "overflow")
"""How Polars begins its errors about values that do not fit a type."""
_STREAMING_ROWS = 20_000
"""From so many rows on Polars' streaming engine is up to three times as fast; below, slower."""


@dataclass(frozen=True, slots=True)
class AggregateConfig:
    """One compiled aggregate in the config of an operator."""

    shown: str
    reads: tuple[str, ...]
    fields: bytes
    """The result, then the partials: an Arrow schema in its IPC form."""
    from_rows: tuple[bytes, ...]
    """Each is the result of `Expr.meta.serialize`, as in the fields below."""
    from_partials: tuple[bytes, ...]
    finish: bytes
    from_pair: tuple[bytes, ...] | None = None
    reductions: tuple[Reduction, ...] | None = None
    step: str = ""


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """One aggregate over columns that exist and fit it: the compiler has checked them."""

    result: "pa.Field[pa.DataType]"
    """The column of the result."""
    reads: tuple[str, ...]
    """The columns of the rows that it reads."""
    partials: tuple["pa.Field[pa.DataType]", ...]
    """The columns of its partials; each begins with the name of the result."""
    from_rows: tuple[pl.Expr, ...]
    """Computes the partials of a group of rows; one expression per column, in that order."""
    from_partials: tuple[pl.Expr, ...]
    """Computes the partials of a group of partials."""
    finish: pl.Expr
    """Computes the result from the partials of one row."""
    shown: str = ""
    """The aggregate as the user writes it: `sum(price)`."""
    from_pair: tuple[pl.Expr, ...] | None = None
    """As `from_partials`, for two rows side by side; `other_column` names the second's columns."""
    reductions: tuple[Reduction, ...] | None = None
    """The same as `from_rows`, if each of them is a plain reduction of a column."""
    step: str = ""
    """The step that computes it, for messages."""

    def failure(self, method: str, error: Exception) -> PenstockError:
        """Return the error to raise if computing it fails: it names the aggregate and its step."""
        if isinstance(error, PenstockError):
            return error
        shown = f"{self.result.name}={self.shown} of step {self.step!r}"
        reason = (str(error) or type(error).__name__).split("\n", maxsplit=1)[0]
        facts: dict[str, Any] = {"step": self.step, "aggregate": self.result.name}
        if isinstance(error, pl.exceptions.PolarsError) and reason.startswith(_UNFIT):
            return UserError(
                f"the aggregate {shown} has a value that does not fit its type: {reason}. Sums "
                "of whole numbers and durations have 64 bits, those of decimals 38 digits: cast "
                "the column to a decimal or a float before",
                code=ErrorCode.VALUE_OUT_OF_RANGE,
                **facts,
            )
        raised = f"raised {type(error).__name__} in {method}"
        message = f"the aggregate {shown} {raised}: {reason}"
        return to_failure(error, message, note=f"{shown} {raised}", **facts)

    def to_config(self) -> AggregateConfig:
        """Return it as plain data, so that workers need neither aggregate nor stream schema."""
        pair = self.from_pair
        return AggregateConfig(
            self.shown,
            self.reads,
            pa.schema([self.result, *self.partials]).serialize().to_pybytes(),
            tuple(e.meta.serialize() for e in self.from_rows),
            tuple(e.meta.serialize() for e in self.from_partials),
            self.finish.meta.serialize(),
            None if pair is None else tuple(e.meta.serialize() for e in pair),
            self.reductions,
            self.step,
        )

    @classmethod
    def from_config(cls, config: AggregateConfig) -> "CompiledAggregate":
        """Return the aggregate that went into a config."""
        read, pair = pl.Expr.deserialize, config.from_pair
        try:
            result, *partials = pa.ipc.read_schema(pa.py_buffer(config.fields))
            return cls(
                result,
                config.reads,
                tuple(partials),
                tuple(map(read, config.from_rows)),
                tuple(map(read, config.from_partials)),
                read(config.finish),
                config.shown,
                None if pair is None else tuple(map(read, pair)),
                config.reductions,
                config.step,
            )
        except _READ_ERRORS as error:
            raise UserError(
                f"the aggregate {config.shown} cannot be read ({error}): it must come from the "
                "same versions of Polars and Arrow on driver and workers",
                code=ErrorCode.INVALID_CONFIG,
            ) from error


def other_column(name: str) -> str:
    """Return the name of a column of partials in the second of two rows side by side."""
    return f"{name}|other"


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
            name: Reduction("sum" if kind == "count" else kind, name)
            for name, (kind, _) in self._from_rows.items()
        }

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
            return self._computed("merge", pairs, both.select)
        place = pl.int_range(pl.len(), dtype=pl.UInt32).alias(_PLACE)
        is_there = pl.any_horizontal(pl.col(names).is_not_null())
        known = others.select(*names, place).filter(is_there)
        both = pl.concat([partials.select(*names, place), known])
        return self.merge(both, [_PLACE]).sort(_PLACE).select(names)

    def results_of(self, partials: pl.DataFrame, keep: Sequence[str]) -> pl.DataFrame:
        """Return one row per row: the columns `keep`, then the results."""
        finished = [(a.finish,) for a in self.aggregates]
        return self._computed("final", finished, lambda made: partials.select(*keep, *made))

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

        def compute(made: Sequence[pl.Expr]) -> pl.DataFrame:
            grouped = given.group_by(*(by or [_PLACE])).agg(*made)
            return (grouped if by else grouped.drop(_PLACE)).collect(engine=engine)

        return self._computed(method, computed, compute)

    def _computed(
        self,
        method: str,
        expressions: Sequence[Sequence[pl.Expr]],
        compute: Callable[[Sequence[pl.Expr]], pl.DataFrame],
    ) -> pl.DataFrame:
        """Compute the expressions of all aggregates; if that fails, find the one that fails."""
        try:
            return compute([e for made in expressions for e in made])
        except Exception:  # the boundary to user code
            for aggregate, made in zip(self.aggregates, expressions, strict=True):
                try:
                    compute(made)
                except Exception as error:
                    raise aggregate.failure(method, error) from error
            raise
