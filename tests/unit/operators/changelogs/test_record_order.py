"""Records and upserts that come out of order: an order of their own, and warnings without one."""

import json
import logging
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import StateError, UserError
from penstock.operators.splits import SourceBudget
from penstock.operators.udfs.specs import CallUdfSpec
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.aggregated_rows import fold

ROW = pa.struct([("id", pa.int64()), ("n", pa.int64())])
_RECORD: dict[str, Any] = {
    "before": ROW,
    "after": ROW,
    "op": pa.string(),
    "ts_ms": pa.int64(),
    "source": pa.struct([("lsn", pa.int64())]),
}
RECORDS = pa.schema(_RECORD)


def a_record(
    op: str, order: int | None, row: Any = None, gone: Any = None
) -> dict[str, Any]:
    """Return a record whose two orders are the same."""
    names = ("id", "n")
    before, after = (r and dict(zip(names, r, strict=True)) for r in (gone, row))
    source = {"lsn": order}
    return {"before": before, "after": after, "op": op, "ts_ms": order, "source": source}


def table_of(
    *records: dict[str, Any], order_by: Any = "ts_ms", rows_per_epoch: int = 1
) -> dict[int, int]:
    """Return the table that records lead to."""
    pipeline, out = pen.Pipeline("p", parallelism=2), pen.list_sink(f"order-{new_token()}")
    rows = pipeline.read("rows", pen.list_source(records, schema=RECORDS))
    rows.from_debezium("t", key="id", order_by=order_by).write("out", out)
    budget = SourceBudget(rows=rows_per_epoch)
    settings = DriverSettings(budget=budget, adapts_budget=False)
    LocalJob(pipeline, settings=settings).run()
    assert not {"ts_ms", "order"} & {name for row in out.rows() for name in row}
    return {row_id: row["n"] for (row_id,), row in fold(out.rows(), ["id"]).items()}


ORDERS = ["ts_ms", "source.lsn", pl.col("source").struct.field("lsn") * 2]
LIFE = [
    a_record("c", 1, (1, 10)),
    a_record("u", 3, (1, 30), (1, 10)),
    a_record("d", 4, None, (1, 30)),
    a_record("c", 6, (1, 60)),
    a_record("u", 7, (2, 70), (1, 60)),
    a_record("u", 8, (2, 80)),
]


@pytest.mark.parametrize("rows_per_epoch", [1, 3, 100])
def test_by_an_order_records_may_come_in_any_other(rows_per_epoch: int) -> None:
    for count, table in ((2, {1: 30}), (3, {}), (4, {1: 60}), (6, {2: 80})):
        some = LIFE[:count]
        for records in (some[::-1], [*some[1::2], *some[::2], *some[1::2]]):
            assert table_of(*records, rows_per_epoch=rows_per_epoch) == table


@pytest.mark.parametrize("order_by", ORDERS, ids=str)
def test_the_order_is_a_field_of_the_record_or_an_expression(order_by: Any) -> None:
    assert table_of(*LIFE[::-1], order_by=order_by) == {2: 80}


@pytest.mark.parametrize("rows_per_epoch", [1, 100])
def test_of_records_of_the_same_order_the_last_to_come_counts(rows_per_epoch: int) -> None:
    made, changed = a_record("c", 5, (1, 90)), a_record("u", 5, (1, 20))
    gone = a_record("d", 5, None, (1, 20))
    assert table_of(made, changed, rows_per_epoch=rows_per_epoch) == {1: 20}
    assert table_of(made, changed, gone, rows_per_epoch=rows_per_epoch) == {}
    assert table_of(gone, made, rows_per_epoch=rows_per_epoch) == {1: 90}


def test_records_inside_of_a_payload_have_their_order_there() -> None:
    rows = [{"payload": a_record("c", 2, (1, 2))}, {"payload": a_record("c", 1, (1, 1))}]
    pipeline, out = pen.Pipeline("p"), pen.list_sink("order-of-payloads")
    schema = pa.schema([("payload", pa.struct(list(RECORDS)))])
    stream = pipeline.read("rows", pen.list_source(rows, schema=schema))
    stream.from_debezium("t", key="id", order_by="source.lsn").write("out", out)
    pipeline.run_in_process("memory:")
    assert out.rows() == [{"change": "insert", "id": 1, "n": 2}]


def test_explain_shows_the_order_and_that_deletions_are_kept() -> None:
    pipeline = pen.Pipeline("p")
    stream = pipeline.read("rows", pen.list_source([], schema=RECORDS))
    table = stream.from_debezium("t", key="id", order_by="source.lsn")
    table.write("out", pen.blackhole())
    assert 'order=col("source").struct.field' in pipeline.explain()
    assert (
        "the last row of each key, and for ever when it was deleted" in pipeline.explain()
    )


def test_a_record_without_its_order_is_bad() -> None:
    records = [a_record("c", None, (1, 1)), a_record("c", 1, (2, 2))]
    pipeline = pen.Pipeline("p")
    out, bad = (pen.list_sink(f"{name}-without-order") for name in ("good", "bad"))
    stream = pipeline.read("rows", pen.list_source(records, schema=RECORDS))
    table = stream.from_debezium("t", key="id", order_by="ts_ms", on_bad="divert")
    table.write("out", out)
    table.side_output(pen.BAD).write("bad", bad)
    pipeline.run_in_process("memory:")
    assert [row["id"] for row in out.rows()] == [2]
    assert [row["error"] for row in bad.rows()] == ["its order is null"]


@pytest.mark.parametrize(
    ("order_by", "problem"),
    [
        ("ts", "there is no column 'ts'; known are 'after'"),
        ("source.lns", "lns"),
        ("source", "no order"),
        (pl.col("ts_ms").max(), "looks at several rows"),
        (pl.lit(1), "reads no column"),
        (pl.all(), "one value"),
        (3, "order_by=3"),
    ],
    ids=str,
)
def test_what_can_be_no_order_is_refused(order_by: Any, problem: str) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([], schema=RECORDS))
    rows.from_debezium("t", key="id", order_by=order_by).write("out", pen.blackhole())
    with pytest.raises(UserError, match=problem):
        pipeline.graph()


def test_state_goes_on_with_the_same_order_only() -> None:
    def graph_of(order_by: Any) -> Any:
        pipeline = pen.Pipeline("p")
        stream = pipeline.read("rows", pen.list_source(LIFE, schema=RECORDS))
        table = stream.from_debezium("t", key="id", order_by=order_by)
        table.write("out", pen.blackhole())
        return pipeline

    settings = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    job = LocalJob(graph_of("ts_ms"), settings=settings)
    job.run(epochs=1)
    problems = {None: "'order' is gone", "source.lsn": "was the last records in order of"}
    for other, problem in problems.items():
        job.graph = graph_of(other).graph()
        with pytest.raises(StateError, match=problem):
            job.run(epochs=1)
    job.graph = graph_of(pl.col("ts_ms")).graph()
    job.run(epochs=1)


def write_files(folder: Path) -> str:
    """Write four files in which the same three rows are changed once each."""
    for number in range(4):
        records = [a_record("u", number, (row, number)) for row in range(3)]
        lines = "".join(f"{json.dumps(one)}\n" for one in records)
        (folder / f"{number:03}.jsonl").write_text(lines, encoding="utf-8")
    return f"{folder}/*.jsonl"


@pytest.mark.parametrize("options", [{"order_by": "ts_ms"}, {"parallelism": 1}], ids=str)
def test_files_that_follow_each_other_are_read_right_by_either_way_out(
    options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, out = pen.Pipeline("p", parallelism=2), pen.list_sink(f"files-{new_token()}")
    source = pen.files(write_files(tmp_path), format="jsonl", schema=RECORDS)
    rows = pipeline.read("rows", source, parallelism=options.get("parallelism"))
    table = rows.from_debezium("t", key="id", order_by=options.get("order_by"))
    table.write("out", out)
    settings = DriverSettings(budget=SourceBudget(rows=2), adapts_budget=False)
    LocalJob(pipeline, settings=settings).run()
    found = fold(out.rows(), ["id"])
    assert found == {(n,): {"n": 3} for n in range(3)}
    assert not [r for r in caplog.records if "order" in r.message]


@pytest.mark.parametrize("step", ["from_debezium", "from_upserts"])
def test_files_that_several_subtasks_read_as_they_come_are_warned_of(
    step: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    source = pen.files(write_files(tmp_path), format="jsonl", schema=RECORDS)
    rows = pipeline.read("changes", source).filter(pl.col("ts_ms") >= 0)
    key = "id" if step == "from_debezium" else "ts_ms"
    with caplog.at_level(logging.WARNING):
        getattr(rows, step)("by-id", key=key).write("out", pen.blackhole())
        pipeline.graph()
    (record,) = caplog.records
    for part in ("'by-id'", "2 subtasks", "'changes'", "parallelism=1", "order_by="):
        assert part in record.message


@pytest.mark.parametrize("name", [None, "ask"])
def test_answers_in_any_order_are_not_taken_as_they_come(name: str | None) -> None:
    async def ask(number: int) -> int:
        return number

    asked = pen.async_udf(
        ask, returns=pa.int64(), inputs="ts_ms", output="x", ordered=False
    )
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([], schema=RECORDS))
    declared: Any = asked
    if name is not None:
        pipeline.registry.add_udf(asked)
        declared = CallUdfSpec(udf=name).to_operator_spec()
    answered = rows.udf("asked", declared).filter(pl.col("x") > 0)
    answered.from_upserts("fine", key="x", order_by="ts_ms").write("a", pen.blackhole())
    answered.from_upserts("t", key="x").write("out", pen.blackhole())
    with pytest.raises(UserError, match=r"'asked' in front of it.*ordered=True") as caught:
        pipeline.graph()
    assert "'fine'" not in str(caught.value)
