"""Parquet files: what is damaged or no text is named, and what lies where is fetched at once."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.files.connector import files
from penstock.connectors.files.formats import FileOffset, SourceFile
from penstock.connectors.files.parquet import ParquetFormat
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD
from penstock.state.storage.memory import MemoryStore
from penstock.testing import FaultyStore, SourceHarness
from tests.builders.files_job import SCHEMA, some_rows, to_bytes


def a_harness(path: Path, **options: Any) -> SourceHarness:
    return SourceHarness(files(str(path), **options).source_spec())


def rows_or_error(path: Path) -> list[dict[str, Any]] | UserError:
    with a_harness(path, schema=SCHEMA) as harness:
        try:
            harness.read_all()
        except UserError as error:
            return error
        return harness.rows()


def test_a_file_whose_rows_are_not_as_many_as_its_footer_says_is_refused(
    tmp_path: Path,
) -> None:
    whole = to_bytes("parquet", some_rows(0, 7))
    outcomes = []
    for index in range(len(whole) - 800, len(whole) - 8):
        if whole[index] == 14:  # 7 rows, as Thrift writes them
            path = tmp_path / f"{index}.parquet"
            path.write_bytes(whole[:index] + b"\x0c" + whole[index + 1 :])
            outcomes.append(rows_or_error(path))

    refused = [found for found in outcomes if isinstance(found, UserError)]
    assert all(found in refused or found == some_rows(0, 7) for found in outcomes)
    assert len(refused) >= 2
    assert all(".parquet cannot be read as Parquet" in str(error) for error in refused)


def test_a_footer_that_says_more_rows_than_there_are_is_refused(tmp_path: Path) -> None:
    whole = to_bytes("parquet", some_rows(0, 7))
    counts = [n for n in range(len(whole) - 800, len(whole) - 8) if whole[n] == 14]
    messages = set()
    for first, second in combinations(counts, 2):
        # One of the pairs is the count of the row group and that of the file: 7 becomes 8.
        data = bytearray(whole)
        data[first] = data[second] = 16
        path = tmp_path / f"{first}-{second}.parquet"
        path.write_bytes(data)
        messages.add(str(rows_or_error(path)).partition("Parquet: ")[2].partition(".")[0])

    assert "row group 0 has 7 rows, and 8 by the footer" in messages


def test_a_page_that_differs_from_its_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"n": pa.array([7, 7, 7], pa.int64())})
    pq.write_table(
        table,
        path,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
        column_encoding={"n": "PLAIN"},
    )
    seven, eight = b"\x07" + bytes(7), b"\x08" + bytes(7)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(3 * seven, seven + eight + seven))
    assert path.read_bytes() != whole

    with (
        a_harness(path) as harness,
        pytest.raises(
            UserError, match=r"a\.parquet cannot be read.*[Cc][Rr][Cc]"
        ) as caught,
    ):
        harness.read_all()

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT


def text_of(*values: bytes) -> Any:
    """Return text that was never checked, as writers of other languages may write it."""
    return pa.array(values, pa.binary()).view(pa.string())


def test_text_that_is_no_utf8_is_refused_with_file_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"n": [1, 2, 3], "s": text_of(b"a", b"\xff\xfe", b"c")})
    pq.write_table(table, path)

    with (
        a_harness(path) as harness,
        pytest.raises(UserError, match=r"a\.parquet, row 2, .*column 's'.*UTF-8") as caught,
    ):
        harness.read_all()

    assert caught.value.code is ErrorCode.UNREADABLE_INPUT


def test_rows_whose_text_is_no_utf8_can_be_diverted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    text = text_of(*[b"\xff" if n in (3, 8) else b"ok" for n in range(10)])
    nested = pa.StructArray.from_arrays([text_of(*[b"ok"] * 9, b"\xc3")], names=["x"])
    table = pa.table({"n": list(range(10)), "s": text, "t": nested})
    pq.write_table(table, path, row_group_size=4)

    with a_harness(path, on_bad="divert") as harness:
        harness.read_all()

        assert [row["n"] for row in harness.rows()] == [0, 1, 2, 4, 5, 6, 7]
        bad = harness.rows(BAD)
    assert [(row["path"], row["line"]) for row in bad] == [
        ("a.parquet", 4),
        ("a.parquet", 9),
        ("a.parquet", 10),
    ]
    assert bad[0]["error"] == "column 's' holds text that is no UTF-8"
    assert bad[2]["error"] == "column 't' holds text that is no UTF-8"


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str
)
@pytest.mark.parametrize(
    ("values", "bad"),
    [
        (["é", None, "", "日本", "a"], []),
        ([b"\xc3", b"\xa9"], [1, 2]),  # together they are one character
        ([b"ok", b"\xed\xa0\x80", None], [2]),  # half of a surrogate pair
        ([None, None], []),
        ([b"", b"\xa9"], [2]),
    ],
)
def test_each_text_is_checked_by_itself_in_every_layout(
    tmp_path: Path, kind: pa.DataType, values: list[Any], bad: list[int]
) -> None:
    path = tmp_path / "a.parquet"
    text: Any = pa.array(values, pa.binary()).view(pa.string())
    nested = pa.StructArray.from_arrays([text], names=["x"])
    pq.write_table(pa.table({"s": text, "n": nested}), path)

    for field in (pa.field("s", kind), pa.field("n", nested.type)):
        options = {"schema": pa.schema([field]), "on_bad": "divert"}
        with a_harness(path, **options) as harness:
            harness.read_all()
            assert [row["line"] for row in harness.rows(BAD)] == bad
            assert len(harness.rows()) == len(values) - len(bad)


def test_a_dictionary_of_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), text_of(b"ok", b"\xff"))
    pq.write_table(pa.table({"n": [1, 2, 3], "s": words}), path)

    with (
        a_harness(path) as harness,
        pytest.raises(UserError, match=r"a\.parquet.*column 's': .*UTF-?8"),
    ):
        harness.read_all()


def test_times_with_and_without_a_zone_do_not_mix(tmp_path: Path) -> None:
    for name, zone in (("a", "UTC"), ("b", None)):
        times = pa.array([0], pa.timestamp("us", zone))
        pq.write_table(pa.table({"t": times}), tmp_path / f"{name}.parquet")

    with (
        a_harness(tmp_path / "*.parquet") as harness,
        pytest.raises(SchemaError, match=r"b\.parquet has other columns.*'t' is timestamp"),
    ):
        harness.read_all()


def test_zones_of_other_names_are_the_same_instants(tmp_path: Path) -> None:
    for name, zone in (("a", "UTC"), ("b", "Europe/Berlin")):
        times = pa.array([0], pa.timestamp("us", zone))
        pq.write_table(pa.table({"t": times}), tmp_path / f"{name}.parquet")

    with a_harness(tmp_path / "*.parquet") as harness:
        harness.read_all()

        assert len({row["t"] for row in harness.rows()}) == 1


@pytest.mark.parametrize("names", [("n", "s"), ("s",), ("l",)])
@pytest.mark.parametrize(
    ("group_rows", "requests"),
    [pytest.param(70_000, 1 + 3, id="large"), pytest.param(2_000, 2 + 1, id="small")],
)
def test_large_row_groups_are_fetched_with_one_request_each_and_small_ones_together(
    group_rows: int, requests: int, names: tuple[str, ...]
) -> None:
    count = 3 * group_rows
    numbers = pa.array(np.random.default_rng(7).permutation(count))
    lists: Any = pa.array(np.arange(count + 1, dtype=np.int32))
    lists = pa.ListArray.from_arrays(lists, numbers)
    table = pa.table({"n": numbers, "s": ["a"] * count, "x": numbers, "l": lists})
    out = pa.BufferOutputStream()
    pq.write_table(table, out, row_group_size=group_rows, compression="none")
    data = out.getvalue().to_pybytes()
    store = FaultyStore(MemoryStore({"a.parquet": data}))
    schema = pa.schema([table.schema.field(name) for name in names])
    format_ = ParquetFormat(schema, ignores_extra=True)
    file = SourceFile(store, "a.parquet", len(data))

    pieces = list(format_.read(file, FileOffset(len(data)), 3))

    batches: list[Any] = [batch for piece in pieces for batch in piece.rows]
    assert pa.Table.from_batches(batches).equals(table.select(list(names)))
    assert len(store.calls) <= requests  # that of the footer, and of row groups


def test_nulls_that_the_schema_does_not_allow_are_bad_rows(tmp_path: Path) -> None:
    rows = pa.table({"n": [1, None, 3, None], "s": ["a", "b", None, None]})
    pq.write_table(rows, tmp_path / "a.parquet")
    fields: Any = [pa.field("n", pa.int64(), nullable=False), ("s", pa.string())]
    required = pa.schema(fields)

    spec = files(tmp_path / "a.parquet", schema=required).source_spec()
    with (
        SourceHarness(spec) as harness,
        pytest.raises(UserError, match=r"a\.parquet, row 2, .* 'n' is null") as caught,
    ):
        harness.read_all()
    assert caught.value.code is ErrorCode.UNREADABLE_INPUT

    spec = files(tmp_path / "a.parquet", schema=required, on_bad="divert").source_spec()
    with SourceHarness(spec) as harness:
        harness.read_all()
        assert [row["n"] for row in harness.rows()] == [1, 3]
        assert [row["line"] for row in harness.rows(BAD)] == [2, 4]


@pytest.mark.parametrize("value_type", [pa.string(), pa.binary()])
def test_values_beyond_their_dictionary_are_damage_that_names_the_file(
    value_type: pa.DataType,
) -> None:
    table = pa.table({"d": pa.array(["x", "y"]).cast(value_type).dictionary_encode()})
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="none", write_statistics=False)
    data = out.getvalue().to_pybytes()
    pages_end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    damaged = [
        bytes([*data[:at], data[at] ^ 1 << bit, *data[at + 1 :]])
        for at in range(4, pages_end)
        for bit in range(8)
    ]

    errors = []
    for content in damaged:
        file = SourceFile(MemoryStore({"a.parquet": content}), "a.parquet", len(content))
        format_ = ParquetFormat(pa.schema({"d": value_type}), ignores_extra=False)
        try:
            for piece in format_.read(file, FileOffset(len(content)), 1):
                for batch in piece.rows:
                    batch.column(0).cast(value_type)
        except UserError as error:
            errors.append(str(error))

    assert len(errors) > 4
    assert all("a.parquet cannot be read" in error for error in errors)
