"""min, max, first and last: one of the values of a group; of no values null, as in SQL."""

from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import InternalError, SchemaError
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.columns import AggregatedColumn, is_orderable
from penstock.operators.aggregates.dense import Reduction

_ORDERABLE = "numbers, text, bytes, instants, durations or booleans"


class Extreme(Aggregate):
    """The least or the greatest value of a column. NaN is greater than all other numbers."""

    def __init__(
        self, column: str, where: pl.Expr | None, *, is_max: bool, is_float: bool = False
    ) -> None:
        self._column = AggregatedColumn(column, where)
        self._where = where
        self._is_max = is_max
        self._is_float = is_float

    def display(self) -> str:
        """Return `min(price)` or `max(price)`."""
        return self._column.shown(self._function())

    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return the form for the column's type."""
        dtype = self._column.check(stream, self._function(), is_orderable, _ORDERABLE)
        return Extreme(
            self._column.name, self._where, is_max=self._is_max, is_float=dtype.is_float()
        )

    def partial(self) -> Mapping[str, pl.Expr]:
        """Take the extreme of values."""
        return {"value": self._extreme(self._column.values())}

    def merge(self, value: pl.Expr) -> Mapping[str, pl.Expr]:
        """Take the extreme of extremes."""
        return {"value": self._extreme(value)}

    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr]:
        """Take the extreme of two, or the one there is."""
        mine, other = partials["value"], others["value"]
        wins = other > mine if self._is_max else other < mine  # NaN is greatest here too
        return {"value": pl.when(wins | mine.is_null()).then(other).otherwise(mine)}

    def reductions(self) -> Mapping[str, Reduction] | None:
        """Take the extreme, if all values count."""
        if self._where is not None:
            return None
        return {"value": Reduction("max" if self._is_max else "min", self._column.name)}

    def final(self, value: pl.Expr) -> pl.Expr:
        """Return it."""
        return value

    def result_type(self, stream: StreamSchema) -> pa.DataType:
        """Return the column's own type."""
        data_type: pa.DataType = self._column.type_in(stream)
        return data_type

    def _extreme(self, values: pl.Expr) -> pl.Expr:
        if not self._is_max:
            return values.min()
        if not self._is_float:
            return values.max()
        # Polars' max passes over NaN, and its nan_max over groups is slow.
        return pl.when(values.is_nan().any()).then(float("nan")).otherwise(values.max())

    def _function(self) -> str:
        return "max" if self._is_max else "min"


class ByEventTime(Aggregate):
    """The value of the earliest or the latest row that has one.

    Of several rows at that instant it is the least or the greatest value: which row came
    first would depend on how rows travelled.
    """

    def __init__(
        self, column: str, where: pl.Expr | None, *, is_last: bool, time: str | None = None
    ) -> None:
        self._column = AggregatedColumn(column, where)
        self._where = where
        self._is_last = is_last
        self._time = time
        """The column of event times, once a stream is known."""

    def display(self) -> str:
        """Return `first(price)` or `last(price)`."""
        return self._column.shown(self._function())

    def for_stream(self, stream: StreamSchema) -> Aggregate:
        """Return the form for the stream's event time."""
        self._column.check(stream, self._function(), is_orderable, _ORDERABLE)
        if stream.time_column is None:
            raise SchemaError(
                f"{self.display()}: the stream has no event time to tell what comes "
                f"{self._function()}: name its timestamp column in Pipeline.read as event_time",
                column=self._column.name,
            )
        return ByEventTime(
            self._column.name, self._where, is_last=self._is_last, time=stream.time_column
        )

    def partial(self) -> Mapping[str, pl.Expr]:
        """Pick a value, and keep its time."""
        if self._time is None:
            raise InternalError(
                f"{self.display()} was not made for a stream before its use"
            )
        value = self._column.values()
        return self._picked(pl.when(value.is_not_null()).then(pl.col(self._time)), value)

    def merge(self, time: pl.Expr, value: pl.Expr) -> Mapping[str, pl.Expr]:
        """Pick one of the values that were picked."""
        return self._picked(time, value)

    def final(self, time: pl.Expr, value: pl.Expr) -> pl.Expr:
        """Return the value."""
        del time
        return value

    def result_type(self, stream: StreamSchema) -> pa.DataType:
        """Return the column's own type."""
        data_type: pa.DataType = self._column.type_in(stream)
        return data_type

    def _picked(self, time: pl.Expr, value: pl.Expr) -> Mapping[str, pl.Expr]:
        ordered = value.sort_by(time, value, descending=self._is_last, nulls_last=True)
        return {
            "time": time.max() if self._is_last else time.min(),
            "value": ordered.first(),
        }

    def _function(self) -> str:
        return "last" if self._is_last else "first"
