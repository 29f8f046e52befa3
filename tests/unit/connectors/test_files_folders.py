"""Folders such as `day=2026-01-01/`: what they tell are columns, as in Hive and Spark."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors.files.connector import files
from penstock.connectors.files.folders import infer_folders
from penstock.core.schema import StreamSchema
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD
from penstock.testing import SourceHarness

FORMATS = ("parquet", "jsonl", "csv")
_DAYS: list[tuple[str, pa.DataType]] = [("n", pa.int64()), ("day", pa.date32())]
DAYS = pa.schema(_DAYS)


def write(path: Path, numbers: list[int]) -> None:
    """Write a file of the column n."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    elif path.suffix == ".csv":
        path.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
    else:
        path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))


def read(path: str, output: str | None = None, **options: Any) -> list[dict[str, Any]]:
    with SourceHarness(files(path, **options).source_spec()) as harness:
        harness.read_all()
        return harness.rows() if output is None else harness.rows(output)


def columns_of(path: str) -> pa.Schema:
    config: Any = files(path).source_spec().config
    return StreamSchema.from_bytes(config["schema"]).arrow


@pytest.mark.parametrize("ending", FORMATS)
def test_folders_are_columns_with_inference(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"day=2024-01-01/shop=a%2Fb/x.{ending}", [1, 2])
    write(tmp_path / f"day=2024-01-02/shop=c/x.{ending}", [3])

    rows = read(f"{tmp_path}/**/*.{ending}")

    assert rows == [
        {"n": 1, "day": date(2024, 1, 1), "shop": "a/b"},
        {"n": 2, "day": date(2024, 1, 1), "shop": "a/b"},
        {"n": 3, "day": date(2024, 1, 2), "shop": "c"},
    ]


@pytest.mark.parametrize("ending", FORMATS)
def test_folders_are_columns_of_a_declared_schema(tmp_path: Path, ending: str) -> None:
    write(tmp_path / f"hour=07/x.{ending}", [1, 2])
    write(tmp_path / f"hour=__HIVE_DEFAULT_PARTITION__/x.{ending}", [3])
    values: list[tuple[pa.DataType, Any]] = [
        (pa.int8(), 7),
        (pa.string(), "07"),
        (pa.large_string(), "07"),
        (pa.float64(), 7.0),
        (pa.dictionary(pa.int32(), pa.string()), "07"),
    ]
    if ending == "parquet":
        values += [(pa.string_view(), "07"), (pa.binary_view(), b"07")]

    for kind, value in values:
        columns: Any = [("hour", kind), ("n", pa.int64())]
        schema = pa.schema(columns)
        rows = read(f"{tmp_path}/hour=*/*.{ending}", schema=schema)
        assert [row["hour"] for row in rows] == [value, value, None]
        assert list(rows[0]) == ["hour", "n"]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_column_that_only_folders_tell_can_be_read_alone(
    tmp_path: Path, ending: str
) -> None:
    write(tmp_path / f"day=mon/x.{ending}", [1, 2])

    rows = read(f"{tmp_path}/*/*.{ending}", schema=pa.schema([("day", pa.string())]))

    assert rows == [{"day": "mon"}] * 2


@pytest.mark.parametrize("ending", FORMATS)
def test_a_column_that_the_file_has_keeps_the_values_of_the_file(
    tmp_path: Path, ending: str
) -> None:
    write(tmp_path / f"n=other/x.{ending}", [1, 2])

    assert read(f"{tmp_path}/**/*.{ending}") == [{"n": 1}, {"n": 2}]


def test_keys_that_lines_of_json_lack_take_the_value_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "day=mon").mkdir()
    (tmp_path / "day=mon/x.jsonl").write_text('{"n": 1, "day": "tue"}\n{"n": 2}\n')

    assert [row["day"] for row in read(f"{tmp_path}/*/*.jsonl")] == ["tue", "mon"]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_folder_that_is_no_value_of_its_column_is_named(
    tmp_path: Path, ending: str
) -> None:
    write(tmp_path / f"day=mon/x.{ending}", [1])

    with pytest.raises(UserError, match=r"day=mon/x.*'mon', which is no date32") as caught:
        read(f"{tmp_path}/**/*.{ending}", schema=DAYS)

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT


@pytest.mark.parametrize("ending", FORMATS)
def test_a_folder_of_null_is_named_where_the_schema_allows_none(
    tmp_path: Path, ending: str
) -> None:
    write(tmp_path / f"day=__HIVE_DEFAULT_PARTITION__/x.{ending}", [1])
    fields: Any = [("n", pa.int64()), pa.field("day", pa.date32(), nullable=False)]
    required = pa.schema(fields)

    with pytest.raises(UserError, match=r"day=__HIVE.*'day' is null") as caught:
        read(f"{tmp_path}/**/*.{ending}", schema=required)

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT


def test_rows_of_such_a_folder_can_be_diverted(tmp_path: Path) -> None:
    write(tmp_path / "day=mon/x.csv", [1, 2])

    bad = read(f"{tmp_path}/**/*.csv", BAD, schema=DAYS, on_bad="divert")

    assert [(row["line"], row["text"]) for row in bad] == [(2, "1"), (3, "2")]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_file_without_the_folder_that_others_have_is_refused(
    tmp_path: Path, ending: str
) -> None:
    write(tmp_path / f"day=mon/x.{ending}", [1])
    write(tmp_path / f"x.{ending}", [2])

    with pytest.raises(SchemaError, match="'day' is missing"):
        read(f"{tmp_path}/**/*.{ending}")


def test_folders_before_the_first_wildcard_are_no_columns(tmp_path: Path) -> None:
    write(tmp_path / "day=mon/x.csv", [1])

    assert read(f"{tmp_path}/day=mon/*.csv") == [{"n": 1}]


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20"], pa.int64()),
        (["1", "007"], pa.string()),
        (["true", "false"], pa.bool_()),
        (["2024-01-01", "__HIVE_DEFAULT_PARTITION__"], pa.date32()),
        (["2024-01-01", "today"], pa.string()),
        (["2024-01-01 10%3A00%3A00.000000"], pa.timestamp("us")),
        (["2024-01-01 10%3A00%3A00.000Z"], pa.timestamp("ms", "UTC")),
        (["1.20"], pa.string()),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
    ],
)
def test_the_type_of_a_folder_is_one_that_gives_back_all_its_texts(
    texts: list[str], kind: pa.DataType
) -> None:
    assert infer_folders([f"x={text}/a" for text in texts]) == [("x", kind)]


COLUMNS: dict[str, Any] = {
    "day": (date(2024, 1, 1), pa.date32()),
    "n": (7, pa.int64()),
    "flag": (True, pa.bool_()),
    "shop": ("a/b=c%2", pa.string()),
    "at": (datetime(2024, 1, 1, 10, tzinfo=UTC), pa.timestamp("us", "UTC")),
    "none": (None, pa.string()),
}


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("declares", [False, True])
def test_what_the_sink_partitions_is_read_back_as_it_was(
    tmp_path: Path, form: Any, declares: bool
) -> None:
    fields = [(name, kind) for name, (_, kind) in COLUMNS.items()]
    more = [("price", pa.decimal128(10, 2))] if declares else []
    schema = pa.schema([*fields, *more, ("x", pa.int64())])
    row = {name: value for name, (value, _) in COLUMNS.items()}
    rows = [
        {**row, **({"price": Decimal("1.20")} if declares else {}), "x": x} for x in (1, 2)
    ]
    names = [name for name in schema.names if name != "x"]
    pipeline = pen.Pipeline("partitions")
    out = pen.files(str(tmp_path / "out"), form, partition_by=names)
    pipeline.read("rows", pen.list_source(rows, schema=schema)).write("out", out)
    pipeline.run_in_process(str(tmp_path / "checkpoints"))
    path = f"{tmp_path}/out/**/*.{form}"

    found = read(path, schema=schema) if declares else read(path)

    assert found == rows
    if not declares:
        assert {f.name: f.type for f in columns_of(path)} == {
            f.name: f.type for f in schema
        }
