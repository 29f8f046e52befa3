"""Previews run up to a stream over a few rows, and leave nothing behind."""

import datetime as dt
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors import memory
from penstock.errors import PenstockError, UserError
from penstock.operators import ArrowCollector, ArrowOperator, OperatorContext

AT = dt.datetime(2024, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
ROWS = [
    {"user": f"u{n % 3}", "n": n, "at": AT + dt.timedelta(seconds=n)} for n in range(100)
]


def a_pipeline(tmp_path: Path) -> tuple[pen.Pipeline, pen.Stream]:
    p = pen.Pipeline("p", parallelism=3)
    stream = p.read("rows", pen.list_source(ROWS, splits=3), event_time="at")
    stream.write("out", pen.files(str(tmp_path / "out"), "parquet"))
    return p, stream


def test_a_preview_shows_the_first_rows_and_touches_neither_sinks_nor_disk(
    tmp_path: Path,
) -> None:
    _, stream = a_pipeline(tmp_path)
    shown = stream.filter(pl.col("n") > 50).select("user", "n").preview(4)
    assert len(shown) == 4
    assert all(row["n"] > 50 for row in shown.rows())
    assert shown.arrow.column_names == ["user", "n"]
    assert not [*tmp_path.iterdir()]
    assert not [name for name in memory._LISTS if name.startswith("preview")]


def test_a_preview_changes_no_pipeline(tmp_path: Path) -> None:
    p, stream = a_pipeline(tmp_path)
    before = p.graph()
    stream.preview(1)
    assert p.graph() == before
    status = p.run_in_process(str(tmp_path / "checkpoints"))
    assert status.rows_read == len(ROWS)
    assert stream.preview(3, max_rows=10).arrow.num_rows == 3


def test_windows_aggregates_and_keyed_streams_are_previewed(tmp_path: Path) -> None:
    _, stream = a_pipeline(tmp_path)
    keyed = stream.key_by("user")
    assert len(keyed.preview(2)) == 2
    counts = keyed.window("w", pen.tumbling("1m")).aggregate(n=pen.count())
    assert sum(row["n"] for row in counts.preview(100).rows()) == len(ROWS)
    late = counts.side_output(pen.LATE).preview()
    assert len(late) == 0
    assert late.arrow.schema.names == ["user", "n", "at"]
    totals = keyed.aggregate("totals", n=pen.count())
    assert {row["user"] for row in totals.preview().rows()} == {"u0", "u1", "u2"}
    assert len(stream.union(stream).preview(150, max_rows=300)) == 150


def test_a_source_that_never_ends_ends_with_enough_rows_or_after_a_while() -> None:
    p = pen.Pipeline("p")
    numbers = p.read("numbers", pen.impulse(rate=1_000_000))
    assert len(numbers.preview(5)) == 5
    nothing = numbers.filter(pl.col("counter") < 0)
    assert len(nothing.preview(5, max_rows=2_000)) == 0
    slow = pen.Pipeline("q").read("numbers", pen.impulse(rate=0.1))
    assert len(slow.preview(5, timeout="200ms")) <= 1


def test_a_preview_whose_time_is_over_before_it_begins_ends_at_once() -> None:
    slow = pen.Pipeline("p").read("numbers", pen.impulse(rate=0.001))
    for timeout in ("1us", dt.timedelta(0)):
        assert len(slow.preview(5, timeout=timeout)) <= 1


def test_a_preview_prints_as_a_table_in_any_type(tmp_path: Path) -> None:
    kinds = pa.table(
        {
            "user": ["<ada>"],
            "wide": pa.array([1], pa.int64()).cast(pa.decimal256(40, 2)),
            "sort": pa.array(["a"]).dictionary_encode(),
        }
    )
    shown = pen.Pipeline("p").read("rows", pen.list_source(kinds)).preview()
    for part in ("user", "<ada>", "1.00", "shape: (1, 3)"):
        assert part in repr(shown)
    assert "&lt;ada&gt;" in shown._repr_html_()
    assert "<table" in shown._repr_html_()


def test_the_mistakes_of_a_pipeline_are_told_by_its_preview(tmp_path: Path) -> None:
    _, stream = a_pipeline(tmp_path)
    with pytest.raises(PenstockError, match="did you mean 'user'"):
        stream.select("usr").preview()


def test_a_preview_does_not_warn_of_bad_rows_that_the_pipeline_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, stream = a_pipeline(tmp_path)
    good = stream.map(lambda row: {**row, "n": 1 // row["n"]}, on_bad="divert")
    good.side_output(pen.BAD).write("bad", pen.files(str(tmp_path / "bad"), "parquet"))
    assert len(good.preview(5)) == 5
    assert not caplog.records


class Fails(ArrowOperator):
    """Cannot bear any row."""

    def name(self) -> str:
        return "fails"

    def process_batch(
        self, batch: pa.RecordBatch, ctx: OperatorContext, collector: ArrowCollector
    ) -> None:
        raise ValueError("no rows, please")


def test_what_fails_in_a_preview_is_raised(tmp_path: Path) -> None:
    _, stream = a_pipeline(tmp_path)
    with pytest.raises(PenstockError, match="no rows, please"):
        stream.process("fails", Fails()).preview()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"n": 0}, "n is 0: give a whole number"),
        ({"n": "all"}, "n is 'all'"),
        ({"max_rows": True}, "max_rows is True"),
        ({"timeout": "soon"}, "'soon' is not a valid timeout"),
    ],
)
def test_a_preview_of_no_sense_is_refused(options: Any, hint: str, tmp_path: Path) -> None:
    _, stream = a_pipeline(tmp_path)
    with pytest.raises(UserError) as raised:
        stream.preview(**options)
    assert hint in raised.value.message
