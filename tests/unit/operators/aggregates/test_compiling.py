"""Mistakes in aggregates show when the pipeline is built, all of them at once."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.aggregates.compiled import AggregateConfig
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.aggregates.plan import AggregatePlan

_COLUMNS: dict[str, Any] = {
    "price": pa.int64(),
    "name": pa.string(),
    "ok": pa.bool_(),
    "tags": pa.list_(pa.string()),
    "huge": pa.decimal256(50, 2),
}
STREAM = pen.StreamSchema(pa.schema(_COLUMNS))


def problems_of(**aggregates: Any) -> str:
    with pytest.raises(SchemaError) as caught:
        compile_aggregates("per-user", aggregates, STREAM, taken=["user"])
    return caught.value.message


def test_a_nul_in_the_name_of_a_result_is_refused() -> None:
    assert "'a\\x00b' holds a NUL" in problems_of(**{"a\0b": pen.count()})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    expression = pl.col("price").sum()
    assert problems_of(
        user=pen.count(),
        total=pen.sum("prize"),
        name=pen.avg("name"),
        n=pen.count(where=pl.col("price")),
        called=pen.sum,
        expression=expression,
        latest=pen.last("price"),
    ) == (
        "the aggregates of 'per-user' cannot be computed:\n"
        "  user: the output has a column of that name already\n"
        "  total: sum(prize): there is no column 'prize'; did you mean 'price'?\n"
        "  name: avg(name): column 'name' is string, but it takes numbers\n"
        '  n: count(where=col("price")): where= must be true or false for each row, not '
        "Int64\n"
        "  called=sum is not an aggregate: call the function; one over the rows of a group is "
        "given to pen.aggregate_rows(…, returns=…, columns=…)\n"
        f"  expression={expression!r} is not an aggregate: partials of Polars "
        "expressions cannot be merged in general: use pen.sum, pen.count, … or an Aggregate of "
        "your own\n"
        "  latest: last(price): the stream has no event time to tell what comes last: name "
        "its timestamp column in Pipeline.read as event_time, or a column as order_by"
    )


def test_a_step_without_aggregates_is_refused() -> None:
    assert "computes nothing" in problems_of()


@pytest.mark.parametrize(
    "function", [pen.sum, pen.min, pen.avg, pen.var, pen.count_distinct]
)
@pytest.mark.parametrize("column", ["tags", "huge"])
def test_columns_that_nothing_can_be_computed_of_are_refused(
    function: Callable[[str], pen.Aggregate], column: str
) -> None:
    assert f"column '{column}' is " in problems_of(x=function(column))


def test_booleans_have_no_sum_but_can_be_counted() -> None:
    assert "count true with where=" in problems_of(x=pen.sum("ok"))
    plan = compile_aggregates("s", {"n": pen.count(where=pl.col("ok"))}, STREAM)
    assert plan.reads == ("ok",)


@pytest.mark.parametrize(
    "where", [pl.lit(value=True), pl.col("price").sum() > 1, pl.col("nope")]
)
def test_a_predicate_must_look_at_one_row(where: pl.Expr) -> None:
    assert "where" in problems_of(x=pen.sum("price", where=where))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: pen.sum(pl.col("price")), "compute it with with_columns before"),  # type: ignore[arg-type]
        (lambda: pen.sum(3), "3 is not the name of a column"),  # type: ignore[arg-type]
        (lambda: pen.count(where=True), "where=True is not a Polars expression"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_make_no_sense_fail_at_their_own_line(
    call: Callable[[], object], problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as caught:
        call()
    assert caught.value.code is ErrorCode.INVALID_CONFIG


class WeightedMean(pen.Aggregate):
    """As users write it."""

    def partial(self) -> Mapping[str, pl.Expr]:
        weight = pl.col("price")
        return {"total": (pl.col("name").str.len_chars() * weight).sum(), "w": weight.sum()}

    def merge(self, total: pl.Expr, w: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"total": total.sum(), "w": w.sum()}

    def final(self, total: pl.Expr, w: pl.Expr) -> pl.Expr:
        return total / w


class Names(pen.Aggregate):
    """Keeps all values."""

    def partial(self) -> Mapping[str, pl.Expr]:
        return {"names": pl.col("name")}

    def merge(self, names: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"names": names.explode()}

    def final(self, names: pl.Expr) -> pl.Expr:
        return names.list.sort()


def test_an_aggregate_of_ones_own_is_compiled_and_typed_like_the_others() -> None:
    plan = compile_aggregates("s", {"mean": WeightedMean(), "all": Names()}, STREAM)
    assert plan.display() == "mean=WeightedMean, all=Names"
    assert [(f.name, f.type) for f in plan.results] == [
        ("mean", pa.float64()),
        ("all", pa.large_list(pa.large_string())),
    ]
    assert [f.name for f in plan.partials] == ["mean.total", "mean.w", "all.names"]
    rows = pl.DataFrame({"price": [1, 3], "name": ["z", "abc"], "key": [1, 1]})
    pieces = [plan.partials_of(rows[:1], ["key"]), plan.partials_of(rows[1:], ["key"])]
    merged = plan.merge(pl.concat(pieces), ["key"])
    assert plan.results_of(merged, ["key"]).rows() == [(1, 2.5, ["abc", "z"])]


class Broken(pen.Aggregate):
    """Every hook can be made wrong."""

    def __init__(self, **hooks: Any) -> None:
        self._hooks = hooks

    def partial(self) -> Any:
        given = self._hooks.get("partial", WeightedMean().partial)
        return given()

    def merge(self, **parts: pl.Expr) -> Any:
        return self._hooks.get("merge", WeightedMean().merge)(**parts)

    def final(self, **parts: pl.Expr) -> Any:
        return self._hooks.get("final", WeightedMean().final)(**parts)


@pytest.mark.parametrize(
    ("hooks", "problem"),
    [
        ({"partial": list}, "partial must return Polars expressions by name"),
        ({"partial": lambda: {"a": 1}}, "partial must return Polars expressions by name"),
        (
            {"partial": lambda: {1: pl.col("price").sum()}},
            "partial must return Polars expressions by name",
        ),
        (
            {"partial": lambda: {"a": pl.col("prize").sum()}},
            "there is no column 'prize'; did you mean 'price'",
        ),
        (
            {"merge": lambda total, w: {"w": w.sum(), "t": total.sum()}},
            "merge gives ['t', 'w'] and partial ['total', 'w']",
        ),
        ({"merge": lambda total: {"total": total}}, "merge must take the partials"),
        ({"final": lambda total, w: None}, "final must return a Polars expression"),
        ({"final": lambda total, w: total.sum()}, "one result from each row of partials"),
        ({"final": lambda total, w: pl.lit(1)}, "one result from each row of partials"),
        ({"final": lambda total, w: total.str.len_chars()}, "it cannot be computed"),
    ],
)
def test_what_is_wrong_with_an_aggregate_of_ones_own_is_said_by_name(
    hooks: dict[str, Any], problem: str
) -> None:
    message = problems_of(mine=Broken(**hooks))
    assert message.startswith(
        "the aggregates of 'per-user' cannot be computed:\n  mine: Broken"
    )
    assert problem in message


def test_a_class_instead_of_an_instance_is_pointed_out() -> None:
    assert "write WeightedMean(…), an instance" in problems_of(mine=WeightedMean)


def test_a_damaged_plan_in_a_graph_is_refused() -> None:
    config = AggregateConfig("sum(x)", ("x",), b"?", (b"?",), (b"?",), b"?")
    with pytest.raises(UserError, match=r"sum\(x\) cannot be read") as caught:
        AggregatePlan.from_config([config])
    assert caught.value.code is ErrorCode.INVALID_CONFIG
