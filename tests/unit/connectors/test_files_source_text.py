"""Rows of text: what is a row, what is a bad one, and what types a file suggests."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.files.connector import files
from penstock.connectors.files.csv import CsvFormat
from penstock.connectors.files.formats import FileOffset, SourceFile
from penstock.connectors.files.jsonl import JsonLinesFormat
from penstock.connectors.memory import list_source
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD
from penstock.state.storage.memory import MemoryStore
from penstock.testing import SourceHarness
from tests.builders.files_job import SCHEMA


def read(
    path: Path, content: bytes, **options: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the good and the bad rows of one file."""
    path.write_bytes(content)
    spec = files(
        str(path), **{"schema": SCHEMA, "on_bad": "divert", **options}
    ).source_spec()
    with SourceHarness(spec) as harness:
        harness.read_all()
        return harness.rows(), harness.rows(BAD) if options.get("on_bad") != "fail" else []


def test_bad_lines_of_json_go_aside_with_line_text_and_reason(tmp_path: Path) -> None:
    lines = [
        b'{"n": 1, "s": "a"}',
        b"nonsense",
        b'{"n": "x"}',
        b'{"n": 2}{"n": 3}',
        b'{"n": 4,',
        b'"s": "b"}',
        b"[1]",
        b'{"s": "\xff"}',
        b'{"n": 5}',
    ]

    good, bad = read(tmp_path / "a.jsonl", b"\n".join(lines))

    assert [row["n"] for row in good] == [1, 5]
    assert [row["line"] for row in bad] == [2, 3, 4, 5, 6, 7, 8]
    assert {row["path"] for row in bad} == {"a.jsonl"}
    assert bad[0] == {
        "path": "a.jsonl",
        "line": 2,
        "text": "nonsense",
        "error": "it is not one JSON object",
    }
    assert bad[2]["error"] == "it holds 2 rows instead of one"


def test_bad_rows_of_csv_go_aside_and_lines_in_quotes_count(tmp_path: Path) -> None:
    content = b'n,s\n1,"a\nb"\nx,y\n2\n3,"c ""d"", e"\n4,\n,f\n5,"open\n'

    good, bad = read(tmp_path / "a.csv", content)

    assert good == [
        {"n": 1, "s": "a\nb"},
        {"n": 3, "s": 'c "d", e'},
        {"n": 4, "s": ""},
        {"n": None, "s": "f"},
    ]
    assert [(row["line"], row["text"]) for row in bad] == [
        (4, "x,y"),
        (5, "2"),
        (9, '5,"open'),
    ]
    assert bad[2]["error"] == "a quote is not closed"


@pytest.mark.slow
def test_many_bad_rows_are_given_in_several_pieces_that_leave_none_out() -> None:
    text = b"".join(b'{"n": %d}\n{"n": x}\n' % n for n in range(300))
    file = SourceFile(MemoryStore({"a.jsonl": text}), "a.jsonl", len(text))
    format_ = JsonLinesFormat(SCHEMA, ignores_extra=False)

    pieces = list(format_.read(file, FileOffset(len(text)), len(text)))

    assert [len(piece.bad) for piece in pieces] == [0, 256, 44]
    assert [row.line for p in pieces for row in p.bad] == list(range(2, 601, 2))
    good = [row["n"] for p in pieces for t in p.rows for row in t.to_pylist()]
    assert good == list(range(300))
    for piece in pieces[1:-1]:
        assert piece.next is not None
        rest = list(format_.read(file, piece.next, len(text)))
        bad = [row.line for p in rest for row in p.bad]
        assert bad == [line for line in range(2, 601, 2) if line > piece.next.lines]


def test_a_bad_row_fails_the_job_unless_told_otherwise(tmp_path: Path) -> None:
    content = b'{"n": 1}\n{"n": 2}\n{"n": oops}\n'

    with pytest.raises(UserError, match=r"a\.jsonl, line 3, cannot be read") as caught:
        read(tmp_path / "a.jsonl", content, on_bad="fail")

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT
    assert "'{\"n\": oops}'" in str(caught.value)


def test_a_long_bad_row_is_cut_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path / "a.jsonl", b'{"n": ' + b"x" * 10_000, on_bad="fail")

    assert len(str(caught.value)) < 1_000


def test_an_unknown_key_is_bad_if_the_schema_was_inferred(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"n": 1, "new": 2}\n')
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    spec = files(f"{tmp_path}/*.jsonl").source_spec()

    with (
        SourceHarness(spec) as harness,
        pytest.raises(UserError, match=r"b\.jsonl, line 1, .*it has the new column"),
    ):
        harness.read_all()


def test_a_null_where_the_schema_has_none_is_bad(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])

    good, bad = read(tmp_path / "a.jsonl", b'{"n": 1}\n{}\n{"n": 2}\n', schema=schema)
    others, empty = read(tmp_path / "a.csv", b"n,s\n1,a\n,b\n2,c\n", schema=schema)

    assert [row["n"] for row in good] == [row["n"] for row in others] == [1, 2]
    assert [(row["line"], row["text"]) for row in bad] == [(2, "{}")]
    assert [(row["line"], row["text"]) for row in empty] == [(3, ",b")]
    assert "column 'n' is null" in empty[0]["error"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'\xef\xbb\xbf{"n": 1, "s": "a"}\r\n\r\n  \n{"n": 2, "s": "b"}'),
        ("a.csv", b"\xef\xbb\xbfs,n\r\na,1\r\n\r\nb,2\r\n"),
    ],
)
def test_byte_order_marks_blank_lines_and_carriage_returns_are_no_rows(
    tmp_path: Path, name: str, content: bytes
) -> None:
    good, bad = read(tmp_path / name, content)

    assert good == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]
    assert bad == []


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="column 'n' occurs more than once"):
        read(tmp_path / "a.csv", b"n,s,n\n1,2,3\n")


def test_types_are_inferred_and_timestamps_have_room_for_microseconds(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text("n,s,t\n1,a,2026-01-01 00:00:00\n")
    (tmp_path / "a.jsonl").write_text('{"n": 1, "s": "a", "t": "2026-01-01 00:00:00"}\n')

    for name in ("a.csv", "a.jsonl"):
        config = files(f"{tmp_path}/{name}").source_spec().config
        schema = StreamSchema.from_bytes(bytes(config["schema"])).arrow  # type: ignore[arg-type]
        types = [str(field.type) for field in schema]
        assert types == ["int64", "string", "timestamp[us]"]


def test_a_column_without_values_cannot_be_inferred(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "s": null}\n')

    with pytest.raises(UserError, match="the types of 's'"):
        files(f"{tmp_path}/a.jsonl").source_spec()


def test_dates_and_times_are_read_from_json_text(tmp_path: Path) -> None:
    columns: list[tuple[str, pa.DataType]] = [("d", pa.date32()), ("t", pa.timestamp("us"))]
    schema = pa.schema(columns)
    content = b'{"d": "2026-01-02", "t": "2026-01-02T03:04:05.5"}\n{"d": "no"}\n'

    good, bad = read(tmp_path / "a.jsonl", content, schema=schema)

    instant = datetime.fromisoformat("2026-01-02T03:04:05.500000")
    assert good == [{"d": date(2026, 1, 2), "t": instant}]
    assert [row["line"] for row in bad] == [2]


def test_json_lines_are_read_in_the_forms_that_the_sink_writes(tmp_path: Path) -> None:
    columns: list[tuple[str, pa.DataType]] = [
        ("zoned", pa.timestamp("us", "UTC")),
        ("money", pa.decimal128(10, 2)),
        ("bytes", pa.binary()),
        ("time", pa.time64("us")),
        ("took", pa.duration("ms")),
        ("list", pa.list_(pa.int32())),
    ]
    schema = pa.schema(columns)
    row = {
        "zoned": datetime.fromisoformat("2026-01-01T00:00:00+00:00"),
        "money": Decimal("1.50"),
        "bytes": b"\xff\x00",
        "time": time(1, 2, 3, 4),
        "took": timedelta(seconds=5),
        "list": [1, 2],
    }
    rows = [row, dict.fromkeys(schema.names)]
    writing = Pipeline("writing")
    sink = files(f"{tmp_path}/out", format="jsonl")
    writing.read("in", list_source(rows, schema)).write("out", sink)
    writing.run_in_process("memory:")
    spec = files(f"{tmp_path}/out", format="jsonl", schema=schema).source_spec()

    with SourceHarness(spec) as harness:
        harness.read_all()
        assert harness.rows() == rows


@pytest.mark.parametrize(
    ("column", "line"),
    [(pa.binary(), b'{"n": "?"}'), (pa.time64("us"), b'{"n": "25:00:00"}')],
)
def test_text_that_is_not_of_its_form_is_bad(
    tmp_path: Path, column: pa.DataType, line: bytes
) -> None:
    good, bad = read(tmp_path / "a.jsonl", line, schema=pa.schema([("n", column)]))

    assert good == []
    assert bad[0]["error"].startswith(f"a text is no {column}")


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_types_that_text_has_no_form_for_are_refused_at_once(format_: Any) -> None:
    schema = pa.schema([("n", pa.map_(pa.string(), pa.int64()))])

    with pytest.raises(SchemaError, match="a type that text is not read as"):
        files("memory:none/", format=format_, schema=schema).source_spec()


def test_quotes_inside_of_fields_make_rows_bad_up_to_the_next_one(tmp_path: Path) -> None:
    content = b'n,s\n1,a\n2,5" b\n3,6" c\n4,"d"e\n5,f\n'

    good, bad = read(tmp_path / "a.csv", content)

    assert [row["n"] for row in good] == [1, 5]
    assert [row["text"] for row in bad] == ['2,5" b\n3,6" c', '4,"d"e']
    assert {row["error"] for row in bad} == {
        "a quote stands inside of a field, and is not doubled"
    }


def test_rows_end_at_newlines_outside_of_quotes() -> None:
    reader = CsvFormat(SCHEMA, ignores_extra=False)
    assert reader.find_row_ends(b'a,b\n"x\ny",""\nz').tolist() == [4, 13]
    assert np.array_equal(reader.find_row_ends(b""), [])


def test_rows_longer_than_a_piece_are_read_whole_and_endless_ones_refused() -> None:
    text = b'{"s": "' + b"x" * 500_000 + b'"}\n{"n": 1}\n'
    file = SourceFile(MemoryStore({"a.jsonl": text}), "a.jsonl", len(text))
    small = JsonLinesFormat(SCHEMA, ignores_extra=False, piece_bytes=16)
    bounded = JsonLinesFormat(
        SCHEMA, ignores_extra=False, piece_bytes=16, max_row_bytes=100_000
    )
    start = FileOffset(len(text))

    pieces = list(small.read(file, start, len(text)))

    assert [r["n"] for p in pieces for t in p.rows for r in t.to_pylist()] == [None, 1]
    assert pieces[-1].is_last
    with pytest.raises(UserError, match="no end of a row within"):
        list(bounded.read(file, start, len(text)))


def test_a_header_without_an_end_is_refused() -> None:
    text = b"x" * 200_000
    file = SourceFile(MemoryStore({"a.csv": text}), "a.csv", len(text))
    format_ = CsvFormat(SCHEMA, ignores_extra=False, max_row_bytes=100_000)

    with pytest.raises(UserError, match="has no header"):
        list(format_.read(file, FileOffset(len(text)), len(text)))
