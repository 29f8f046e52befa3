"""Which steps may follow a changelog: those that would make its table wrong are refused."""

from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import UserError
from penstock.graph.logical import Exchange
from penstock.testing import run_pipeline

Then = Callable[[pen.Stream], pen.Stream]


def behind_changes(then: Then, out: object = None) -> pen.Pipeline:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "x": 2}, {"k": 2, "x": 3}]))
    changes = rows.key_by("k").aggregate("totals", total=pen.sum("x"))
    then(changes).write("out", out or pen.blackhole())  # type: ignore[arg-type]
    return pipeline


def timed(changes: pen.Stream) -> pen.Stream:
    at = pl.lit(0).cast(pl.Datetime("us"))
    return changes.with_columns(at=at).watermark("times", "at")


IS_INSERT = pl.col("op") == "insert"
SHOUTED = pen.udf(str.upper, returns=pa.string(), inputs=["op"], output="loud")
SHOUTING = pen.udf(str.upper, returns=pa.string(), inputs=["op"], output="op")
TEXT_KEY = pen.udf(str, returns=pa.string(), inputs=["k"], output="k")


@pytest.mark.parametrize(
    "then",
    [
        lambda changes: changes.filter(IS_INSERT),
        lambda changes: changes.to_debezium().filter(pl.col("op") == "c"),
        lambda changes: changes.select("k", "op", "before", "after").filter(IS_INSERT),
        lambda changes: changes.with_columns(more=pl.lit(1)).filter(IS_INSERT),
        lambda changes: changes.union(changes).filter(IS_INSERT),
        lambda changes: changes.udf("u", SHOUTED).filter(pl.col("loud") == "INSERT"),
        lambda changes: changes.udf("u", SHOUTING).filter(pl.col("op") == "INSERT"),
        lambda changes: changes.udf("u", TEXT_KEY).filter(IS_INSERT),
        lambda changes: changes.with_columns(pl.col("k").cast(pl.String)).filter(IS_INSERT),
        lambda changes: changes.select(
            "op", "before", "after", k=pl.col("k").cast(pl.String)
        ).filter(IS_INSERT),
        lambda changes: timed(changes).filter(IS_INSERT),
    ],
)
def test_a_filter_on_a_changelog_is_refused_and_the_way_out_is_named(then: Then) -> None:
    with pytest.raises(UserError, match="filter cannot follow a changelog") as caught:
        behind_changes(then).graph()
    assert "Filter the rows before aggregate" in caught.value.message


def test_changes_cannot_be_rebalanced_because_they_are_in_order() -> None:
    with pytest.raises(UserError, match="changes of one key would overtake each other"):
        behind_changes(lambda changes: changes.rebalance()).graph()


def test_the_columns_of_changes_keep_their_names() -> None:
    with pytest.raises(UserError, match="rename cannot follow a changelog") as caught:
        behind_changes(lambda changes: changes.rename({"k": "key"})).graph()
    assert "Rename the columns before aggregate" in caught.value.message


@pytest.mark.parametrize(
    "then",
    [
        lambda changes: changes.key_by("k").aggregate("again", n=pen.count()),
        lambda changes: changes.aggregate("again", n=pen.count()),
        lambda changes: (
            timed(changes).window("w", pen.tumbling("1m")).aggregate(n=pen.count())
        ),
        lambda changes: (
            timed(changes)
            .key_by("k")
            .window("w", pen.session("1m"))
            .aggregate(n=pen.count())
        ),
    ],
)
def test_changes_cannot_be_counted_because_epochs_decide_how_many_there_are(
    then: Then,
) -> None:
    with pytest.raises(UserError, match="how many changes there are depends on"):
        behind_changes(then).graph()


def test_a_column_beside_the_changes_is_not_taken_for_a_key() -> None:
    with pytest.raises(UserError, match=r"would take \['twice'\] for keys"):
        behind_changes(
            lambda changes: changes.with_columns(twice=pl.col("k") * 2).to_debezium()
        ).graph()


@pytest.mark.parametrize("subtasks", [1, 3])
def test_changes_reach_steps_of_another_parallelism_by_key_so_that_none_overtakes(
    subtasks: int,
) -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "x": 2}]))
    changes = rows.key_by("k").aggregate("totals", total=pen.sum("x"))
    changes.with_columns(more=pl.lit(1)).write("out", pen.blackhole(), parallelism=subtasks)
    edge = pipeline.graph().edges_into("out")[0]
    assert edge.exchange is Exchange.BY_KEY
    assert pipeline.graph().node("out").inputs[0].key_columns == ("k",)


def test_changes_whose_key_is_computed_anew_still_do_not_overtake_each_other() -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "x": 2}]))
    changes = rows.key_by("k").aggregate("totals", total=pen.sum("x"))
    changes.udf("text", TEXT_KEY).write("out", pen.blackhole(), parallelism=3)
    assert pipeline.graph().edges_into("out")[0].exchange is Exchange.BY_KEY


def test_changes_without_key_columns_are_not_spread_over_more_subtasks() -> None:
    def to(subtasks: int) -> pen.Pipeline:
        pipeline = pen.Pipeline("p", parallelism=2)
        rows = pipeline.read("rows", pen.list_source([{"k": 1, "x": 2}]))
        changes = rows.key_by("k").aggregate("totals", total=pen.sum("x"))
        changes.to_debezium().write("out", pen.blackhole(), parallelism=subtasks)
        return pipeline

    assert to(1).graph().edges_into("out")[0].exchange is Exchange.REBALANCE
    with pytest.raises(UserError, match="overtake each other") as caught:
        to(3).graph()
    assert "Give aggregate parallelism=3 as well" in caught.value.message


def test_plain_rows_made_of_changes_can_be_filtered() -> None:
    out = pen.list_sink("plain-rows-of-changes")
    total = pl.col("after").struct.field("total")
    run_pipeline(
        behind_changes(
            lambda changes: changes.select("k", total=total).filter(pl.col("total") > 2),
            out,
        )
    )
    assert out.rows() == [{"k": 2, "total": 3}]


def test_rows_that_only_look_like_changes_can_be_filtered() -> None:
    row = {"k": 1, "op": "insert", "before": {"n": 1}, "after": {"n": 1}}
    out = pen.list_sink("rows-like-changes")
    pipeline = pen.Pipeline("p")
    pipeline.read("rows", pen.list_source([row])).filter(IS_INSERT).write("out", out)
    run_pipeline(pipeline)
    assert out.rows() == [row]
