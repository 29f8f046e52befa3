"""Changes in other forms: Debezium's records, in and out, and upserts."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.errors import SchemaError, UserError
from penstock.operators.changelogs.debezium import from_debezium_spec
from penstock.operators.changelogs.envelopes import ToDebeziumConfig, ToUpsertsConfig
from penstock.operators.changes import changelog_schema
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob, OperatorHarness, run_pipeline
from tests.unit.state.files.file_builders import a_schema

TABLE = changelog_schema(
    [pa.field("user", pa.string())], [pa.field("total", pa.int64(), nullable=False)]
)
CHANGES = [
    {"change": "insert", "user": "a", "total": 7},
    {"change": "update-before", "user": None, "total": 1},
    {"change": "update-after", "user": None, "total": 2},
    {"change": "delete", "user": "c", "total": 1},
]


@pytest.mark.parametrize("cut", range(4))
def test_the_two_rows_of_an_update_are_one_record_wherever_batches_are_cut(
    cut: int,
) -> None:
    with OperatorHarness(ToDebeziumConfig().to_operator_spec(), TABLE) as harness:
        for part in (CHANGES[:cut], CHANGES[cut:]):
            if part:
                harness.push(part)
        found = harness.barrier().rows()
    assert sorted(found, key=lambda row: row["op"]) == [
        {"before": None, "after": {"user": "a", "total": 7}, "op": "c"},
        {"before": {"user": "c", "total": 1}, "after": None, "op": "d"},
        {
            "before": {"user": None, "total": 1},
            "after": {"user": None, "total": 2},
            "op": "u",
        },
    ]


def test_upserts_are_the_row_that_each_changed_key_has() -> None:
    with OperatorHarness(ToUpsertsConfig().to_operator_spec(), TABLE) as harness:
        harness.push(CHANGES)
        assert harness.barrier().rows() == [
            {"user": "a", "total": 7, "deleted": False},
            {"user": None, "total": 2, "deleted": False},
            {"user": "c", "total": None, "deleted": True},
        ]


def test_json_lines_of_a_changelog_are_debezium_json(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("totals")
    rows = [{"user": "a", "n": 1}, {"user": "a", "n": 2}]
    stream = pipeline.read("rows", pen.list_source(rows))
    totals = stream.key_by("user").aggregate("totals", total=pen.sum("n"))
    totals.to_debezium().write("out", pen.files(str(tmp_path), format="jsonl"))
    run_pipeline(pipeline)
    (file,) = pen.committed_files(str(tmp_path))
    lines = (tmp_path / file.path).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"before": None, "after": {"user": "a", "total": 3}, "op": "c"}
    ]


ROW = pa.struct([("id", pa.int64()), ("n", pa.string())])
_RECORDS: dict[str, Any] = {"before": ROW, "after": ROW, "op": pa.string()}
RECORDS = pa.schema(_RECORDS)


def record(op: Any, before: Any = None, after: Any = None) -> dict[str, Any]:
    rows = [None if n is None else {"id": n, "n": f"n{n}"} for n in (before, after)]
    return {"before": rows[0], "after": rows[1], "op": op}


def decoded(
    *records: dict[str, Any], on_bad: Any = "divert"
) -> tuple[list[Any], list[Any]]:
    with OperatorHarness(from_debezium_spec(["id"], on_bad), RECORDS) as harness:
        harness.push(list(records))
        found = harness.barrier()
        bad = found.rows("bad") if on_bad == "divert" else []
        return found.rows(), bad


def test_records_become_rows_and_a_mark_of_deletion() -> None:
    rows, bad = decoded(
        record("c", None, 1), record("r", None, 2), record("u", 1, 1), record("d", 2)
    )
    assert rows == [
        {"id": 1, "n": "n1", "deleted": False},
        {"id": 2, "n": "n2", "deleted": False},
        {"id": 1, "n": "n1", "deleted": False},
        {"id": 2, "n": None, "deleted": True},
    ]
    assert bad == []


def test_tombstones_are_passed_over_and_what_is_no_record_is_set_aside() -> None:
    keyless = {"before": None, "after": {"id": None, "n": "x"}, "op": "c"}
    rows, bad = decoded(
        record(None), record("t"), record("c"), record("d"), keyless, record(None, None, 1)
    )
    assert rows == []
    assert [row["error"] for row in bad] == [
        "its op is none of c, r, u, d",
        "it has no row",
        "it has no row",
        "its key is null",
        "its op is none of c, r, u, d",
    ]


def test_a_bad_record_fails_the_job_and_the_way_on_is_named() -> None:
    with pytest.raises(UserError, match="its op is none of c, r, u, d") as caught:
        decoded(record("x", None, 1), on_bad="fail")
    assert "on_bad='divert'" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (RECORDS.remove(1), "there is no 'after'"),
        (RECORDS.remove(2), "there is no 'op'"),
        (RECORDS.set(1, pa.field("after", pa.string())), "not a struct"),
        (RECORDS.set(0, pa.field("before", pa.int64())), "unlike 'after'"),
        (RECORDS.set(2, pa.field("op", pa.int64())), "'op' is int64, not text"),
    ],
)
def test_columns_that_are_no_records_are_refused(schema: pa.Schema, problem: str) -> None:
    pipeline = pen.Pipeline("p")
    rows = pipeline.read("rows", pen.list_source([], schema=schema))
    rows.from_debezium("t", key="id").write("out", pen.blackhole())
    with pytest.raises(SchemaError, match=problem):
        pipeline.graph()


def test_records_without_before_and_inside_of_a_payload_make_the_same_table() -> None:
    records = [
        {"payload": {"after": {"id": 1, "n": "a"}, "op": "c"}},
        {"payload": {"after": {"id": 1, "n": "b"}, "op": "u"}},
        {"payload": {"after": {"id": 1, "n": "b"}, "op": "u"}},
    ]
    pipeline, out = pen.Pipeline("p"), pen.list_sink("debezium-payload")
    rows = pipeline.read("rows", pen.list_source(records))
    rows.from_debezium("t", key="id").write("out", out)
    run_pipeline(pipeline)
    assert out.rows() == [{"change": "insert", "id": 1, "n": "b"}]


def test_an_update_that_changes_the_key_removes_the_row_of_the_old_one() -> None:
    rows, bad = decoded(record("c", None, 1), record("u", 1, 2), record("u", 2, 2))
    assert rows == [
        {"id": 1, "n": "n1", "deleted": False},
        {"id": 1, "n": None, "deleted": True},
        {"id": 2, "n": "n2", "deleted": False},
        {"id": 2, "n": "n2", "deleted": False},
    ]
    assert bad == []


def test_a_table_may_have_a_column_called_as_the_mark_of_deletions() -> None:
    row = {"id": 1, "deleted": True, "_deleted": None}
    records = [
        {"before": None, "after": row, "op": "c"},
        {"before": None, "after": {**row, "id": 2}, "op": "c"},
        {"before": row, "after": None, "op": "d"},
    ]
    pipeline, out = pen.Pipeline("p"), pen.list_sink("debezium-deleted")
    rows = pipeline.read("rows", pen.list_source(records))
    rows.from_debezium("t", key="id").write("out", out)
    run_pipeline(pipeline)
    assert out.rows() == [{"change": "insert", "id": 2, "deleted": True, "_deleted": None}]


def test_an_event_time_called_as_a_column_of_the_table_is_refused() -> None:
    fields = [*RECORDS, pa.field("n", pa.timestamp("us"))]
    pipeline = pen.Pipeline("p")
    source = pen.list_source([], schema=pa.schema(fields))
    rows = pipeline.read("rows", source, event_time="n")
    rows.from_debezium("t", key="id").write("out", pen.blackhole())
    with pytest.raises(SchemaError, match="the event time of the records is called 'n'"):
        pipeline.graph()


def test_columns_of_any_type_are_read_from_records_and_written_as_upserts() -> None:
    kinds: dict[str, Any] = {
        "id": pa.int64(),
        "pairs": pa.map_(pa.string(), pa.int64()),
        "list": pa.list_(pa.string()),
        "word": pa.dictionary(pa.int8(), pa.string()),
    }
    table = pa.struct(list(pa.schema(kinds)))
    row = {"id": 1, "pairs": [("a", 1)], "list": ["x"], "word": "w"}
    other = {**row, "pairs": [("a", 2)]}
    records = [
        {"before": None, "after": row, "op": "c"},
        {"before": row, "after": other, "op": "u"},
        {"before": None, "after": {**row, "id": 2}, "op": "c"},
        {"before": {**row, "id": 2}, "after": None, "op": "d"},
    ]
    schema = pa.schema({"before": table, "after": table, "op": pa.string()})
    pipeline, out = pen.Pipeline("p"), pen.list_sink("debezium-types")
    rows = pipeline.read("rows", pen.list_source(records, schema=schema))
    rows.from_debezium("t", key="id").to_upserts().write("out", out)
    LocalJob(
        pipeline,
        settings=DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False),
    ).run()
    found = [(r["id"], r["pairs"], r["deleted"]) for r in out.rows()]
    assert found == [
        (1, [("a", 1)], False),
        (1, [("a", 2)], False),
        (2, [("a", 1)], False),
        (2, None, True),
    ]


def test_a_table_whose_columns_are_all_its_key_has_a_key() -> None:
    p, out = pen.Pipeline("p"), pen.list_sink("all-key-upserts")
    rows = [{"user": 1, "page": "a"}, {"user": 1, "page": "b"}, {"user": 1, "page": "a"}]
    table = p.read("rows", pen.list_source(rows)).from_upserts("t", key=["user", "page"])
    assert not table.schema.is_bag
    table.to_upserts().write("out", out)
    p.run_in_process("memory:")
    assert sorted(row["page"] for row in out.rows()) == ["a", "b"]


def test_what_is_left_of_a_table_is_told_apart_by_its_key_and_a_union_is_a_bag() -> None:
    p = pen.Pipeline("p")
    rows = p.read("rows", pen.list_source([{"user": 1, "page": "a", "n": 2}]))
    table = rows.from_upserts("t", key=["user", "page"]).select("change", "user", "page")
    assert table.schema.table_key == ("user", "page")
    assert not table.schema.is_bag
    more = table.with_columns(twice=pl.col("user") * 2)
    assert more.schema.table_key == ("user", "page")
    assert table.union(table).schema.is_bag
    assert rows.top("best", 2, by="n", per="user").schema.is_bag
    assert not rows.top("ranked", 2, by="n", per="user", rank="r").schema.is_bag
    read = StreamSchema.from_bytes(table.schema.to_bytes())
    assert read == table.schema


def test_a_bag_must_name_all_its_columns() -> None:
    schema = a_schema(change=pa.string(), user=pa.int64(), n=pa.int64())
    with pytest.raises(SchemaError, match="is_bag says that rows have no key"):
        StreamSchema(schema, table_key=("user",), is_bag=True)
