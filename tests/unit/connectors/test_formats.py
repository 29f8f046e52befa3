"""Formats of records: what decodes to rows, what is bad and why, and what is written."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.formats.registry import record_format
from penstock.errors import SchemaError, UserError

_COLUMNS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("item", pa.string())]
ORDERS = pa.schema(_COLUMNS)


def values(*records: bytes | None) -> Any:
    return pa.array(records, pa.binary())


def decode(name: str, *records: bytes | None, schema: pa.Schema = ORDERS) -> Any:
    return record_format(name, schema).decode(values(*records))


def bad_of(decoded: Any) -> list[tuple[int, str]]:
    return [(bad.index, bad.reason) for bad in decoded.bad]


def test_records_of_json_give_a_row_each() -> None:
    decoded = decode("json", b'{"id": 1, "item": "pen"}', b' {"item":"ink","id":2}\r')
    assert decoded.rows.to_pylist() == [
        {"id": 1, "item": "pen"},
        {"id": 2, "item": "ink"},
    ]
    assert decoded.taken is None
    assert decoded.bad == ()


def test_a_record_may_be_printed_in_several_lines() -> None:
    decoded = decode("json", b'{\n  "id": 1,\n  "item": "pen"\n}\n', b'{"id": 2}')
    assert decoded.rows["id"].to_pylist() == [1, 2]
    assert decoded.bad == ()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b" ",
        b"null",
        b"5",
        b"[1]",
        b'[{"id": 1}]',
        b"{",
        b"}",
        b'{"id": 1',
        b'{"id": 1}}',
        b'{"id": 1}{"id": 2}',
        b'{"id": 1}\n{"id": 2}',
        b'{"id": 1, "id": 2}',
        b'{"id": 1.5}',
        b'{"id": 9223372036854775808}',
        b'{"id": 1e400}',
        b'{"id": "1"}',
        b'{"item": 5}',
        b'{"item": "\xff"}',
        b'{"item": "\\ud800"}',
        b'{"item": "a\nb"}',
        b'{"item": "}',
        b'{"item": "\x00"}',
        b'\xef\xbb\xbf{"id": 1}',
        b'{"id": 01}',
        b"\x00",
        b"\x00{}",
    ],
)
def test_a_bad_record_is_told_and_spoils_no_other(record: bytes) -> None:
    good = b'{"id": 7, "item": "pen"}'
    for records, at in (((record,), 0), ((good, record, good, None, good), 1)):
        decoded = decode("json", *records)
        assert [index for index, _ in bad_of(decoded)] == [at]
        assert decoded.rows["id"].to_pylist() == [7] * records.count(good)
        taken = [index for index, one in enumerate(records) if one == good]
        assert decoded.taken.tolist() == taken


def test_bad_neighbours_do_not_make_a_good_record_together() -> None:
    decoded = decode("json", b'{"item": "}', b'{"}', b'{"item": {}', b"{}}")
    assert [index for index, _ in bad_of(decoded)] == [0, 1, 2, 3]


def test_a_tombstone_is_no_row_of_json_and_not_bad() -> None:
    decoded = decode("json", None, b'{"id": 1}', None)
    assert decoded.taken.tolist() == [1]
    assert decoded.bad == ()


def test_records_nested_a_million_deep_are_read() -> None:
    depth = 1_000_000
    deep = b'{"more": ' + b"[" * depth + b"]" * depth + b', "id": 1}'
    assert decode("json", deep).rows["id"].to_pylist() == [1]


def test_json_behind_the_header_of_a_registry_is_read() -> None:
    header = b"\x00\x00\x00\x00\x2a"
    decoded = decode("json", header + b'{"id": 1}', b'{"id": 2}', header + b'\n{"id": 3}')
    assert decoded.rows["id"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("schema_id", [42, 200, 0x7B0A0D7D], ids=str)
@pytest.mark.parametrize(
    "body", [b"\x0epen", b"\x0ahello", b" sixteen letters ", b"{pen", b"\x02\xff", b""]
)
def test_other_bytes_behind_the_header_of_a_registry_are_named(
    body: bytes, schema_id: int
) -> None:
    record = b"\x00" + schema_id.to_bytes(4, "big") + body
    for records in ((record,), (b'{"id": 1}', record, b'{"id": 2}')):
        decoded = decode("json", *records)
        ((_, reason),) = bad_of(decoded)
        assert f"schema registry, with schema {schema_id}" in reason
        assert "Avro or Protobuf" in reason
        assert decoded.rows.num_rows == len(records) - 1


def test_a_null_where_the_schema_allows_none_is_bad() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    decoded = decode("json", b"{}", b'{"id": null}', b'{"id": 1}', schema=schema)
    assert decoded.taken.tolist() == [2]


def test_sliced_values_are_decoded_as_they_are() -> None:
    sliced = values(b"oops", b'{"id": 1}', b'{"id": 2}', b"oops").slice(1, 2)
    decoded = record_format("json", ORDERS).decode(sliced)
    assert decoded.rows["id"].to_pylist() == [1, 2]
    assert decoded.taken is None


def test_records_of_csv_give_a_row_each() -> None:
    decoded = decode("csv", b"1,pen", b'2,"a ""b"",\nc"', b"3,ink\r\n", b",")
    assert decoded.rows.to_pylist() == [
        {"id": 1, "item": "pen"},
        {"id": 2, "item": 'a "b",\nc'},
        {"id": 3, "item": "ink"},
        {"id": None, "item": ""},
    ]
    assert decoded.taken is None


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\n",
        b"1",
        b"1,a,b",
        b"1,a\n2,b",
        b'1,"a',
        b'1,a"b',
        b"x,a",
        b"1,\xff",
        b"1,a\rb",
    ],
)
def test_a_bad_row_of_csv_is_told_and_spoils_no_other(record: bytes) -> None:
    decoded = decode("csv", b"1,pen", record, b"2,ink", record)
    assert [index for index, _ in bad_of(decoded)] == [1, 3]
    assert decoded.rows["id"].to_pylist() == [1, 2]


def test_records_of_csv_may_have_more_columns_than_the_schema() -> None:
    options = {"columns": ["day", "item", "id"]}
    csv = record_format("csv", ORDERS, options)
    assert csv.decode(values(b"mon,pen,1")).rows.to_pylist() == [{"id": 1, "item": "pen"}]
    with pytest.raises(UserError, match="without day"):
        csv.encode(pa.table({"id": [1], "item": ["pen"]}))


def test_a_null_that_is_the_only_column_of_csv_comes_back() -> None:
    for kind, back in ((pa.int64(), None), (pa.string(), "")):
        schema = pa.schema([("id", kind)])
        one = record_format("csv", schema)
        rows = pa.Table.from_arrays([pa.array([None, None], kind)], schema=schema)
        decoded = one.decode(one.encode(rows))
        assert decoded.rows.to_pylist() == [{"id": back}, {"id": back}]


def test_bytes_and_text_are_one_column() -> None:
    raw = record_format("bytes").decode(values(b"\xff", None, b""))
    assert raw.rows.to_pylist() == [{"value": b"\xff"}, {"value": None}, {"value": b""}]
    text = record_format("text", pa.schema([("line", pa.string())]))
    decoded: Any = text.decode(values("é".encode(), b"\xff", None))
    assert decoded.rows.to_pylist() == [{"line": "é"}, {"line": None}]
    assert decoded.taken.tolist() == [0, 2]
    assert text.encode(decoded.rows).to_pylist() == ["é".encode(), None]


def test_debezium_is_read_bare_and_inside_of_a_payload() -> None:
    bare = b'{"before":null,"after":{"id":1,"item":"pen"},"op":"c","ts_ms":5}'
    wrapped = (
        b'{"schema":{"type":"struct"},"payload":{"before":{"id":1},"after":null,"op":"d"}}'
    )
    decoded = decode("debezium", bare, wrapped, None)
    assert decoded.rows.to_pylist() == [
        {"before": None, "after": {"id": 1, "item": "pen"}, "op": "c"},
        {"before": {"id": 1, "item": None}, "after": None, "op": "d"},
    ]
    assert decoded.taken.tolist() == [0, 1]


def test_what_is_no_change_is_no_record_of_debezium() -> None:
    flat, nothing = b'{"id": 1, "item": "pen"}', b"{}"
    gone = b'{"schema": null, "payload": null}'
    change = b'{"payload": {"after": {"id": 2}, "op": "c"}}'
    for records in ((flat, nothing), (flat, gone, nothing, change)):
        decoded = decode("debezium", *records)
        assert [row["after"]["id"] for row in decoded.rows.to_pylist()] == (
            [2] if change in records else []
        )
        found = {records[index]: reason for index, reason in bad_of(decoded)}
        assert found.keys() == {flat, nothing}
        assert "it has no `op`" in found[flat]


def test_the_own_columns_of_a_record_of_debezium_may_be_told_not_to_be_null() -> None:
    op = pa.field("op", pa.string(), nullable=False)
    schema = pa.schema([pa.field("after", pa.struct([("id", pa.int64())])), op])
    bare, wrapped = (
        b'{"after":{"id":1},"op":"c"}',
        b'{"payload":{"after":{"id":2},"op":"c"}}',
    )
    decoded = decode("debezium", bare, wrapped, b'{"payload":{}}', schema=schema)
    assert [row["after"]["id"] for row in decoded.rows.to_pylist()] == [1, 2]
    assert decoded.rows.schema == schema
    assert [index for index, _ in bad_of(decoded)] == [2]


def upserts(key_format: str = "json") -> Any:
    return record_format("upsert", ORDERS, {"key": "id", "key_format": key_format})


def test_upserts_are_rows_by_key_and_tombstones_delete() -> None:
    decoded = upserts().decode(
        values(b'{"item": "pen"}', None, b"oops", b'{"item": "ink"}', None),
        values(b'{"id": 1}', b'{"id": 1}', b'{"id": 2}', None, b'{"id": null}'),
    )
    assert decoded.rows.to_pylist() == [
        {"id": 1, "item": "pen", "deleted": False},
        {"id": 1, "item": None, "deleted": True},
    ]
    assert decoded.taken.tolist() == [0, 1]
    assert bad_of(decoded) == [
        (2, "its value: it is not one JSON object"),
        (3, "it has no key, so it names no row"),
        (4, "it has no key, so it names no row"),
    ]


def test_rules_of_upserts_do_not_ask_for_the_key_in_the_value() -> None:
    for rule in ("bad", "fail"):
        options = {"key": "id", "on_missing": rule, "on_new": rule}
        decoded = record_format("upsert", ORDERS, options).decode(
            values(
                b'{"item": null}', b'{"id": 1, "item": "pen"}', b'{"id": 1}', b'{"id": 1}'
            ),
            values(b'{"id": 1}', b'{"id": 1}', b'{"id": 1}', b"oops"),
        )
        assert decoded.rows["item"].to_pylist() == [None, "pen"]
        assert [(bad.index, bad.fails) for bad in decoded.bad] == [
            (2, rule == "fail"),
            (3, rule == "fail"),
        ]


def test_upserts_are_written_with_their_keys() -> None:
    rows = pa.table(
        {"id": [1, 2], "item": ["pen", None], "deleted": [False, True]},
        schema=upserts().schema,
    )
    written, keys = upserts().encode(rows), upserts().encode_keys(rows)
    assert written.to_pylist() == [b'{"id":1,"item":"pen"}', None]
    assert keys.to_pylist() == [b'{"id":1}', b'{"id":2}']
    assert upserts().decode(written, keys).rows.equals(rows)


def test_upserts_without_keys_are_refused() -> None:
    with pytest.raises(UserError, match="keys of records"):
        upserts().decode(values(b"{}"))


@pytest.mark.parametrize(
    ("name", "schema", "options", "message"),
    [
        ("jsno", ORDERS, {}, "did you mean 'json'"),
        ("avro", ORDERS, {}, "not built in"),
        ("protobuf", ORDERS, {}, "not built in"),
        ("nowhere.formats:Avro", ORDERS, {}, "cannot be imported"),
        ("json:Nothing", ORDERS, {}, "cannot be imported"),
        ("json:loads", "[]", {}, "gives list, which is no RecordFormat"),
        ("json", None, {}, "pass schema="),
        ("json", ORDERS, {"key": "id"}, "no option 'key'"),
        ("csv", ORDERS, {"columns": ["id"]}, "'item' is not among"),
        ("csv", pa.schema([("tags", pa.list_(pa.string()))]), {}, "no form in CSV"),
        ("text", ORDERS, {}, "one column"),
        ("upsert", ORDERS, {}, "none is given"),
        ("upsert", ORDERS, {"key": ["day"]}, "the schema has no day"),
        ("upsert", ORDERS, {"key": "id", "key_format": "upsert"}, "key_format"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, schema: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        record_format(name, schema, options)


def test_types_without_a_form_in_json_are_refused() -> None:
    with pytest.raises(SchemaError):
        record_format("json", pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))


def test_a_format_may_be_named_by_its_module() -> None:
    name = "penstock.connectors.formats.text_records:CsvRecords"
    csv = record_format(name, ORDERS, {"columns": ["item", "id"]})
    assert csv.decode(values(b"pen,1")).rows.to_pylist() == [{"id": 1, "item": "pen"}]


def test_a_format_of_ones_own_is_taken_as_it_is() -> None:
    own = record_format("json", ORDERS)
    assert record_format(own) is own
    with pytest.raises(UserError, match="leave key out"):
        record_format(own, options={"key": "id"})
