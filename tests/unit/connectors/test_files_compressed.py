"""Compressed text files: read by every codec, resumed, planned, and refused when damaged."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.files.compressed import COMPRESSIONS, CompressedText
from penstock.connectors.files.connector import files
from penstock.connectors.files.formats import Allowance, FileOffset, SourceFile
from penstock.connectors.files.jsonl import JsonLinesFormat
from penstock.errors import ErrorCode, UserError
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.urls import open_store
from penstock.testing import SourceHarness
from tests.builders.files_job import compress

COLUMNS: list[tuple[str, pa.DataType]] = [("n", pa.int64()), ("s", pa.string())]
SCHEMA = pa.schema(COLUMNS)


def lines(count: int) -> bytes:
    return b"".join(
        json.dumps({"n": n, "s": f"{n:09}"}).encode() + b"\n" for n in range(count)
    )


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(compress(path.suffix[1:], text))
    return path


def read_all(path: Path, rows: int, **options: Any) -> list[int]:
    spec = files(str(path), **{"schema": SCHEMA, **options}).source_spec()
    with SourceHarness(spec) as harness:
        harness.read_all(rows=rows)
        return [row["n"] for row in harness.rows()]


@pytest.mark.parametrize("ending", COMPRESSIONS)
def test_every_compression_is_read(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"a.jsonl{ending}", lines(1_000))
    assert read_all(path, 10_000) == list(range(1_000))


@pytest.mark.parametrize("rows", [1, 7, 400])
def test_epochs_go_on_where_the_last_one_stopped(tmp_path: Path, rows: int) -> None:
    path = write(tmp_path / "a.jsonl.gz", lines(60))
    assert read_all(path, rows) == list(range(60))


def test_the_columns_of_compressed_files_are_told_by_their_first_rows(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.csv.zst", b"n,s\n1,a\n2,b\n")
    spec = files(str(path)).source_config()
    assert b"n" in spec.schema
    assert read_all(path, 10, schema=None) == [1, 2]


def test_files_that_are_compressed_and_others_may_be_in_one_folder(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl.gz", lines(2))
    (tmp_path / "b.jsonl").write_bytes(lines(3))
    assert read_all(tmp_path / "*", 100, format="jsonl") == [0, 1, 0, 1, 2]


def test_an_empty_text_has_no_rows_and_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", b"")
    assert read_all(path, 10) == []


@pytest.mark.parametrize("damage", ["cut", "other", "junk"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.jsonl.gz", lines(5_000))
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-9], "other": lines(9), "junk": data + b"junk"}[damage])
    with pytest.raises(UserError, match="cannot be decompressed as gzip") as caught:
        read_all(path, 100_000)
    assert caught.value.code is ErrorCode.UNREADABLE_INPUT
    assert caught.value.context["path"] == "a.jsonl.gz"


def a_file(text: bytes, ending: str = ".gz") -> SourceFile:
    data = compress(ending[1:], text)
    return SourceFile(MemoryStore({f"f{ending}": data}), f"f{ending}", len(data))


def test_a_plan_takes_many_small_files_and_never_more_than_fits() -> None:
    text = lines(20_000)
    file = a_file(text)
    reader = JsonLinesFormat(SCHEMA, ignores_extra=True)
    start = FileOffset(file.size_bytes)
    small = reader.reach(file, start, Allowance(1_000, 1 << 30, is_first=True))
    assert small is not None
    assert small.rows <= 1_000
    assert not small.is_whole
    large = reader.reach(file, start, Allowance(10**7, 1 << 30, is_first=False))
    assert large is not None
    assert large.end >= len(text)
    assert large.is_whole
    assert 10_000 < large.rows < 40_000
    assert reader.reach(file, start, Allowance(0, 0, is_first=False)) is None


def test_memory_holds_a_window_of_a_text_that_is_skipped() -> None:
    text = CompressedText(a_file(lines(10_000)), "gzip", block_bytes=1_000)
    assert text.read(200_000, 10) == lines(10_000)[200_000:200_010]
    assert len(text._held) < 2_500
    assert text.read(0, 5) == lines(1)[:5]
    assert text.read(100_000, 10) == lines(10_000)[100_000:100_010]


def test_a_text_that_was_left_is_not_decompressed_again(tmp_path: Path) -> None:
    text = lines(50_000)
    write(tmp_path / "a.jsonl.gz", text)
    store = open_store(str(tmp_path))
    file = SourceFile(store, "a.jsonl.gz", (tmp_path / "a.jsonl.gz").stat().st_size)
    reader = JsonLinesFormat(SCHEMA, ignores_extra=True, piece_bytes=1_000)
    at, found = FileOffset(file.size_bytes), []
    for end in (50_000, 100_000, 10**9):
        before = list(CompressedText._left_open)
        for piece in reader.read(file, at, end):
            at = piece.next or at
            found += [row["n"] for part in piece.rows for row in part.to_pylist()]
        assert bool(before) == (end > 50_000)
    assert found == list(range(50_000))
    assert not CompressedText._left_open


def test_a_retry_reads_the_same_rows_after_the_text_was_left_elsewhere(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.jsonl.zst", lines(1_000))
    file = SourceFile(
        open_store(str(tmp_path)), "a.jsonl.zst", (tmp_path / "a.jsonl.zst").stat().st_size
    )
    reader = JsonLinesFormat(SCHEMA, ignores_extra=True, piece_bytes=100)
    start = FileOffset(file.size_bytes)

    def read(end: int) -> list[Any]:
        pieces = list(reader.read(file, start, end))
        return [row for piece in pieces for part in piece.rows for row in part.to_pylist()]

    first = read(5_000)
    assert first
    assert read(5_000) == first
    assert len(read(10**9)) == 1_000


@pytest.mark.parametrize("path", ["a.jsonl.xz", "a.csv.snappy", "a.json.zip"])
def test_what_arrow_cannot_decompress_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="compressed so is not read"):
        files(path)
