"""What each step does with a changelog: it works on its rows, or is refused with the way out."""

from collections.abc import Callable
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import SchemaError, UserError
from penstock.graph.logical import Exchange
from penstock.operators import ArrowOperator
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import fold

Then = Callable[[pen.Stream], pen.Stream]
ROWS = [{"k": n % 3, "x": n} for n in range(12)]
TOTALS = {(0,): {"total": 18}, (1,): {"total": 22}, (2,): {"total": 26}}


def totals(pipeline: pen.Pipeline) -> pen.Stream:
    rows = pipeline.read("rows", pen.list_source(ROWS))
    return rows.key_by("k").aggregate("totals", total=pen.sum("x"))


def behind_changes(then: Then, parallelism: int = 2) -> pen.Pipeline:
    pipeline = pen.Pipeline("p", parallelism=parallelism)
    then(totals(pipeline)).write("out", pen.blackhole())
    return pipeline


def changes_of(then: Then, rows: int = 2) -> list[dict[str, Any]]:
    """Return what reaches a sink, of epochs with a few rows each."""
    pipeline, out = pen.Pipeline("p", parallelism=2), pen.list_sink("changelog-steps")
    then(totals(pipeline)).write("out", out)
    budget = DriverSettings(budget=SourceBudget(rows=rows), adapts_budget=False)
    LocalJob(pipeline, settings=budget).run()
    found = out.rows()
    out.clear()
    return found


def is_large(changes: pen.Stream) -> pen.Stream:
    return changes.filter(pl.col("total").is_between(5, 20))


def test_a_filter_turns_an_update_across_its_edge_into_an_insert_or_a_delete() -> None:
    found = changes_of(is_large)
    assert fold(found, ["k"]) == {(0,): {"total": 18}}
    assert {row["change"] for row in found} >= {"insert", "delete"}


def test_columns_are_chosen_and_computed_as_of_rows_and_the_change_goes_along() -> None:
    twice = changes_of(lambda changes: changes.select("k", twice=pl.col("total") * 2))
    assert fold(twice, ["k"])[0,] == {"twice": 36}
    more = changes_of(lambda changes: changes.with_columns(more=pl.col("total") + 1))
    assert fold(more, ["k"])[1,] == {"total": 22, "more": 23}
    fewer = changes_of(lambda changes: changes.with_columns(a=1).drop("total"))
    assert fold(fewer, ["k"]) == {(k,): {"a": 1} for k in range(3)}
    assert len(fewer) == 3  # no update changes what is left
    renamed = changes_of(lambda changes: changes.rename({"k": "key", "total": "sum"}))
    assert fold(renamed, ["key"])[2,] == {"sum": 26}


def test_udfs_add_a_column_to_changes() -> None:
    shout = pen.udf(lambda k: f"{k}!", returns=pa.string(), inputs=["k"], output="loud")
    found = changes_of(lambda changes: is_large(changes.udf("u", shout)))
    assert fold(found, ["k"]) == {(0,): {"total": 18, "loud": "0!"}}


def test_functions_and_operators_get_flat_rows_that_are_settled() -> None:
    def look(rows: pl.DataFrame) -> pl.DataFrame:
        counts = dict(rows["change"].value_counts().iter_rows())
        assert counts.get("update-before", 0) == counts.get("update-after", 0)
        return rows.filter(pl.col("k") == 0)

    found = changes_of(lambda changes: is_large(changes).map_batches(look))
    assert fold(found, ["k"]) == {(0,): {"total": 18}}

    class Log(ArrowOperator):
        def name(self) -> str:
            return "log"

        def process_batch(self, batch: Any, ctx: Any, collector: Any) -> None:
            assert ctx.inputs[0].table_key == ("k",)
            collector.collect(batch)

    found = changes_of(lambda changes: is_large(changes).process("log", Log()))
    assert fold(found, ["k"]) == {(0,): {"total": 18}}


def test_an_operator_keyed_by_a_value_sees_a_changed_one_as_a_delete_and_an_insert() -> (
    None
):
    class Log(ArrowOperator):
        def name(self) -> str:
            return "log"

        def process_batch(self, batch: Any, ctx: Any, collector: Any) -> None:
            collector.collect(batch)

    found = changes_of(lambda changes: changes.key_by("total").process("log", Log()))
    assert fold(found, ["k"]) == TOTALS
    kinds = changes_of(
        lambda changes: changes.key_by("total").process("log", Log()).to_rows()
    )
    assert {row["change"] for row in kinds} == {"insert", "update-before", "update-after"}


def test_a_union_of_changelogs_counts_equal_rows() -> None:
    found = changes_of(lambda changes: changes.union(changes))
    assert {row["change"] for row in found} == {"insert", "delete"}
    left = [row for row in found if row["k"] == 0 and row["total"] == 18]
    assert [row["change"] for row in left] == ["insert", "insert"]


def test_a_changelog_and_rows_make_no_union() -> None:

    pipeline = pen.Pipeline("p")
    rows = pipeline.read(
        "more", pen.list_source([{"change": "insert", "k": 1, "total": 1}])
    )
    totals(pipeline).union(rows).write("out", pen.blackhole())
    with pytest.raises(SchemaError, match="it is append-only, unlike input 0"):
        pipeline.graph()


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        (lambda c: c.select("total"), r"select leaves out \['k'\] of a changelog"),
        (lambda c: c.drop("k"), r"select leaves out \['k'\] of a changelog"),
        (lambda c: c.with_columns(k=1), r"with_columns replaces \['k'\] of a changelog"),
        (lambda c: c.filter(pl.col("change") == "insert"), "to_rows"),
        (lambda c: c.rename({"change": "kind"}), "'change'.*is missing"),
    ],
)
def test_what_tells_rows_apart_is_kept(then: Then, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        behind_changes(then).graph()


@pytest.mark.parametrize(
    ("then", "step"),
    [
        (lambda c: c.rebalance(), "rebalance"),
        (
            lambda c: c.window("w", pen.session("1m")).aggregate(n=pen.count()),
            "session window",
        ),
        (lambda c: c.to_table("t", key="k", order_by="total"), "to_table"),
        (lambda c: c.from_upserts("t", key="k"), "from_upserts"),
        (lambda c: c.from_debezium("t", key="k"), "from_debezium"),
    ],
)
def test_a_step_that_cannot_follow_a_changelog_names_the_way_out(
    then: Then, step: str
) -> None:
    with pytest.raises(UserError, match=f"{step} cannot follow a changelog") as caught:
        behind_changes(then).graph()
    assert "to_rows()" in caught.value.message


@pytest.mark.parametrize("step", ["to_debezium", "to_upserts", "to_rows"])
def test_a_form_of_changes_needs_a_changelog(step: str) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source(ROWS))
    getattr(rows, step)().write("out", pen.blackhole())
    with pytest.raises(SchemaError, match=f"{step} needs a changelog"):
        pipeline.graph()


def test_rows_made_of_changes_can_be_filtered_by_their_kind() -> None:
    found = changes_of(lambda c: c.to_rows().filter(pl.col("change") == "insert"))
    assert sorted(row["k"] for row in found) == [0, 1, 2]


@pytest.mark.parametrize("subtasks", [1, 3])
def test_changes_reach_steps_of_another_parallelism_by_key(subtasks: int) -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    totals(pipeline).write("out", pen.blackhole(), parallelism=subtasks)
    edge = pipeline.graph().edges_into("out")[0]
    assert edge.exchange is Exchange.BY_KEY


def test_changes_without_key_columns_are_not_spread_over_more_subtasks() -> None:
    def to(subtasks: int) -> pen.Pipeline:
        pipeline = pen.Pipeline("p", parallelism=2)
        totals(pipeline).to_debezium().write("out", pen.blackhole(), parallelism=subtasks)
        return pipeline

    assert to(1).graph().edges_into("out")[0].exchange is Exchange.REBALANCE
    with pytest.raises(UserError, match="overtake each other"):
        to(3).graph()


@pytest.mark.parametrize(
    "then",
    [
        lambda changes: changes.filter(pl.col("change") == "insert"),
        lambda changes: changes.with_columns(kind=pl.col("change")),
        lambda changes: changes.select("k", kind=pl.col("change") + "!"),
        lambda changes: changes.udf(
            "u", pen.udf(str, returns=pa.string(), inputs=["change"], output="kind")
        ),
        lambda changes: changes.key_by("change").aggregate("n", n=pen.count()),
        lambda changes: changes.key_by("k").aggregate("n", n=pen.count("change")),
        lambda changes: changes.key_by("k").aggregate(
            "n", n=pen.count(where=pl.col("change") == "insert")
        ),
    ],
    ids=["filter", "with_columns", "select", "udf", "key", "aggregate", "where"],
)
def test_nothing_is_computed_of_the_kind_of_a_change(then: Then) -> None:
    with pytest.raises(SchemaError, match=r"looks at 'change' of a changelog.*to_rows\(\)"):
        behind_changes(then).graph()


def test_an_update_of_which_a_function_sets_one_half_aside_is_a_delete_or_an_insert() -> (
    None
):
    def check(total: int) -> int:
        if total > 20:
            raise ValueError("too large")
        return total

    checked = pen.udf(
        check, returns=pa.int64(), inputs=["total"], output="ok", on_bad="divert"
    )
    found = changes_of(lambda changes: changes.udf("u", checked))
    assert fold(found, ["k"]) == {(0,): {"total": 18, "ok": 18}}
    assert [row["change"] for row in found if row["k"] == 1][-1] == "delete"
