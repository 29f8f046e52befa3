"""Laws of lookup joins: in every epoch they are what DuckDB says, and rows are joined once."""

# ruff: noqa: S608 (queries are made of words of tests)

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.batch import to_ipc
from penstock.core.clock import new_token
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.runtime.in_process import Chaos
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.urls import open_store
from penstock.testing import (
    Amnesia,
    CrashError,
    Fault,
    FaultMode,
    LocalJob,
    OperatorHarness,
    assert_job_is_whole,
)
from tests.builders.joins import in_order
from tests.builders.profile import by_profile
from tests.unit.state.files.file_builders import a_schema

RUNS = by_profile(default=10, ci=25, nightly=400)
"""How many lives of a join are tried, by profile."""

LEFT = a_schema(key=pa.int64(), text=pa.string(), n=pa.int64())
RIGHT = a_schema(id=pa.int64(), key=pa.int64(), text=pa.large_string(), n=pa.int64())
ON = ["key", "text"]
WHERE = pl.col("n") + pl.col("n_right") > 3

keys = st.sampled_from([0, 0, 1, 2, None])
texts = st.sampled_from(["a", "a", "b", None])
lefts = st.lists(
    st.fixed_dictionaries({"key": keys, "text": texts, "n": st.integers(0, 5)}), max_size=6
)
tables = st.dictionaries(
    st.sampled_from([1, 2, 3, 4, None]),
    st.fixed_dictionaries({"key": keys, "text": texts, "n": st.integers(0, 5)}),
    max_size=5,
)


@dataclass(frozen=True)
class Epoch:
    """What happens in an epoch, and to the job after it."""

    left: Sequence[dict[str, Any]]
    table: dict[int | None, dict[str, Any]] | None
    """What the right side is from this epoch on; None: as it was."""
    attempts: int
    parallelism: int | None
    """Go on with so many subtasks, in another process; None: in this one."""


lives = st.lists(
    st.builds(
        Epoch,
        lefts,
        st.none() | tables,
        st.sampled_from([1, 1, 2]),
        st.none() | st.integers(1, 3),
    ),
    max_size=6,
)


def expected(left: Sequence[Any], right: pa.Table, how: str, *, where: bool) -> Any:
    """Return what DuckDB makes of an epoch."""
    connection = duckdb.connect()
    connection.register("l", pa.Table.from_pylist(list(left), LEFT))
    connection.register("r", right)
    condition = "l.key = r.key AND l.text = r.text" + (
        " AND l.n + r.n > 3" if where else ""
    )
    query = f"SELECT l.key, l.text, l.n, r.id, r.n FROM l {how} JOIN r ON {condition}"
    return in_order(connection.execute(query).fetchall())


def found(rows: Sequence[Any]) -> Any:
    return in_order(
        (row["key"], row["text"], row["n"], row["id"], row["n_right"]) for row in rows
    )


def table_of(rows: dict[int | None, dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, **row} for key, row in rows.items()], RIGHT)


def live(
    node: Any, life: Sequence[Epoch], amnesia: Amnesia, bring: Any, check: Any
) -> None:
    """Run a join through epochs: `bring` changes its right side, `check` looks at what came."""
    broadcast = range(1, len(node.inputs))
    harness = OperatorHarness(node.spec, *node.inputs, broadcast=broadcast, amnesia=amnesia)
    table: dict[int | None, dict[str, Any]] = {}
    for epoch in life:
        if epoch.table is not None:
            bring(harness, table, epoch.table)
            table = epoch.table
        harness.push(list(epoch.left))
        harness.barrier(attempts=epoch.attempts)
        check(epoch.left, table_of(table), harness.take())
        if epoch.parallelism is not None:
            moved = harness.checkpoint()
            harness.close()
            harness = OperatorHarness.restore(
                moved, parallelism=epoch.parallelism, amnesia=amnesia
            )
    harness.close()


def node_of(p: pen.Pipeline, right: Any, how: Any, *, where: bool) -> Any:
    left = p.read("left", pen.list_source([], LEFT))
    joined = left.join("join", right, on=ON, how=how, where=WHERE if where else None)
    joined.write("out", pen.blackhole())
    return next(node for node in p.graph().nodes if node.operator == "join")


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(["inner", "left"]),
    where=st.booleans(),
    life=lives,
    amnesia=st.sampled_from(Amnesia),
)
def test_rows_are_joined_with_a_small_stream_as_its_table_is_at_the_end_of_the_epoch(
    *, how: str, where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    p = pen.Pipeline("p")
    right = p.read("right", pen.list_source([], RIGHT)).from_upserts("table", key="id")

    def bring(harness: OperatorHarness, before: Any, after: Any) -> None:
        changes = []
        for key in {*before, *after}:
            old, new = before.get(key), after.get(key)
            if old is not None and old != new:
                kind = "delete" if new is None else "update-before"
                changes.append({"change": kind, "id": key, **old})
            if new is not None and old != new:
                kind = "insert" if old is None else "update-after"
                changes.append({"change": kind, "id": key, **new})
        if changes:
            harness.push(changes, input=1)

    def check(left: Any, table: pa.Table, rows: Any) -> None:
        assert found(rows) == expected(left, table, how, where=where)

    node = node_of(p, pen.lookup_stream(right), how, where=where)
    live(node, life, amnesia, bring, check)


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(["inner", "left"]),
    where=st.booleans(),
    life=lives,
    amnesia=st.sampled_from(Amnesia),
)
def test_rows_are_joined_with_files_as_they_were_when_the_interval_of_the_epoch_began(
    *, how: str, where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    folder = f"memory:{new_token()}"
    store = open_store(folder)
    assert isinstance(store, MemoryStore)

    def put(rows: pa.Table) -> None:
        for number, part in enumerate((rows.slice(0, 2), rows.slice(2))):
            written = BytesIO()
            pl.DataFrame(part).write_parquet(written)
            store.put(f"{number}.parquet", written.getvalue())

    def bring(harness: OperatorHarness, before: Any, after: Any) -> None:
        put(table_of(after))
        harness.advance("1m")

    def check(left: Any, table: pa.Table, rows: Any) -> None:
        assert found(rows) == expected(left, table, how, where=where)

    put(table_of({}))
    right = pen.lookup_files(f"{folder}/*.parquet", schema=RIGHT, reload="1m")
    live(node_of(pen.Pipeline("p"), right, how, where=where), life, amnesia, bring, check)


class Frame:
    """Stands for a Spark DataFrame, which the driver computes."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def toArrow(self) -> pa.Table:  # noqa: N802 (as Spark calls it)
        return self.rows


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(["inner", "left"]),
    where=st.booleans(),
    life=lives,
    amnesia=st.sampled_from(Amnesia),
)
def test_rows_are_joined_with_the_version_of_a_dataframe_that_their_epoch_brought_or_had(
    *, how: str, where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    p = pen.Pipeline("p")
    right = pen.lookup_frame(Frame(table_of({})), reload="1m")

    def bring(harness: OperatorHarness, before: Any, after: Any) -> None:
        rows = table_of(after)
        pieces = [rows.slice(start, 2) for start in range(0, max(rows.num_rows, 1), 2)]
        parts = [
            {"part": n, "parts": len(pieces), "rows": to_ipc(piece.to_batches(), RIGHT)}
            for n, piece in enumerate(pieces)
        ]
        harness.push(parts, input=1)

    def check(left: Any, table: pa.Table, rows: Any) -> None:
        assert found(rows) == expected(left, table, how, where=where)

    live(node_of(p, right, how, where=where), life, amnesia, bring, check)


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    budget=st.integers(1, 25),
    lives=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 40)), max_size=3),
    chaos=st.tuples(st.sampled_from([0, 0, 0.05]), st.integers(0, 1_000)),
    kind=st.sampled_from(["stream", "frame", "reloaded frame"]),
)
def test_every_row_is_joined_once_whatever_crashes(
    *,
    budget: int,
    lives: list[tuple[int, int]],
    chaos: tuple[float, int],
    kind: str,
) -> None:
    p, out = pen.Pipeline("p", parallelism=2), pen.list_sink(f"joined-{new_token()}")
    rights = [{"key": key, "name": f"name-{key}"} for key in range(5)]
    left = p.read(
        "left", pen.list_source([{"key": n % 7, "n": n} for n in range(40)], splits=3)
    )
    right: Any = pen.lookup_frame(rights)
    if kind == "reloaded frame":
        right = pen.lookup_frame(Frame(pa.Table.from_pylist(rights)), reload="1s")
    if kind == "stream":
        right = pen.lookup_stream(p.read("right", pen.list_source(rights, splits=2)))
    left.join("join", right, on="key", how="left").write("out", out)
    rate, seed = chaos
    small = DriverSettings(budget=SourceBudget(rows=budget), adapts_budget=False)
    job = LocalJob(p, settings=small, chaos=Chaos(rate, seed), seed=seed)
    for parallelism, at in lives:
        try:
            job.run(Fault(FaultMode.CRASH_AFTER, at), parallelism=parallelism)
        except CrashError:
            continue
    job.run(parallelism=3)
    rows = out.rows()
    assert Counter(row["n"] for row in rows) == Counter(range(40))
    for row in rows:
        wanted = f"name-{row['key']}" if row["key"] < 5 else None
        assert row["name"] in ({wanted, None} if kind == "stream" else {wanted})
    assert_job_is_whole(job.checkpoints)


def test_folders_on_disk_are_read_as_well(tmp_path: Path) -> None:
    pl.DataFrame({"key": [1], "name": ["one"]}).write_csv(tmp_path / "a.csv")
    p, out = pen.Pipeline("p"), pen.list_sink(f"joined-{new_token()}")
    left = p.read("left", pen.list_source([{"key": 1}, {"key": 2}]))
    right = pen.lookup_files(tmp_path / "*.csv")
    left.join("join", right, on="key").write("out", out)
    p.run_in_process("memory:")
    assert out.rows() == [{"key": 1, "name": "one"}]
