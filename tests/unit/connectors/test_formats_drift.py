"""Schema drift by rule: new, missing and widened columns of records and files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.connectors.files.connector import files
from penstock.connectors.formats.json_parser import JsonParser
from penstock.connectors.formats.registry import record_format
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.graph.logical import BAD
from penstock.testing import SourceHarness

COLUMNS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("item", pa.string())]
ORDERS = pa.schema(COLUMNS)
GOOD = b'{"id": 1, "item": "pen"}'
NEW = b'{"id": 2, "item": "ink", "tip": 5}'
MISSING = b'{"id": 3}'
NULL = b'{"id": 4, "item": null}'
WIDER = b'{"id": 5.5, "item": "pad"}'


def decode(*records: bytes, schema: pa.Schema = ORDERS, **rules: Any) -> Any:
    return record_format("json", schema, rules).decode(pa.array(records, pa.binary()))


@pytest.mark.parametrize(
    ("rules", "good", "failing"),
    [
        ({}, [1, 2, 3, 4], []),
        ({"on_new": "bad"}, [1, 3, 4], []),
        ({"on_new": "fail"}, [1, 3, 4], [1]),
        ({"on_missing": "bad"}, [1, 2, 4], []),
        ({"on_missing": "fail"}, [1, 2, 4], [2]),
        ({"on_wider": "fail"}, [1, 2, 3, 4], [4]),
        ({"on_new": "bad", "on_missing": "bad", "on_wider": "fail"}, [1, 4], [4]),
        ({"on_new": "fail", "on_missing": "fail", "on_wider": "fail"}, [1, 4], [1, 2, 4]),
        ({"on_wider": "cast", "on_new": "bad", "on_missing": "bad"}, [1, 4], []),
    ],
)
def test_rules_say_what_becomes_of_records(
    rules: dict[str, Any], good: list[int], failing: list[int]
) -> None:
    decoded = decode(GOOD, NEW, MISSING, NULL, WIDER, b"oops", **rules)
    assert decoded.rows["id"].to_pylist() == good
    assert [bad.index for bad in decoded.bad if bad.fails] == failing
    assert len(decoded.bad) == 6 - len(good)


def test_what_is_no_object_is_bad_and_fails_by_no_rule() -> None:
    rules: dict[str, Any] = dict.fromkeys(("on_new", "on_missing", "on_wider"), "fail")
    odd = (b"oops", b'{"id": 1, "id": 2}', b"[1]", b'{"item": "\xff"}')
    decoded = decode(*odd, **rules)
    assert [(bad.index, bad.fails) for bad in decoded.bad] == [(n, False) for n in range(4)]


def test_a_new_column_inside_of_a_struct_is_new() -> None:
    schema = pa.schema([("place", pa.struct([("x", pa.int64())]))])
    (bad,) = decode(b'{"place": {"x": 1, "y": 2}}', schema=schema, on_new="fail").bad
    assert bad.fails
    assert "'place.y'" in bad.reason


CASTS: list[tuple[Any, Any, Any]] = [
    (pa.int64(), "5", 5),
    (pa.int64(), 5.0, 5),
    (pa.int64(), True, None),
    (pa.int64(), 5.5, None),
    (pa.int64(), "x", None),
    (pa.int64(), 2**70, None),
    (pa.int8(), 300, None),
    (pa.float64(), "0.1", 0.1),
    (pa.float64(), 2**60, float(2**60)),
    (pa.string(), 5, "5"),
    (pa.string(), 0.1, "0.1"),
    (pa.string(), True, "true"),
    (pa.string(), {"a": 1}, None),
    (pa.string(), [1], None),
    (pa.bool_(), "true", True),
    (pa.bool_(), "perhaps", None),
    (pa.date32(), 5, None),
    (pa.list_(pa.int64()), ["5"], None),
]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int64(), "9007199254740993.0", None),
        (pa.int64(), "9007199254740992.0", 2**53),
        (pa.int64(), "9007199254740993", 2**53 + 1),
        (pa.int64(), '"9007199254740993"', 2**53 + 1),
        (pa.int64(), "1.0000000000000000001", None),
        (pa.int64(), '"0x1F"', None),
        (pa.string(), "0.12345678901234567890", None),
        (pa.string(), "0.30000000000000004", "0.30000000000000004"),
        (pa.string(), "12345678901234567890123", "12345678901234567890123"),
        (pa.string(), "9" * 60, None),
    ],
)
def test_a_number_is_cast_only_if_all_its_digits_are_kept(
    kind: Any, text: str, expected: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("share", pa.float64()), ("value", kind)])
    record = f'{{"id": "1", "share": 0.12345678901234567890, "value": {text}}}'.encode()
    rest = b'{"id": 2, "share": 0.1}'
    for records in ((record,), (rest, record, rest)):
        decoded = decode(*records, schema=schema, on_wider="cast")
        cast = [row["value"] for row in decoded.rows.to_pylist() if row["id"] == 1]
        assert cast == ([] if expected is None else [expected])
        assert len(decoded.bad) == (expected is None)


def test_a_record_with_a_key_twice_does_not_slip_past_the_rule_for_new_ones() -> None:
    twice = b'{"id": "1", "tip": 1, "tip": 2}'
    decoded = decode(twice, GOOD, on_wider="cast", on_new="bad")
    assert [bad.index for bad in decoded.bad] == [0]


def test_a_record_that_cannot_be_looked_into_is_not_said_to_lack_a_column() -> None:
    deep = b'{"id": null, "item": "x", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (bad,) = decode(deep, on_missing="fail").bad
    assert "too deep" in bad.reason
    assert not bad.fails
    long = b'{"id": null, "item": "x", "more": ' + b"9" * 5_000 + b"}"
    assert decode(long, on_missing="fail").rows.num_rows == 1


@pytest.mark.parametrize(("kind", "value", "expected"), CASTS)
def test_wider_values_are_cast_where_nothing_is_lost(
    kind: Any, value: Any, expected: Any
) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", kind)])
    rest = json.dumps({"id": 2, "value": None}).encode()
    record = json.dumps({"id": 1, "value": value}).encode()
    for records in ((record,), (rest, record, rest)):
        decoded = decode(*records, schema=schema, on_wider="cast")
        cast = [row["value"] for row in decoded.rows.to_pylist() if row["id"] == 1]
        assert cast == ([] if expected is None else [expected])
        assert len(decoded.bad) == (expected is None)


def test_records_beside_one_that_is_cast_are_as_they_were() -> None:
    columns: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()),
        ("share", pa.float64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("label", pa.dictionary(pa.int32(), pa.string())),
        ("took", pa.duration("us")),
    ]
    schema = pa.schema(columns)
    row = {
        "id": 2**62,
        "share": 0.1 + 0.2,
        "name": "é\U0001f600",
        "at": "2026-01-01T00:00:00Z",
        "tags": ["a", None],
        "label": "x",
        "took": 7,
    }
    plain = json.dumps(row, ensure_ascii=False).encode()
    wide = json.dumps(row | {"id": "7"}, ensure_ascii=False, indent=1).encode()
    (alone,) = decode(plain, schema=schema).rows.to_pylist()
    both = decode(plain, wide, plain, schema=schema, on_wider="cast").rows.to_pylist()
    assert both == [alone, alone | {"id": 7}, alone]


def test_half_a_pair_of_characters_is_bad_also_where_values_are_cast() -> None:
    decoded = decode(b'{"id": "1"}', b'{"item": "\\ud800"}', GOOD, on_wider="cast")
    assert [bad.index for bad in decoded.bad] == [1]
    assert decoded.rows["id"].to_pylist() == [1, 1]


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(UserError, match="on_new is 'drop'"):
        decode(on_new="drop")
    with pytest.raises(UserError, match="no option 'on_new'"):
        record_format("csv", ORDERS, {"on_new": "bad"})
    with pytest.raises(UserError, match="on_missing is 'drop'"):
        files("a.jsonl", on_missing="drop")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="on_wider is for JSON lines"):
        files("a.csv", on_wider="cast")
    with pytest.raises(UserError, match="on_new says how files are read"):
        files("a.jsonl", on_new="bad").sink_spec()


def read(folder: Path, **options: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the good and the bad rows of the files in a folder."""
    diverted = {"on_bad": "divert", "schema": ORDERS, **options}
    with SourceHarness(files(f"{folder}/*", **diverted).source_spec()) as harness:
        harness.read_all()
        return harness.rows(), harness.rows(BAD)


def test_lines_of_json_follow_the_same_rules(tmp_path: Path) -> None:
    text = b"\n".join([GOOD, NEW, b"", MISSING, NULL, WIDER, b'{"id": "6"}', b""])
    (tmp_path / "a.jsonl").write_bytes(text)
    good, bad = read(tmp_path, format="jsonl", on_new="bad", on_missing="bad")
    assert [row["id"] for row in good] == [1, 4]
    assert [row["line"] for row in bad] == [2, 4, 6, 7]
    good, bad = read(tmp_path, format="jsonl", on_wider="cast")
    assert [row["id"] for row in good] == [1, 2, 3, 4, 6]
    with pytest.raises(
        UserError, match=r'line 2, .*new column .*on_new is "fail"'
    ) as caught:
        read(tmp_path, format="jsonl", on_new="fail")
    assert caught.value.code is ErrorCode.UNREADABLE_INPUT
    assert "the rule that fails the job" in str(caught.value)


def test_files_of_csv_and_parquet_may_lack_columns_and_have_others(tmp_path: Path) -> None:
    csv, parquet = tmp_path / "csv", tmp_path / "parquet"
    csv.mkdir()
    parquet.mkdir()
    (csv / "a.csv").write_text("id,item\n1,pen\n")
    (csv / "b.csv").write_text("tip,id\n5,2\n")
    pq.write_table(pa.table({"id": [1], "item": ["pen"]}), parquet / "a.parquet")
    pq.write_table(pa.table({"tip": [5], "id": [2]}), parquet / "b.parquet")
    expected = [{"id": 1, "item": "pen"}, {"id": 2, "item": None}]
    for folder, kind in ((csv, "csv"), (parquet, "parquet")):
        assert read(folder, format=kind, on_missing="null")[0] == expected
        with pytest.raises(SchemaError, match="'item' is missing"):
            read(folder, format=kind)
        with pytest.raises(SchemaError, match=r"'tip' .* is not in the schema"):
            read(folder, format=kind, on_missing="null", on_new="fail")


def test_a_file_without_any_column_of_the_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("tip\n5\n")
    with pytest.raises(SchemaError, match="is missing"):
        read(tmp_path, format="csv", on_missing="null")


def test_a_column_that_must_not_be_null_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("item\npen\n")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ORDERS.field("item")])
    with pytest.raises(SchemaError, match="'id' is missing"):
        read(tmp_path, format="csv", schema=schema, on_missing="null")


NARROWER: list[tuple[Any, Any]] = [
    (pa.int32(), pa.int64()),
    (pa.uint32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.int32(), pa.float64()),
]
WIDER_TYPES: list[tuple[Any, Any]] = [
    (pa.int64(), pa.int32()),
    (pa.uint64(), pa.int64()),
    (pa.int64(), pa.float64()),
    (pa.int32(), pa.float32()),
    (pa.float64(), pa.int64()),
    (pa.float64(), pa.float32()),
    (pa.int32(), pa.uint64()),
]


@pytest.mark.parametrize(("found", "wanted"), NARROWER)
def test_files_of_parquet_may_have_narrower_numbers(
    tmp_path: Path, found: Any, wanted: Any
) -> None:
    for name, kind in (("a", found), ("b", wanted)):
        rows = pa.table({"id": pa.array([1, None, 2**24], kind)})
        pq.write_table(rows, tmp_path / f"{name}.parquet")
    schema = pa.schema([("id", wanted), ("more", pa.string())])
    source = files(tmp_path / "*.parquet", schema=schema, on_missing="null")
    with SourceHarness(source.source_spec()) as harness:
        harness.read()
        assert [row["id"] for row in harness.rows()] == 2 * [1, None, 2**24]


@pytest.mark.parametrize(("found", "wanted"), WIDER_TYPES)
def test_files_of_parquet_with_wider_numbers_are_refused(
    tmp_path: Path, found: Any, wanted: Any
) -> None:
    pq.write_table(pa.table({"id": pa.array([1], found)}), tmp_path / "a.parquet")
    source = files(tmp_path / "*.parquet", schema=pa.schema([("id", wanted)]))
    with (
        SourceHarness(source.source_spec()) as harness,
        pytest.raises(SchemaError, match="expected"),
    ):
        harness.read()


def test_a_zero_keeps_its_sign_beside_a_value_that_is_cast() -> None:
    columns: list[Any] = [("id", pa.int64()), ("x", pa.float64())]
    schema = pa.schema(columns)
    alone = decode(b'{"id": 1, "x": -0}', schema=schema, on_wider="cast")
    beside = decode(
        b'{"id": 1, "x": -0}', b'{"id": "2", "x": 0}', schema=schema, on_wider="cast"
    )
    assert str(alone.rows["x"].to_pylist()) == "[-0.0]"
    assert str(beside.rows["x"].to_pylist()) == "[-0.0, 0.0]"


@pytest.mark.parametrize(
    "nonsense", [b'{"id": 1, "x": "\\ud800"}', b'{"id": 1, "x": 1e400}']
)
def test_nonsense_fails_by_no_rule(nonsense: bytes) -> None:
    decoded = decode(GOOD, nonsense, on_wider="fail", on_missing="fail")
    assert [(bad.index, bad.fails) for bad in decoded.bad] == [(1, False)]


@pytest.mark.parametrize("rule", ["on_new", "on_missing"])
def test_all_records_that_a_rule_refuses_are_found_by_few_looks(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    parse = JsonParser._parse

    def count(self: JsonParser, text: Any, split: Any) -> Any:
        looks.append(len(text))
        return parse(self, text, split)

    monkeypatch.setattr(JsonParser, "_parse", count)
    by_rule: dict[str, Any] = {rule: "bad"}
    odd = NEW if rule == "on_new" else MISSING
    decoded = decode(*[odd] * 500, GOOD, *[odd] * 500, **by_rule)
    assert decoded.rows["id"].to_pylist() == [1]
    assert len(decoded.bad) == 1_000
    assert len(looks) < 10


LISTED = pa.schema(
    [("id", pa.int64()), ("parts", pa.list_(pa.struct([("a", pa.int64())])))]
)


@pytest.mark.parametrize("on_wider", ["bad", "fail", "cast"])
@pytest.mark.parametrize("on_new", ["bad", "fail"])
def test_a_new_column_inside_of_a_list_is_found(on_new: str, on_wider: str) -> None:
    new = b'{"id": 1, "parts": [{"a": 1}, {"a": 2, "tip": 3}]}'
    # With a value that is cast, so that the record is looked at by the other parser, too.
    cast = b'{"id": 2.0, "parts": [{"a": 1, "tip": 3}]}'
    for record in (new, cast) if on_wider == "cast" else (new,):
        found = decode(record, schema=LISTED, on_new=on_new, on_wider=on_wider)
        assert found.rows.num_rows == 0
        (bad,) = found.bad
        assert "parts[].tip" in bad.reason
        assert bad.fails == (on_new == "fail")


@pytest.mark.parametrize("rules", [{}, {"on_wider": "cast"}])
def test_names_of_columns_may_have_any_characters(rules: dict[str, Any]) -> None:
    schema = pa.schema([('a"b\\c\n', pa.int64())])
    name = json.dumps(schema.names[0]).encode()
    found = decode(b"{%b: 5}" % name, b'{%b: "6"}' % name, schema=schema, **rules)
    assert found.rows.column(0).to_pylist() == ([5, 6] if rules else [5])
    assert len(found.bad) == (0 if rules else 1)


def test_a_required_column_of_an_upsert_may_be_absent_only_from_a_deleted_row() -> None:
    columns: list[tuple[str, pa.DataType]] = [("user", pa.int64()), ("n", pa.string())]
    required = pa.schema(columns)
    required = required.set(1, required.field("n").with_nullable(False))
    upserts = record_format("upsert", required, {"key": "user"})
    keys = [b'{"user": %d}' % number for number in range(4)]
    values = [b'{"n": "x"}', None, b"{}", b'{"n": null}']
    found = upserts.decode(pa.array(values, pa.binary()), pa.array(keys, pa.binary()))
    assert found.rows.select(["user", "deleted"]).to_pylist() == [
        {"user": 0, "deleted": False},
        {"user": 1, "deleted": True},
    ]
    assert [(one.index, "'n' is null" in one.reason) for one in found.bad] == [
        (2, True),
        (3, True),
    ]
