"""The aggregate aggregate_rows: what a function of the user computes of all rows of a group.

Such results cannot be merged, so the rows are kept instead: state grows with them, all rows of a
group are written again when it gets more, and the function is called once per group and result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import why_not_in_polars
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.graph.logical import UserFunction
from penstock.operators.aggregates.aggregate import (
    DIALECT,
    Aggregate,
    find_name_problems,
    find_where_problems,
    is_orderable,
)
from penstock.operators.aggregates.frames import frame_schema
from penstock.operators.aggregates.sketches import hash_of
from penstock.operators.frames import polars_type
from penstock.operators.user_functions import unpickle_function
from penstock.state.tables.column_groups import Meaning

_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True, eq=False)
class RowsAggregate(Aggregate):
    """The result of a function that takes the rows of a group as a frame; null of no rows."""

    keeps_all_values: ClassVar[bool] = True

    function: UserFunction
    returns: pa.DataType
    columns: tuple[str, ...]
    where: pl.Expr | None = None
    time: str | None = None
    """The event time, by which rows are sorted; set by `for_stream`."""

    def __post_init__(self) -> None:
        """Refuse what is no type, no column or no predicate, where the user wrote it."""
        returns: object = self.returns
        where: object = self.where
        problems = find_name_problems(*self.columns)
        if not self.columns:
            problems.append("it reads nothing: name at least one column as columns=[…]")
        if not isinstance(returns, pa.DataType) or polars_type(returns) == pl.Object:
            problems.append(
                f"returns={returns!r} is not a type: give a pyarrow type such as pa.int64()"
            )
        if where is not None and not isinstance(where, pl.Expr):
            problems.append(
                f"where={where!r} is not a Polars expression: write where=pl.col(…) > …"
            )
        if problems:
            raise UserError(
                f"pen.aggregate_rows: {'; '.join(problems)}", code=ErrorCode.INVALID_CONFIG
            )

    @override
    def display(self) -> str:
        shown = f"{self.function.name}, columns={list(self.columns)}"
        if self.where is not None:
            shown += f", where={self.where}"
        return f"aggregate_rows({shown})"

    @override
    def meaning(self) -> Meaning:
        """Return the function's name and what it gets: what it does cannot be compared."""
        kept = dict.fromkeys((*self.columns, *([self.time] if self.time else [])))
        outline = f"{self.function.name}(rows of {', '.join(kept)}) → {self.returns}"
        if self.where is None:
            return Meaning(outline)
        return Meaning(f"{outline} where", str(self.where), DIALECT)

    @override
    def for_stream(self, stream: StreamSchema) -> "RowsAggregate":
        types = frame_schema(stream.arrow)
        problems = find_where_problems(self.where, stream)
        for name in self.columns:
            if name not in types:
                problems.append(
                    f"there is no column {name!r}{did_you_mean(name, types.names())}"
                )
            elif types[name] == pl.Object:
                reason = why_not_in_polars(stream.arrow.field(name).type)
                problems.append(f"column {name!r}: {reason}")
        if problems:
            raise SchemaError(f"{self.display()}: {'; '.join(problems)}")
        fitted = replace(self, time=stream.time_column)
        return fitted.was(*self.former_names) if self.former_names else fitted

    @override
    def partial(self) -> Mapping[str, pl.Expr]:
        kept = dict.fromkeys((*self.columns, *([self.time] if self.time else [])))
        rows = pl.struct(pl.col(name) for name in kept)
        return {"rows": rows if self.where is None else rows.filter(self.where)}

    @override
    def merge(self, rows: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"rows": rows.explode()}

    @override
    def final(self, rows: pl.Expr) -> pl.Expr:
        call = _Call(self.function, self.returns, self.columns, self.time)
        kind = polars_type(self.returns)
        return rows.map_batches(call, return_dtype=kind, is_elementwise=True)

    @override
    def result_type(self, stream: StreamSchema) -> pa.DataType:
        return self.returns


@dataclass(frozen=True, slots=True)
class _Call:
    """Calls the function for each of some groups; it travels to workers within `final`."""

    function: UserFunction
    returns: pa.DataType
    columns: tuple[str, ...]
    time: str | None

    def __call__(self, groups: pl.Series) -> pl.Series:
        function = _load(self.function.name, self.function.pickled)
        results = [
            None if rows is None or not len(rows) else function(self._sorted(rows))
            for rows in groups
        ]
        try:
            return pl.Series(groups.name, pa.array(results, self.returns))
        except _MISFITS as error:
            raise UserError(
                f"{self.function.name!r} must return one {self.returns} for each group, as it "
                f"is declared: {error}",
                code=ErrorCode.UDF_INVALID,
                function=self.function.name,
            ) from error

    def _sorted(self, rows: pl.Series) -> pl.DataFrame:
        """Return the rows of a group, by event time and then by their values.

        Nested values are sorted by their hashes: any order will do that is always the same.
        """
        frame = rows.struct.unnest()
        names = [name for name in frame.columns if name != self.time]
        order = [
            pl.col(name) if is_orderable(frame.schema[name]) else hash_of(pl.col(name))
            for name in ([] if self.time is None else [self.time]) + names
        ]
        return frame.sort(order, nulls_last=True).select(self.columns)


@lru_cache(maxsize=128)
def _load(name: str, pickled: bytes) -> Callable[[pl.DataFrame], Any]:
    function: Callable[[pl.DataFrame], Any] = unpickle_function(UserFunction(name, pickled))
    return function
