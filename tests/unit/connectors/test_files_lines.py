"""Lines of text as rows: what is a line, and that none is lost, doubled or changed."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.files.connector import files
from penstock.errors import SchemaError, UserError
from penstock.graph.logical import BAD
from penstock.testing import SourceHarness

TEXT = b'\xef\xbb\xbffirst\n\n{"a": 1}\r\n"quoted\nx\ry\n  a\x00b  \n\xff\nl\xc3\xa4st'
LINES = ["first", "", '{"a": 1}', '"quoted', "x\ry", "  a\x00b  ", "läst"]


def read(
    path: Path, rows: int | None = None, **options: Any
) -> tuple[list[Any], list[Any]]:
    """Return all rows and all bad ones, read so many at a time."""
    spec = files(path, format="text", on_bad="divert", **options).source_spec()
    with SourceHarness(spec) as harness:
        harness.read_all(rows=rows)
        return harness.rows(), harness.rows(BAD)


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize("name", ["a.log", "a.log.gz"])
def test_every_line_is_a_row_as_it_is(tmp_path: Path, name: str, rows: int | None) -> None:
    data = gzip.compress(TEXT) if name.endswith(".gz") else TEXT
    (tmp_path / name).write_bytes(data)
    found, bad = read(tmp_path / name, rows)
    assert [row["value"] for row in found] == LINES
    assert [(row["line"], row["text"]) for row in bad] == [(7, "\ufffd")]


def test_folders_tell_the_other_columns(tmp_path: Path) -> None:
    (tmp_path / "day=mon").mkdir()
    (tmp_path / "day=mon/a.log").write_text("one\ntwo\n")
    pattern = tmp_path / "*/*.log"
    expected = [{"line": "one", "day": "mon"}, {"line": "two", "day": "mon"}]
    assert read(pattern, schema={"line": str, "day": str})[0] == expected
    assert read(pattern)[0][0] == {"value": "one", "day": "mon"}
    with pytest.raises(SchemaError, match="'hour' is missing"):
        read(pattern, schema={"line": str, "hour": str})


def test_what_lines_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="has to be text"):
        read(tmp_path / "a.log", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(UserError, match="one column"):
        files("a.log", format="text", on_missing="null")
    with pytest.raises(UserError, match="text is only read"):
        files("out", format="text").sink_spec()
