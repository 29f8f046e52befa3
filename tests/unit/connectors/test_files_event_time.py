"""How event time follows files: who holds it back, and where it is when all files are read."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.files.connector import files
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.graph.logical import WatermarkSpec
from penstock.operators.event_time import watermark_of_ended
from penstock.operators.splits import SplitState
from penstock.testing import SourceHarness
from penstock.testing.given import to_instant

DAY = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
SCHEMA = StreamSchema(pa.schema([("ts", pa.timestamp("us"))]), "ts")


def write_hour(folder: Path, hour: int, name: str | None = None) -> None:
    start = DAY + timedelta(hours=hour)
    lines = [json.dumps({"ts": f"{start + timedelta(minutes=m):%FT%T}"}) for m in range(60)]
    (folder / f"{name or f'{hour:02}'}.jsonl").write_text("\n".join(lines))


def a_folder(path: Path, parallelism: int, **options: Any) -> SourceHarness:
    spec = files(f"{path}/*.jsonl", schema=SCHEMA, discover=True).source_spec()
    return SourceHarness(spec, parallelism=parallelism, watermark_delay="5m", **options)


def last_minute_of(hour: int) -> EventTime:
    """Return the watermark behind the last row of an hour."""
    return EventTime(to_instant(DAY + timedelta(hours=hour, minutes=59 - 5)))


def read_until_idle(harness: SourceHarness, rows: int | None = None) -> EventTime | None:
    """Run epochs until one reads nothing and changes nothing; return how far they came."""
    reached, before = None, None
    while True:
        output = harness.read(rows=rows)
        if isinstance(output.watermark, EventTime):
            reached = output.watermark
        elif not output.rows():
            return reached
        if (reached, harness.splits) == before:
            return reached
        before = reached, harness.splits


@pytest.mark.parametrize("parallelism", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [None, 50])
def test_when_all_known_files_are_read_the_watermark_is_the_latest_of_them_less_the_delay(
    tmp_path: Path, parallelism: int, rows: int | None
) -> None:
    for hour in range(7):
        write_hour(tmp_path, hour)
    with a_folder(tmp_path, parallelism) as harness:
        assert read_until_idle(harness, rows) == last_minute_of(6)
        assert len(harness.rows()) == 7 * 60


def test_a_file_of_later_hours_that_ended_first_counts_when_all_are_read(
    tmp_path: Path,
) -> None:
    write_hour(tmp_path, 9, "a")
    with a_folder(tmp_path, 1) as harness:
        harness.read()
        write_hour(tmp_path, 2, "b")
        harness.advance("2s")
        assert read_until_idle(harness) == last_minute_of(9)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_old_files_that_are_read_in_every_epoch_do_not_hold_event_time_back(
    tmp_path: Path, parallelism: int
) -> None:
    reached: list[Any] = []
    with a_folder(tmp_path, parallelism) as harness:
        for epoch in range(5):
            write_hour(tmp_path, 10 + epoch, f"new-{epoch}")
            write_hour(tmp_path, epoch % 2, f"old-{epoch}")
            harness.advance("2s")
            reached.append(harness.read().watermark)
            if epoch == 2:
                harness.rescale(parallelism % 3 + 1)
        assert len(harness.rows()) == 10 * 60
    # What ended in an epoch counts at the latest in the next one.
    assert all(w >= last_minute_of(9 + n) for n, w in enumerate(reached) if n)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_job_that_is_restored_at_another_parallelism_comes_as_far(
    tmp_path: Path, parallelism: int
) -> None:
    for hour in range(5):
        write_hour(tmp_path, hour)
    with a_folder(tmp_path, 2) as harness:
        output = harness.read()
        assert len(output.rows()) == 5 * 60
        assert output.watermark == last_minute_of(3)  # of one subtask's files
        harness.rescale(parallelism)
        assert read_until_idle(harness) == last_minute_of(4)


def test_a_folder_whose_files_are_all_read_holds_no_other_source_back(
    tmp_path: Path,
) -> None:
    write_hour(tmp_path, 0)
    write_hour(tmp_path, 1)
    with a_folder(tmp_path, 2) as harness:
        assert read_until_idle(harness) == last_minute_of(1)
        assert not isinstance(harness.read().watermark, EventTime)


def test_a_file_that_waits_for_its_turn_is_not_idle(tmp_path: Path) -> None:
    write_hour(tmp_path, 5, "a")
    write_hour(tmp_path, 0, "b")
    with a_folder(tmp_path, 2, idle_timeout="1s") as harness:
        harness.read(rows=10)
        harness.rescale(1)  # both files were begun, and only one is read at a time
        reached = []
        while not harness.splits["a.jsonl"].ended:
            harness.advance("10s")
            reached.append(harness.read(rows=10).watermark)
        assert len(reached) > 2
        assert all(isinstance(w, EventTime) and w <= last_minute_of(0) for w in reached)


@given(
    starts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    parallelism=st.integers(1, 3),
    rows=st.integers(20, 150),
    data=st.data(),
)
def test_no_row_of_a_file_being_read_is_late_through_another_file(
    tmp_path_factory: pytest.TempPathFactory,
    starts: list[int],
    parallelism: int,
    rows: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("hours")
    for index, hour in enumerate(starts):
        write_hour(folder, hour, f"{index}-{hour}")
    spec = files(f"{folder}/*.jsonl", schema=SCHEMA).source_spec()
    with SourceHarness(spec, parallelism=parallelism, watermark_delay="5m") as harness:
        known: EventTime | None = None
        while not harness.has_ended:
            output = harness.read(rows=rows)
            times = [to_instant(row["ts"]) for row in output.rows()]
            if known is not None:
                assert all(known.micros <= micros for micros in times)
            if isinstance(output.watermark, EventTime):
                known = output.watermark
            harness.rescale(data.draw(st.integers(1, 3)))


@given(
    starts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    rows=st.integers(20, 150),
    data=st.data(),
)
def test_no_row_of_a_file_that_was_found_is_late_because_it_had_to_wait(
    tmp_path_factory: pytest.TempPathFactory,
    starts: list[int],
    rows: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("hours")
    for index, hour in enumerate(starts):
        write_hour(folder, hour, f"{index}-{hour}")
    known: EventTime | None = None
    with a_folder(folder, data.draw(st.integers(1, 3))) as harness:
        while len(harness.rows()) < 60 * len(starts):
            is_stop = data.draw(st.booleans())
            output = harness.read(rows=rows, is_stop=is_stop)
            times = [to_instant(row["ts"]) for row in output.rows()]
            if known is not None:
                assert all(known.micros <= micros for micros in times)
            if isinstance(output.watermark, EventTime):
                known = max(known or output.watermark, output.watermark)
            if is_stop:
                harness.rescale(data.draw(st.integers(1, 3)))
        last = read_until_idle(harness) or known
    assert last == last_minute_of(max(starts))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_event_time_goes_on_in_a_folder_that_gets_more_files_than_can_be_read(
    tmp_path: Path, parallelism: int
) -> None:
    reached: list[EventTime] = []
    with a_folder(tmp_path, parallelism) as harness:
        for hour in range(40):
            write_hour(tmp_path, hour)
            write_hour(tmp_path, hour, f"{hour:02}-more")
            harness.advance("2s")
            watermark = harness.read(rows=50).watermark
            if isinstance(watermark, EventTime):
                reached.append(watermark)
        assert sum(not state.ended for state in harness.splits.values()) <= parallelism
    assert len(set(reached)) > 3
    assert reached == sorted(reached)


def test_files_in_order_of_time_do_not_wait_for_each_other(tmp_path: Path) -> None:
    for hour in range(3):
        write_hour(tmp_path, hour)
    given_order = files(
        f"{tmp_path}/*.jsonl", schema=SCHEMA, discover=True, in_time_order=True
    )
    with SourceHarness(given_order.source_spec(), watermark_delay="5m") as harness:
        watermarks = [harness.read(rows=60).watermark for _ in range(3)]
    assert watermarks == [last_minute_of(hour) for hour in range(3)]


def test_splits_that_never_had_an_event_time_say_nothing_when_they_have_ended() -> None:
    ended = SplitState(ended=True)
    assert watermark_of_ended({"a": ended}, WatermarkSpec()) is None
    assert watermark_of_ended({}, WatermarkSpec()) is None
