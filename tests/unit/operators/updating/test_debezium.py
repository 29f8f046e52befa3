"""Changelogs as Debezium's records."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import SchemaError
from penstock.operators.updating.changelog import to_debezium_spec
from penstock.testing import OperatorHarness, run_pipeline

VALUES = pa.struct([("total", pa.int64())])
_COLUMNS: dict[str, Any] = {
    "user": pa.string(),
    "op": pa.string(),
    "before": VALUES,
    "after": VALUES,
}
CHANGELOG = pa.schema(_COLUMNS)


def test_keys_move_into_the_rows_and_ops_become_letters() -> None:
    old, new = {"total": 1}, {"total": None}
    with OperatorHarness(to_debezium_spec(), CHANGELOG) as harness:
        harness.push(
            [
                {"user": "a", "op": "insert", "before": None, "after": new},
                {"user": None, "op": "update", "before": old, "after": new},
                {"user": "c", "op": "delete", "before": old, "after": None},
            ]
        )
        assert harness.barrier().rows() == [
            {"before": None, "after": {"user": "a", "total": None}, "op": "c"},
            {
                "before": {"user": None, "total": 1},
                "after": {"user": None, "total": None},
                "op": "u",
            },
            {"before": {"user": "c", "total": 1}, "after": None, "op": "d"},
        ]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (CHANGELOG.remove(1).remove(1), "it has no column 'op'; it has no column 'before'"),
        (CHANGELOG.set(2, pa.field("before", pa.int64())), "not one struct"),
        (CHANGELOG.set(0, pa.field("total", pa.int64())), "beside and inside of 'before'"),
    ],
)
def test_a_stream_that_is_no_changelog_is_refused(schema: pa.Schema, problem: str) -> None:
    stream = pen.Pipeline("p").read("rows", pen.list_source([], schema=schema))
    stream.to_debezium()
    with pytest.raises(SchemaError, match="not a changelog") as caught:
        stream.builder.graph()
    assert problem in caught.value.message


def test_json_lines_of_a_changelog_are_debezium_json(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("totals")
    rows = pipeline.read(
        "rows", pen.list_source([{"user": "a", "n": 1}, {"user": "a", "n": 2}])
    )
    totals = rows.key_by("user").aggregate("totals", total=pen.sum("n"))
    totals.to_debezium().write("out", pen.files(str(tmp_path), format="jsonl"))
    run_pipeline(pipeline)
    (file,) = pen.committed_files(str(tmp_path))
    lines = (tmp_path / file.path).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"before": None, "after": {"user": "a", "total": 3}, "op": "c"}
    ]
