"""Kept values of four times the memory budget: they are mapped from files, not held."""

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.small_memory import BUDGET_BYTES, memory_of
from tests.unit.state.files.file_builders import a_schema

ROWS, TEXT = 10_000, "x" * 440
SCHEMA = a_schema(id=pa.int64(), text=pa.string())


@pytest.mark.slow
def test_kept_values_beyond_the_memory_budget_are_not_held_in_memory(
    tmp_path: Path,
) -> None:
    pipeline, out = pen.Pipeline("large"), pen.list_sink(f"large-{new_token()}")
    rows = [{"id": n, "text": f"{n:08}{TEXT}"} for n in range(ROWS)]
    # At the end the greatest value goes: the one before it is found in what was kept.
    rows.append({"id": ROWS - 1, "text": "-"})
    table = pipeline.read("rows", pen.list_source(rows, SCHEMA))
    changes = table.from_upserts("table", key="id").with_columns(k=pl.col("id") % 2)
    changes.key_by("k").aggregate("top", top=pen.max("text")).write("out", out)
    memory = memory_of(pipeline, ROWS, tmp_path)
    assert memory.between_epochs < BUDGET_BYTES, (
        "and each of two tables has more than 4 MiB"
    )
    assert memory.at_any_time < 4 * BUDGET_BYTES
    last = {
        row["k"]: row["top"][:8] for row in out.rows() if row["change"] != "update-before"
    }
    out.clear()
    assert last == {0: f"{ROWS - 2:08}", 1: f"{ROWS - 3:08}"}
