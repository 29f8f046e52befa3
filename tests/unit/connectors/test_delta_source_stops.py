"""What stops a job that reads a Delta table, each with its fix: what is gone, changed or unreadable."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.connectors.delta.client import translate
from penstock.connectors.delta.planning import TABLE
from penstock.connectors.delta.source import DeltaSource
from penstock.errors import ExternalError, SchemaError, UserError
from penstock.operators.splits import SplitState
from tests.builders.delta_rows import append, harness, read, rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append(tmp_path / "table", 1, 2)
    append(tmp_path / "table", 3)
    return tmp_path / "table"


def test_a_version_that_was_cleaned_up_stops_the_job_with_the_fix(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        source.close()
        for n in range(4, 8):
            append(folder, n)
        table = DeltaTable(str(folder))
        table.create_checkpoint()
        for version in range(4):
            (folder / "_delta_log" / f"{version:020}.json").unlink()
        with pytest.raises(UserError, match=r"version 2 .* was cleaned up") as caught:
            read(source)
        assert "delta.logRetentionDuration" in str(caught.value)


def test_a_data_file_that_was_vacuumed_stops_the_job_with_the_fix(folder: Path) -> None:
    for n in range(4, 8):
        append(folder, n)
    with harness(folder, follow=True) as source:
        source.read(rows=1)
        source.close()
        table = DeltaTable(str(folder))
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(
            UserError, match="is gone before it was read: it was vacuumed"
        ) as e:
            read(source)
        assert "delta.deletedFileRetentionDuration" in str(e.value)
        assert "a data file of version 5 of" in str(e.value)


@pytest.mark.parametrize("is_running", [True, False])
def test_another_table_in_its_place_stops_the_job(
    folder: Path, *, is_running: bool
) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        if not is_running:
            source.close()
        shutil.rmtree(folder)
        for n in range(100, 105):
            append(folder, n)
        with pytest.raises(UserError, match="was deleted or made anew"):
            read(source)
        assert sorted(row["n"] for row in source.rows()) == [1, 2, 3]


def test_a_table_that_is_gone_stops_the_job(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        shutil.rmtree(folder)
        with pytest.raises(UserError, match="and now there is none"):
            read(source)


def test_a_column_that_the_table_does_not_have_stops_a_job_with_state_too(
    folder: Path,
) -> None:
    def source_of(**options: Any) -> DeltaSource:
        return DeltaSource(pen.delta(folder, follow=True, **options).source_config())

    table_id = str(DeltaTable(str(folder)).metadata().id)
    known = {TABLE: SplitState(offset=(table_id, 1, 1), ended=True)}
    right, wrong = {"n": int, "at": pl.Datetime("us", "UTC")}, {"n": int, "pirce": int}
    source_of(schema=right).check_splits(known)
    with pytest.raises(SchemaError, match="has no column 'pirce'"):
        source_of(schema=wrong).check_splits(known)
    # A column that an overwrite took away is still one of the version that the job began with.
    write_deltalake(
        str(folder), pa.table({"n": [4]}), mode="overwrite", schema_mode="overwrite"
    )
    source_of(schema=right).check_splits(known)
    with pytest.raises(SchemaError, match="has no column 'pirce'"):
        source_of(schema=wrong).check_splits(known)
    # Once that version is cleaned up, nobody can tell, and what was right goes on.
    DeltaTable(str(folder)).create_checkpoint()
    for version in range(2):
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    source_of(schema=right).check_splits(known)


def test_a_misspelt_column_is_told_by_the_last_version_that_was_read_if_the_first_is_gone(
    folder: Path,
) -> None:
    newest = DeltaTable(str(folder)).version()
    DeltaTable(str(folder)).create_checkpoint()
    for version in range(newest + 1):
        (folder / "_delta_log" / f"{version:020}.json").unlink()
    table_id = str(DeltaTable(str(folder)).metadata().id)
    known = {TABLE: SplitState(offset=(table_id, 0, newest), ended=True)}
    given = pen.delta(folder, follow=True, schema={"n": int, "pirce": int})
    with pytest.raises(SchemaError, match="has no column 'pirce'"):
        DeltaSource(given.source_config()).check_splits(known)


def test_a_place_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no Delta table at"):
        pen.delta(tmp_path / "none").source_spec()


def test_a_new_column_stops_a_job_that_follows_and_a_start_reads_it(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        more = rows(9).append_column("extra", pa.array(["x"]))
        write_deltalake(str(folder), more, mode="append", schema_mode="merge")
        with pytest.raises(SchemaError, match="there is a new column 'extra'"):
            read(source)
        known = source.splits
    again = pen.delta(folder, follow=True).source_spec()
    assert pa.ipc.read_schema(pa.py_buffer(again.config["schema"])).names == [  # type: ignore[arg-type]
        "n",
        "at",
        "extra",
    ]
    assert known


def change_entry(folder: Path, version: int, action: str, **fields: Any) -> None:
    """Change an action of a log entry, as writers with more features would write it."""
    entry = folder / "_delta_log" / f"{version:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if action in line:
            line[action].update(fields)
    entry.write_text("\n".join(map(json.dumps, lines)))


VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 1,
}


def test_a_file_with_a_deletion_vector_is_refused(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        append(folder, 4)
        change_entry(folder, 2, "add", deletionVector=VECTOR)
        with pytest.raises(UserError, match="deleted by a deletion vector") as caught:
            read(source)
        assert "REORG TABLE" in str(caught.value)


def test_column_mapping_is_refused(tmp_path: Path) -> None:
    mapping = {"delta.columnMapping.mode": "name"}
    append(tmp_path / "table", 1, configuration=mapping)
    with pytest.raises(UserError, match="other names in the files"):
        pen.delta(tmp_path / "table").source_spec()


def test_a_table_that_the_client_cannot_read_is_no_reason_to_try_again(
    folder: Path,
) -> None:
    new = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {"readerFeatures": ["fancy"], "writerFeatures": ["fancy"]}
    change_entry(folder, 0, "protocol", **new, **features)
    with pytest.raises(UserError, match="Feature 'fancy' is not supported"):
        pen.delta(folder).source_spec()


def test_a_version_that_there_is_not_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match="has no version 99"):
        pen.delta(folder, version=99).source_spec()


def test_a_store_that_cannot_be_reached_is_a_reason_to_try_again() -> None:
    options: dict[str, Any] = {
        "endpoint": "http://127.0.0.1:1",
        "allow_http": True,
        "region": "x",
        "access_key_id": "a",
        "secret_access_key": "b",
        "max_retries": 0,
    }
    with pytest.raises(ExternalError, match="could not be opened") as caught:
        pen.delta("s3://bucket/table", store_options=options).source_spec()
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("error sending request in 401.115µs: Connection refused", ExternalError),
        ("Generic S3 error: Client error with status 403 Forbidden", UserError),
        ("Generic S3 error: Server returned non-2xx status code: 401: no", UserError),
    ],
)
def test_only_what_a_store_refuses_is_a_matter_of_rights(
    text: str, kind: type[Exception]
) -> None:
    assert type(translate("the table", OSError(text))) is kind


def test_a_reader_feature_that_comes_later_is_refused(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        append(folder, 4)
        entry = folder / "_delta_log" / f"{2:020}.json"
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["typeWidening"],
        }
        entry.write_text(entry.read_text() + "\n" + json.dumps({"protocol": protocol}))
        with pytest.raises(UserError, match="reader feature 'typeWidening'"):
            read(source)


def refusals() -> Sequence[tuple[dict[str, Any], str]]:
    return [
        ({"follow": "1us"}, "at least 1ms"),
        ({"snapshot": False}, "reads nothing"),
        ({"rewrites": "ignore"}, "rewrites='ignore' is unknown"),
        ({"key": "n"}, 'key= is for rewrites="changelog"'),
        ({"mode": "upsert"}, "mode='upsert' is unknown"),
        ({"version": -1}, "version=-1: it is a whole number from 0 on, or a datetime"),
        ({"version": "2026-01-01"}, "or a datetime"),
        ({"version": True}, "or a datetime"),
        ({"target_bytes": "64MB"}, "target_bytes='64MB': it is a number of bytes"),
        ({"min_bytes": 1.5}, "min_bytes=1.5: it is a number of bytes"),
        ({"partition_by": [pl.col("n") + 1]}, "partition_by names no columns"),
    ]


@pytest.mark.parametrize(("options", "problem"), refusals())
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        pen.delta("table", **options)


def test_options_for_writing_are_refused_in_reading_and_the_other_way_round() -> None:
    with pytest.raises(UserError, match="is read here, and partition_by, evolve says"):
        pen.delta("table", partition_by="day", evolve=True).source_spec()
    with pytest.raises(UserError, match="is written here, and follow says how one is read"):
        pen.delta("table", follow=True).sink_spec()
    with pytest.raises(UserError, match="names a store in memory"):
        pen.delta("memory:table").sink_spec()
