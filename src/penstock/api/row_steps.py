"""RowSteps: the steps of a stream that turn rows into rows, without state.

Expressions are Polars' and vectorised. Functions get whole batches, or one row at a time where
that is wanted more than speed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from penstock.api.gathering import step
from penstock.api.given_expressions import ExpressionLike, to_expression, to_expressions
from penstock.api.graph_builder import BrokenPort, GraphBuilder, Port
from penstock.core.schema import CHANGE_COLUMN, StreamSchema
from penstock.core.spellings import OnBad
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.changes import project_changes
from penstock.operators.expression_checks import derive_types
from penstock.operators.expressions import filter_spec, select_spec, with_columns_spec
from penstock.operators.frames import SchemaLike, to_stream_schema
from penstock.operators.stateless import (
    FlatMapConfig,
    MapBatchesConfig,
    MapRowsConfig,
    RenameConfig,
    check_columns,
    function_spec,
)
from penstock.operators.udfs.specs import AsyncUdfSpec, ResultSpec

if TYPE_CHECKING:
    from penstock.api.stream import Stream


def _broken(stream: Any) -> Any:
    return type(stream)(stream.builder, BrokenPort())


class RowSteps:
    """The part of `Stream` that computes rows from rows, one by one or in batches."""

    builder: GraphBuilder
    port: Port
    _then: "Callable[..., Stream]"
    """Adds an operator behind the stream; `Stream` has it."""

    @step(lambda stream: stream)
    def filter(self, predicate: ExpressionLike) -> "Stream":
        """Keep the rows for which a Polars expression is true.

        >>> import penstock as pen, polars as pl
        >>> pages = pen.Pipeline("p").read("pages", pen.list_source([{"page": 1}]))
        >>> first_pages = pages.filter(pl.col("page") < 10)
        """
        return self._then(filter_spec(to_expression(predicate)))

    @step(_broken)
    def select(self, *expressions: ExpressionLike, **named: ExpressionLike) -> "Stream":
        """Replace the columns by computed ones, one row per row; text names a column.

        >>> import penstock as pen, polars as pl
        >>> pages = pen.Pipeline("p").read("pages", pen.list_source([{"page": 1, "ms": 5}]))
        >>> pages.select("page", seconds=pl.col("ms") / 1000).schema.arrow.names
        ['page', 'seconds']
        """
        chosen = to_expressions(expressions, named)
        if not isinstance(self.port, BrokenPort) and self.port.schema.is_changelog:
            names = derive_types("select", self.port.schema.arrow, chosen).names()
            if CHANGE_COLUMN not in names:
                chosen.insert(0, pl.col(CHANGE_COLUMN))
        return self._then(select_spec(*chosen))

    @step(_broken)
    def with_columns(
        self, *expressions: ExpressionLike, **named: ExpressionLike
    ) -> "Stream":
        """Add columns, or replace those of the same name.

        >>> import penstock as pen, polars as pl
        >>> pages = pen.Pipeline("p").read("pages", pen.list_source([{"page": 1, "ms": 5}]))
        >>> pages.with_columns(seconds=pl.col("ms") / 1000).schema.arrow.names
        ['page', 'ms', 'seconds']
        """
        return self._then(with_columns_spec(*to_expressions(expressions, named)))

    @step(_broken)
    def rename(self, names: Mapping[str, str]) -> "Stream":
        """Give columns other names; event time and key go with them.

        >>> import penstock as pen
        >>> pages = pen.Pipeline("p").read("pages", pen.list_source([{"page": 1, "ms": 5}]))
        >>> pages.rename({"ms": "millis"}).schema.arrow.names
        ['page', 'millis']
        """
        given: Any = names
        is_mapping = isinstance(given, Mapping)
        pairs = [*given.keys(), *given.values()] if is_mapping else [None]
        if not all(isinstance(name, str) for name in pairs):
            raise UserError(
                f"rename takes the new names by the old ones, not {names!r:.80}: write "
                'rename({"old": "new"})',
                code=ErrorCode.INVALID_CONFIG,
            )
        return self._then(RenameConfig(dict(names)).to_operator_spec())

    @step(_broken)
    def drop(self, *columns: str | pl.Expr | Sequence[str]) -> "Stream":
        """Leave columns out; Polars' selectors take several at once.

        >>> import penstock as pen
        >>> pages = pen.Pipeline("p").read("pages", pen.list_source([{"page": 1, "ms": 5}]))
        >>> pages.drop("ms").schema.arrow.names
        ['page']
        """
        schema = self.port.schema.arrow
        dropped = self._columns_named("drop", columns)
        check_columns(dropped, schema.names, "drop")
        kept = [name for name in schema.names if name not in dropped]
        if not kept:
            raise UserError(
                f"drop leaves no column of ({', '.join(schema.names)}): keep at least one",
                code=ErrorCode.INVALID_CONFIG,
            )
        return self._then(select_spec(*kept))

    @step(_broken)
    def map_batches(
        self,
        function: Callable[..., Any],
        *,
        schema: SchemaLike = None,
        on_bad: OnBad = "fail",
    ) -> "Stream":
        """Pass every batch through a function; give `schema` if it returns other columns.

        The cuts between batches have no meaning: the result for a row must not depend on the
        other rows of its batch. The function gets the type that its parameter is annotated
        with: a record batch, an Arrow table, a Polars or a pandas frame. It may return any of
        these. `schema` is Arrow's or Polars', or types by name. With `on_bad="divert"` rows on
        which it raises go to the side output `BAD`, with the column `error`: it is called
        again on halves of a batch that failed, to find them.

        >>> import penstock as pen, polars as pl
        >>> def without_nulls(rows: pl.DataFrame) -> pl.DataFrame:
        ...     return rows.drop_nulls()
        >>> pages = pen.Pipeline("p").read("pages", pen.list_source([{"page": 1}]))
        >>> whole = pages.map_batches(without_nulls)
        """
        return self._with_function(MapBatchesConfig, function, schema, on_bad)

    @step(_broken)
    def map(
        self,
        function: Callable[[dict[str, Any]], Mapping[str, Any]],
        *,
        schema: SchemaLike = None,
        on_bad: OnBad = "fail",
    ) -> "Stream":
        """Pass every row through a function that returns another one; rows are dictionaries.

        This is slow, a thousand times slower than an expression: use `with_columns`, `select`
        or `map_batches` where you can. Everything else is as in `map_batches`.

        >>> import penstock as pen
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-map")
        >>> pages = p.read("pages", pen.list_source([{"page": 1, "ms": 5}]))
        >>> doubled = pages.map(lambda row: {**row, "ms": row["ms"] * 2})
        >>> doubled.write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'page': 1, 'ms': 10}]
        """
        return self._with_function(MapRowsConfig, function, schema, on_bad)

    @step(_broken)
    def flat_map(
        self, function: Callable[..., Any], *, schema: SchemaLike = None
    ) -> "Stream":
        """Pass every batch through a function that returns or yields any number of them.

        It is called with batches, not with rows, as `map_batches` is. To turn one row into
        several, return more rows in one batch, such as Polars' `explode` does.

        >>> import penstock as pen, polars as pl
        >>> def words(rows: pl.DataFrame):
        ...     yield rows.with_columns(pl.col("text").str.split(" ")).explode("text")
        >>> p, out = pen.Pipeline("p"), pen.list_sink("doctest-of-flat-map")
        >>> lines = p.read("lines", pen.list_source([{"text": "to be"}]))
        >>> lines.flat_map(words).write("out", out)
        >>> status = p.run_in_process("memory:")
        >>> out.rows()
        [{'text': 'to'}, {'text': 'be'}]
        """
        return self._with_function(FlatMapConfig, function, schema, "fail")

    @step(_broken, is_named=True)
    def udf(self, name: str, declared: ResultSpec | OperatorSpec) -> "Stream":
        """Add a column that a user-defined function computes: see `udf`, `async_udf`, `native_udf`.

        The step needs a name because calls without an answer are kept in state under it. A
        column that the declaration names as its `output` is replaced.
        """
        given: Any = declared
        if not isinstance(given, ResultSpec | OperatorSpec):
            raise UserError(
                f"udf {name!r} takes a declared function, not {given!r:.80}: declare it, such as "
                "pen.udf(function, returns=pa.int64(), inputs=['column'])",
                code=ErrorCode.UDF_INVALID,
                operator=name,
            )
        spec = given if isinstance(given, OperatorSpec) else given.to_operator_spec()
        if spec.kind == AsyncUdfSpec.kind:
            self.port.check_append_only(spec.kind)
        return self._then(spec, name=name)

    def _with_function(
        self,
        config: type[MapBatchesConfig],
        function: Callable[..., Any],
        schema: SchemaLike,
        on_bad: OnBad,
    ) -> "Stream":
        stream = self.port.schema
        declared = to_stream_schema(schema, stream.time_column)
        is_declared = isinstance(schema, StreamSchema)
        if declared is not None and stream.is_changelog and not is_declared:
            names = declared.arrow.names
            key = project_changes(stream, names, (), config.kind)
            declared = replace(declared, table_key=key, is_bag=stream.is_bag)
        return self._then(function_spec(config, function, declared, on_bad), settles=True)

    def _columns_named(self, where: str, given: Sequence[Any]) -> tuple[str, ...]:
        """Return the columns that users name: by text, lists of text, columns or selectors."""
        schema = self.port.schema.arrow
        names: list[str] = []
        for one in given:
            if isinstance(one, list | tuple):
                names += self._columns_named(where, one)
            elif isinstance(one, str):
                names.append(one)
            elif isinstance(one, pl.Expr) and one.meta.is_column_selection():
                names += derive_types(where, schema, [one]).names()
            else:
                raise UserError(
                    f"{where} takes names of columns, not {one!r:.80}: name them, or compute "
                    "the column with with_columns before",
                    code=ErrorCode.INVALID_CONFIG,
                )
        return tuple(dict.fromkeys(names))
