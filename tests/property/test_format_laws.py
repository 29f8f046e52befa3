"""Laws of record formats: what is encoded decodes to itself, and JSON agrees with `json.loads`."""

import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.connectors.formats.registry import record_format

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("count", pa.int64()),
    ("share", pa.float64()),
    ("name", pa.string()),
    ("is_new", pa.bool_()),
    ("tags", pa.list_(pa.string())),
    ("place", pa.struct([("x", pa.int64()), ("note", pa.string())])),
]
SCHEMA = pa.schema(_COLUMNS)

whole = st.integers(-(2**63), 2**63 - 1)
fractions = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=8)


def rows_of(columns: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    row = st.fixed_dictionaries({name: st.none() | one for name, one in columns.items()})
    return st.lists(row, max_size=6)


FLAT: dict[str, st.SearchStrategy[Any]] = {
    "count": whole,
    "share": fractions,
    "name": texts,
    "is_new": st.booleans(),
}
NESTED: dict[str, st.SearchStrategy[Any]] = {
    "tags": st.lists(st.none() | texts, max_size=3),
    "place": st.fixed_dictionaries({"x": st.none() | whole, "note": st.none() | texts}),
}


@given(rows_of(FLAT | NESTED))
def test_json_that_is_encoded_decodes_to_the_same_rows(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    json_format = record_format("json", SCHEMA)
    values = json_format.encode(table)
    decoded = json_format.decode(values)
    assert decoded.taken is None
    assert decoded.rows.equals(table)
    assert [json.loads(value) for value in values.to_pylist()] == rows


@given(rows_of(FLAT))
def test_csv_that_is_encoded_decodes_to_the_same_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["name"] = row["name"] or ""  # CSV has no null of text
        row["name"] = row["name"].replace("\x00", "")
    schema = pa.schema([SCHEMA.field(name) for name in FLAT])
    table = pa.Table.from_pylist(rows, schema=schema)
    csv = record_format("csv", schema)
    decoded = csv.decode(csv.encode(table))
    assert decoded.bad == ()
    assert decoded.rows.equals(table)


@given(rows_of(FLAT), st.lists(st.booleans(), min_size=6, max_size=6))
def test_upserts_that_are_encoded_decode_to_the_same_rows(
    rows: list[dict[str, Any]], gone: list[bool]
) -> None:
    schema = pa.schema([SCHEMA.field(name) for name in FLAT])
    upserts = record_format("upsert", schema, {"key": ["count", "name"]})
    for row, is_gone in zip(rows, gone, strict=False):
        row["deleted"] = is_gone
        row["count"], row["name"] = row["count"] or 0, row["name"] or ""
        if is_gone:
            row["share"] = row["is_new"] = None
    table = pa.Table.from_pylist(rows, schema=upserts.schema)
    decoded = upserts.decode(upserts.encode(table), upserts.encode_keys(table))
    assert decoded.bad == ()
    assert decoded.rows.equals(table)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | fractions | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abxyz"), inner)
    ),
    max_leaves=6,
)
documents = st.dictionaries(
    st.sampled_from(["count", "share", "name", "is_new", "tags", "place", "more"]), anything
)
records = st.builds(
    lambda value, indent, is_ascii: json.dumps(
        value, indent=indent, ensure_ascii=is_ascii
    ).encode(),
    documents | documents | anything,
    st.none() | st.just(2),
    st.booleans(),
)
noise = st.binary(max_size=12) | st.sampled_from(
    [b"", b"{", b"}", b'{"name": "}', b'{"', b"\n"]
)


def fits(value: Any, kind: Any) -> bool:
    """Tell whether a value of JSON is one of a type."""
    if value is None:
        return True
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(fits(one, kind.value_type) for one in value)
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and all(
            fits(value.get(field.name), field.type) for field in kind
        )
    is_whole = type(value) is int
    return {
        pa.bool_(): isinstance(value, bool),
        pa.string(): isinstance(value, str),
        pa.int64(): is_whole and -(2**63) <= value < 2**63,
        pa.float64(): is_whole or (type(value) is float and math.isfinite(value)),
    }[kind]


def shaped(value: Any, kind: Any) -> Any:
    """Return a value as Arrow gives it: all parts of a struct, and floats for floats."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_struct(kind):
        return {field.name: shaped(value.get(field.name), field.type) for field in kind}
    return value


def expected_row(record: bytes) -> Any:
    """Return the row of a record by Python's own parser; None if it is none."""
    try:
        found = json.loads(record.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    struct = pa.struct([*SCHEMA])
    return shaped(found, struct) if fits(found, struct) else None


@given(st.lists(st.none() | records | records | records | noise, max_size=8))
@example([b'{"name": "}', b'{"}', b'{"place": {}', b"{}}"])
@example([b'{"count": 1}{"count": 2}', b"{}"])
@example([b"null", b"{}"])
def test_json_decodes_as_pythons_own_parser_does(batch: list[bytes | None]) -> None:
    decoded = record_format("json", SCHEMA).decode(pa.array(batch, pa.binary()))
    expected = [None if one is None else expected_row(one) for one in batch]
    taken = [index for index, row in enumerate(expected) if row is not None]
    assert decoded.rows.to_pylist() == [expected[index] for index in taken]
    bad = [i for i, one in enumerate(batch) if one is not None and expected[i] is None]
    assert [one.index for one in decoded.bad] == bad
    told = list(range(len(batch))) if decoded.taken is None else decoded.taken.tolist()
    assert told == taken
