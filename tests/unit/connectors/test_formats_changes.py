"""Changes through bytes and back: what steps write as Debezium's or upserts, they read again."""

from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.connectors.formats.registry import record_format
from penstock.testing import CUT, ScriptedSource

COLUMNS: list[tuple[str, pa.DataType]] = [("user", pa.string()), ("n", pa.int64())]
USERS = pa.schema(COLUMNS)
ROWS = [
    {"user": "ada", "n": 1, "gone": False},
    {"user": "bob", "n": 2, "gone": False},
    {"user": "ada", "n": 3, "gone": False},
    {"user": "bob", "n": 0, "gone": True},
    {"user": "eve", "n": 4, "gone": False},
]
"""An epoch each."""


def changes_as(form: str) -> pa.Table:
    """Return the changes of a table in a form, as a sink gets them."""
    p, out = pen.Pipeline("writes"), pen.list_sink(f"changes-as-{form}")
    script = [step for row in ROWS for step in ([row], CUT)]
    table = p.read("rows", ScriptedSource({"0": script})).from_upserts(
        "users", key="user", deleted="gone"
    )
    stream = table.to_debezium() if form == "debezium" else table.to_upserts()
    stream.write("out", out)
    p.run_in_process("memory:")
    return pa.Table.from_pylist(out.rows(), stream.schema.arrow)


def table_of(form: str, rows: pa.Table) -> list[dict[str, Any]]:
    """Return the table that changes in a form lead to."""
    p, out = pen.Pipeline("reads"), pen.list_sink(f"table-of-{form}")
    stream = p.read("changes", pen.list_source(rows))
    if form == "debezium":
        table = stream.from_debezium("users", key="user")
    else:
        table = stream.from_upserts("users", key="user", deleted="deleted")
    table.to_upserts().write("out", out)
    p.run_in_process("memory:")
    return sorted(
        (row for row in out.rows() if not row["deleted"]), key=lambda r: r["user"]
    )


EXPECTED = [
    {"user": "ada", "n": 3, "deleted": False},
    {"user": "eve", "n": 4, "deleted": False},
]


def test_changes_as_debezium_writes_them_come_back_as_the_same_table() -> None:
    rows = changes_as("debezium")
    debezium = record_format("debezium", USERS)
    values = debezium.encode(rows)
    assert values[0].as_py() == b'{"before":null,"after":{"user":"ada","n":1},"op":"c"}'
    decoded = debezium.decode(values)
    assert decoded.taken is None
    assert decoded.rows.equals(rows.cast(debezium.schema))
    assert table_of("debezium", decoded.rows) == EXPECTED


def test_changes_as_upserts_come_back_as_the_same_table() -> None:
    rows = changes_as("upsert")
    upserts = record_format("upsert", USERS, {"key": "user"})
    values, keys = upserts.encode(rows), upserts.encode_keys(rows)
    assert values.null_count == 1
    decoded = upserts.decode(values, keys)
    assert decoded.taken is None
    assert decoded.rows.equals(rows.cast(upserts.schema))
    assert table_of("upsert", decoded.rows) == EXPECTED


def test_records_of_debezium_may_have_an_order_of_their_own() -> None:
    row = pa.struct(COLUMNS)
    source = pa.struct([("lsn", pa.int64())])
    fields: list[tuple[str, pa.DataType]] = [
        ("after", row),
        ("op", pa.string()),
        ("source", source),
    ]
    debezium = record_format("debezium", pa.schema(fields))
    values = [
        b'{"after": {"user": "ada", "n": 2}, "op": "u", "source": {"lsn": 9, "db": "x"}}',
        b'{"after": {"user": "ada", "n": 1}, "op": "c", "source": {"lsn": 8}}',
    ]
    decoded = debezium.decode(pa.array(values))
    p, out = pen.Pipeline("orders"), pen.list_sink("debezium-in-order")
    changes = p.read("changes", pen.list_source(decoded.rows))
    table = changes.from_debezium("users", key="user", order_by="source.lsn")
    table.to_upserts().write("out", out)
    p.run_in_process("memory:")
    assert out.rows() == [{"user": "ada", "n": 2, "deleted": False}]


def test_a_payload_whose_name_is_escaped_is_one_whatever_is_beside_it() -> None:
    changes = record_format("debezium", pa.schema([("id", pa.int64())]))
    odd = rb'{"pay\u006coad": {"op": "c", "after": {"id": 1}}}'
    plain = b'{"payload": {"op": "c", "after": {"id": 2}}}'
    alone = changes.decode(pa.array([odd]))
    beside = changes.decode(pa.array([odd, plain]))
    assert (alone.rows.num_rows, alone.bad) == (1, ())
    assert beside.rows.num_rows == 2
