import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.files.connector import files
from penstock.connectors.formats.json_text import (
    find_json_problems,
    from_json_lines,
    to_json_lines,
)
from penstock.errors import SchemaError
from penstock.graph.logical import BAD
from penstock.testing import SourceHarness
from tests.builders.graphs import schema_of

FORMS: dict[str, tuple[Any, Any, Any]] = {
    "bool": (pa.bool_(), True, True),
    "integer": (pa.int64(), 2**62, 2**62),
    "unsigned": (pa.uint64(), 2**63, 2**63),
    "float": (pa.float64(), 0.1, 0.1),
    "half": (pa.float16(), 1.5, 1.5),
    "text": (pa.string(), 'a"\n\u2028é', 'a"\n\u2028é'),
    "large text": (pa.large_string(), "a", "a"),
    "categories": (pa.dictionary(pa.int32(), pa.string()), "a", "a"),
    "date": (pa.date32(), date(2026, 1, 2), "2026-01-02"),
    "time": (pa.time64("us"), time(1, 2, 3, 500_000), "01:02:03.500"),
    "instant": (
        pa.timestamp("us"),
        datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 (it has no zone)
        "2026-01-02 03:04:05",
    ),
    "instant with a zone": (
        pa.timestamp("us", "UTC"),
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "2026-01-02T03:04:05+00:00",
    ),
    "duration": (pa.duration("ms"), timedelta(seconds=2), 2000),
    "decimal": (pa.decimal128(10, 2), Decimal("1.20"), "1.20"),
    "binary": (pa.binary(), b"\xff\x00", "/wA="),
    "large binary": (pa.large_binary(), b"", ""),
    "fixed binary": (pa.binary(2), b"ab", "YWI="),
    "list": (pa.list_(pa.int64()), [1, None], [1, None]),
    "struct": (pa.struct([("a", pa.string())]), {"a": None}, {"a": None}),
    "large list": (pa.large_list(pa.int8()), [1], [1]),
    "halves": (pa.list_(pa.float16()), [1.5], [1.5]),
    "dates": (pa.list_(pa.date32()), [date(2026, 1, 2), None], ["2026-01-02", None]),
    "large list of dates": (pa.large_list(pa.date64()), [date(2026, 1, 2)], ["2026-01-02"]),
    "times": (
        pa.struct([("a", pa.time32("ms")), ("b", pa.list_(pa.time64("us")))]),
        {"a": time(1, 2, 3), "b": [None, time(1, 2, 3)]},
        {"a": "01:02:03", "b": [None, "01:02:03"]},
    ),
    "nothing": (pa.null(), None, None),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_value_has_its_form_and_comes_back(name: str) -> None:
    kind, value, form = FORMS[name]
    rows = pa.table({"x": pa.array([value, None], kind)})
    data = to_json_lines(rows)
    assert [json.loads(line) for line in data.splitlines()] == [{"x": form}, {"x": None}]
    assert find_json_problems(rows.schema) == []
    assert from_json_lines(data, rows.schema).to_pylist() == rows.to_pylist()
    assert from_json_lines(data, rows.schema).schema == rows.schema


@pytest.mark.parametrize("name", FORMS)
def test_the_source_reads_whatever_the_sink_writes(name: str, tmp_path: Path) -> None:
    kind, value, _ = FORMS[name]
    rows = pa.table({"x": pa.array([value, None, value], kind)})
    (tmp_path / "a.jsonl").write_bytes(to_json_lines(rows))
    spec = files(f"{tmp_path}/a.jsonl", schema=rows.schema).source_spec()

    with SourceHarness(spec) as harness:
        harness.read_all()

        assert harness.rows() == rows.to_pylist()


def test_a_wrong_value_inside_of_a_list_makes_its_row_bad(tmp_path: Path) -> None:
    lines = '{"x": ["2026-01-02"]}\n{"x": ["yesterday"]}\n{"x": [null]}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    schema = pa.schema([("x", pa.list_(pa.date32()))])
    spec = files(f"{tmp_path}/a.jsonl", schema=schema, on_bad="divert").source_spec()

    with SourceHarness(spec) as harness:
        harness.read_all()

        assert harness.rows() == [{"x": [date(2026, 1, 2)]}, {"x": [None]}]
        assert [row["line"] for row in harness.rows(BAD)] == [2]


@pytest.mark.parametrize(
    "kind", [pa.month_day_nano_interval(), pa.list_(pa.month_day_nano_interval())]
)
def test_an_interval_is_refused_before_anything_is_read(
    kind: pa.DataType, tmp_path: Path
) -> None:
    with pytest.raises(SchemaError, match=r"month_day_nano_interval.*as text"):
        files(f"{tmp_path}/a.jsonl", schema=pa.schema([("x", kind)])).source_spec()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_null(value: float) -> None:
    assert to_json_lines(pa.table({"x": [value]})) == b'{"x":null}\n'


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.binary(2)),
        pa.struct([("a", pa.duration("s"))]),
        pa.struct([]),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.month_day_nano_interval(),
        pa.decimal256(50, 2),
        pa.list_(pa.decimal256(50, 2)),
        pa.decimal128(5, -2),
        pa.timestamp("us", "+05:30"),
        pa.struct([("a", pa.timestamp("us", "-01:00"))]),
    ],
)
def test_a_type_without_a_form_is_named(kind: pa.DataType) -> None:
    [problem] = find_json_problems(schema_of(fine=pa.int8(), odd=kind))
    assert "'odd'" in problem
    assert "cast it" in problem


def test_bytes_inside_of_lists_and_structs_are_read_back() -> None:
    pair = pa.struct([("name", pa.string()), ("value", pa.binary())])
    parts = pa.list_(pa.large_binary())
    columns: list[Any] = [("headers", pa.list_(pair)), ("parts", parts)]
    schema = pa.schema(columns)
    rows = pa.table(
        {
            "headers": [[{"name": "a", "value": b"\xff\x00"}, None], None, []],
            "parts": [[b"", None], [], None],
        },
        schema,
    )
    assert from_json_lines(to_json_lines(rows), schema).to_pylist() == rows.to_pylist()


def test_no_rows_are_no_lines() -> None:
    schema = pa.schema([("x", pa.int64())])
    assert to_json_lines(schema.empty_table()) == b""
    assert from_json_lines(b"", schema).schema == schema


def test_a_long_line_is_read_whole() -> None:
    rows = pa.table({"x": ["a" * 3_000_000, "b"]})
    assert from_json_lines(to_json_lines(rows), rows.schema) == rows


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "text": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
                "data": st.none() | st.binary(max_size=20),
                "at": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001
                "day": st.none() | st.dates(),
                "cents": st.none() | st.decimals(-(10**8), 10**8, places=2),
            }
        ),
        min_size=1,
        max_size=20,
    )
)
def test_rows_come_back_as_they_went(rows: list[dict[str, Any]]) -> None:
    schema = schema_of(
        text=pa.string(),
        data=pa.binary(),
        at=pa.timestamp("us"),
        day=pa.date32(),
        cents=pa.decimal128(12, 2),
    )
    table = pa.Table.from_pylist(rows, schema)
    data = to_json_lines(table)
    assert data.count(b"\n") == len(rows)
    assert from_json_lines(data, schema).to_pylist() == table.to_pylist()
