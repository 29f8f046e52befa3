"""Files in the order of time that their footers tell, and the event time that follows from it."""

import io
import itertools
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.connectors.files.footers import NO_ROWS, find_earliest
from penstock.connectors.files.formats import SourceFile
from penstock.core.watermark import EventTime
from penstock.errors import UserError
from penstock.operators.splits import SourceBudget
from penstock.state.storage.memory import MemoryStore
from penstock.testing import SourceHarness
from penstock.testing.given import shared_registry

START = datetime(2026, 1, 1, tzinfo=UTC)
UNITS = {"ms": 1_000, "us": 1, "ns": -1_000}


def to_file(table: pa.Table, **options: Any) -> SourceFile:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    data = out.getvalue()
    return SourceFile(MemoryStore({"f": data}), "f", len(data))


def at_column(values: list[int | None], unit: str = "us") -> pa.Table:
    kind: Any = pa.timestamp(unit, "UTC")
    return pa.table({"at": pa.array(values, kind)})


@given(
    values=st.lists(st.one_of(st.none(), st.integers(-(2**40), 2**40)), max_size=8),
    unit=st.sampled_from(list(UNITS)),
    group=st.integers(1, 4),
)
def test_the_earliest_instant_is_that_of_the_rows(
    values: list[int | None], unit: str, group: int
) -> None:
    found = find_earliest(to_file(at_column(values, unit), row_group_size=group), "at")
    given = [value for value in values if value is not None]
    factor = UNITS[unit]
    wanted = NO_ROWS
    if given:
        wanted = min(given) * factor if factor > 0 else min(given) // -factor
    assert found == wanted


def test_columns_within_others_are_told_apart() -> None:
    table = pa.table(
        {
            "s": pa.array([{"at": 1, "x": [1]}]),
            "at": pa.array([5], pa.timestamp("us")),
            "n": pa.array([9]),
        }
    )
    assert find_earliest(to_file(table), "at") == 5
    assert find_earliest(to_file(table.select(["s", "n"])), "at") is None
    assert find_earliest(to_file(table), "n") is None


def test_footers_that_do_not_tell_are_unknown() -> None:
    assert find_earliest(to_file(at_column([1]), write_statistics=False), "at") is None
    no_parquet = SourceFile(MemoryStore({"f": b"text"}), "f", 4)
    assert find_earliest(no_parquet, "at") is None


def test_a_footer_with_any_bit_damaged_ends_no_process() -> None:
    whole = to_file(at_column([3, 1, 2]))
    data = bytearray(whole.store.read("f") or b"")
    for at, bit in itertools.product(range(len(data)), range(8)):
        data[at] ^= 1 << bit
        damaged = SourceFile(MemoryStore({"f": bytes(data)}), "f", len(data))
        found = find_earliest(damaged, "at")
        assert found is None or isinstance(found, int)
        data[at] ^= 1 << bit


def write(folder: Path, name: str, *seconds: int) -> None:
    folder.mkdir(exist_ok=True)
    times = [START + timedelta(seconds=second) for second in seconds]
    table = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC")), "n": [*seconds]})
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=2)


def second_of(mark: object) -> float | None:
    return mark.micros / 1e6 - START.timestamp() if isinstance(mark, EventTime) else None


def test_files_are_read_in_order_of_time_and_event_time_follows(tmp_path: Path) -> None:
    for name, start in (("a", 40), ("b", 0), ("c", 20), ("d", 60)):
        write(tmp_path / "in", name, start, start + 5)
    spec = pen.files(tmp_path / "in/*.parquet", time_column="at").source_spec()
    with SourceHarness(spec, now=START) as harness:
        marks = []
        for _ in range(3):
            marks.append(second_of(harness.read(rows=2).watermark))
            harness.close()  # the order is in the state
        harness.read_all(rows=2)
        assert [row["n"] for row in harness.rows()] == [0, 5, 20, 25, 40, 45, 60, 65]
    # Event time goes on with every file, up to where the next one begins.
    assert marks in ([20, 40, 60], [5, 25, 45])


def test_a_long_file_is_not_overtaken(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", 50, 51)
    write(tmp_path / "in", "b", *range(0, 100, 10))
    spec = pen.files(tmp_path / "in/*.parquet", time_column="at").source_spec()
    with SourceHarness(spec, now=START, parallelism=2) as harness:
        first = harness.read(rows=2)
        assert {row["n"] for row in first.rows()} == {0, 10, 50, 51}
        assert second_of(first.watermark) in (None, 10)
        harness.read_all(rows=2)
        assert len(harness.rows()) == 12


@pytest.mark.parametrize(("is_promised", "mark"), [(False, 10), (True, 50)])
def test_a_promised_order_wins_over_what_footers_tell_of_files_that_wait(
    tmp_path: Path, is_promised: bool, mark: int
) -> None:
    write(tmp_path / "in", "b", 0, 50)
    write(tmp_path / "in", "a", 10, 60)
    spec = pen.files(
        tmp_path / "in/*.parquet", time_column="at", in_time_order=is_promised
    ).source_spec()
    with SourceHarness(spec, now=START) as harness:
        first = harness.read(rows=2)
    # The order of reading is that of the footers all the same.
    assert [row["n"] for row in first.rows()] == [0, 50]
    assert second_of(first.watermark) == mark


def test_a_job_that_began_by_name_goes_on_by_name(tmp_path: Path) -> None:
    for name, start in (("a", 40), ("b", 0), ("c", 20)):
        write(tmp_path / "in", name, start)
    by_name = pen.files(tmp_path / "in/*.parquet").source_spec()
    by_time = pen.files(tmp_path / "in/*.parquet", time_column="at").source_spec()
    with SourceHarness(by_name) as harness:
        harness.read(rows=1)
        known = harness.splits
    goes_on: Any = shared_registry().construct(by_time).operator
    plan = goes_on.plan_splits(known, SourceBudget(), 0)
    assert [split.name for split in plan.splits if split.name[0] != "#"] == [
        "b.parquet",
        "c.parquet",
    ]


def test_files_without_statistics_are_read_by_name_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "in", "a", 9)
    write(tmp_path / "in", "c", 1)
    table = pa.table({"at": pa.array([START], pa.timestamp("us", "UTC")), "n": [5]})
    pq.write_table(table, tmp_path / "in/b.parquet", write_statistics=False)
    spec = pen.files(tmp_path / "in/*.parquet", time_column="at").source_spec()
    with caplog.at_level(logging.WARNING), SourceHarness(spec) as harness:
        harness.read_all()
        assert [row["n"] for row in harness.rows()] == [9, 5, 1]
    assert "b.parquet does not tell the earliest 'at'" in caplog.text


def test_a_time_column_is_the_event_time_of_text_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"at": "2026-01-01T00:00:07Z"}\n')
    spec = pen.files(
        tmp_path / "*.jsonl", schema={"at": datetime}, time_column="at"
    ).source_spec()
    with SourceHarness(spec) as harness:
        harness.read()
        assert harness.rows()[0]["at"].second == 7


def test_what_is_written_has_no_time_column(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="time_column says how files are read"):
        pen.files(tmp_path, format="parquet", time_column="at").sink_spec()
