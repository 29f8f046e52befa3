"""Delta tables as the right side of a lookup join."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.core.clock import new_token
from penstock.errors import UserError
from penstock.testing import CUT, LocalJob, ScriptedSource


def named(table: Path, numbers: list[Any], **options: Any) -> list[tuple[int, str | None]]:
    """Look numbers up in a table; between two epochs its version is another."""
    pipeline, out = pen.Pipeline("named"), pen.list_sink(f"lookup-{new_token()}")
    rows = pipeline.read("rows", ScriptedSource({"0": numbers}))
    rows.join("name", pen.lookup_delta(table, **options), on="n", how="left").write(
        "out", out
    )
    LocalJob(pipeline).run()
    return [(row["n"], row["name"]) for row in out.rows()]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = pa.table({"n": [1, 2], "name": ["one", "two"], "kind": ["odd", "even"]})
    write_deltalake(str(tmp_path / "names"), rows, partition_by=["kind"])
    more = pa.table({"n": [3], "name": ["three"], "kind": ["odd"]})
    write_deltalake(str(tmp_path / "names"), more, mode="append")
    DeltaTable(str(tmp_path / "names")).delete("n = 2")
    return tmp_path / "names"


def test_rows_are_looked_up_in_the_newest_version(table: Path) -> None:
    found = named(table, [[{"n": 1}, {"n": 2}, {"n": 3}], CUT])
    assert sorted(found) == [(1, "one"), (2, None), (3, "three")]


def test_a_version_may_be_named(table: Path) -> None:
    assert sorted(named(table, [[{"n": 2}, {"n": 3}], CUT], version=0)) == [
        (2, "two"),
        (3, None),
    ]
    with pytest.raises(UserError, match="leave one of them out"):
        pen.lookup_delta(table, version=0, reload="1m")


def test_only_the_columns_of_the_schema_are_loaded(table: Path) -> None:
    lookup = pen.lookup_delta(table, schema={"n": int, "name": str})
    assert lookup.schema.arrow.names == ["n", "name"]


def test_a_table_is_loaded_again(table: Path) -> None:
    from penstock.connectors.delta.lookup import DeltaLookupConfig

    lookup = pen.lookup_delta(table, reload="1s")
    stream = lookup.schema.keyed_by("n")
    common: dict[str, Any] = {
        "left": stream.to_bytes(),
        "right": stream.to_bytes(),
        "how": "left",
        "suffix": "_right",
        "where": None,
    }
    config: DeltaLookupConfig = lookup.config(common)
    assert config.load().num_rows == 2
    more = pa.table({"n": [4], "name": ["four"], "kind": ["even"]})
    write_deltalake(str(table), more, mode="append")
    numbers: list[Any] = config.load()["n"].to_pylist()
    assert sorted(numbers) == [1, 3, 4]


@pytest.mark.parametrize(
    ("reload", "found"), [("1m", [None, None, "four"]), (None, [None, None, None])]
)
def test_a_job_looks_rows_up_in_a_newer_version_from_the_next_interval_on(
    table: Path, reload: str | None, found: list[str | None]
) -> None:
    pipeline, out = pen.Pipeline("named"), pen.list_sink(f"lookup-{new_token()}")
    script: list[Any] = [
        step for epoch in range(3) for step in ([{"n": 4, "e": epoch}], CUT)
    ]
    rows = pipeline.read("rows", ScriptedSource({"0": script}))
    lookup = pen.lookup_delta(table, reload=reload)
    rows.join("name", lookup, on="n", how="left").write("out", out)
    job = LocalJob(pipeline)
    epochs = [0]

    def write_and_wait(level: int) -> None:
        # The first epoch is over, and the second is within its interval: only the third reloads.
        epochs[0] += level == 0
        if level == 0 and epochs[0] == 1:
            more = pa.table({"n": [4], "name": ["four"], "kind": ["even"]})
            write_deltalake(str(table), more, mode="append")
        if level == 0 and epochs[0] == 2:
            job.clock.micros += 60_000_000

    assert job.run(between_supersteps=write_and_wait).phase is pen.JobPhase.FINISHED
    named_rows = sorted(out.rows(), key=lambda row: row["e"])
    assert [row["name"] for row in named_rows] == found


def test_a_place_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no Delta table"):
        named(tmp_path / "none", [[{"n": 1}], CUT])
