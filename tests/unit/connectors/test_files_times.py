"""Times in text: which type a file suggests for them, and which forms are read."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.files.connector import files
from penstock.connectors.files.csv import CsvFormat
from penstock.connectors.files.formats import FileOffset, SourceFile
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import BAD
from penstock.state.storage.memory import MemoryStore
from penstock.testing import SourceHarness

ZONED, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
NANOS = pa.timestamp("ns", "UTC")


def write(path: Path, values: list[str]) -> str:
    """Write a file of one column, as text."""
    lines = [json.dumps({"t": value}) for value in values]
    lines = ["t", *values] if path.suffix == ".csv" else lines
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def inferred(path: str) -> Any:
    config: Any = files(path).source_spec().config
    return StreamSchema.from_bytes(config["schema"]).arrow.field("t").type


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2024-01-01T00:00:00Z"], ZONED),
        (["2024-01-01T00:00:00.5Z"], ZONED),
        (["2024-01-01T00:00:00.123456Z", "2024-01-01T00:00:00Z"], ZONED),
        (["2024-01-01T00:00:00+02:00"], ZONED),
        (["2024-01-01T00:00:00"], LOCAL),
        (["2024-01-01 00:00:00.5", "2024-01-01 00:00:00"], LOCAL),
        (["2024-01-01T00:00:00.123456789Z", "2024-01-01T00:00:00Z"], NANOS),
        (["2024-01-01 00:00:00.123456789"], pa.timestamp("ns")),
        (["2024-01-01T00:00:00Z", "2024-01-01T00:00:00"], pa.string()),
        (["2024-01-01T00:00:00Z", "yesterday"], pa.string()),
    ],
)
def test_inference_gives_times_with_a_zone_a_zone_with_and_without_fractions(
    tmp_path: Path, ending: str, values: list[str], kind: pa.DataType
) -> None:
    path = write(tmp_path / f"a.{ending}", values)

    assert inferred(path) == kind
    with SourceHarness(files(path).source_spec()) as harness:
        harness.read_all()
        assert len(harness.rows()) == len(values)


def test_inference_looks_into_lists_and_structs(tmp_path: Path) -> None:
    line = {"t": [{"a": "2024-01-01T00:00:00.5Z", "b": None}, {"b": "2024-01-01 00:00:00"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))

    kind = inferred(str(tmp_path / "a.jsonl"))

    assert kind == pa.list_(pa.struct([("a", ZONED), ("b", LOCAL)]))


@pytest.mark.parametrize(
    "kind", [ZONED, LOCAL, pa.timestamp("ms", "Europe/Berlin")], ids=str
)
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_times_with_and_without_a_zone_are_read_alike_from_csv_and_json(
    tmp_path: Path, ending: str, kind: Any
) -> None:
    values = [
        "2024-01-01T02:00:00+02:00",
        "2024-01-01 00:00:00.000Z",
        "2024-01-01T00:00:00",
        "2024-01-01",
        "2024-01-01Z",
        "yesterday",
    ]
    path = write(tmp_path / f"a.{ending}", values)
    schema = pa.schema([("t", kind)])

    with SourceHarness(
        files(path, schema=schema, on_bad="divert").source_spec()
    ) as harness:
        harness.read_all()

        midnight = datetime(2024, 1, 1, tzinfo=UTC)
        expected = midnight if kind.tz else midnight.replace(tzinfo=None)
        assert [row["t"] for row in harness.rows()] == [expected] * 4
        assert len(harness.rows(BAD)) == 2


def test_columns_and_rows_beside_odd_times_are_read_as_ever() -> None:
    text = b't,n,u\n2024-01-01T00:00:00Z,1,2024-01-01\n,2,\n"",x,\n,,2024-01-01 00:00:00\n'
    file = SourceFile(MemoryStore({"a.csv": text}), "a.csv", len(text))
    schema = pa.schema([("t", LOCAL), ("n", pa.int64()), ("u", ZONED)])
    format_ = CsvFormat(schema, ignores_extra=False)

    pieces = list(format_.read(file, FileOffset(len(text)), len(text)))

    rows = [row for piece in pieces for part in piece.rows for row in part.to_pylist()]
    local = datetime(2024, 1, 1)  # noqa: DTZ001 (it has no zone)
    midnight = local.replace(tzinfo=UTC)
    assert rows == [
        {"t": local, "n": 1, "u": midnight},
        {"t": None, "n": 2, "u": None},
        {"t": None, "n": None, "u": midnight},
    ]
    assert [bad.line for piece in pieces for bad in piece.bad] == [4]


def test_a_file_that_ends_with_json_is_read_as_json_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n": 2}\n')

    with SourceHarness(files(f"{tmp_path}/*.json").source_spec()) as harness:
        harness.read_all()

        assert harness.rows() == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('[{"n": 1}, {"n": 2}]\n', "an array"),
        ('\n[\n{"n": 1}\n]', "an array"),
        ('{\n "n": 1\n}\n', "an object of several lines"),
    ],
)
def test_json_that_is_no_json_lines_is_refused_with_how_to_convert_it(
    tmp_path: Path, text: str, begins: str
) -> None:
    (tmp_path / "a.json").write_text(text)

    with pytest.raises(
        UserError, match=rf"a\.json.* begins with {begins}.*jq -c"
    ) as caught:
        files(tmp_path / "a.json").source_spec()

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT
    assert "schema=" not in str(caught.value)
