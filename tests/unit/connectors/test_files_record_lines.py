"""Lines of files as records: the same bytes are the same rows, and the same bad ones, as in Kafka."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.connectors.files.formats import FileOffset, SourceFile
from penstock.connectors.files.record_lines import RecordLines
from penstock.connectors.formats.registry import record_format
from penstock.connectors.kafka.positions import Partition
from penstock.connectors.kafka.records import Chunk, to_rows
from penstock.connectors.kafka.records import Piece as KafkaPiece
from penstock.core.clock import new_token
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD
from penstock.state.storage.memory import MemoryStore
from penstock.testing import SourceHarness
from tests.builders.files_job import compress
from tests.unit.connectors.test_formats_debezium import change
from tests.unit.connectors.test_formats_drift import GOOD, MISSING, NEW, NULL, ORDERS, WIDER

OWN = f"{__name__}:Pipes"
WRAPPED = b'{"schema": {"fields": []}, "payload": %b}'
LINES = [
    change(GOOD),
    WRAPPED % change(NEW, before=GOOD, op=b"u"),
    b"no record",
    change(MISSING),
    b'{"id": 5}',
    WRAPPED % b"null",
    change(NULL, op=b"r"),
    b"\xff\xfe",
    change(WIDER),
    b"  " + change(b"null", before=GOOD, op=b"d") + b"\t",
    b'{"before": null, "after": {"id": 7, "item": "\\u2028"}, "op": "c"}',
]
RULES: list[dict[str, Any]] = [{}, {"on_new": "bad"}, {"on_wider": "cast"}]


class Pipes(pen.RecordFormat):
    """Fields of text between pipes; as a format of somebody else's."""

    def __init__(self, schema: pa.Schema | None = None, *, separator: str = "|") -> None:
        self.schema = schema or pa.schema([("left", pa.string()), ("right", pa.string())])
        self._separator = separator

    def decode(self, values: Any, keys: Any = None) -> pen.Decoded:
        assert keys is None
        fields = [value.decode().split(self._separator) for value in values.to_pylist()]
        good = [n for n, found in enumerate(fields) if len(found) == len(self.schema)]
        bad = [
            pen.BadRecord(n, f"it has {len(found)} fields")
            for n, found in enumerate(fields)
            if len(found) != len(self.schema)
        ]
        rows = [dict(zip(self.schema.names, fields[n], strict=True)) for n in good]
        taken = np.array(good, dtype=np.int64)
        return pen.Decoded(pa.Table.from_pylist(rows, self.schema), taken, bad)

    def encode(self, rows: pa.Table) -> Any:
        raise NotImplementedError


class Keyed(Pipes):
    """A format that looks at keys."""

    @property
    def reads_keys(self) -> bool:
        return True


def read(
    path: Path, rows: int | None = None, **options: Any
) -> tuple[list[Any], list[Any]]:
    """Return all rows and all bad ones, read so many at a time."""
    spec = pen.files(path, on_bad="divert", **options).source_spec()
    with SourceHarness(spec) as harness:
        harness.read_all(rows=rows)
        return harness.rows(), harness.rows(BAD)


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_the_same_bytes_are_the_same_rows_as_in_a_topic(
    tmp_path: Path, ending: str, rules: dict[str, Any]
) -> None:
    values = pa.array(LINES, pa.binary())
    chunk = Chunk(np.arange(len(LINES)), values, {}, None, None, 0)
    topic = KafkaPiece(Partition("changes", 0), [chunk], len(LINES))
    wanted = to_rows(topic, record_format("debezium", ORDERS, rules), {})
    assert wanted.rows.num_rows
    assert wanted.bad.num_rows
    (tmp_path / f"a.{ending}").write_bytes(compress(ending, b"\n".join(LINES)))
    for rows in (None, 1, 3):
        found, bad = read(
            tmp_path / f"a.{ending}", rows, format="debezium", schema=ORDERS, **rules
        )
        assert found == wanted.rows.to_pylist()
        assert [row["line"] - 1 for row in bad] == wanted.bad["offset"].to_pylist()
        assert [row["error"] for row in bad] == wanted.bad["error"].to_pylist()
        texts = [LINES[row["line"] - 1].decode(errors="replace") for row in bad]
        assert [row["text"] for row in bad] == texts


def test_lines_that_stand_for_tombstones_give_no_row_and_are_not_bad(
    tmp_path: Path,
) -> None:
    lines = [b"", change(GOOD), b"null", b" null\t", b"  ", change(NULL), b"nul"]
    text = b"\xef\xbb\xbf" + b"\r\n".join(lines) + b"\r\n"
    (tmp_path / "a.json").write_bytes(text)
    found, bad = read(tmp_path / "a.json", format="debezium", schema=ORDERS)
    assert [row["after"]["id"] for row in found] == [1, 4]
    assert [(row["line"], row["text"]) for row in bad] == [(7, "nul")]


def test_a_folder_of_changes_is_a_table_behind_from_debezium(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(change(b'{"id": 1, "item": "ink"}') + b"\n")
    later = [
        change(b'{"id": 2, "item": "pen"}'),
        change(b'{"id": 1, "item": "jar"}', before=b'{"id": 1}', op=b"u"),
        change(b"null", before=b'{"id": 2}', op=b"d"),
    ]
    (tmp_path / "b.jsonl.gz").write_bytes(compress("gz", b"\n".join(later)))
    pipeline, out = pen.Pipeline("orders"), pen.list_sink(f"out-{new_token()}")
    changes = pen.files(tmp_path / "*", format="debezium", schema=ORDERS)
    read_one = pipeline.read("changes", changes, parallelism=1)
    read_one.from_debezium("orders", key="id").write("out", out)
    pipeline.run_in_process("memory:")
    assert out.rows() == [{"change": "insert", "id": 1, "item": "jar"}]


def test_what_to_debezium_gives_is_written_as_json_lines_and_read_as_it_was(
    tmp_path: Path,
) -> None:
    rows = [{"user": "a", "n": 1}, {"user": "b", "n": 2}, {"user": "a", "n": 3}]
    pipeline, out = pen.Pipeline("totals"), pen.list_sink(f"records-{new_token()}")
    read_rows = pipeline.read("rows", pen.list_source(rows))
    totals = read_rows.key_by("user").aggregate("totals", total=pen.sum("n"))
    records = totals.to_debezium()
    records.write("out", out)
    records.write("files", pen.files(tmp_path / "out", format="jsonl"))
    pipeline.run_in_process("memory:")
    schema = {"user": str, "total": int}
    found, bad = read(tmp_path / "out/part-*", format="debezium", schema=schema)
    assert bad == []
    by_user = sorted(found, key=lambda row: row["after"]["user"])
    assert by_user == sorted(out.rows(), key=lambda row: row["after"]["user"])
    assert len(found) == 2


def test_lines_are_bytes_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\x00\n\nnull\r\nlast")
    values = [b"\xff\x00", b"", b"null", b"last"]
    for rows in (None, 1):
        found, bad = read(tmp_path / "a.log", rows, format="bytes")
        assert ([row["value"] for row in found], bad) == (values, [])
    named, _ = read(tmp_path / "a.log", format="bytes", schema={"raw": bytes})
    assert [row["raw"] for row in named] == values


def test_a_format_of_ones_own_reads_lines_with_its_options(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a;b\nnone\n\nc;d\n")
    options = {"separator": ";"}
    found, bad = read(tmp_path / "a.txt", 1, format=OWN, format_options=options)
    assert found == [{"left": "a", "right": "b"}, {"left": "c", "right": "d"}]
    assert [(row["line"], row["text"], row["error"]) for row in bad] == [
        (2, "none", "it has 1 fields"),
        (3, "", "it has 1 fields"),
    ]
    named, _ = read(
        tmp_path / "a.txt", format=OWN, schema={"x": str, "y": str}, format_options=options
    )
    assert named[0] == {"x": "a", "y": "b"}


def test_many_lines_are_decoded_some_at_a_time_and_keep_their_numbers() -> None:
    lines = [b"a|b"] * 25_000
    lines[12_345] = lines[24_999] = b"bad"
    text = b"\n".join(lines)
    file = SourceFile(MemoryStore({"a": text}), "a", len(text))
    pieces = [*RecordLines(Pipes()).read(file, FileOffset(len(text)), len(text))]
    assert [row.line for piece in pieces for row in piece.bad] == [12_346, 25_000]
    assert sum(rows.num_rows for piece in pieces for rows in piece.rows) == 24_998
    assert [piece.is_last for piece in pieces] == [False, False, False, True]
    # Whoever goes on behind any of them reads the rest.
    behind = pieces[1].next
    assert behind is not None
    rest = RecordLines(Pipes()).read(file, behind, len(text))
    assert [row.line for piece in rest for row in piece.bad] == [12_346, 25_000]


def test_folders_tell_columns_that_records_lack(tmp_path: Path) -> None:
    own = b'{"day": "tue", ' + change(GOOD)[1:]
    for folder, line in (("day=mon", change(GOOD)), ("day=wed", own), ("day=x", b"bad")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_bytes(line + b"\n")
    row = pa.struct([*ORDERS])
    schema = pa.schema([("after", row), ("op", pa.string()), ("day", pa.string())])
    found, bad = read(tmp_path / "*/*.jsonl", format="debezium", schema=schema)
    assert [row["day"] for row in found] == ["mon", "tue"]
    assert len(bad) == 1
    dated = schema.set(2, pa.field("day", pa.date32()))
    found, bad = read(tmp_path / "day=mon/*.jsonl", format="debezium", schema=dated)
    assert found[0]["day"] is None, "folders before the first wildcard tell nothing"
    found, bad = read(tmp_path / "*/*.jsonl", format="debezium", schema=dated)
    assert found == []
    assert [row["error"] for row in bad if row["path"].startswith("day=mon")] == [
        "its folder says 'mon', which is no date32[day]"
    ]


def test_a_rule_that_fails_fails_the_job_where_bad_lines_are_diverted(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"no record\n" + change(NEW) + b"\n")
    options: dict[str, Any] = {"format": "debezium", "schema": ORDERS, "on_new": "fail"}
    with pytest.raises(UserError, match=r"line 2, cannot be read: .*'tip'") as failure:
        read(tmp_path / "a.jsonl", **options)
    assert failure.value.code == ErrorCode.UNREADABLE_INPUT
    del options["on_new"]
    with pytest.raises(UserError, match="on_new is 'no'"):
        read(tmp_path / "a.jsonl", format_options={"on_new": "no"}, **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "upsert"}, r"a line has none: .*format='jsonl'.*from_upserts"),
        ({"format": "debezum"}, "did you mean 'debezium'"),
        ({"format": "jsonl", "format_options": {"a": 1}}, "format_options are for records"),
        ({"format_options": {"a": 1}}, "format_options are for records"),
        ({"format": "bytes", "on_new": "bad"}, "lines of bytes have one column"),
        ({"format": OWN, "on_new": "bad"}, "give its options as format_options="),
        (
            {"format": "debezium", "on_new": "bad", "format_options": {"on_new": "bad"}},
            "on_new is given twice",
        ),
        ({"format": OWN, "format_options": {"password": "x"}}, "password"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_of_lines_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        pen.files("a.jsonl", **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "debezium"}, "do not tell their columns: pass schema="),
        ({"format": "bytes", "schema": ORDERS}, "one column, of type binary or string"),
        ({"format": "bytes", "format_options": {"a": 1}}, "has no option 'a'"),
        ({"format": f"{__name__}:Keyed"}, "reads the keys of records, and a line has none"),
        ({"format": "nowhere:Format"}, "cannot be imported"),
    ],
    ids=str,
)
def test_what_a_format_cannot_be_is_refused_when_the_graph_is_built(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises((UserError, SchemaError), match=problem):
        pen.files("a.jsonl", **options).source_spec()


@pytest.mark.parametrize(
    ("format_", "problem"),
    [
        ("debezium", "use 'parquet' or 'jsonl', whose lines of what to_debezium"),
        (OWN, "Pipes are only read"),
    ],
)
def test_records_are_only_read(format_: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        pen.files("out", format=format_).sink_spec()


def test_a_lookup_reads_lines_of_records_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("de|Germany\nfr|France\n")
    countries = pen.lookup_files(tmp_path / "a.txt", OWN)
    pipeline, out = pen.Pipeline("join"), pen.list_sink(f"lookup-{new_token()}")
    rows = pipeline.read("rows", pen.list_source([{"left": "fr"}]))
    rows.join("named", countries, on="left").write("out", out)
    pipeline.run_in_process("memory:")
    assert out.rows() == [{"left": "fr", "right": "France"}]
