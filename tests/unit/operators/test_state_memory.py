"""Every step that keeps state, with four times as much of it as memory: what is held stays small."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from tests.builders.small_memory import BUDGET_BYTES, EPOCHS, Memory, memory_of

# With cut hashes most of the table has the hash of some key, and is looked at.
pytestmark = pytest.mark.usefixtures("whole_hashes")

STATE_BYTES = 4 * BUDGET_BYTES
TEXT_BYTES = 600
ROWS = STATE_BYTES // TEXT_BYTES + 1_000
_COLUMNS: dict[str, Any] = {
    "n": pa.int64(),
    "at": pa.timestamp("us"),
    "text": pa.string(),
}
SCHEMA = pa.schema(_COLUMNS)
Read = Callable[[str], pen.Stream]
"""Returns a stream of the rows under a name."""
FOR_EVER = (None, None)


def _joined(read: Read, **options: Any) -> pen.Stream:
    return read("left").join("step", read("right"), on="n", **options).select("n")


def _tables_joined(read: Read, how: Any) -> pen.Stream:
    left, right = (read(f"{name}-rows").to_table(name, key="n") for name in ("l", "r"))
    return left.join("step", right, on="n", how=how, ttl=FOR_EVER).select("n")


def _windowed(read: Read, window: Any, name: str = "step") -> pen.Stream:
    texts = read(f"{name}-rows").key_by("n", "text")
    return texts.window(name, window).aggregate(rows=pen.count())


STEPS: dict[str, Callable[[Read], pen.Stream]] = {
    "to_table": lambda read: read("rows").to_table("step", key="n"),
    "from_upserts": lambda read: read("rows").from_upserts("step", key="n"),
    "aggregate": lambda read: (
        read("rows").key_by("text").aggregate("step", rows=pen.count())
    ),
    "aggregate of a table": lambda read: (
        read("rows")
        .to_table("table", key="n")
        .key_by("text")
        .aggregate("step", rows=pen.count(), greatest=pen.max("n"))
    ),
    "tumbling windows": lambda read: _windowed(read, pen.tumbling("1h")),
    "sliding windows": lambda read: _windowed(read, pen.sliding("1h", "1h")),
    "windows by processing time": lambda read: _windowed(
        read, pen.tumbling("1h", time_domain="processing-time")
    ),
    "session windows": lambda read: _windowed(read, pen.session("1h")),
    "windows with lateness": lambda read: (
        read("rows")
        .key_by("n", "text")
        .window("step", pen.tumbling("1h"), allowed_lateness="1h")
        .aggregate(rows=pen.count())
    ),
    "windows of a table": lambda read: (
        read("rows")
        .to_table("table", key="n")
        .key_by("n")
        .window("step", pen.tumbling("1h"))
        .aggregate(greatest=pen.max("text"))
    ),
    "top": lambda read: read("rows").top("step", 2, by="text", per="n"),
    "top of a table": lambda read: (
        read("rows").to_table("table", key="n").top("step", 2, by="text", per="n")
    ),
    "top of windows": lambda read: (
        read("rows").key_by("n").window("step", pen.tumbling("1h")).top(2, by="text")
    ),
    "first of equals": lambda read: read("rows").deduplicate(
        "step", ["n", "text"], ttl="1h"
    ),
    "earliest of equals": lambda read: read("rows").deduplicate(
        "step", ["n", "text"], keep="earliest", ttl="1h"
    ),
    "last of equals": lambda read: read("rows").deduplicate("step", "n", keep="last"),
    "interval join": lambda read: _joined(read, within=("0s", "1h")),
    "full interval join": lambda read: _joined(read, within=("0s", "1h"), how="full"),
    "window join": lambda read: _joined(read, window=pen.tumbling("1h")),
    "session join": lambda read: _joined(read, window=pen.session("1h")),
    "join of windows": lambda read: _windowed(read, pen.tumbling("1h"), "left").join(
        "step",
        _windowed(read, pen.tumbling("1h"), "right"),
        on=["n", "text"],
        window=pen.same_window(),
    ),
    "join of rows": lambda read: _joined(read, ttl=FOR_EVER),
    "join of tables": lambda read: _tables_joined(read, "inner"),
    "full join of tables": lambda read: _tables_joined(read, "full"),
}
"""Each makes one row of each row. A small stream that is looked up is not here: it is whole in
every subtask, and documented so."""


def check_memory(step: str, folder: Path, epochs: int) -> Memory:
    """Run a step over all rows, check how many come out, and return what it held."""
    rows = [{"n": n, "at": n, "text": f"{n:0{TEXT_BYTES}}"} for n in range(ROWS)]
    pipeline, out = pen.Pipeline("large"), pen.list_sink(f"large-{new_token()}")

    def read(name: str) -> pen.Stream:
        source = pen.list_source(rows, SCHEMA)
        return pipeline.read(name, source, event_time="at", watermark_delay="1h")

    STEPS[step](read).write("out", out)
    memory = memory_of(pipeline, ROWS, folder, epochs=epochs)
    gone = pl.col("change").is_in(["delete", "update-before"])
    found = pl.DataFrame(pl.from_arrow(out.table()))
    out.clear()
    changes = 2 * found.filter(gone).height if "change" in found.columns else 0
    assert found.height - changes == ROWS
    return memory


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_state_beyond_the_memory_budget_is_not_held_in_memory(
    step: str, tmp_path: Path
) -> None:
    memory = check_memory(step, tmp_path, EPOCHS)
    assert memory.between_epochs < BUDGET_BYTES
    assert memory.at_any_time < STATE_BYTES, "an epoch takes some, whatever is kept"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["tumbling windows", "interval join", "session join"])
def test_state_of_epochs_that_are_larger_than_their_share_is_not_held_either(
    step: str, tmp_path: Path
) -> None:
    assert check_memory(step, tmp_path, 6).between_epochs < BUDGET_BYTES
