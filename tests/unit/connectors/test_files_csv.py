"""Line ends of CSV: every row that is not blank is read or is bad, wherever reading is cut."""

import csv
import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.files.compressed import open_text
from penstock.connectors.files.csv import CsvFormat
from penstock.connectors.files.formats import BadRow, FileOffset, Piece, SourceFile
from penstock.connectors.files.text import Heading
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.memory import MemoryStore

Row = tuple[str, ...]
Read = tuple[list[Row], list[BadRow]]
WHOLE = 1 << 20
"""A piece that holds every file of these tests."""


def a_file(data: bytes) -> SourceFile:
    return SourceFile(MemoryStore({"a.csv": data}), "a.csv", len(data))


def a_reader(columns: str = "ab", piece_bytes: int = WHOLE) -> CsvFormat:
    schema = pa.schema([(name, pa.string()) for name in columns])
    return CsvFormat(schema, ignores_extra=False, piece_bytes=piece_bytes)


def read_heading(file: SourceFile) -> Heading:
    return a_reader().read_heading(file, open_text(file))


def gather(pieces: list[Piece]) -> Read:
    rows = [row for piece in pieces for part in piece.rows for row in part.to_pylist()]
    return [tuple(row.values()) for row in rows], [b for piece in pieces for b in piece.bad]


def read(data: bytes, columns: str = "ab", piece_bytes: int = WHOLE) -> Read:
    """Return the good and the bad rows of a file, read in one go."""
    reader = a_reader(columns, piece_bytes)
    return gather(list(reader.read(a_file(data), FileOffset(len(data)), len(data))))


def read_in_parts(data: bytes, columns: str, piece_bytes: int, cuts: list[int]) -> Read:
    """Return the same, read in epochs that end at the cuts, each by another reader."""
    pieces: list[Piece] = []
    at = FileOffset(len(data))
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        if at.position > end:
            continue
        reader = a_reader(columns, piece_bytes)
        for piece in reader.read(a_file(data), at, end):
            pieces.append(piece)
            assert piece.next is not None
            at = piece.next
    assert (at.position, at.lines) == (len(data), data.count(b"\n"))
    return gather(pieces)


def rows_of(text: bytes) -> list[bytes]:
    """Return what stands between newlines outside of quotes, without blank rows."""
    found, row, is_open = [], b"", False
    for character in (text[i : i + 1] for i in range(len(text))):
        row += character
        is_open ^= character == b'"'
        if character == b"\n" and not is_open:
            found.append(row)
            row = b""
    return [row for row in [*found, row] if row.strip(b"\r\n")]


def fields_of(row: bytes) -> list[Row]:
    """Return a row as Python reads it; several if a carriage return parts it."""
    return [tuple(f) for f in csv.reader(io.StringIO(row.decode(), newline="")) if f]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (b"w,0\n\rx,1\ny,2\n", "wxy"),
        (b"\rx,1\n", "x"),
        (b"\r\rx,1", "x"),
        (b'w,0\n\r"x",1\n', "wx"),
        (b"w,0\r\r\nx,1\r\r\n", "wx"),
        (b"w,0\r\n\r\n\r\r\n\nx,1\r", "wx"),
        (b"\r\n\r", ""),
    ],
)
def test_carriage_returns_before_and_after_rows_hide_none(
    rows: bytes, expected: str
) -> None:
    good, bad = read(b"a,b\n" + rows)

    assert [row[0] for row in good] == list(expected)
    assert bad == []


def test_files_whose_lines_end_the_wrong_way_round_are_read() -> None:
    assert read(b"a,b\n\rw,0\n\rx,1\n\r") == ([("w", "0"), ("x", "1")], [])


def test_a_carriage_return_inside_of_a_row_makes_it_bad() -> None:
    good, bad = read(b"a,b\nw,0\nx,1\rX,1\ny,2\n")

    assert good == [("w", "0"), ("y", "2")]
    assert [(row.line, row.text) for row in bad] == [(3, b"x,1\rX,1")]


@pytest.mark.parametrize("piece_bytes", [1, WHOLE])
def test_white_space_and_marks_are_text_wherever_a_piece_begins(piece_bytes: int) -> None:
    data = "a\n  \n\ufeffx\n\t\n\ufeff\n".encode()

    good, bad = read(data, "a", piece_bytes)

    assert good == [("  ",), ("\ufeffx",), ("\t",), ("\ufeff",)]
    assert bad == []


@pytest.mark.parametrize(
    "data", [b"a,b\rw,0\rx,1\r", b"a,b\rw,0\n", b'a,b"\nw,0\nx,1"\ny,2\n']
)
def test_a_header_that_hides_rows_is_refused(data: bytes) -> None:
    for look in (CsvFormat.infer, read_heading):
        with pytest.raises(UserError, match="goes on with 'w,0'") as caught:
            look(a_file(data))
        assert caught.value.code is ErrorCode.UNREADABLE_INPUT


def test_a_header_with_a_quote_that_is_never_closed_is_refused() -> None:
    for look in (CsvFormat.infer, read_heading):
        with pytest.raises(UserError, match="cannot be read: unexpected end of data"):
            look(a_file(b'a,"b\n1,2\n3,4\n'))


@pytest.mark.parametrize("header", [b'a,"b\rc"\n', b"a,b\r\r\n", b"\ra,b\r\n"])
def test_a_header_may_have_carriage_returns_that_hide_nothing(header: bytes) -> None:
    columns: Any = ["a", "b\rc"] if b'"' in header else "ab"

    assert read(header + b"w,0\n", columns) == ([("w", "0")], [])


@given(
    text=st.text(st.sampled_from('\r\r\n\n""aé, \ufeff'), max_size=40),
    columns=st.sampled_from(["a", "ab"]),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    piece_bytes=st.integers(1, 16),
)
@settings(max_examples=400)
def test_every_row_is_read_or_bad_wherever_reading_is_cut(
    text: str, columns: str, cuts: list[int], piece_bytes: int
) -> None:
    header = ",".join(columns).encode() + b"\n"
    data = header + text.encode()

    good, bad = read(data, columns)

    rows = rows_of(text.encode())
    alone = [read(header + row, columns) for row in rows]
    assert [len(g) + len(b) for g, b in alone] == [1] * len(rows)
    assert good == [row for g, _ in alone for row in g]
    assert good == [
        f for row, (g, _) in zip(rows, alone, strict=True) if g for f in fields_of(row)
    ]
    assert [(r.text, r.error) for r in bad] == [
        (r.text, r.error) for _, b in alone for r in b
    ]
    assert read_in_parts(data, columns, piece_bytes, cuts) == (good, bad)
