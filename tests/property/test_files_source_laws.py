"""However epochs cut files, and whoever reads them: the rows are those of the files, once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.files.connector import files
from penstock.connectors.files.csv import CsvFormat
from penstock.connectors.files.formats import FileFormat, FileOffset, SourceFile
from penstock.connectors.files.jsonl import JsonLinesFormat
from penstock.connectors.files.text import TextFormat
from penstock.operators.splits import SourceBudget
from penstock.state.storage.memory import MemoryStore
from penstock.state.storage.urls import open_store
from penstock.testing import SourceHarness
from tests.builders.files_job import SCHEMA, compress, to_bytes

LINES = ('{"n": 1}', "", "bad", '{"n": "x"}', "{}{}", "{", "}", '{"n": {}', "}, {}")
KINDS: dict[str, type[TextFormat]] = {"jsonl": JsonLinesFormat, "csv": CsvFormat}
FORMATS = ("parquet", "jsonl", "csv", "jsonl.gz", "csv.zst")
texts = st.text(st.sampled_from('ab",\n\r é'), max_size=6)
"""With quotes and newlines; no text that CSV could not tell from a blank line."""
contents = st.lists(st.lists(texts, max_size=12), min_size=1, max_size=4)
steps = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), max_size=6)
"""Per epoch: rows that may be read, and the parallelism after it."""


def numbered(content: list[list[str]]) -> list[list[dict[str, Any]]]:
    return [
        [{"n": 100 * index + n, "s": text} for n, text in enumerate(file)]
        for index, file in enumerate(content)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("ending", FORMATS)
@given(content=contents, steps=steps)
@settings(max_examples=25)
def test_all_epochs_together_read_what_the_files_hold(
    ending: str, content: list[list[str]], steps: list[tuple[int, int]]
) -> None:
    format_ = ending.partition(".")[0]
    name = f"files-source-laws-{ending}"
    store = open_store(f"memory:{name}")
    for info in list(store.list("")):
        store.delete(info.path)
    rows = numbered(content)
    for index, part in enumerate(rows):
        data = compress(ending, to_bytes(format_, part, row_group_size=3))
        store.put(f"in/{index}.{ending}", data)
    spec = files(f"memory:{name}/in/*", format=format_, schema=SCHEMA).source_spec()

    with SourceHarness(spec, budget=SourceBudget(size_bytes=200)) as harness:
        for row_count, parallelism in steps:
            harness.read(rows=row_count)
            harness.rescale(parallelism)
        harness.read_all(rows=20)

        read = harness.rows()
    for index, part in enumerate(rows):
        # A file's own rows keep their order.
        assert [row for row in read if row["n"] // 100 == index] == part
    assert len(read) == sum(map(len, rows))


@pytest.mark.parametrize("ending", ["", "gz", "bz2"])
@pytest.mark.parametrize("name", KINDS)
@given(
    content=st.lists(texts, max_size=20),
    cuts=st.lists(st.integers(0, 400), max_size=5),
    piece_bytes=st.integers(1, 64),
)
def test_ranges_that_touch_read_every_row_once_whatever_they_cut(
    name: str,
    ending: str,
    content: list[str],
    cuts: list[int],
    piece_bytes: int,
) -> None:
    rows = [{"n": n, "s": text} for n, text in enumerate(content)]
    data = to_bytes(name, rows)
    stored, path = compress(ending, data), f"f.{ending}"
    file = SourceFile(MemoryStore({path: stored}), path, len(stored))
    reader: FileFormat = KINDS[name](SCHEMA, ignores_extra=False, piece_bytes=piece_bytes)
    at = FileOffset(len(stored))
    found: list[dict[str, Any]] = []
    for end in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        if at.position > end:
            continue
        for piece in reader.read(file, at, end):
            assert not piece.bad
            found += [row for part in piece.rows for row in part.to_pylist()]
            assert piece.next is not None
            at = piece.next

    assert found == rows
    assert at.position == len(data)
    assert at.lines == data.count(b"\n")


@given(lines=st.lists(st.sampled_from(LINES)))
def test_every_line_is_either_read_or_bad(lines: list[str]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    file = SourceFile(MemoryStore({"f": data}), "f", len(data))
    reader = JsonLinesFormat(SCHEMA, ignores_extra=False)

    pieces = list(reader.read(file, FileOffset(len(data)), len(data)))

    good = sum(table.num_rows for piece in pieces for table in piece.rows)
    bad = [row.line for piece in pieces for row in piece.bad]
    assert good == lines.count('{"n": 1}')
    assert bad == [n for n, line in enumerate(lines, 1) if line and line != '{"n": 1}']
