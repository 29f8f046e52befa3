"""Aggregate: what a user wants computed, such as `pen.sum("price")`, compiled against a stream.

An aggregate is three expressions: one makes partials of a group of rows, one makes partials of
a group of partials, and one makes the result of partials.

    class WeightedMean(pen.Aggregate):
        def partial(self):
            weight = pl.col("weight")
            return {"total": (pl.col("value") * weight).sum(), "weight": weight.sum()}

        def merge(self, total, weight):
            return {"total": total.sum(), "weight": weight.sum()}

        def final(self, total, weight):
            return total / weight

A `ColumnAggregate` is computed of the values of one column, perhaps only of rows that satisfy
a predicate.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import why_not_in_polars
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.operators.aggregates.compiled import End, Kind, Reduction
from penstock.operators.aggregates.frames import decoded, frame_schema
from penstock.operators.expression_checks import derive_types
from penstock.state.tables.column_groups import Meaning

DIALECT = f"polars {pl.__version__}"
"""How expressions are printed: other versions of Polars may print the same one otherwise."""


class Aggregate(ABC):
    """One aggregate. It is immutable, can be pickled, and has no stream until it is compiled."""

    @abstractmethod
    def partial(self) -> Mapping[str, pl.Expr]:
        """Return the partials of a group of rows by name: expressions over the rows' columns.

        Each gives one value per group. If one gives several values, their list is kept.
        """

    @abstractmethod
    def merge(self, *args: Any, **kwargs: Any) -> Mapping[str, pl.Expr]:
        """Return the partials of a group of partials by name; the arguments are their columns.

        The result must not depend on the order in which partials are merged, nor how often.
        """

    @abstractmethod
    def final(self, *args: Any, **kwargs: Any) -> pl.Expr:
        """Return the result of one row of partials; the arguments are their columns."""

    def merge_pair(
        self, partials: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr] | None:
        """Return what `merge` makes of two rows of partials side by side; None if not simple.

        This is faster where most groups have two rows. Where a row has no other, all columns
        of `others` are null.
        """
        del partials, others
        return None

    def unmerge(
        self, partials: Mapping[str, pl.Expr], removed: Mapping[str, pl.Expr]
    ) -> Mapping[str, pl.Expr] | None:
        """Return the partials without those of some of their rows; None if they do not tell.

        It is for changelogs, whose rows are removed again. Without it, the values of all rows
        are kept, and a group whose rows change is computed again.
        """
        del partials, removed
        return None

    def for_changes(self) -> "Aggregate":
        """Return the form for a changelog, whose partials also tell when no values are left."""
        return self

    def kept(self) -> "Kept | None":
        """Return what is kept of a changelog's rows if `unmerge` cannot be; None for all it reads."""
        return None

    def settle(self, **computed: pl.Expr) -> Mapping[str, pl.Expr] | None:
        """Return the partials out of what `partial` and `merge` compute, row by row.

        None if they compute the partials themselves. It is for values that a column cannot hold:
        a sum of 128 bits is settled into two columns.
        """
        del computed
        return None

    def meaning(self) -> Meaning | str | None:
        """Return what is recorded in checkpoints to tell it from another aggregate.

        State of another meaning is refused, so it must change if the partials do, and only
        then. None for its expressions, as Polars prints them.
        """
        return None

    def was(self, *names: str) -> Self:
        """Return the aggregate, saying that its result had another name before.

        State that a checkpoint holds under one of these names goes on under the new one.

        >>> import penstock as pen
        >>> renamed = pen.sum("price").was("total")
        """
        given: tuple[object, ...] = names
        if not names or not all(isinstance(name, str) for name in given):
            raise UserError(
                f"was takes names of results, not {names}: write was('old_name')",
                code=ErrorCode.INVALID_CONFIG,
            )
        renamed = copy(self)
        # Built-in aggregates are frozen.
        object.__setattr__(renamed, "former_names", names)
        return renamed

    keeps_all_values: ClassVar[bool] = False
    """Whether its partials grow with the values of a group: without an end, it is warned of."""

    former_names: ClassVar[tuple[str, ...]] = ()
    """The names that its result may have in a checkpoint; set by `was`."""

    def reductions(self) -> Mapping[str, Reduction] | None:
        """Return the partials as plain reductions of columns, or None if they are not.

        With them, groups whose keys are whole numbers close together need no hashing.
        """
        return None

    def display(self) -> str:
        """Return the aggregate as the user writes it: `sum(price)`."""
        return type(self).__name__

    def for_stream(self, stream: StreamSchema) -> "Aggregate":
        """Return the form of the aggregate for the types of a stream; by default itself.

        Raises `SchemaError` for a column that is missing or of a type that does not fit.
        """
        del stream
        return self

    def result_type(self, stream: StreamSchema) -> pa.DataType | None:
        """Return the type of the result, or None for the type that `final` gives."""
        del stream
        return None


@dataclass(frozen=True, slots=True)
class Kept:
    """The values that an aggregate over a changelog keeps, each with the number of its rows."""

    columns: tuple[str, ...]
    counts: pl.Expr
    """Which rows have such a value; others are passed over."""
    aggregate: Aggregate
    """What is computed of the rows that count."""
    end: End | None = None
    """The end of the values, in order of the columns, that alone decides on the result."""
    is_distinct: bool = False
    """Whether it is computed of different values, and `unmerge` takes out those that are gone."""


@dataclass(frozen=True, eq=False)
class ColumnAggregate(Aggregate):
    """An aggregate of the values of one column. Null values never count."""

    function: ClassVar[str]
    """The name of the function that makes it, as in `pen.sum`."""
    wanted: ClassVar[str]
    """What the column may hold, in words."""
    reduced: ClassVar[Mapping[str, Kind]] = {}
    """The partials that are plain reductions of the column, if all of them are."""

    column: str
    where: pl.Expr | None = None
    """The predicate of the rows that count; None for all rows."""
    dtype: pl.DataType = pl.Int64()  # noqa: RUF009 (data types are immutable)
    """The column's type in Polars, set by `for_stream`."""

    def __post_init__(self) -> None:
        """Refuse what is not the name of a column, or not a predicate, where the user wrote it."""
        problems = [*find_name_problems(self.column, *self.others())]
        where: object = self.where
        if where is not None and not isinstance(where, pl.Expr):
            problems.append(
                f"where={where!r} is not a Polars expression: write where=pl.col(…) > …"
            )
        problems += self.find_problems()
        if problems:
            raise UserError(
                f"pen.{self.function}: {'; '.join(problems)}", code=ErrorCode.INVALID_CONFIG
            )

    def others(self) -> Sequence[str]:
        """Return the other columns that it is computed of, whose types must fit as well."""
        return ()

    def find_problems(self) -> list[str]:
        """Return what is wrong with its other arguments."""
        return []

    def arguments(self) -> str:
        """Return its arguments as the user writes them, without the predicate."""
        return ", ".join((self.column, *self.others()))

    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        """Return whether the aggregate can be computed of values of a type."""
        raise NotImplementedError

    @override
    def display(self) -> str:
        shown = self.arguments()
        if self.where is not None:
            shown += f"{', ' if shown else ''}where={self.where}"
        return f"{self.function}({shown})"

    @override
    def meaning(self) -> Meaning:
        """Return the function and what it reads; the predicate as Polars prints it."""
        outline = self.outline()
        if self.where is None:
            return Meaning(outline)
        return Meaning(f"{outline} where", str(self.where), DIALECT)

    def outline(self) -> str:
        """Return the function and its arguments: results with other ones are not comparable."""
        return f"{self.function}({self.arguments()})"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        """Return it for the column's type, or raise with everything that does not fit."""
        types = frame_schema(stream.arrow)
        problems = find_where_problems(self.where, stream)
        for name in (self.column, *self.others()):
            if name not in types:
                problems.append(
                    f"there is no column {name!r}{did_you_mean(name, types.names())}"
                )
            elif not self.fits(types[name]):
                found = stream.arrow.field(name).type
                reason = f"it takes {self.wanted}"
                if types[name] == pl.Object:
                    reason = why_not_in_polars(found)
                problems.append(f"column {name!r} is {found}, but {reason}")
        if problems:
            raise SchemaError(
                f"{self.display()}: {'; '.join(problems)}", column=self.column
            )
        return self.replaced(dtype=types[self.column])

    def replaced(self, **changes: Any) -> Self:
        """Return it with other attributes and the same former names."""
        fitted = replace(self, **changes)
        return fitted.was(*self.former_names) if self.former_names else fitted

    @override
    def reductions(self) -> Mapping[str, Reduction] | None:
        if self.where is not None or not self.reduced:
            return None
        return {part: Reduction(kind, self.column) for part, kind in self.reduced.items()}

    @override
    def final(self, *args: Any, **kwargs: Any) -> pl.Expr:
        """Return the only partial; an aggregate with several computes its result from them."""
        only: pl.Expr
        (only,) = (*args, *kwargs.values())
        return only

    def values(self) -> pl.Expr:
        """Return the values that count; null for all others."""
        column = pl.col(self.column)
        return column if self.where is None else pl.when(self.where).then(column)

    @override
    def kept(self) -> Kept:
        columns = tuple(dict.fromkeys((self.column, *self.others())))
        return Kept(columns, self.values().is_not_null(), self.replaced(where=None))

    def type_in(self, stream: StreamSchema) -> Any:
        """Return the type of the values in a stream, in its plain layout."""
        return decoded(stream.arrow).field(self.column).type


def find_name_problems(*columns: object) -> list[str]:
    """Return why some of what was given are not names of columns."""
    problems = []
    for column in columns:
        if isinstance(column, pl.Expr):
            problems.append(
                "it takes the name of a column: compute it with with_columns before"
            )
        elif not isinstance(column, str):
            problems.append(f"{column!r} is not the name of a column")
    return problems


def find_where_problems(where: pl.Expr | None, stream: StreamSchema) -> list[str]:
    """Return why a predicate cannot select rows of a stream."""
    if where is None:
        return []
    if not where.meta.root_names():
        return ["where= looks at no column: leave it out"]
    try:
        types = derive_types("where", decoded(stream.arrow), [where])
    except UserError as error:
        return [error.message]
    if types.dtypes() != [pl.Boolean()]:
        shown = ", ".join(map(str, types.dtypes()))
        return [f"where= must be true or false for each row, not {shown}"]
    return []


def is_number(dtype: pl.DataType) -> bool:
    """Return whether it is an integer, a float or a decimal."""
    return dtype.is_numeric()


def is_orderable(dtype: pl.DataType) -> bool:
    """Return whether values have a least and a greatest one."""
    return (
        dtype.is_numeric()
        or dtype.is_temporal()
        or dtype in (pl.Boolean(), pl.String(), pl.Binary())
    )
