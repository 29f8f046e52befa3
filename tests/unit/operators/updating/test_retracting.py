"""Aggregates over changelogs: rows that are removed or replaced no longer count."""

import math
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PenstockError, SchemaError, UserError
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.splits import SourceBudget
from penstock.operators.updating import kept_values
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import fold
from tests.unit.state.files.file_builders import a_schema

Row = dict[str, Any]
SCHEMA = a_schema(id=pa.int64(), k=pa.string(), x=pa.float64(), gone=pa.bool_())


def row(number: int, k: str, x: float | None = 1.0, *, gone: bool = False) -> Row:
    return {"id": number, "k": k, "x": x, "gone": gone}


def table_of(pipeline: pen.Pipeline, rows: list[Row], schema: pa.Schema) -> pen.Stream:
    source = pipeline.read("rows", pen.list_source(rows, schema))
    return source.from_upserts("table", key="id", deleted="gone")


def changes_of(rows: list[Row], schema: pa.Schema = SCHEMA, **aggregates: Any) -> list[Row]:
    """Return the changes of results by `k`, of epochs of one row each."""
    pipeline, out = pen.Pipeline("p"), pen.list_sink("retracting")
    table = table_of(pipeline, rows, schema)
    table.key_by("k").aggregate("totals", **aggregates).write("out", out)
    budget = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    LocalJob(pipeline, settings=budget).run()
    found = out.rows()
    out.clear()
    return found


def results_of(rows: list[Row], **aggregates: Any) -> dict[Any, Row]:
    return fold(changes_of(rows, **aggregates), ["k"])


def test_a_row_that_leaves_a_group_for_another_one_counts_there_only() -> None:
    rows = [row(1, "a", 3.0), row(2, "a", 4.0), row(1, "b", 3.0)]
    found = results_of(rows, n=pen.count(), total=pen.sum("x"), top=pen.max("x"))
    assert found == {
        ("a",): {"n": 1, "total": 4.0, "top": 4.0},
        ("b",): {"n": 1, "total": 3.0, "top": 3.0},
    }


def test_a_group_without_rows_is_deleted_and_begins_anew() -> None:
    rows = [row(1, "a"), row(1, "a", gone=True), row(2, "a", 5.0)]
    found = changes_of(rows, n=pen.count(), different=pen.count_distinct("x"))
    assert [(change["change"], change["n"]) for change in found] == [
        ("insert", 1),
        ("delete", 1),
        ("insert", 1),
    ]


def test_a_sum_whose_last_value_is_gone_is_null_and_not_zero() -> None:
    rows = [row(1, "a", 5.0), row(2, "a", None), row(1, "a", None)]
    found = results_of(rows, total=pen.sum("x"), mean=pen.avg("x"), low=pen.min("x"))
    assert found == {("a",): {"total": None, "mean": None, "low": None}}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_leaves_no_trace_when_it_is_gone(odd: float) -> None:
    aggregates: dict[str, Any] = {
        "total": pen.sum("x"),
        "mean": pen.avg("x"),
        "var": pen.var("x"),
        "top": pen.max("x"),
        "low": pen.min("x"),
        "slope": pen.regr_sxx("x", "x"),
    }
    rows = [row(1, "a", 1.0), row(2, "a", 3.0), row(3, "a", odd)]
    (*_, last) = changes_of(rows, **aggregates)
    assert not math.isfinite(last["total"])
    assert not math.isfinite(last["mean"])
    assert math.isnan(last["var"])
    assert math.isnan(last["slope"])
    (*_, last) = changes_of([*rows, row(3, "a", gone=True)], **aggregates)
    del last["change"], last["k"]
    assert last == {
        "total": 4.0,
        "mean": 2.0,
        "var": 2.0,
        "top": 3.0,
        "low": 1.0,
        "slope": 2.0,
    }


def test_values_that_several_rows_have_stay_until_the_last_is_gone() -> None:
    rows = [row(1, "a", 7.0), row(2, "a", 7.0), row(3, "a", 1.0)]
    gone = [row(1, "a", gone=True), row(2, "a", gone=True)]
    wanted: dict[str, Any] = {"top": pen.max("x"), "different": pen.count_distinct("x")}
    assert results_of([*rows, gone[0]], **wanted)["a",] == {"top": 7.0, "different": 2}
    assert results_of([*rows, *gone], **wanted)["a",] == {"top": 1.0, "different": 1}


def test_long_sums_come_back_from_beyond_64_bits() -> None:
    schema = a_schema(id=pa.int64(), k=pa.string(), n=pa.int64(), gone=pa.bool_())
    largest = (1 << 63) - 1
    rows = [
        {"id": 1, "k": "a", "n": largest, "gone": False},
        {"id": 2, "k": "a", "n": -largest, "gone": False},
        {"id": 3, "k": "a", "n": -5, "gone": False},
        {"id": 1, "k": "a", "n": 7, "gone": False},
        {"id": 2, "k": "a", "n": 1, "gone": False},
    ]
    (*_, last) = changes_of(rows, schema, total=pen.sum("n"))
    assert last["total"] == 3


def test_an_aggregate_of_aggregates_is_the_average_of_what_is_greatest() -> None:
    bids = [
        {"auction": n % 7, "category": n % 7 % 2, "price": n * 37 % 101} for n in range(60)
    ]
    pipeline, out = pen.Pipeline("q4", parallelism=2), pen.list_sink("nested")
    highest = (
        pipeline.read("bids", pen.list_source(bids))
        .key_by("auction", "category")
        .aggregate("highest", price=pen.max("price"))
    )
    means = highest.key_by("category").aggregate("means", mean=pen.avg("price"))
    best = means.aggregate("best", best=pen.max("mean"), all=pen.count())
    best.write("out", out)
    budget = DriverSettings(budget=SourceBudget(rows=4), adapts_budget=False)
    LocalJob(pipeline, settings=budget).run()
    frame = pl.DataFrame(bids).group_by("auction", "category").agg(pl.max("price"))
    by_category = frame.group_by("category").agg(pl.col("price").mean())
    found = fold(out.rows(), [])
    out.clear()
    assert found == {(): {"best": by_category["price"].max(), "all": 2}}


def test_large_groups_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_values, "_MAX_READ", 3)
    rows = [row(n, "abc"[n % 3], float(n)) for n in range(12)]
    pipeline, out = pen.Pipeline("p"), pen.list_sink("in-parts")
    table = table_of(pipeline, rows, SCHEMA)
    table.key_by("k").aggregate("totals", mid=pen.median("x")).write("out", out)
    LocalJob(pipeline).run()
    found = fold(out.rows(), ["k"])
    out.clear()
    assert found == {(k,): {"mid": 4.5 + n} for n, k in enumerate("abc")}


def test_a_time_to_live_is_refused_because_changes_say_what_is_gone() -> None:
    pipeline = pen.Pipeline("p")
    keyed = table_of(pipeline, [], SCHEMA).key_by("k")
    keyed.aggregate("totals", n=pen.count(), ttl="1h").write("out", pen.blackhole())
    with pytest.raises(UserError, match="leave ttl out"):
        pipeline.graph()


def test_values_without_an_order_are_refused() -> None:
    class Some(pen.Aggregate):
        def partial(self) -> dict[str, pl.Expr]:
            return {"some": pl.col("tags").first()}

        def merge(self, some: pl.Expr) -> dict[str, pl.Expr]:
            return {"some": some.first()}

        def final(self, some: pl.Expr) -> pl.Expr:
            return some

    schema = a_schema(id=pa.int64(), tags=pa.list_(pa.string()), gone=pa.bool_())
    pipeline = pen.Pipeline("p")
    table = table_of(pipeline, [], schema)
    table.aggregate("totals", some=Some()).write("out", pen.blackhole())
    with pytest.raises(SchemaError, match="which has no order"):
        pipeline.graph()


def run_with(job: LocalJob, aggregates: dict[str, Any], *, of_rows: bool) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([row(1, "a"), row(2, "a")], SCHEMA))
    stream = rows if of_rows else rows.from_upserts("table", key="id", deleted="gone")
    stream.key_by("k").aggregate("totals", **aggregates).write("out", pen.blackhole())
    job.graph = pipeline.graph()
    job.run(epochs=1)


@pytest.mark.parametrize(
    "after",
    [
        {"n": pen.count(), "total": pen.sum("x")},
        {"n": pen.count("x")},
        {"n": pen.count(where=pl.col("x") > 0)},
        {"m": pen.count()},
        {"m": pen.count().was("n")},
    ],
    ids=["added", "of-a-column", "where", "renamed", "renamed and said so"],
)
def test_state_goes_on_only_with_the_same_aggregates(after: Any) -> None:
    pipeline = pen.Pipeline("p")
    table_of(pipeline, [], SCHEMA).write("out", pen.blackhole())
    budget = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    job = LocalJob(pipeline, settings=budget)
    run_with(job, {"n": pen.count()}, of_rows=False)
    with pytest.raises(PenstockError, match="changelog with n=count") as caught:
        run_with(job, after, of_rows=False)
    assert ".was(" not in caught.value.message
    assert "give the step another name" in caught.value.message


def test_state_goes_on_with_the_same_aggregates_in_another_order() -> None:
    positive = pl.col("x") > 0
    low, high = pen.min("x", where=positive), pen.min("x", where=~positive)
    rows = [row(1, "a", 3.0), row(2, "a", -3.0), row(3, "a", 5.0), row(4, "a", -1.0)]
    rows += [row(1, "a", gone=True), row(2, "a", gone=True)]
    out = pen.list_sink("reordered-aggregates")
    pipeline = pen.Pipeline("p")
    table_of(pipeline, [], SCHEMA).write("out", out)
    budget = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    job = LocalJob(pipeline, settings=budget)
    lives: list[tuple[dict[str, Any], int | None]] = [
        ({"low": low, "high": high}, 4),
        ({"high": high, "low": low}, None),
    ]
    for aggregates, epochs in lives:
        pipeline = pen.Pipeline("p")
        table = table_of(pipeline, rows, SCHEMA)
        table.key_by("k").aggregate("totals", **aggregates).write("out", out)
        job.graph = pipeline.graph()
        job.run(epochs=epochs)
    assert fold(out.rows(), ["k"]) == {("a",): {"low": 5.0, "high": -1.0}}


@pytest.mark.parametrize("name", ["change.sign", "change.group", "change.rows"])
def test_columns_called_as_those_of_the_state_are_refused(name: str) -> None:
    for key, value in ((name, "x"), ("k", name)):
        pipeline = pen.Pipeline("p")
        table = table_of(pipeline, [], SCHEMA).with_columns(**{name: pl.col("x")})
        table.key_by(key).aggregate("totals", low=pen.min(value))
        with pytest.raises(SchemaError, match=f"'{name}' is called as one of the state"):
            pipeline.graph()


def test_state_of_rows_is_not_taken_for_that_of_changes() -> None:
    pipeline = pen.Pipeline("p")
    table_of(pipeline, [], SCHEMA).write("out", pen.blackhole())
    budget = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    job = LocalJob(pipeline, settings=budget)
    run_with(job, {"n": pen.count()}, of_rows=True)
    with pytest.raises(PenstockError, match="partials"):
        run_with(job, {"n": pen.count()}, of_rows=False)


def test_results_are_the_same_to_the_last_bit_however_polars_holds_their_partials() -> None:
    stream = pen.StreamSchema(a_schema(x=pa.int64()))
    plan = compile_aggregates("step", {"mean": pen.avg("x")}, stream)
    sums = pl.DataFrame({"mean.sum": [1.9166666666666667, 1.0]})
    once = sums.with_columns(pl.lit(3).alias("mean.count"))
    twice = sums.with_columns(pl.Series("mean.count", [3, 3]))
    assert plan.results_of(once, ()).equals(plan.results_of(twice, ()))
