"""What the suite `nexmark` measures is every query, over the same events, drawn as it was measured."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from benchmarks import nexmark_events, nexmark_peer, nexmark_report
from benchmarks.nexmark import FLINK, columns_of
from examples.nexmark.__main__ import queries
from examples.nexmark.site import KINDS, Kind, Site, generated, stored
from penstock.core.clock import new_token

EVENTS = 2_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two files of mixed events."""
    found = tmp_path_factory.mktemp("events")
    for number in range(2):
        start = number * EVENTS // 2
        rows = nexmark_events.events(start, start + EVENTS // 2)
        pq.write_table(rows, found / f"{number}.parquet")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_events_are_those_of_the_generator(folder: Path, kind: Kind) -> None:
    found = []
    columns = nexmark_events.COLUMNS
    for read in (
        generated(EVENTS),
        stored(folder, nexmark_events.schema_of(), columns),
    ):
        pipeline, out = pen.Pipeline("p"), pen.list_sink(new_token())
        read(pipeline, kind).write("out", out)
        pipeline.run_in_process("memory:")
        rows = pa.Table.from_batches(out.batches()).select(columns[kind])
        found.append(
            [
                {name: _without_zone(value) for name, value in row.items()}
                for row in rows.to_pylist()
            ]
        )
    assert found[0] == found[1]


def _without_zone(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@pytest.mark.parametrize("name", queries())
def test_a_query_finds_its_columns_among_those_that_are_read(
    folder: Path, name: str
) -> None:
    schema, columns = columns_of(name)
    pipeline = pen.Pipeline("p")
    result = queries()[name](Site(pipeline, stored(folder, schema, columns)))
    result.write("out", pen.blackhole())
    assert pipeline.graph().nodes


def test_the_peer_has_each_query_or_a_reason() -> None:
    for name in queries():
        assert (name in nexmark_peer.QUERIES) != (name in nexmark_peer.CANNOT)
    assert set(FLINK) <= {f"q{n}" for n in range(23)} - {"q6"}


def test_figures_become_a_picture_and_a_table() -> None:
    measured: dict[str, Any] = {"name": "q5", "per_core": 80_000, "flink_per_core": 75_000}
    rows: list[dict[str, Any]] = [
        {**measured, "ratio_flink": 1.07, "rocksdb_per_core": 9_000}
        | {"default_per_core": 30_000, "ratio_rocksdb": 8.9, "ratio_default": 2.7},
        {"name": "q9", "per_core": 7_000, "flink_per_core": 14_000}
        | {"ratio_flink": 0.5, "peer_cannot": "a ranking is refused"},
        {"name": "q3", "error": "OSError: no space"},
    ]
    picture = ET.fromstring(nexmark_report.draw(rows))  # noqa: S314 (our own)
    texts = [element.text for element in picture.iter() if element.text]
    assert {"80 k", "7 k", "failed", "q5", "q9"} <= set(texts)
    table = nexmark_report.table(rows)
    assert "| q5 | 80 | 75 | 1.1x | 9.0 / 30 | 8.9x / 2.7x |" in table
    assert "| q9 | 7.0 | 14 | 0.50x | cannot: a ranking is refused |  |" in table
    assert "reached by 1 of 2 queries, missed by q9." in table


def test_queries_that_were_measured_again_replace_their_rows(tmp_path: Path) -> None:
    files = [tmp_path / "first.json", tmp_path / "second.json"]
    rows = [
        [{"suite": "nexmark", "name": name, "per_core": n} for name in names]
        for n, names in enumerate((["q10", "q2"], ["q10", "q3"]))
    ]
    for file, some in zip(files, rows, strict=True):
        other = {"suite": "tumbling", "name": "tumbling"}
        file.write_text(json.dumps({"rows": [other, *some]}))
    found = [(row["name"], row["per_core"]) for row in nexmark_report.read_rows(files)]
    assert found == [("q2", 0), ("q3", 1), ("q10", 1)]


def test_the_page_has_a_place_for_the_figures() -> None:
    page = nexmark_report.PAGE.read_text(encoding="utf-8")
    assert page.index(nexmark_report.BEGIN) < page.index(nexmark_report.END)
    assert nexmark_report.PICTURE.exists()
