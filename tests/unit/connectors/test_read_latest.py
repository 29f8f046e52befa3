"""read_latest: the table that committed changes lead to, in every form they may have."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.files import latest
from penstock.errors import SchemaError, StateError, UserError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob

ROWS = [{"k": n % 4, "x": n} for n in range(24)]
TOTALS = [{"k": k, "total": sum(n for n in range(24) if n % 4 == k)} for k in range(4)]
FORMS = {
    "flat": lambda changes: changes,
    "debezium": lambda changes: changes.to_debezium(),
    "upserts": lambda changes: changes.to_upserts(),
}


def written(folder: Path, form: str, data: Any = "parquet", where: Any = None) -> str:
    """Write a table of totals as changes, in epochs of a few rows."""
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source(ROWS))
    totals = rows.key_by("k").aggregate("totals", total=pen.sum("x"))
    changes = totals if where is None else totals.filter(where)
    FORMS[form](changes).write("out", pen.files(str(folder), format=data))
    small = DriverSettings(budget=SourceBudget(rows=3), adapts_budget=False)
    LocalJob(pipeline, settings=small).run()
    return str(folder)


def by_key(table: Any) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["k"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at_a_time", [1, 1_000_000])
def test_changes_of_every_form_are_folded(
    tmp_path: Path, form: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "_ROWS_AT_A_TIME", at_a_time)
    assert by_key(pen.read_latest(written(tmp_path, form), key="k")) == TOTALS


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_gone_are_not_in_the_table(tmp_path: Path, form: str) -> None:
    url = written(tmp_path, form, "jsonl", pl.col("total") < 64)
    assert by_key(pen.read_latest(url, key="k")) == TOTALS[:1]


def test_without_a_key_equal_rows_are_counted(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("p", parallelism=2)
    rows = pipeline.read("rows", pen.list_source([{"k": None, "x": 1}, {"k": 1, "x": 2}]))
    totals = rows.key_by("k").aggregate("totals", total=pen.sum("x"))
    totals.union(totals).write("out", pen.files(str(tmp_path)))
    LocalJob(pipeline).run()
    found = pen.read_latest(str(tmp_path)).to_pylist()
    assert sorted(str(row) for row in found) == sorted(
        str(row) for row in [{"k": None, "total": 1}, {"k": 1, "total": 2}] * 2
    )
    with pytest.raises(StateError, match="two rows of one key in one epoch"):
        pen.read_latest(str(tmp_path), key="k")


@pytest.mark.parametrize(
    ("key", "problem"), [("j", "no column 'j'; known are 'k'"), ([], "key is empty")]
)
def test_a_key_that_is_none_is_refused(tmp_path: Path, key: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        pen.read_latest(written(tmp_path, "flat"), key=key)


def test_rows_that_are_no_changes_are_refused(tmp_path: Path) -> None:
    pipeline = pen.Pipeline("p")
    pipeline.read("rows", pen.list_source(ROWS)).write("out", pen.files(str(tmp_path)))
    LocalJob(pipeline).run()
    with pytest.raises(SchemaError, match="are no changes"):
        pen.read_latest(str(tmp_path), key="k")


def test_upserts_need_a_key(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name the key of the table"):
        pen.read_latest(written(tmp_path, "upserts"))


@pytest.mark.parametrize("at_a_time", [1, 1_000_000])
def test_a_row_that_moves_from_one_folder_to_another_is_in_the_table(
    tmp_path: Path, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "_ROWS_AT_A_TIME", at_a_time)
    pipeline = pen.Pipeline("p")
    rows = [{"k": 1, "city": city} for city in ("b", "a", "c", "b")]
    table = pipeline.read("rows", pen.list_source(rows)).from_upserts("t", key="k")
    table.write("out", pen.files(str(tmp_path), partition_by="city"))
    small = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    LocalJob(pipeline, settings=small).run()
    assert pen.read_latest(str(tmp_path), key="k").to_pylist() == [{"k": 1, "city": "b"}]


def test_values_may_have_types_that_cannot_be_keys(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "k": pa.dictionary(pa.int8(), pa.string()),
            "wide": pa.decimal256(50, 2),
            "pairs": pa.map_(pa.string(), pa.int64()),
            "word": pa.dictionary(pa.int8(), pa.string()),
        }
    )
    rows = [
        {"k": k, "wide": Decimal(n), "pairs": [("a", n)], "word": f"w{n}"}
        for n, k in enumerate("abab")
    ]
    pipeline = pen.Pipeline("p")
    source = pen.list_source(rows, schema=schema)
    table = pipeline.read("rows", source).from_upserts("t", key="k")
    table.write("out", pen.files(str(tmp_path)))
    small = DriverSettings(budget=SourceBudget(rows=1), adapts_budget=False)
    LocalJob(pipeline, settings=small).run()
    assert by_key(pen.read_latest(str(tmp_path), key="k")) == rows[2:]
    with pytest.raises(SchemaError, match="rows cannot be grouped by 'wide'"):
        pen.read_latest(str(tmp_path))
