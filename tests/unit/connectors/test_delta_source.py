"""The Delta source: versions, what they add, and what stops the job with its fix."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import penstock as pen
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.operator import SourceOperator
from penstock.operators.splits import SourceBudget
from penstock.testing import SourceHarness
from penstock.testing.given import shared_registry
from tests.builders.delta_rows import append, harness, read, rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    append(tmp_path / "table", 1, 2)
    append(tmp_path / "table", 3)
    return tmp_path / "table"


def test_a_version_is_a_batch(folder: Path) -> None:
    append(folder, 4)
    for version, wanted in [(0, [1, 2]), (1, [1, 2, 3]), (None, [1, 2, 3, 4])]:
        with harness(folder, version=version) as source:
            source.read_all()
            assert sorted(row["n"] for row in source.rows()) == wanted


def test_a_version_may_be_named_by_an_instant(folder: Path) -> None:
    written = DeltaTable(str(folder)).history()[-1]["timestamp"]
    instant = datetime.fromtimestamp(written / 1000, UTC)
    with harness(folder, version=instant) as source:
        source.read_all()
        assert sorted(row["n"] for row in source.rows()) == [1, 2]


def test_versions_are_followed_and_compactions_are_passed_over(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        append(folder, 4)
        DeltaTable(str(folder)).optimize.compact()
        append(folder, 5, 6)
        DeltaTable(str(folder)).optimize.z_order(["n"])
        assert read(source) == [1, 2, 3, 4, 5, 6]
        source.close()  # a new driver goes on
        append(folder, 7)
        assert read(source) == [1, 2, 3, 4, 5, 6, 7]


def test_without_the_snapshot_only_later_versions_are_read(folder: Path) -> None:
    with harness(folder, follow=True, snapshot=False) as source:
        assert read(source) == []
        append(folder, 4)
        assert read(source) == [4]
    with harness(folder, follow=True, snapshot=False, version=0) as source:
        assert read(source) == [3, 4]


def test_states_of_files_that_were_read_are_forgotten(folder: Path) -> None:
    with harness(folder, follow=True) as source:
        for n in range(10, 30):
            append(folder, n)
            read(source, 2)
        assert read(source) == [1, 2, 3, *range(10, 30)]
        assert len(source.splits) < 6


def test_a_version_that_was_begun_is_read_to_its_end_though_none_is_followed_any_more(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "table"

    def write(*numbers: int) -> None:
        given = pa.table({"n": numbers, "part": [n % 4 for n in numbers]})
        write_deltalake(str(folder), given, mode="append", partition_by=["part"])

    write(0)
    with harness(folder, follow=True) as source:
        assert read(source) == [0]
        write(*range(1, 9))
        write(9)
        source.read(rows=1)
        done = {row["n"] for row in source.rows()}
        assert 1 < len(done) < 9  # some of the four files of the version
        known = source.splits
    made = shared_registry().construct(pen.delta(folder).source_spec()).operator
    assert isinstance(made, SourceOperator)
    planned = made.plan_splits(known, SourceBudget(), 0).splits
    made.release()
    names = {*known, *(split.name for split in planned)} - {"#table"}
    assert len([name for name in names if name.startswith("0000000001+")]) == 4
    assert not [name for name in names if name.startswith("0000000002+")]


def test_a_version_that_deletes_rows_is_refused_behind_those_before_it(
    folder: Path,
) -> None:
    with harness(folder, follow=True) as source:
        assert read(source) == [1, 2, 3]
        append(folder, 4)
        DeltaTable(str(folder)).delete("n = 1")
        with pytest.raises(
            UserError, match=r"version 3 .*DELETE.* deletes or rewrites rows"
        ) as e:
            read(source, 6)
        assert e.value.code is ErrorCode.INPUT_CHANGED
        assert 'rewrites="changelog"' in str(e.value)
        assert 'rewrites="skip"' in str(e.value)
        assert sorted(row["n"] for row in source.rows()) == [1, 2, 3, 4]


def test_versions_that_rewrite_rows_are_passed_over_on_request(folder: Path) -> None:
    with harness(folder, follow=True, rewrites="skip") as source:
        assert read(source) == [1, 2, 3]
        DeltaTable(str(folder)).update({"n": "n + 10"}, predicate="n = 1")
        append(folder, 4)
        assert read(source) == [1, 2, 3, 4]


def replayed(source: SourceHarness) -> list[dict[str, Any]]:
    """Return the table that all changes lead to."""
    counts: dict[tuple[Any, ...], int] = {}
    for row in source.rows():
        change = row.pop("change")
        sign = 1 if change in ("insert", "update-after") else -1
        key = tuple(sorted(row.items()))
        counts[key] = counts.get(key, 0) + sign
    assert set(counts.values()) <= {0, 1}
    return sorted((dict(k) for k, c in counts.items() if c), key=lambda r: r["n"])


@pytest.mark.parametrize("has_feed", [True, False])
def test_a_table_is_read_as_a_changelog(tmp_path: Path, *, has_feed: bool) -> None:
    folder = tmp_path / "table"
    config = {"delta.enableChangeDataFeed": "true"} if has_feed else None
    append(folder, 1, 2, 3, configuration=config)
    with harness(folder, follow=True, rewrites="changelog", key="n") as source:
        read(source)
        table = DeltaTable(str(folder))
        table.update({"at": "at + interval '1 hour'"}, predicate="n = 2")
        append(folder, 4, 5)
        DeltaTable(str(folder)).delete("n = 1 or n = 5")
        DeltaTable(str(folder)).optimize.compact()
        read(source)
        wanted = DeltaTable(str(folder)).to_pyarrow_table().sort_by("n").to_pylist()
        assert replayed(source) == wanted
        if not has_feed:
            return
        feed: Any = pa.table(DeltaTable(str(folder)).load_cdf(starting_version=1))
        names = {"update_preimage": "update-before", "update_postimage": "update-after"}
        told = [
            (names.get(row["_change_type"], row["_change_type"]), row["n"], row["at"])
            for row in feed.to_pylist()
        ]
        read_later = [(r["change"], r["n"], r["at"]) for r in source.rows()][3:]
        assert sorted(map(str, read_later)) == sorted(map(str, told))


def test_a_changelog_of_a_table_feeds_an_aggregate(tmp_path: Path) -> None:
    append(tmp_path / "table", 1, 2, 3)
    pipeline, out = pen.Pipeline("count"), pen.list_sink("delta-changelog")
    changes = pipeline.read(
        "in", pen.delta(tmp_path / "table", rewrites="changelog", key="n")
    )
    changes.aggregate("count", count=pen.count()).write("out", out)
    pipeline.run_in_process("memory:")
    assert [row["count"] for row in out.rows()] == [3]


def test_partition_values_are_columns_of_their_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": [1, 2, 3],
            "word": ["a/b ü", None, "c"],
            "at": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
            "local": pa.array([1, None, 3], pa.timestamp("us")),
            "day": [date(2026, 1, 1), None, date(2026, 1, 2)],
            "yes": [True, None, False],
            "sum": pa.array([1, None, 3], pa.decimal128(10, 2)),
        }
    )
    names = ["word", "at", "local", "day", "yes", "sum"]
    write_deltalake(str(tmp_path / "table"), table, partition_by=names)
    with harness(tmp_path / "table") as source:
        source.read_all()
        found = sorted(source.rows(), key=lambda row: row["n"])
        assert found == table.to_pylist()


def test_files_that_are_removed_without_their_partition_have_it_all_the_same(
    tmp_path: Path,
) -> None:
    table = pa.table({"n": [1, 2], "p": ["a", "b"]})
    write_deltalake(str(tmp_path), table, partition_by="p")
    with harness(tmp_path, follow=True, rewrites="changelog", key="n") as source:
        read(source, 1)
        DeltaTable(str(tmp_path)).delete("p = 'a'")
        # Writers may leave it out.
        entry = tmp_path / "_delta_log" / f"{1:020}.json"
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            for name in ("partitionValues", "extendedFileMetadata", "size"):
                action.get("remove", {}).pop(name, None)
        entry.write_text("\n".join(map(json.dumps, actions)))
        read(source)
        assert source.rows()[2:] == [{"change": "delete", "n": 1, "p": "a"}]


def test_columns_that_the_table_got_later_are_null_before(folder: Path) -> None:
    more = rows(9).append_column("extra", pa.array(["x"]))
    write_deltalake(str(folder), more, mode="append", schema_mode="merge")
    with harness(folder) as source:
        source.read_all()
        found = {row["n"]: row["extra"] for row in source.rows()}
        assert found == {1: None, 2: None, 3: None, 9: "x"}


@pytest.mark.parametrize(
    "options",
    [
        {"version": 0},
        {"version": datetime(2020, 1, 1, tzinfo=UTC)},
        {"version": 0, "snapshot": False},
        {"version": 0, "rewrites": "changelog", "key": "n"},
        {"version": 0, "schema": {"n": int, "extra": str}},
    ],
    ids=["number", "instant", "no snapshot", "changelog", "schema"],
)
def test_a_version_from_before_a_column_came_is_followed_into_it(
    folder: Path, options: dict[str, Any]
) -> None:
    more = rows(9).append_column("extra", pa.array(["x"]))
    write_deltalake(str(folder), more, mode="append", schema_mode="merge")
    with harness(folder, follow=True, **options) as source:
        read(source)
        found = {row["n"]: row["extra"] for row in source.rows()}
    first = {} if options.get("snapshot") is False else {1: None, 2: None}
    assert found == {**first, 3: None, 9: "x"}


def test_a_column_that_no_version_has_is_refused_wherever_the_job_begins(
    folder: Path,
) -> None:
    for options in ({}, {"version": 0}, {"version": 0, "follow": True}):
        with (
            harness(folder, schema={"n": int, "pirce": int}, **options) as source,
            pytest.raises(SchemaError, match="has no column 'pirce'"),
        ):
            source.read()


def test_a_schema_names_the_columns_to_read(folder: Path) -> None:
    with harness(folder, follow=True, schema={"n": int}) as source:
        assert read(source) == [1, 2, 3]
        assert all(row.keys() == {"n"} for row in source.rows())
        more = rows(9).append_column("extra", pa.array(["x"]))
        write_deltalake(str(folder), more, mode="append", schema_mode="merge")
        assert read(source) == [1, 2, 3, 9]
    with (
        harness(folder, schema={"m": int}) as source,
        pytest.raises(SchemaError, match="has no column 'm'"),
    ):
        source.read()


def test_times_in_other_units_are_the_same_instants(tmp_path: Path) -> None:
    # Spark stores instants as INT96, which has neither unit nor zone.
    folder = tmp_path / "table"
    append(folder, 1)
    file = next(folder.glob("*.parquet"))
    pq.write_table(rows(1), file, use_deprecated_int96_timestamps=True)
    entry = folder / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["size"] = file.stat().st_size
    entry.write_text("\n".join(map(json.dumps, lines)))
    with harness(folder) as source:
        source.read_all()
        assert source.rows() == rows(1).to_pylist()


def test_files_are_read_in_order_of_time_and_hold_the_watermark_only_if_they_must(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "table"
    for numbers in ([50, 59], [10, 19], [30, 39]):
        append(folder, *numbers)
    with harness(folder, time_column="at") as source:
        seen = []
        for _ in range(3):
            output = source.read(rows=2)
            seen.append((sorted(row["n"] for row in output.rows()), output.watermark))
        assert [numbers for numbers, _ in seen] == [[10, 19], [30, 39], [50, 59]]
        assert None not in [watermark for _, watermark in seen]
    append(folder, 5, 60)
    with harness(folder, time_column="at") as source:
        # This file is first by its least time, and all others are within it.
        output = source.read(rows=2)
        assert sorted(row["n"] for row in output.rows()) == [5, 60]
        assert output.watermark is None


def test_a_table_of_many_versions_is_followed_in_few_epochs(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    append(folder, 0)
    with harness(folder, follow=True) as source:
        read(source, 1)
        for n in range(1, 40):
            append(folder, n)
        assert read(source, 3) == list(range(40))
