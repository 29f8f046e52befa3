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
a predicate. All problems of the aggregates of a step are reported at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import polars as pl
import pyarrow as pa
from typing_extensions import override

from penstock.core.arrow_types import why_not_in_polars
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError, did_you_mean
from penstock.operators.aggregates.frames import decoded, frame_schema
from penstock.operators.aggregates.plan import (
    AggregatePlan,
    CompiledAggregate,
    Kind,
    Reduction,
    other_column,
)
from penstock.operators.expressions import (
    derive_types,
    find_unknown_columns,
    show_types,
    to_arrow_field,
)

_GROUP = "_penstock_group"


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

    def compile(self, name: str, stream: StreamSchema) -> CompiledAggregate:
        """Return how to compute it over rows of a stream; `name` is the column of the result.

        Raises `SchemaError` for a column that is missing or of a type that does not fit.
        """
        return _Compiler(name, self.display(), self.for_stream(stream), stream).compile()


class _Compiler:
    """Compiles one aggregate; its expressions are checked on frames without rows."""

    def __init__(
        self, result: str, shown: str, aggregate: Aggregate, stream: StreamSchema
    ) -> None:
        self._result = result
        self._shown = shown
        self._aggregate = aggregate
        self._stream = stream

    def compile(self) -> CompiledAggregate:
        partial = self._checked("partial", self._call("partial", {}))
        # The column of a partial begins with the result's name, for readers.
        names = {part: f"{self._result}.{part}" for part in partial}
        from_rows = [e.alias(names[part]) for part, e in partial.items()]
        types = self._types_of(frame_schema(self._stream.arrow), from_rows)
        columns = {part: pl.col(name) for part, name in names.items()}
        merged = self._checked("merge", self._call("merge", columns))
        if merged.keys() != partial.keys():
            raise self._refusal(
                f"merge gives {sorted(merged)} and partial {sorted(partial)}: both must give "
                "the same"
            )
        given = [merged[part].alias(name) for part, name in names.items()]
        found = self._types_of(types, given)
        # Polars sums short integers into longer ones: a cast keeps the type of the partials.
        from_partials = [
            e if found[name] == types[name] else e.cast(types[name])
            for name, e in zip(found, given, strict=True)
        ]
        merged_types = self._types_of(types, from_partials)
        if merged_types != types:
            raise self._refusal(
                f"merging gives {show_types(merged_types)}, but its partials are "
                f"{show_types(types)}"
            )
        (final,) = self._checked("final", {"": self._call("final", columns)}).values()
        finish = final.alias(self._result)
        others = {part: pl.col(other_column(name)) for part, name in names.items()}
        pair = self._aggregate.merge_pair(columns, others)
        reductions = self._aggregate.reductions()
        return CompiledAggregate(
            self._result_field(types, finish),
            tuple(dict.fromkeys(n for e in from_rows for n in e.meta.root_names())),
            tuple(to_arrow_field(self._shown, n, dtype) for n, dtype in types.items()),
            tuple(from_rows),
            tuple(from_partials),
            finish,
            self._shown,
            None
            if pair is None
            else tuple(pair[p].cast(types[n]).alias(n) for p, n in names.items()),
            None if reductions is None else tuple(reductions[part] for part in names),
        )

    def _call(self, method: str, columns: Mapping[str, pl.Expr]) -> Any:
        try:
            return getattr(self._aggregate, method)(**columns)
        except TypeError as error:
            raise self._refusal(
                f"{method} must take the partials {sorted(columns)} as arguments ({error})"
            ) from error
        except Exception as error:  # the boundary to user code
            raise self._refusal(f"{method} raised {_first_line(error)}") from error

    def _checked(self, method: str, given: Any) -> dict[str, pl.Expr]:
        expressions = dict(given) if isinstance(given, Mapping) else {}
        if expressions and all(isinstance(e, pl.Expr) for e in expressions.values()):
            return expressions
        wanted = (
            "a Polars expression" if method == "final" else "Polars expressions by name"
        )
        raise self._refusal(f"{method} must return {wanted}")

    def _types_of(self, given: pl.Schema, expressions: Sequence[pl.Expr]) -> pl.Schema:
        """Return the types that expressions give for a group, or raise why they cannot."""
        unknown = find_unknown_columns(expressions, given.names())
        if unknown:
            raise self._refusal("; ".join(unknown.values()))
        empty = pl.LazyFrame(schema=given).with_columns(pl.lit(0).alias(_GROUP))
        return self._schema_of(empty.group_by(_GROUP).agg(expressions).drop(_GROUP))

    def _result_field(self, types: pl.Schema, finish: pl.Expr) -> "pa.Field[pa.DataType]":
        found = self._schema_of(pl.LazyFrame(schema=types).select(finish))
        if not _is_of_one_row(finish) or not finish.meta.root_names():
            raise self._refusal("final must compute one result from each row of partials")
        declared = self._aggregate.result_type(self._stream)
        if declared is not None:
            return pa.field(self._result, declared)
        return to_arrow_field(self._shown, self._result, found[self._result])

    def _schema_of(self, frame: pl.LazyFrame) -> pl.Schema:
        try:
            frame.collect()  # some mistakes show only when something is computed
            return frame.collect_schema()
        except pl.exceptions.PolarsError as error:
            reason = str(error).split("\n", maxsplit=1)[0]
            raise self._refusal(f"it cannot be computed: {reason}") from error
        except Exception as error:  # a Python function in an expression may raise anything
            raise self._refusal(
                f"it cannot be computed of no rows: a function of it raised "
                f"{_first_line(error)}"
            ) from error

    def _refusal(self, problem: str) -> SchemaError:
        return SchemaError(f"{self._shown}: {problem}", column=self._result)


def _is_of_one_row(finish: pl.Expr) -> bool:
    """Return whether an expression looks at one row at a time, as far as Polars can tell."""
    try:
        return finish.meta.is_row_separable()
    except pl.exceptions.PolarsError:
        return True  # what Python functions do, Polars finds only with data


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0]


def _describe_non_aggregate(given: object) -> str:
    """Return why something is not an aggregate, and what to write instead."""
    hint = "write a function of penstock such as pen.sum('price')"
    if isinstance(given, type) and issubclass(given, Aggregate):
        hint = f"write {given.__name__}(…), an instance, instead of the class"
    elif callable(given):
        hint = "call the function"
    elif isinstance(given, pl.Expr):
        hint = (
            "partials of Polars expressions cannot be merged in general: use pen.sum, "
            "pen.count, … or an Aggregate of your own"
        )
    shown = getattr(given, "__name__", None) or repr(given)
    return f"{shown} is not an aggregate: {hint}"


def compile_aggregates(
    step: str,
    aggregates: Mapping[str, Any],
    stream: StreamSchema,
    *,
    taken: Collection[str] = (),
    keys: Collection[str] = (),
) -> AggregatePlan:
    """Compile what a step computes, or raise with everything that is wrong with any of it.

    Values that are no aggregates are among the problems. `taken` are the other columns of the
    output, whose names no result may have; `keys` are columns beside the partials in state.
    """
    problems = []
    compiled = []
    for name, aggregate in aggregates.items():
        if name in taken:
            problems.append(f"{name}: the output has a column of that name already")
        if not isinstance(aggregate, Aggregate):
            problems.append(f"{name}={_describe_non_aggregate(aggregate)}")
            continue
        try:
            made = aggregate.compile(name, stream)
            compiled.append(replace(made, step=step))
            clashes = [field.name for field in made.partials if field.name in keys]
            if clashes:
                problems.append(
                    f"{name}: the key column {clashes[0]!r} is called like a column of its "
                    "state: rename one of the two"
                )
        except UserError as error:
            problems.append(f"{name}: {error.message}")
    if not aggregates:
        problems.append(
            "it computes nothing: name at least one, such as total=pen.sum('x')"
        )
    if problems:
        raise SchemaError(
            f"the aggregates of {step!r} cannot be computed:\n  " + "\n  ".join(problems),
            operator=step,
        )
    return AggregatePlan(tuple(compiled))


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
        column: object = self.column
        where: object = self.where
        problems = []
        if isinstance(column, pl.Expr):
            problems.append(
                "it takes the name of a column: compute it with with_columns before"
            )
        elif not isinstance(column, str):
            problems.append(f"{column!r} is not the name of a column")
        if where is not None and not isinstance(where, pl.Expr):
            problems.append(
                f"where={where!r} is not a Polars expression: write where=pl.col(…) > …"
            )
        if problems:
            raise UserError(
                f"pen.{self.function}: {'; '.join(problems)}", code=ErrorCode.INVALID_CONFIG
            )

    @staticmethod
    def fits(dtype: pl.DataType) -> bool:
        """Return whether the aggregate can be computed of values of a type."""
        raise NotImplementedError

    @override
    def display(self) -> str:
        if self.where is None:
            return f"{self.function}({self.column})"
        column = f"{self.column}, " if self.column else ""
        return f"{self.function}({column}where={self.where})"

    @override
    def for_stream(self, stream: StreamSchema) -> Self:
        """Return it for the column's type, or raise with everything that does not fit."""
        types = frame_schema(stream.arrow)
        problems = find_where_problems(self.where, stream)
        dtype: pl.DataType = types.get(self.column, pl.Null())
        if self.column not in types:
            hint = did_you_mean(self.column, types.names())
            problems.append(f"there is no column {self.column!r}{hint}")
        elif not self.fits(dtype):
            found = stream.arrow.field(self.column).type
            reason = f"it takes {self.wanted}"
            if dtype == pl.Object:
                reason = why_not_in_polars(found)
            problems.append(f"column {self.column!r} is {found}, but {reason}")
        if problems:
            raise SchemaError(
                f"{self.display()}: {'; '.join(problems)}", column=self.column
            )
        return replace(self, dtype=dtype)

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

    def type_in(self, stream: StreamSchema) -> Any:
        """Return the type of the values in a stream, in its plain layout."""
        return decoded(stream.arrow).field(self.column).type


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
