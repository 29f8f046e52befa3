"""Rows made a changelog: the last row of each key, by order or as they come, with deletions."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import SchemaError, StateError, UserError
from penstock.operators.changelogs.latest import latest_spec
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob, OperatorHarness
from tests.builders.aggregated_rows import fold, paired

_COLUMNS: dict[str, Any] = {
    "k": pa.string(),
    "v": pa.int64(),
    "x": pa.string(),
    "gone": pa.bool_(),
}
STREAM = pen.StreamSchema(pa.schema(_COLUMNS), None, ("k",))


def a_row(
    k: str, v: int | None, x: str | None, gone: bool | None = False
) -> dict[str, Any]:
    return {"k": k, "v": v, "x": x, "gone": gone}


class Table:
    """The operator and what it says of each epoch."""

    def __init__(self, **options: Any) -> None:
        self.harness = OperatorHarness(latest_spec(STREAM, **options), STREAM, amnesia=True)

    def epoch(self, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
        if rows:
            self.harness.push(list(rows))
        found = paired(self.harness.barrier().rows(), ["k"])
        return sorted((row["k"], row["op"], row["before"], row["after"]) for row in found)


def test_rows_count_in_the_order_in_which_they_come() -> None:
    table = Table(deleted="gone")
    one, two = {"v": 1, "x": "a"}, {"v": 2, "x": "b"}
    assert table.epoch(a_row("k", 2, "b"), a_row("k", 1, "a")) == [
        ("k", "insert", None, one)
    ]
    assert table.epoch(a_row("k", 2, "b")) == [("k", "update", one, two)]
    assert table.epoch(a_row("k", 2, "b"), a_row("k", 2, "b")) == []
    assert table.epoch(a_row("k", None, None, gone=True)) == [("k", "delete", two, None)]
    assert table.epoch(a_row("k", None, None, gone=True)) == []
    assert table.epoch(a_row("k", 1, "a", gone=None)) == [("k", "insert", None, one)]
    assert table.harness.state("rows").num_rows == 1


def test_a_row_that_comes_and_goes_in_one_epoch_is_not_seen() -> None:
    table = Table(deleted="gone")
    assert table.epoch(a_row("k", 1, "a"), a_row("k", None, None, gone=True)) == []


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int64()), [[3], [1], [2]]),
        (pa.struct([("n", pa.int64())]), [{"n": 3}, {"n": 1}, {"n": 2}]),
        (pa.decimal256(50, 0), [Decimal(3), Decimal(1), Decimal(2)]),
    ],
    ids=str,
)
def test_of_rows_at_one_instant_epochs_do_not_decide_whatever_their_columns(
    kind: Any, values: list[Any]
) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("x", kind)])
    stream = pen.StreamSchema(schema, None, ("k",))
    rows = [{"k": "k", "v": 1, "x": value} for value in values]
    kept = []
    for size in (1, 2, 3):
        with OperatorHarness(latest_spec(stream, order="v"), stream) as table:
            for start in range(0, len(rows), size):
                table.push(rows[start : start + size])
                table.barrier()
            kept += table.state("rows").to_pylist()
    assert kept[0] in rows
    assert kept == [kept[0]] * 3


def test_rows_with_a_map_are_compared_with_those_that_are_kept() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    stream = pen.StreamSchema(pa.schema([("k", pa.string()), ("x", kind)]), None, ("k",))
    with OperatorHarness(latest_spec(stream), stream) as table:
        for value in ([("a", 1)], [("a", 1)], [("a", 2)]):
            table.push([{"k": "k", "x": value}])
            table.barrier()
        changes = [row["change"] for row in table.take()]
    assert changes == ["insert", "update-before", "update-after"]


def test_by_an_order_the_greatest_row_wins_whenever_it_comes() -> None:
    table = Table(order="v")
    rows = [a_row("k", 2, "b"), a_row("k", 1, "z"), a_row("k", 2, "a")]
    shown = {"v": 2, "x": "b", "gone": False}
    assert table.epoch(*rows) == [("k", "insert", None, shown)]
    assert table.epoch(a_row("k", 1, "z"), a_row("k", 2, "a"), a_row("k", None, "z")) == []
    higher = {"v": 2, "x": "c", "gone": False}
    assert table.epoch(a_row("k", 2, "c")) == [("k", "update", shown, higher)]


def test_a_deletion_by_an_order_is_remembered_so_that_older_rows_stay_gone() -> None:
    table = Table(order="v", deleted="gone")
    assert table.epoch(a_row("k", 5, None, gone=True)) == []
    assert table.epoch(a_row("k", 4, "a")) == []
    assert table.epoch(a_row("k", 6, "b")) == [("k", "insert", None, {"v": 6, "x": "b"})]
    gone = table.epoch(a_row("k", 7, None, gone=True))
    assert gone == [("k", "delete", {"v": 6, "x": "b"}, None)]
    assert table.epoch(a_row("k", 6, "b")) == []


def test_the_table_goes_on_after_a_restart_at_another_parallelism() -> None:
    table = Table()
    table.epoch(*(a_row(f"k{n}", 1, "a") for n in range(20)))
    with OperatorHarness.restore(table.harness.checkpoint(), parallelism=3) as again:
        again.push([a_row(f"k{n}", 2, "b") for n in range(20)])
        kinds = [row["change"] for row in again.barrier().rows()]
    assert kinds == ["update-before", "update-after"] * 20


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"deleted": "gon"}, "no column 'gon'; did you mean 'gone'"),
        ({"deleted": "x"}, "it must be true or false"),
        ({"deleted": "gone", "order": "gone"}, "cannot be a key or an order as well"),
        ({"order": "list"}, "has no order: name a column of numbers"),
    ],
)
def test_columns_that_cannot_be_what_they_are_named_for_are_refused(
    options: dict[str, Any], problem: str
) -> None:
    stream = pen.StreamSchema(
        pa.schema({**_COLUMNS, "list": pa.list_(pa.int64())}), None, ("k",)
    )
    with pytest.raises(SchemaError, match=problem):
        latest_spec(stream, **options)


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        (lambda rows: rows.to_table("t", key="k", order_by="x"), "was the last rows by v"),
        (lambda rows: rows.from_upserts("t", key="k"), "was the last rows by v"),
        (lambda rows: rows.drop("x").to_table("t", key="k", order_by="v"), "'x' is gone"),
    ],
    ids=["another order", "no order", "fewer columns"],
)
def test_another_table_cannot_go_on_from_the_state_of_this_one(
    then: Callable[[pen.Stream], pen.Stream], problem: str
) -> None:
    def graph_of(then: Callable[[pen.Stream], pen.Stream]) -> Any:
        pipeline = pen.Pipeline("p")
        rows = [a_row("k", 1, "a"), a_row("k", 2, "a")]
        stream = pipeline.read("rows", pen.list_source(rows, schema=STREAM.arrow))
        then(stream).write("out", pen.blackhole())
        return pipeline.graph()

    pipeline = pen.Pipeline("p")
    pipeline.read("rows", pen.list_source([{"k": 1}])).write("out", pen.blackhole())
    budget = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    job = LocalJob(pipeline, settings=budget)
    job.graph = graph_of(lambda rows: rows.to_table("t", key="k", order_by="v"))
    job.run(epochs=1)
    job.graph = graph_of(then)
    with pytest.raises(StateError, match=problem):
        job.run(epochs=1)


def test_a_table_of_rows_without_an_order_is_refused_and_the_ways_out_are_named() -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"k": 1}]))
    rows.to_table("t", key="k").write("out", pen.blackhole())
    with pytest.raises(UserError, match="give order_by=") as caught:
        pipeline.graph()
    assert "from_upserts" in caught.value.message


@pytest.mark.parametrize(
    ("key", "problem"),
    [("key", "no column 'key'"), ([], "needs a key"), (["k", "z"], "'z'")],
)
def test_a_key_that_is_none_is_refused(key: Any, problem: str) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([{"k": 1}]))
    rows.from_upserts("t", key=key).write("out", pen.blackhole())
    with pytest.raises(UserError, match=problem):
        pipeline.graph()


def test_a_table_can_be_filtered_and_folded() -> None:
    pipeline, out = pen.Pipeline("p", parallelism=2), pen.list_sink("table-filtered")
    rows = pipeline.read("rows", pen.list_source([{"k": n % 5, "v": n} for n in range(20)]))
    table = rows.to_table("t", key="k", order_by="v")
    table.filter(pl.col("v") > 16).write("out", out)
    pipeline.run_in_process("memory:")
    assert fold(out.rows(), ["k"]) == {(k,): {"v": 15 + k} for k in (2, 3, 4)}


@pytest.mark.parametrize("step", ["from_upserts", "from_debezium"])
def test_rows_that_count_as_they_come_are_not_mixed_before(step: str) -> None:
    after = pa.struct([("k", pa.int64())])
    schema = pa.schema({"after": after, "op": pa.string(), "k": pa.int64()})
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source([], schema=schema)).rebalance()
    getattr(rows.filter(pl.col("k") > 1), step)("t", key="k").write("out", pen.blackhole())
    with pytest.raises(
        UserError, match="order in which they come, and 'filter-1' in front"
    ):
        pipeline.graph()


def test_rows_that_count_by_a_column_may_be_mixed_before() -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source([{"k": 1, "v": 1}])).rebalance()
    rows.from_upserts("t", key="k", order_by="v").write("out", pen.blackhole())
    assert {node.operator for node in pipeline.graph().nodes} == {"rows", "t", "out"}


@pytest.mark.parametrize("step", ["from_upserts", "from_debezium", "to_table"])
def test_a_key_that_is_no_name_is_refused_where_it_is_written(step: str) -> None:
    pipeline = pen.Pipeline("p")
    source = pen.list_source([{"k": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}])
    rows = pipeline.read("rows", source, event_time="at")
    getattr(rows, step)("t", key=pl.col("k") + 1)
    with pytest.raises(UserError, match="names of columns"):
        pipeline.graph()
