"""The Delta sink: tables it makes and fits into, what it refuses, and who reads its rows back."""

import hashlib
import json
import shutil
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake

import penstock as pen
from penstock.connectors.delta.columns import to_delta_type
from penstock.errors import UserError
from penstock.testing import (
    CUT,
    CrashError,
    Fault,
    FaultMode,
    LocalJob,
    OperatorHarness,
    ScriptedSource,
)
from tests.builders.graphs import schema_of

START = datetime(2026, 1, 1, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "n": n,
        "word": ["a/b ü", "c", None][n % 3],
        "at": START + timedelta(seconds=n),
        "day": date(2026, 1, 1 + n % 2),
        "share": n / 4,
        "flag": n % 2 == 0,
        "list": [n, None],
        "pair": {"x": n, "y": str(n)},
        "sum": Decimal(n),
    }
    for n in range(12)
]
SCHEMA = schema_of(
    n=pa.int64(),
    word=pa.string(),
    at=pa.timestamp("us", "UTC"),
    day=pa.date32(),
    share=pa.float64(),
    flag=pa.bool_(),
    list=pa.list_(pa.int64()),
    pair=pa.struct([("x", pa.int64()), ("y", pa.string())]),
    sum=pa.decimal128(10, 0),
)


def write(
    folder: Path, rows: Any, schema: Any = None, job: str = "job", **options: Any
) -> None:
    """Run a job that writes rows to a table."""
    pipeline = pen.Pipeline(job)
    source = pen.list_source(rows, schema=schema, splits=2)
    pipeline.read("rows", source).write("out", pen.delta(folder, **options))
    status = pipeline.run_in_process(str(folder.parent / f"checkpoints-{job}"))
    assert status.phase is pen.JobPhase.FINISHED


def table_of(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(folder)).to_pyarrow_table().sort_by("n").to_pylist()


@pytest.mark.parametrize("partition_by", [(), ("word", "day", "at")])
def test_rows_are_read_back_by_deltalake_polars_and_duckdb(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    folder = tmp_path / "table"
    write(folder, ROWS, SCHEMA, partition_by=partition_by)
    assert table_of(folder) == ROWS
    assert pl.read_delta(str(folder)).sort("n").to_dicts() == ROWS
    # DuckDB has no extension for tables here, so it reads the files that the table lists.
    files = DeltaTable(str(folder)).file_uris()
    kept = [name for name in SCHEMA.names if name not in partition_by]
    names = ", ".join(f'"{name}"' for name in kept)
    found = duckdb.read_parquet(files).select(names).order("n")
    numbers = [row[0] for row in found.fetchall()]
    assert numbers == list(range(12))
    everything: Any = pa.table(DeltaTable(str(folder)).scan())
    assert sorted(everything["n"].to_pylist()) == list(range(12))


def test_the_empty_text_is_null_in_a_partition_column_as_delta_has_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "table"
    write(folder, [{"n": 1, "word": ""}, {"n": 2, "word": "x"}], partition_by="word")
    assert table_of(folder) == [{"n": 1, "word": None}, {"n": 2, "word": "x"}]


def test_a_job_without_rows_makes_a_table_that_tells_its_columns(tmp_path: Path) -> None:
    write(tmp_path / "table", [], SCHEMA, properties={"delta.appendOnly": "true"})
    table = DeltaTable(str(tmp_path / "table"))
    assert [field.name for field in table.schema().fields] == SCHEMA.names
    assert table.metadata().configuration == {"delta.appendOnly": "true"}
    assert table.version() == 0


def test_statistics_tell_bounds_that_readers_skip_files_by(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    write(folder, ROWS, SCHEMA)
    entry = folder / "_delta_log" / f"{1:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    stats = [json.loads(line["add"]["stats"]) for line in lines if "add" in line]
    assert sum(each["numRecords"] for each in stats) == 12
    assert min(each["minValues"]["n"] for each in stats) == 0
    assert max(each["maxValues"]["at"] for each in stats) == "2026-01-01T00:00:11.000000Z"
    assert sum(each["nullCount"]["word"] for each in stats) == 4
    assert all("share" not in each["minValues"] for each in stats)
    found: Any = pa.table(DeltaTable(str(folder)).scan(predicate="n > 9"))
    assert sorted(found["n"].to_pylist()) == [10, 11]


def test_files_are_closed_at_their_size(tmp_path: Path) -> None:
    rows = [
        {"n": n, "text": hashlib.sha256(str(n).encode()).hexdigest()} for n in range(20_000)
    ]
    write(tmp_path / "table", rows, target_bytes=100_000)
    files = list((tmp_path / "table").glob("*.parquet"))
    assert len(files) > 3
    assert max(path.stat().st_size for path in files) < 300_000
    assert [row["n"] for row in table_of(tmp_path / "table")] == list(range(20_000))


def test_a_batch_may_fill_several_files_of_one_partition(tmp_path: Path) -> None:
    rows = [{"n": n, "shop": f"s{n % 2}"} for n in range(4_000)]
    write(tmp_path / "table", rows, partition_by="shop", target_bytes=1_000)
    assert len(list((tmp_path / "table" / "shop=s0").glob("*.parquet"))) > 2
    assert table_of(tmp_path / "table") == rows


TYPES = [
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
    (pa.large_string(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.binary(3), pa.binary()),
    (pa.date64(), pa.date32()),
    (pa.large_list(pa.timestamp("ms")), pa.list_(pa.field("element", pa.timestamp("us")))),
    (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32())),
    (pa.uint32(), None),
    (pa.uint64(), None),
    (pa.timestamp("ns"), None),
    (pa.duration("us"), None),
    (pa.time64("us"), None),
    (pa.float16(), None),
    (pa.decimal256(50, 2), None),
    (pa.null(), None),
    (pa.struct([("x", pa.uint8())]), None),
]


@pytest.mark.parametrize(("given", "stored"), TYPES)
def test_types_of_arrow_become_those_of_delta_or_are_refused(
    given: Any, stored: Any
) -> None:
    assert to_delta_type(given) == stored
    if stored is None:
        pipeline = pen.Pipeline("p")
        schema = pa.schema([("c", given)])
        rows = pipeline.read("rows", pen.list_source([], schema=schema))
        rows.write("out", pen.delta("table"))
        with pytest.raises(UserError, match=r"column 'c' has the type .* does not have"):
            pipeline.graph()
    else:
        schema = pa.schema([("c", stored)])
        stored_as: Any = Schema.from_arrow(schema).to_arrow()
        made = pa.schema(stored_as)
        assert made.field("c").type == stored


def test_values_of_other_layouts_arrive_as_they_were(tmp_path: Path) -> None:
    kinds = [kind for kind, stored in TYPES if stored is not None]
    values = [
        START.replace(tzinfo=None, hour=12),
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        "large",
        "word",
        b"abc",
        date(2026, 1, 1),
        [START.replace(tzinfo=None)],
        [("a", 1)],
    ]
    names = [f"c{index}" for index in range(len(kinds))]
    schema = schema_of(n=pa.int64(), **dict(zip(names, kinds, strict=True)))
    write(tmp_path / "table", [{"n": 1, **dict(zip(names, values, strict=True))}], schema)
    found = table_of(tmp_path / "table")[0]
    assert [found[name] for name in names] == values


# ---- fewer files


def in_many_epochs(folder: Path, count: int, **options: Any) -> LocalJob:
    """Return a job of many small epochs."""
    steps: list[Any] = [step for n in range(count) for step in ([{"n": n}], CUT)]
    pipeline = pen.Pipeline("small")
    pipeline.read("rows", ScriptedSource({"0": steps})).write(
        "out", pen.delta(folder, **options)
    )
    return LocalJob(pipeline)


def test_rows_of_several_epochs_become_visible_in_fewer_files(tmp_path: Path) -> None:
    in_many_epochs(tmp_path / "each", 20).run()
    in_many_epochs(tmp_path / "few", 20, min_bytes=2_500).run()
    each, few = (DeltaTable(str(tmp_path / name)) for name in ("each", "few"))
    assert table_of(tmp_path / "each") == table_of(tmp_path / "few")
    assert len(each.file_uris()) == 20
    assert 1 <= len(few.file_uris()) < 10
    assert few.version() < 10


def test_rows_that_wait_are_visible_when_the_job_stops_and_after_a_restart(
    tmp_path: Path,
) -> None:
    job = in_many_epochs(tmp_path / "table", 6, visible_after="1h")
    job.run(epochs=3)
    seen = [row["n"] for row in table_of(tmp_path / "table")]
    assert seen == list(range(len(seen)))
    assert seen
    job.run()
    assert [row["n"] for row in table_of(tmp_path / "table")] == list(range(6))


@pytest.mark.parametrize(
    ("options", "kind", "value"),
    [
        ({"partition_by": ["x"]}, pa.string(), "x" * 400),
        ({"partition_by": ["x"]}, pa.string(), "ü" * 50),
        ({"partition_by": ["x"]}, pa.timestamp("us"), 1 << 60),
        ({}, pa.timestamp("s"), 2**62),
        ({}, pa.list_(pa.timestamp("s")), [2**62]),
        ({}, pa.date64(), 2**62),
    ],
    ids=["long", "long when escaped", "no folder", "far", "far in a list", "far day"],
)
def test_a_row_that_no_table_can_hold_fails_its_own_epoch_and_does_not_wait(
    tmp_path: Path, options: dict[str, Any], kind: pa.DataType, value: object
) -> None:
    spec = pen.delta(tmp_path / "table", visible_after="1h", **options).sink_spec()
    schema = pa.schema([("n", pa.int64()), ("x", kind)])
    with OperatorHarness(spec, schema) as harness:
        harness.push(pa.record_batch([[1], pa.array([None], kind)], schema=schema))
        harness.barrier()
        harness.push(pa.record_batch([[2], pa.array([value], kind)], schema=schema))
        with pytest.raises(UserError):
            harness.barrier()
        # What waits is not affected: the rows before it become visible.
        harness.end()
        harness.commit()
    assert [row["n"] for row in table_of(tmp_path / "table")] == [1]


# ---- tables that are gone


def test_a_table_that_is_deleted_while_the_job_is_stopped_is_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = in_many_epochs(tmp_path / "table", 4)
    job.run(epochs=2)
    shutil.rmtree(tmp_path / "table")
    assert "is gone" not in caplog.text
    job.run()
    assert caplog.text.count("is gone, to which this job has written since epoch 1") == 1
    assert [row["n"] for row in table_of(tmp_path / "table")] == [2, 3]


def test_a_table_that_a_job_has_not_made_yet_is_not_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The first epoch is acknowledged, and the process dies before its commit.
    job = in_many_epochs(tmp_path / "table", 3)
    dies = Fault(FaultMode.CRASH_AFTER, operation="create", path="*/0000000001.record")
    with pytest.raises(CrashError):
        job.run(dies)
    assert not (tmp_path / "table" / "_delta_log").exists()
    job.run(epochs=1)
    # Then the sink writes to another table.
    other = in_many_epochs(tmp_path / "other", 3)
    other.store = job.store
    other.run()
    assert "is gone" not in caplog.text
    found = table_of(tmp_path / "table") + table_of(tmp_path / "other")
    assert [row["n"] for row in found] == [0, 1, 2]


# ---- tables that are there


def refused(
    folder: Path, problem: str, rows: Any = ROWS, schema: Any = SCHEMA, **o: Any
) -> None:
    """Check that a job does not start, and has changed nothing."""
    before = DeltaTable(str(folder)).version()
    with pytest.raises(UserError, match=problem):
        write(folder, rows, schema, **o)
    assert DeltaTable(str(folder)).version() == before
    assert not list((folder.parent / "checkpoints-job").rglob("claim"))


def a_table(folder: Path, rows: Any = None, **options: Any) -> None:
    write_deltalake(str(folder), rows or pa.Table.from_pylist(ROWS, SCHEMA), **options)


def test_a_table_that_others_made_is_appended_to(tmp_path: Path) -> None:
    a_table(tmp_path / "table", partition_by=["word"])
    write(tmp_path / "table", ROWS, SCHEMA, partition_by=["word"])
    assert [row["n"] for row in table_of(tmp_path / "table")] == sorted([*range(12)] * 2)


def test_columns_that_the_rows_lack_are_null(tmp_path: Path) -> None:
    a_table(tmp_path / "table")
    write(tmp_path / "table", [{"n": 99}])
    assert table_of(tmp_path / "table")[-1]["word"] is None


def test_a_new_column_is_refused_or_added(tmp_path: Path) -> None:
    a_table(tmp_path / "table")
    more = [{"n": 99, "more": "x"}]
    refused(tmp_path / "table", "has no column 'more'.* evolve=True", more, None)
    write(tmp_path / "table", more, evolve=True)
    found = table_of(tmp_path / "table")
    assert found[-1]["more"] == "x"
    assert found[0]["more"] is None


def test_another_type_is_refused(tmp_path: Path) -> None:
    a_table(tmp_path / "table")
    refused(
        tmp_path / "table",
        "column 'n' is string, and in the table it is int64",
        [{"n": "x"}],
        None,
    )


def test_properties_that_a_table_has_otherwise_are_told_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = {"delta.appendOnly": "true", "delta.checkpointInterval": "7"}
    a_table(tmp_path / "table", configuration=there)
    asked = {"delta.appendOnly": "true", "delta.checkpointInterval": "9"}
    write(tmp_path / "table", ROWS, SCHEMA, properties=asked)
    assert "delta.checkpointInterval is '7', and '9' is asked for. Change" in caplog.text
    assert "delta.appendOnly" not in caplog.text
    assert caplog.text.count("properties=") == 1
    caplog.clear()
    write(tmp_path / "new", ROWS, SCHEMA, job="new", properties=asked)
    write(tmp_path / "new", ROWS, SCHEMA, job="again", properties=asked)
    assert "properties=" not in caplog.text


def test_a_column_that_may_not_be_null_is_heeded(tmp_path: Path) -> None:
    DeltaTable.create(
        str(tmp_path / "table"),
        Schema([Field("n", "long", nullable=False), Field("m", "long", nullable=False)]),  # type: ignore[arg-type]
    )
    refused(
        tmp_path / "table", r"'n' may be null(.|\n)*'m' may not be null", [{"n": 1}], None
    )


def test_another_partitioning_is_refused_with_the_right_one(tmp_path: Path) -> None:
    a_table(tmp_path / "table", partition_by=["word", "day"])
    refused(tmp_path / "table", r"pass partition_by=\['word', 'day'\]")


def test_constraints_that_nobody_would_check_are_refused(tmp_path: Path) -> None:
    a_table(tmp_path / "table")
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"small": "n < 1000"})
    refused(tmp_path / "table", "it has the constraint 'small'")


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    a_table(tmp_path / "table", configuration={"delta.columnMapping.mode": "name"})
    refused(tmp_path / "table", "column mapping")


def test_a_file_that_a_vacuum_took_before_its_commit_is_named(tmp_path: Path) -> None:
    from penstock.connectors.delta.parts import StagedFile
    from penstock.connectors.delta.sink import check_files
    from penstock.errors import CorruptStateError
    from penstock.state.storage.memory import MemoryStore

    store = MemoryStore({"there.parquet": b"123"})
    check_files(store, [StagedFile("there.parquet", 1, 3)])
    with pytest.raises(CorruptStateError, match=r"'gone.parquet' .* a vacuum removes"):
        check_files(store, [StagedFile("gone.parquet", 1, 3)])


def test_a_parquet_file_of_the_table_has_the_types_of_delta(tmp_path: Path) -> None:
    write(tmp_path / "table", ROWS, SCHEMA)
    file = next((tmp_path / "table").glob("*.parquet"))
    assert pq.read_schema(file).field("at").type == pa.timestamp("us", "UTC")
