"""Compiles aggregates against a stream, and says everything that is wrong with them at once.

Expressions are checked on frames without rows. The code of a user's aggregate runs here: what
it raises becomes an error that names the aggregate.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError, UserError
from penstock.operators.aggregates.aggregate import DIALECT, Aggregate
from penstock.operators.aggregates.compiled import CompiledAggregate, other_column
from penstock.operators.aggregates.frames import frame_schema, to_batch
from penstock.operators.aggregates.plan import AggregatePlan
from penstock.operators.expression_checks import (
    find_unknown_columns,
    show_types,
    to_arrow_field,
)
from penstock.state.tables.column_groups import Meaning

_GROUP = "_penstock_group"


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
        """Return how to compute it."""
        aggregate = self._aggregate
        partial = self._checked("partial", self._call("partial", {}))
        # The column of a partial begins with the result's name, for readers.
        names = {part: f"{self._result}.{part}" for part in partial}
        columns = {part: pl.col(name) for part, name in names.items()}
        from_rows = [e.alias(names[part]) for part, e in partial.items()]
        computed = self._types_of(frame_schema(self._stream.arrow), from_rows)
        settled = self._named(names, aggregate.settle(**columns))
        types = self._settled_types(computed, settled)
        merged = self._checked("merge", self._call("merge", columns))
        if merged.keys() != partial.keys():
            raise self._refusal(
                f"merge gives {sorted(merged)} and partial {sorted(partial)}: both must give "
                "the same"
            )
        from_partials = self._merging(types, merged, names, settled)
        (final,) = self._checked("final", {"": self._call("final", columns)}).values()
        finish = final.alias(self._result)
        others = {part: pl.col(other_column(name)) for part, name in names.items()}
        pair = self._named(names, aggregate.merge_pair(columns, others))
        unmerged = self._named(names, self._unmerged(columns, others))
        if settled is None:
            pair, unmerged = (
                made and tuple(e.cast(types[e.meta.output_name()]) for e in made)
                for made in (pair, unmerged)
            )
        reductions = aggregate.reductions()
        fields = tuple(to_arrow_field(self._shown, n, kind) for n, kind in types.items())
        return CompiledAggregate(
            self._result_field(types, finish),
            tuple(dict.fromkeys(n for e in from_rows for n in e.meta.root_names())),
            fields,
            tuple(from_rows),
            tuple(from_partials),
            finish,
            self._shown,
            pair,
            None if reductions is None else tuple(reductions[part] for part in names),
            settled=settled,
            of_no_rows=self._of_no_rows(from_rows, settled, types, pa.schema(fields)),
            meaning=self._meaning(partial, merged, final),
            was=aggregate.former_names,
            unmerged=unmerged,
        )

    def _unmerged(
        self, columns: Mapping[str, pl.Expr], others: Mapping[str, pl.Expr]
    ) -> dict[str, pl.Expr] | None:
        """Return how rows of a changelog are taken out again; None if they cannot be."""
        if not self._stream.is_changelog:
            return None
        try:
            made = self._aggregate.unmerge(columns, others)
        except Exception as error:  # the boundary to user code
            raise self._refusal(f"unmerge raised {_first_line(error)}") from error
        if made is None:
            return None
        unmerged = self._checked("unmerge", made)
        if unmerged.keys() != columns.keys():
            raise self._refusal(
                f"unmerge gives {sorted(unmerged)} and partial {sorted(columns)}: both must "
                "give the same"
            )
        return unmerged

    def _merging(
        self,
        types: pl.Schema,
        merged: Mapping[str, pl.Expr],
        names: Mapping[str, str],
        settled: Sequence[pl.Expr] | None,
    ) -> list[pl.Expr]:
        """Return the expressions that merge partials into partials of the same types."""
        given = [merged[part].alias(name) for part, name in names.items()]
        found = self._types_of(types, given)
        if settled is None:
            # Polars sums short integers into longer ones: a cast keeps the type of the partials.
            given = [
                e if found[name] == types[name] else e.cast(types[name])
                for name, e in zip(found, given, strict=True)
            ]
            found = self._types_of(types, given)
        merged_types = self._settled_types(found, settled)
        if merged_types != types:
            raise self._refusal(
                f"merging gives {show_types(merged_types)}, but its partials are "
                f"{show_types(types)}"
            )
        return given

    def _named(
        self, names: Mapping[str, str], made: Mapping[str, pl.Expr] | None
    ) -> tuple[pl.Expr, ...] | None:
        if made is None:
            return None
        return tuple(made[part].alias(name) for part, name in names.items())

    def _settled_types(
        self, computed: pl.Schema, settled: Sequence[pl.Expr] | None
    ) -> pl.Schema:
        if settled is None:
            return computed
        return self._schema_of(pl.LazyFrame(schema=computed).select(settled))

    def _of_no_rows(
        self,
        from_rows: Sequence[pl.Expr],
        settled: Sequence[pl.Expr] | None,
        types: pl.Schema,
        fields: pa.Schema,
    ) -> bytes:
        """Return one row with the partials of no rows."""
        empty = pl.DataFrame(schema=frame_schema(self._stream.arrow))
        made = {}
        for expression in from_rows:
            name = expression.meta.output_name()
            try:
                column = empty.select(expression).to_series()
            except Exception:  # noqa: BLE001 (a user's function may need rows: then nothing is known)
                column = pl.Series([None], dtype=types[name])
            # What is no single value becomes a list of values in a group: here one without any.
            is_list = isinstance(types[name], pl.List) and column.dtype != types[name]
            made[name] = (
                column.implode() if is_list else column.extend_constant(None, 1)[:1]
            )
        row = pl.DataFrame(made)
        if settled is not None:
            row = row.select(settled)
        batch = to_batch(row.cast(types), fields)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes()

    def _meaning(
        self, partial: Mapping[str, pl.Expr], merged: Mapping[str, pl.Expr], final: pl.Expr
    ) -> Meaning:
        """Return what it computes: in its own words, or as its expressions are printed."""
        own = self._aggregate.meaning()
        if own is not None:
            return Meaning(own) if isinstance(own, str) else own
        roots = sorted({n for e in partial.values() for n in e.meta.root_names()})
        outline = f"{', '.join(partial)} of {', '.join(roots)}"
        printed = [f"{part}={e}" for m in (partial, merged) for part, e in m.items()]
        return Meaning(outline, "; ".join([*printed, str(final)]), DIALECT)

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
        if expressions and all(
            isinstance(name, str) and isinstance(expression, pl.Expr)
            for name, expression in expressions.items()
        ):
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
        hint = (
            "call the function; one over the rows of a group is given to "
            "pen.aggregate_rows(…, returns=…, columns=…)"
        )
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
        if "\0" in name:
            problems.append(f"{name!r} holds a NUL, which Polars cannot take: rename it")
            continue
        if not isinstance(aggregate, Aggregate):
            problems.append(f"{name}={_describe_non_aggregate(aggregate)}")
            continue
        try:
            fitted = aggregate.for_stream(stream)
            if stream.is_changelog:
                fitted = fitted.for_changes()
            made = _Compiler(name, aggregate.display(), fitted, stream).compile()
            compiled.append(replace(made, step=step))
            clashes = [field.name for field in made.partials if field.name in keys]
            if clashes:
                problems.append(
                    f"{name}: the key column {clashes[0]!r} is called like a column of its "
                    "state: rename one of the two"
                )
        except UserError as error:
            problems.append(f"{name}: {error.message}")
    former = [old for aggregate in compiled for old in aggregate.was]
    problems += [
        f"{name!r} is the former name of several: only one can go on from it"
        for name in sorted({old for old in former if former.count(old) > 1})
    ]
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
