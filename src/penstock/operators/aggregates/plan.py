"""AggregatePlan: several aggregates over one stream, compiled and ready to be computed.

    rows ─ partials_of ─▶ partials ─ merge ─▶ partials ─ results_of ─▶ results

Merging is associative and commutative, so partials may be made and merged anywhere, in any
order and any number of times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import polars as pl
import pyarrow as pa

from penstock.errors import ErrorCode, UserError
from penstock.operators.aggregates.dense import Reduction, reduce_by_place

_Engine: TypeAlias = Literal["streaming", "in-memory"]
_PLACE = "_penstock_place"
_STREAMING_ROWS = 20_000
"""From here on Polars' streaming engine is up to three times as fast, below it is slower."""


@dataclass(frozen=True, slots=True)
class CompiledAggregate:
    """One aggregate over columns that are known to exist and to fit it."""

    result: "pa.Field[pa.DataType]"
    """The column it ends in."""
    reads: tuple[str, ...]
    """The columns of the rows that it looks at."""
    partials: tuple["pa.Field[pa.DataType]", ...]
    """The columns of its partials; each begins with the name of the result."""
    from_rows: tuple[pl.Expr, ...]
    """Computes the partials of a group of rows; one expression per column, in that order."""
    from_partials: tuple[pl.Expr, ...]
    """Computes the partials of a group of partials."""
    finish: pl.Expr
    """Computes the result from the partials of one row."""
    shown: str = ""
    """How it is written: `sum(price)`."""
    from_pair: tuple[pl.Expr, ...] | None = None
    """As `from_partials` for two rows side by side, the second one's columns `other_column`s."""
    reductions: tuple[Reduction, ...] | None = None
    """The same as `from_rows`, where each of them is a plain reduction of a column."""

    def row_reductions(self) -> dict[str, Reduction] | None:
        """Return what computes its partials from rows, by their columns."""
        if self.reductions is None:
            return None
        names = (field.name for field in self.partials)
        return dict(zip(names, self.reductions, strict=True))

    def partial_reductions(self) -> dict[str, Reduction] | None:
        """Return what merges its partials, by their columns."""
        of_rows = self.row_reductions()
        if of_rows is None:
            return None
        return {name: reduction.of_partials(name) for name, reduction in of_rows.items()}


def other_column(name: str) -> str:
    """Return what a column of partials is called in the second of two rows."""
    return f"{name}|other"


@dataclass(frozen=True, slots=True)
class AggregatePlan:
    """All aggregates of one step."""

    aggregates: tuple[CompiledAggregate, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of the rows that any of them looks at, each once."""
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
        """Return one row per group, in no particular order: the columns `by`, then the partials."""
        reductions = [a.row_reductions() for a in self.aggregates]
        made = [e for a in self.aggregates for e in a.from_rows]
        return self._grouped(rows, by, made, reductions)

    def merge(self, partials: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return one row per group of partials: the columns `by`, then their partials."""
        merged = [e for a in self.aggregates for e in a.from_partials]
        reductions = [a.partial_reductions() for a in self.aggregates]
        return self._grouped(partials, by, merged, reductions)

    def merge_pairs(self, partials: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        """Return one row per row: partials merged with those of the other frame's same row.

        A row of nulls stands for no partials; only `others` may have such rows.
        """
        names = [field.name for field in self.partials]
        renamed = others.select(pl.col(n).alias(other_column(n)) for n in names)
        pairs = [a.from_pair for a in self.aggregates if a.from_pair is not None]
        if len(pairs) == len(self.aggregates):
            both = partials.select(names).hstack(renamed)
            return self._computed(both.lazy().select(e for pair in pairs for e in pair))
        place = pl.int_range(pl.len(), dtype=pl.UInt32).alias(_PLACE)
        is_there = pl.any_horizontal(pl.col(names).is_not_null())
        known = others.select(*names, place).filter(is_there)
        both = pl.concat([partials.select(*names, place), known])
        return self.merge(both, [_PLACE]).sort(_PLACE).select(names)

    def results_of(self, partials: pl.DataFrame, keep: Sequence[str]) -> pl.DataFrame:
        """Return one row per row: the columns `keep`, then the results."""
        return partials.select(*keep, *(a.finish for a in self.aggregates))

    def display(self) -> str:
        """Return how they are written: `total=sum(price), n=count()`."""
        return ", ".join(f"{a.result.name}={a.shown}" for a in self.aggregates)

    def _grouped(
        self,
        frame: pl.DataFrame,
        by: Sequence[str],
        computed: Sequence[pl.Expr],
        reductions: Sequence[dict[str, Reduction] | None],
    ) -> pl.DataFrame:
        if len(by) == 1 and all(part is not None for part in reductions):
            whole = {k: v for part in reductions if part for k, v in part.items()}
            reduced = reduce_by_place(frame, by[0], whole)
            if reduced is not None:
                return reduced
        engine: _Engine = "streaming" if frame.height >= _STREAMING_ROWS else "in-memory"
        # Without a key all rows are one group; no rows are none. A plain select would do for
        # single values, but not for lists of them.
        given = frame.lazy() if by else frame.lazy().with_columns(pl.lit(0).alias(_PLACE))
        grouped = given.group_by(*(by or [_PLACE])).agg(*computed)
        return self._computed(grouped if by else grouped.drop(_PLACE), engine)

    def _computed(self, frame: pl.LazyFrame, engine: _Engine = "in-memory") -> pl.DataFrame:
        try:
            return frame.collect(engine=engine)
        except (
            pl.exceptions.InvalidOperationError,
            pl.exceptions.ComputeError,
        ) as error:
            reason = str(error).split("\n", maxsplit=1)[0]
            if not reason.startswith(("conversion from", "overflow")):
                raise
            raise self._overflow(reason) from error

    def _overflow(self, reason: str) -> UserError:
        return UserError(
            f"an aggregate of ({self.display()}) has a value that does not fit its type: "
            f"{reason}. Sums of whole numbers and durations have 64 bits, those of decimals 38 "
            "digits: cast the column to a decimal or a float before",
            code=ErrorCode.VALUE_OUT_OF_RANGE,
        )
