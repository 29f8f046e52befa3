"""History, then live, as one source: what it refuses, what it forgets, and its event time."""

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import WriterProperties, write_deltalake

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.core.watermark import EventTime
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.testing import SourceHarness
from penstock.testing.given import shared_registry
from tests.builders.graphs import schema_of
from tests.builders.live_stream import LiveStream, LiveTopic
from tests.builders.placed_rows import (
    STREAM,
    has_handed_over,
    pipeline_of,
    rows_of,
    two_partitions,
)
from tests.contract.sources.concat_sources import PLACED, placed_files, write_placed
from tests.contract.sources.source_under_test import EPOCH


def build(both: Any) -> None:
    """Build the source, as a graph does that is made."""
    shared_registry().construct(both.source_spec())


def second_of(mark: object) -> float | None:
    if not isinstance(mark, EventTime):
        return None
    return mark.micros / 1_000_000 - EPOCH.timestamp()


@pytest.fixture
def live(tmp_path: Path) -> LiveStream:
    return two_partitions(tmp_path)


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"at": "2026-01-01"}, "by= must name the column"),
        ({"at": "tomorrow", "by": "at"}, "'tomorrow', which is no instant"),
        ({"by": "at"}, "give the instant as at="),
        ({"at": 17}, "at= is 17"),
        ({"at": {"other": {0: 1}}}, "the topic 'other'.*does not read"),
        ({"at": {"topic": 5}}, "offsets are given by topic"),
        ({"at": {"topic": {0: -1}}}, "whole numbers"),
        ({"at": {"topic": {"0": 1}}}, "whole numbers"),
        ({"offset_columns": {"offset": "o"}}, "names two columns"),
        ({"offset_columns": {"ofset": "o"}}, "did you mean 'offset'"),
        (
            {
                "at": "2026-01-01",
                "by": "at",
                "offset_columns": {"partition": "p", "offset": "o"},
            },
            "has no use",
        ),
    ],
)
def test_points_that_say_nothing_are_refused(
    live: LiveStream, tmp_path: Path, given: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        pen.concat_sources(
            history=placed_files(tmp_path / "old"), live=LiveTopic(live), **given
        )


def test_other_columns_are_refused_with_the_differences(
    live: LiveStream, tmp_path: Path
) -> None:
    other = pen.files(
        tmp_path / "*.parquet",
        schema=schema_of(n=pa.string(), s=pa.string(), at=pa.timestamp("us", "UTC")),
    )
    both = pen.concat_sources(history=other, live=LiveTopic(live))
    with pytest.raises(SchemaError, match="same columns") as failure:
        build(both)
    for part in ("'n' is int64, expected string", "'kafka_partition' (int32) is not in"):
        assert part in str(failure.value)


def test_columns_in_another_order_are_the_same(live: LiveStream, tmp_path: Path) -> None:
    names = list(reversed(PLACED.names))
    turned = pa.schema([PLACED.field(name) for name in names])
    write_placed(tmp_path / "old", rows_of(1, 2))
    live.write(0, rows_of(1, 2, 3))
    both = pen.concat_sources(
        history=pen.files(tmp_path / "old/*.parquet", schema=turned), live=LiveTopic(live)
    )
    with SourceHarness(both.source_spec()) as harness:
        for _ in range(4):
            harness.read()
        assert [row["n"] for row in harness.rows()] == [1, 2, 3]
        assert list(harness.rows()[0]) == names


SOLD = pa.schema([*PLACED, pa.field("sold", pa.timestamp("us", "UTC"))])


@pytest.mark.parametrize("kind", ["files", "table"])
def test_the_column_of_the_point_is_not_the_event_time_if_there_is_one(
    tmp_path: Path, kind: str
) -> None:
    row = {**rows_of(1)[0], "sold": EPOCH}
    table = pa.Table.from_pylist([row], SOLD)
    write_deltalake(str(tmp_path / "table"), table)
    live = pen.files(tmp_path / "*.parquet", schema=StreamSchema(SOLD, time_column="at"))

    def event_time(schema: Any, **more: Any) -> str | None:
        history: Any = pen.files(tmp_path / "*.parquet", schema=schema)
        if kind == "table":
            history = pen.delta(tmp_path / "table", schema=schema)
        both = pen.concat_sources(history=history, live=live, at=EPOCH, by="sold", **more)
        made: Any = shared_registry().construct(both.source_spec()).operator
        found: str | None = made.output_schema().time_column
        return found

    timed = StreamSchema(SOLD, time_column="at")
    assert event_time(timed) == "at"
    assert event_time(SOLD, order_by="at") == "at"
    with pytest.raises(SchemaError, match="of history is 'sold', and that of live is 'at'"):
        event_time(SOLD)
    with pytest.raises(UserError, match="order_by='sold' is not the event time of history"):
        event_time(timed, order_by="sold")


@pytest.mark.parametrize("side", ["history", "live"])
def test_a_changelog_is_no_side(tmp_path: Path, side: str) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.Table.from_pylist(rows_of(1), PLACED))
    change = pa.field("change", pa.string())
    plain = pen.files(tmp_path / "*.parquet", schema=pa.schema([change, *PLACED]))
    changes = pen.delta(table, rewrites="changelog", key="n")
    sides: dict[str, Any] = {"history": plain, "live": plain, side: changes}
    with pytest.raises(SchemaError, match=f"concat_sources: {side} is a changelog"):
        build(pen.concat_sources(**sides, at=EPOCH, by="at"))


def test_a_live_side_without_offsets_needs_an_instant(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    both = pen.concat_sources(
        history=placed_files(tmp_path / "old"),
        live=pen.files(tmp_path / "new/*.parquet", schema=PLACED),
        offset_columns={"partition": "kafka_partition", "offset": "kafka_offset"},
    )
    with pytest.raises(UserError, match=r"several topics|no offsets to begin at"):
        build(both)


def test_a_history_that_never_ends_is_refused(live: LiveStream, tmp_path: Path) -> None:
    write_placed(tmp_path / "old", rows_of(1))
    endless = pen.files(tmp_path / "old/*.parquet", schema=STREAM, discover=True)
    both = pen.concat_sources(history=endless, live=LiveTopic(live))
    with (
        SourceHarness(both.source_spec()) as harness,
        pytest.raises(UserError, match="history never ends"),
    ):
        harness.read()


def test_kafka_begins_after_history_only_if_it_says_so() -> None:
    topic = pen.kafka("bids", servers="nowhere:1", schema=schema_of(n=pa.int64()))
    both = pen.concat_sources(history=pen.list_source([{"n": 1}]), live=topic)
    with pytest.raises(UserError, match='start="after-history"'):
        build(both)
    alone = pen.kafka(
        "bids", servers="nowhere:1", schema=schema_of(n=pa.int64()), start="after-history"
    )
    with pytest.raises(UserError, match="concat_sources"):
        alone.source_spec()


# ---- the start


def test_a_given_point_that_is_gone_fails_the_start_before_history_is_read(
    live: LiveStream, tmp_path: Path
) -> None:
    write_placed(tmp_path / "old", rows_of(1, 2))
    live.write(0, rows_of(1, 2, 3))
    live.remove_before(0, 3)
    pipeline = pipeline_of(
        pen.concat_sources(
            history=placed_files(tmp_path / "old"),
            live=LiveTopic(live),
            at={"topic": {0: 2}},
        )
    )
    check = pipeline.check("memory:")
    assert not check.is_possible
    assert check.problems[0].code == ErrorCode.INPUT_LOST
    with pytest.raises(UserError, match="does not hold the hand-over point"):
        pipeline.run_in_process("memory:")


def test_a_found_point_that_is_gone_fails_at_the_hand_over(
    live: LiveStream, tmp_path: Path
) -> None:
    write_placed(tmp_path / "old", rows_of(1, 2))
    live.write(0, rows_of(1, 2, 3))
    live.remove_before(0, 3)
    both = pen.concat_sources(history=placed_files(tmp_path / "old"), live=LiveTopic(live))
    with SourceHarness(both.source_spec()) as harness:
        harness.read()
        with pytest.raises(UserError, match=r"topic/0 begins at 3 and the point is 2"):
            harness.read()


# ---- event time


def marks_of(harness: SourceHarness, epochs: int, **options: Any) -> list[float | None]:
    marks = []
    for _ in range(epochs):
        marks.append(second_of(harness.read(**options).watermark))
        harness.advance("1s")
    return marks


def test_live_does_not_hold_history_back_and_history_does_not_run_ahead_of_live(
    live: LiveStream, tmp_path: Path
) -> None:
    # Partition 1 is an hour behind: its rows in live are older than the last of history.
    for index in range(6):
        write_placed(tmp_path / "old", rows_of(1_000 * index, start=index))
    live.write(0, rows_of(*range(0, 6_000, 1_000), 6_000))
    live.write(1, [])
    both = pen.concat_sources(history=placed_files(tmp_path / "old"), live=LiveTopic(live))
    with SourceHarness(both.source_spec(), now=EPOCH) as harness:
        marks = marks_of(harness, 6, rows=1)
        reached = [mark for mark in marks if mark is not None]
        assert reached[-1] >= 3_000, "history's event time comes forward while it is read"
        assert all(before <= after for before, after in pairwise(reached))
        # After the hand-over it waits for every partition.
        marks = marks_of(harness, 3)
        assert has_handed_over(harness)
        assert max(mark for mark in marks if mark is not None) <= 4_000
        live.write(1, rows_of(4_500, partition=1))
        marks = marks_of(harness, 3)
        assert marks[-1] == 4_500


def test_files_of_a_table_tell_their_offsets_until_the_hand_over(
    live: LiveStream, tmp_path: Path
) -> None:
    # The table's own source forgets files that were read; what they told must not go with them.
    table = str(tmp_path / "table")
    parts = [rows_of(*range(10 * p, 10 * p + 9), partition=p) for p in range(3)]
    for partition, rows in enumerate(parts):
        placed = pa.Table.from_pylist(rows, PLACED)
        write_deltalake(
            table,
            placed,
            mode="append",
            writer_properties=WriterProperties(max_row_group_size=3),
        )
        live.write(partition, rows)
    live.write(0, rows_of(100))
    both = pen.concat_sources(history=pen.delta(table), live=LiveTopic(live))
    with SourceHarness(both.source_spec()) as harness:
        for _ in range(14):
            harness.read(rows=3)
        found = sorted(row["n"] for row in harness.rows())
    assert found == [*range(9), *range(10, 19), *range(20, 29), 100]


@pytest.mark.parametrize("kind", ["files", "table"])
def test_history_is_read_in_order_of_time_where_its_names_are_in_another(
    live: LiveStream, tmp_path: Path, kind: str
) -> None:
    # The table gets its files in this order, too; their names are drawn.
    for name, second in (("a", 40), ("b", 0), ("c", 20)):
        part = pa.Table.from_pylist(rows_of(second), PLACED)
        pq.write_table(part, tmp_path / f"old/{name}.parquet")
        write_deltalake(str(tmp_path / "table"), part, mode="append")
    live.write(0, rows_of(60))
    history: Any = pen.files(tmp_path / "old/*.parquet", schema=PLACED)
    if kind == "table":
        history = pen.delta(tmp_path / "table")
    both = pen.concat_sources(
        history=history, live=LiveTopic(live), at=EPOCH + timedelta(seconds=50), by="at"
    )
    with SourceHarness(both.source_spec()) as harness:
        for _ in range(5):  # an epoch for each file: in one they may be in any order
            harness.read(rows=1)
        assert [row["n"] for row in harness.rows()] == [0, 20, 40, 60]


def test_a_history_of_one_epoch_does_not_set_the_time_of_live(
    live: LiveStream, tmp_path: Path
) -> None:
    write_placed(tmp_path / "old", rows_of(1, 9_000))
    live.write(0, rows_of(1, 9_000))
    live.write(1, rows_of(10, 11, partition=1))
    both = pen.concat_sources(history=placed_files(tmp_path / "old"), live=LiveTopic(live))
    with SourceHarness(both.source_spec(), now=EPOCH, idle_timeout="10s") as harness:
        marks = marks_of(harness, 4)
        assert [mark for mark in marks if mark is not None and mark > 11] == []
        assert [row["n"] for row in harness.rows()] == [1, 9_000, 10, 11]
        # A partition that stays silent holds nothing back for longer than the timeout.
        harness.advance("20s")
        live.write(1, rows_of(12, partition=1))
        assert marks_of(harness, 2)[-1] == 12


def test_each_side_may_set_bad_rows_aside(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"at": 1}\n')
    schema = schema_of(at=pa.timestamp("us", "UTC"), n=pa.int64())
    sides = [
        pen.files(tmp_path / name / "*.jsonl", schema=schema, on_bad="divert")
        for name in ("old", "new")
    ]
    for index, side in enumerate(("old", "new")):
        lines = [f'{{"at": "2026-01-0{1 + index}T00:00:00Z", "n": {index}}}', "{no row}"]
        (tmp_path / side / "a.jsonl").write_text("\n".join(lines) + "\n")
    both = pen.concat_sources(
        history=sides[0], live=sides[1], at=EPOCH + timedelta(days=1), by="at"
    )
    with SourceHarness(both.source_spec()) as harness:
        harness.read_all()
        assert [row["n"] for row in harness.rows()] == [0, 1]
        assert len(harness.rows("bad")) == 2


def test_rows_that_a_side_leaves_to_the_other_are_counted(
    live: LiveStream, tmp_path: Path
) -> None:
    write_placed(tmp_path / "old", rows_of(0, 1, 2, 3))
    live.write(0, rows_of(0, 1, 2, 3, 4))
    both = pen.concat_sources(
        history=placed_files(tmp_path / "old"),
        live=LiveTopic(live),
        at=EPOCH + timedelta(seconds=3),
        by="at",
    )
    with SourceHarness(both.source_spec()) as harness:
        counted: Counter[str] = Counter()
        for _ in range(3):
            counted.update(harness.read().counters)
        assert [row["n"] for row in harness.rows()] == [0, 1, 2, 3, 4]
    assert counted == {"rows_after_handover": 1, "rows_before_handover": 3}


@pytest.mark.parametrize("may_be_null", [True, False])
def test_rows_of_live_without_a_time_fail_the_job_unless_their_schema_makes_them_bad(
    tmp_path: Path, may_be_null: bool
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "old/a.jsonl").write_text('{"at": "2026-01-01T00:00:00Z", "n": 0}\n')
    lines = ['{"n": 1}', '{"at": null, "n": 2}', '{"at": "2026-01-03T00:00:00Z", "n": 3}']
    (tmp_path / "new/a.jsonl").write_text("\n".join(lines) + "\n")

    def side(name: str, *, nullable: bool) -> Any:
        at = pa.field("at", pa.timestamp("us", "UTC"), nullable=nullable)
        schema = pa.schema([at, pa.field("n", pa.int64())])
        return pen.files(tmp_path / name / "*.jsonl", schema=schema, on_bad="divert")

    both = pen.concat_sources(
        history=side("old", nullable=True),
        live=side("new", nullable=may_be_null),
        at="2026-01-02",
        by="at",
    )
    with SourceHarness(both.source_spec()) as harness:
        if may_be_null:
            with pytest.raises(SchemaError, match="2 rows of the live side have no value"):
                harness.read_all()
            return
        harness.read_all()
        assert [row["n"] for row in harness.rows()] == [0, 3]
        assert [row["line"] for row in harness.rows("bad")] == [1, 2]


def test_what_explain_tells(live: LiveStream, tmp_path: Path) -> None:
    write_placed(tmp_path / "old", rows_of(1))
    both = pen.concat_sources(history=placed_files(tmp_path / "old"), live=LiveTopic(live))
    told = pipeline_of(both).explain()
    assert "concat_source" in told
    assert "*.parquet" in told
    assert "live_stream" in told
