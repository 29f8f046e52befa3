"""Quick JSON gives the rows that Arrow gives, or none: no leniency of Polars gets through."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.connectors.formats.json_text import read_objects
from penstock.connectors.formats.quick_json import QuickJson

COLUMNS: list[tuple[str, pa.DataType]] = [
    ("n", pa.int64()),
    ("x", pa.float64()),
    ("s", pa.string()),
    ("b", pa.bool_()),
    ("at", pa.timestamp("us")),
    ("utc", pa.timestamp("us", "UTC")),
]
SCHEMA = pa.schema(COLUMNS)
PLAIN = b'{"n": 1, "x": 0.5, "s": "a", "b": true, "at": "2026-01-01", "utc": "2026-01-01T00:00Z"}'


def lines(*records: bytes) -> bytes:
    return b"".join(record + b"\n" for record in records)


def check(text: bytes, *, ignores_extra: bool = False) -> pa.Table | None:
    """Return the rows of a text, after comparing them with Arrow's."""
    quick = QuickJson(SCHEMA, ignores_extra=ignores_extra, min_bytes=0)
    rows = quick.parse(pa.py_buffer(text))
    if rows is not None:
        strict = read_objects(text, SCHEMA, ignores_extra=ignores_extra)
        assert rows.equals(strict)
        # Zeros of both signs are equal.
        assert str(rows["x"].to_pylist()) == str(strict["x"].to_pylist())
    return rows


numbers = [
    b"0",
    b"-0",
    b"7",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"1.5",
    b"1e2",
]
numbers += [
    b"1" * 30,
    b"1" * 45,
    b"1E400",
    b"0.1",
    b"2.2250738585072011e-308",
    b"01",
    b"NaN",
]
words = [
    b"a",
    b"",
    b"5",
    b"-1.5",
    b"1e5",
    b"true",
    b"false",
    b"null",
    b"{}",
    b"[1]",
    b"{",
    b"twit",
]
words += [
    b"-",
    b"7 up",
    "é\U0001f600".encode(),
    b"\\ud800",
    b"\\n",
    b"\\\\",
    b"\xff",
    b"a\tb",
]
times = [
    b"2026-01-01",
    b"2026-01-01 12:00:00.5",
    b"2026-01-01T00:00:00Z",
    b"2026-01-01T00:00+02:00",
]
times += [
    b"2026",
    b"20260101",
    b"0000-01-01",
    b"9999-12-31T23:59:59.999999",
    b"2026-01-01T00:00:00.1234567",
]
texts = [b'"' + word + b'"' for word in words + times]
others = [b"null", b"true", b"false", b"{}", b"[]", b'{"n": 1}', b'["a"]', b"tru", b""]
fragments = st.sampled_from(numbers + texts + others)
fitting = {
    b"n": st.integers(-(2**63), 2**63 - 1).map(lambda n: str(n).encode()),
    b"x": st.floats(allow_nan=False, allow_infinity=False).map(lambda x: repr(x).encode()),
    b"s": st.text(st.sampled_from("abté 5-{"), max_size=4).map(lambda s: f'"{s}"'.encode()),
    b"b": st.sampled_from([b"true", b"false"]),
    b"at": st.sampled_from([b'"2026-01-01"', b'"1969-12-31T23:59:59.123456"']),
    b"utc": st.sampled_from([b'"2026-01-01T00:00:00Z"', b'"2026-01-01 00:00:00+02:00"']),
}
pairs = st.one_of(
    *(st.tuples(st.just(key), value) for key, value in fitting.items()),
    st.tuples(st.sampled_from([*fitting, b"more", b"other", b""]), fragments),
)
objects = st.lists(pairs, max_size=7) | st.tuples(
    *(st.tuples(st.just(key), value) for key, value in fitting.items())
)
records = objects.map(
    lambda pairs: b"{" + b", ".join(b'"' + k + b'": ' + v for k, v in pairs) + b"}"
)


@given(st.lists(records | st.just(PLAIN), min_size=1, max_size=5))
@example([b'{"s": 5}', b'{"n": 1, "more": 2}'])
@example([b'{"s": 5, "more": 1}'])
@example([b'{"x": -0}'])
@example([b'{"x": 0, "s": "-0"}', b'{"x": -0}'])
@example([b'{"n": 1, "n": 2}', b"{}"])
@example([b'{"s": "a", "s": "b"}', b'{"n": null}'])
def test_rows_are_those_of_arrow_or_none(batch: list[bytes]) -> None:
    check(lines(*batch))
    check(lines(*batch), ignores_extra=True)


with_more = st.builds(
    lambda value, key: PLAIN[:-1] + b', "' + key + b'": ' + value + b"}",
    fragments,
    st.sampled_from([b"more", b"other"]),
)


@given(st.lists(with_more, min_size=1, max_size=4))
@example([b'{"more": 5}', b'{"more": "5"}'])
@example([b'{"more": "a"}', b'{"more": 5}', b'{"more": null}'])
@example([b'{"more": 1}', b'{"more": {"n": 1}}'])
@example([b'{"more": 1, "more": 2}', b'{"n": 1}'])
@example([b'{"more": 1.5}', b'{"more": 1e999}'])
def test_skipped_keys_change_no_row(batch: list[bytes]) -> None:
    check(lines(*batch), ignores_extra=True)


def test_keys_that_the_first_record_has_are_skipped_quickly() -> None:
    more = b', "more": "a b", "other": 1.5, "yes": true, "few": 7}'
    rows = check(lines(PLAIN[:-1] + more, PLAIN, PLAIN[:-1] + more), ignores_extra=True)
    assert rows is not None
    assert rows.column_names == SCHEMA.names
    later = lines(PLAIN, PLAIN[:-1] + b', "more": 1}')
    assert check(later, ignores_extra=True) is None


def test_plain_records_are_read_quickly_and_absent_keys_are_null() -> None:
    rows = check(lines(PLAIN, b'{"n": 2}', b"{}", b'{"s": ""}', b'  {"x": 1} '))
    assert rows is not None
    assert rows["n"].to_pylist() == [1, 2, None, None, None]


@pytest.mark.parametrize(
    "record",
    [
        b'{"s": 5}',
        b'{"s": 1.5}',
        b'{"s": true}',
        b'{"s": {"a": "b"}}',
        b'{"s": ["a"]}',
        b'{"n": 1, "n": 2}',
        b'{"n": 1, "more": 2}',
        b'{"s": null}',
        b'{"s": "\\ud800"}',
        b'{"s": "7"}',
        b'{"at": "2026-01-01T00:00Z"}',
        b'{"n": 1.5}',
        b'{"x": true}',
        b'{"b": 1}',
    ],
)
def test_what_might_be_read_otherwise_is_left_to_arrow(record: bytes) -> None:
    assert check(lines(record)) is None
    assert check(lines(PLAIN, record, PLAIN)) is None


def test_texts_are_left_to_arrow_for_a_while_after_one_that_was() -> None:
    quick = QuickJson(SCHEMA, min_bytes=0)
    odd, plain = lines(b'{"s": "7"}'), lines(PLAIN)
    asked = [quick.parse(text) is not None for text in (plain, odd, plain, plain, odd)]
    assert asked == [True, False, False, True, False]
    assert [quick.parse(odd) for _ in range(50)] == [None] * 50
    assert sum(quick.parse(plain) is not None for _ in range(100)) > 30


def test_short_texts_and_nested_columns_are_left_to_arrow() -> None:
    nested: list[Any] = [("tags", pa.list_(pa.string())), ("half", pa.float32())]
    for column in nested:
        quick = QuickJson(pa.schema([column]), min_bytes=0)
        assert quick.parse(b"{}\n") is None
    assert QuickJson(SCHEMA).parse(lines(PLAIN)) is None
    many = lines(*[json.dumps({"n": n}).encode() for n in range(10_000)])
    assert QuickJson(SCHEMA).parse(many) is not None
