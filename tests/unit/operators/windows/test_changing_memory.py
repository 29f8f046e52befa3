"""Windows that may still change, of four times the memory budget: they are mapped from files."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.aggregated_rows import fold
from tests.builders.small_memory import BUDGET_BYTES, memory_of
from tests.unit.operators.aggregates.test_against_duckdb import FIRST
from tests.unit.state.files.file_builders import a_schema

TEXT_BYTES = 600
STATE_BYTES = 4 * BUDGET_BYTES
ROWS = STATE_BYTES // TEXT_BYTES + 1_000
SCHEMA = a_schema(id=pa.int64(), at=pa.timestamp("us"), text=pa.string())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "is_table"),
    [(pen.tumbling("1s"), False), (pen.tumbling("1s"), True), (pen.session("1s"), False)],
    ids=["rows", "changelog", "sessions"],
)
def test_windows_that_may_change_are_not_held_in_memory_beyond_the_budget(
    window: Any, *, is_table: bool, tmp_path: Path
) -> None:
    rows = [
        {"id": n, "at": FIRST + timedelta(milliseconds=5 * n), "text": f"{n:0{TEXT_BYTES}}"}
        for n in range(ROWS)
    ]
    # At the end the first key gets a late row, when all other windows are kept.
    rows.append({**rows[0], "text": "-"})
    pipeline, out = pen.Pipeline("large"), pen.list_sink(f"large-{new_token()}")
    stream = pipeline.read("rows", pen.list_source(rows, SCHEMA), event_time="at")
    if is_table:
        stream = stream.from_upserts("table", key="id")
    windows = stream.key_by("id").window("w", window, allowed_lateness="1h")
    windows.aggregate(n=pen.count(), least=pen.min("text")).write("out", out)
    memory = memory_of(pipeline, ROWS, tmp_path)
    assert memory.between_epochs < BUDGET_BYTES
    assert memory.at_any_time < STATE_BYTES, "an epoch takes some, whatever is kept"
    table = fold(out.rows(), ["id", "window_start", "window_end"])
    out.clear()
    assert len(table) == ROWS
    first = next(row for (key, *_), row in table.items() if key == 0)
    assert (first["n"], first["least"]) == (1 if is_table else 2, "-")
