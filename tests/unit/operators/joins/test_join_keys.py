"""Keys of every type in joins of every kind: what is equal, and that no type fails a running job."""

import math
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing import OperatorHarness

KINDS: dict[str, dict[str, Any]] = {
    "interval": {"within": ("-1m", "1m")},
    "window": {"window": pen.tumbling("1m")},
    "session": {"window": pen.session("1m")},
    "table": {"ttl": (None, None)},
}
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "float": (pa.float64(), [0.0, math.nan, 1.5]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-2.50")]),
    "seconds": (pa.timestamp("s"), [0, -86_400]),
    "time": (pa.time32("s"), [time(1, 2), time(3, 4)]),
    "date64": (pa.date64(), [date(2026, 1, 1), date(1960, 1, 1)]),
    "duration": (pa.duration("s"), [timedelta(1), timedelta(-1)]),
    "fixed bytes": (pa.binary(2), [b"ab", b"\0\0"]),
    "uuid": (pa.uuid(), [UUID(int=0), UUID(int=7)]),
    "struct": (pa.struct([("x", pa.float64())]), [{"x": 0.0}, {"x": None}]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["", "a"]),
}


SIDES = ("left", "right")


def schema_of(side: str, kind: Any) -> pa.Schema:
    """Return the columns of a side: a key of a type, a number, and an instant."""
    return pa.schema([("k", kind), (side, pa.int64()), ("at", pa.timestamp("us"))])


def a_join(kind: Any, options: dict[str, Any]) -> OperatorHarness:
    """Return a full join of two streams by a column of a type."""
    p = pen.Pipeline("p")
    left, right = (
        p.read(side, pen.list_source([], schema_of(side, kind)), event_time="at")
        for side in SIDES
    )
    left.join("join", right, on="k", how="full", **options).write("out", pen.blackhole())
    node = next(node for node in p.graph().nodes if node.operator == "join")
    return OperatorHarness(node.spec, *node.inputs)


def rows_of(side: str, kind: Any, keys: list[Any]) -> pa.Table:
    """Return rows of a side with these keys, numbered from 0, at one instant."""
    numbers = pa.array(range(len(keys)), pa.int64())
    instants = pa.array([0] * len(keys), pa.timestamp("us"))
    return pa.table([pa.array(keys, kind), numbers, instants], schema=schema_of(side, kind))


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("given", TYPES.values(), ids=TYPES)
def test_a_key_of_any_type_matches_its_like_in_every_join(
    given: tuple[Any, list[Any]], options: dict[str, Any]
) -> None:
    kind, values = given
    with a_join(kind, options) as join:
        join.push(rows_of("left", kind, [*values, None]), input=0)
        join.barrier()
        join.push(rows_of("right", kind, [None, *values]), input=1)
        join.barrier()
        join.end()
        found: set[Any] = set()
        for row in join.take():
            change = found.discard if row.get("change") == "delete" else found.add
            change((row["left"], row["right"]))
    pairs = {(number, number + 1) for number in range(len(values))}
    assert found == {*pairs, (len(values), None), (None, 0)}
