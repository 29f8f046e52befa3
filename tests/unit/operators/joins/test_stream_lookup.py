"""Lookup joins with a small stream: every subtask has its table, as it is at the end of an epoch."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import StateError
from penstock.operators import EventTime
from penstock.testing import Amnesia, OperatorHarness
from tests.unit.state.files.file_builders import a_schema

ORDER = a_schema(currency=pa.string(), n=pa.int64())
RATE = a_schema(id=pa.int64(), currency=pa.string(), rate=pa.float64())


def node_of(right: pa.Schema = RATE, **options: Any) -> Any:
    p = pen.Pipeline("p")
    orders = p.read("orders", pen.list_source([], ORDER))
    rates = p.read("rates", pen.list_source([], right)).from_upserts(
        "rates-by-id", key="id"
    )
    options = {"on": "currency", "how": "left", **options}
    joined = orders.join("rated", pen.lookup_stream(rates), **options)
    joined.write("out", pen.blackhole())
    return next(n for n in p.graph().nodes if n.operator == "rated")


def harness_of(parallelism: int = 2, amnesia: Amnesia | bool = False) -> OperatorHarness:
    node = node_of()
    return OperatorHarness(
        node.spec, *node.inputs, parallelism=parallelism, broadcast={1}, amnesia=amnesia
    )


def change(kind: str, number: int, currency: str | None, rate: float) -> dict[str, Any]:
    return {"change": kind, "id": number, "currency": currency, "rate": rate}


def order(harness: OperatorHarness, *currencies: str | None) -> list[Any]:
    harness.push([{"currency": c, "n": i} for i, c in enumerate(currencies)])
    harness.barrier()
    return sorted(((r["currency"], r["rate"]) for r in harness.take()), key=str)


@pytest.mark.parametrize("amnesia", [False, True])
def test_rows_see_the_table_as_it_is_at_the_end_of_their_epoch(*, amnesia: bool) -> None:
    with harness_of(amnesia=amnesia) as harness:
        assert order(harness, "chf") == [("chf", None)]
        harness.push([{"currency": "chf", "n": 9}])
        harness.push([change("insert", 1, "chf", 1.0)], input=1)
        assert order(harness, "chf", "eur") == [("chf", 1.0), ("chf", 1.0), ("eur", None)]
        changes = [
            change("update-before", 1, "chf", 1.0),
            change("update-after", 1, "eur", 2.0),
        ]
        harness.push(changes, input=1)
        assert order(harness, "chf", "eur") == [("chf", None), ("eur", 2.0)]
        harness.push(
            [change("insert", 2, "eur", 3.0), change("insert", 3, None, 4.0)], input=1
        )
        assert order(harness, "eur", None) == [("eur", 2.0), ("eur", 3.0), (None, None)]
        harness.push(
            [change("delete", 1, "eur", 2.0), change("delete", 3, None, 4.0)], input=1
        )
        assert order(harness, "eur") == [("eur", 3.0)]


def test_the_table_goes_on_at_another_parallelism() -> None:
    with harness_of(1) as harness:
        rows = [
            change("insert", number, f"c{number}", float(number)) for number in range(600)
        ]
        harness.push(rows, input=1)
        assert order(harness, "c1", "c599") == [("c1", 1.0), ("c599", 599.0)]
        moved = harness.checkpoint()
    with OperatorHarness.restore(moved, parallelism=3) as harness:
        asked = [f"c{number}" for number in range(0, 600, 7)]
        assert order(harness, *asked) == sorted((c, float(c[1:])) for c in asked)
        harness.push([change("delete", 7, "c7", 7.0)], input=1)
        assert order(harness, "c7", "c8") == [("c7", None), ("c8", 8.0)]
        moved = harness.checkpoint()
    with OperatorHarness.restore(moved, parallelism=2) as harness:
        assert order(harness, "c7", "c8", "c9") == [("c7", None), ("c8", 8.0), ("c9", 9.0)]


def test_a_change_writes_a_piece_of_the_table_and_each_piece_is_written_by_one_subtask() -> (
    None
):
    with harness_of(2) as harness:
        rows = [change("insert", number, "c", float(number)) for number in range(2000)]
        harness.push(rows, input=1)
        harness.barrier()
        before = dict(harness.state("right"))
        assert len(before) > 200
        harness.push([change("delete", 7, "c", 7.0)], input=1)
        harness.barrier()
        after = dict(harness.state("right"))
        assert sum(before[piece] != after.get(piece) for piece in before) == 1


def test_an_attempt_that_did_not_count_changes_nothing() -> None:
    with harness_of(2) as harness:
        harness.push([change("insert", 1, "chf", 1.0)], input=1)
        harness.push([{"currency": "chf", "n": 1}])
        harness.barrier(attempts=3)
        assert [row["rate"] for row in harness.take()] == [1.0]
        assert order(harness, "chf") == [("chf", 1.0)]


def test_state_of_other_columns_is_refused() -> None:
    with harness_of(1) as harness:
        harness.push([change("insert", 1, "chf", 1.0)], input=1)
        harness.barrier()
        moved = harness.checkpoint()
    other = node_of(RATE.append(pa.field("more", pa.int64())))
    node = replace(
        moved.graph.nodes[0],
        spec=other.spec,
        inputs=other.inputs,
        outputs=other.outputs,
    )
    changed = replace(moved, graph=replace(moved.graph, nodes=(node,)))
    with (
        OperatorHarness.restore(changed) as harness,
        pytest.raises(StateError, match="do not fit its right side any more"),
    ):
        order(harness, "chf")


def test_the_table_holds_no_watermark_back() -> None:
    p, out = pen.Pipeline("p"), pen.list_sink("lookup-watermarks")
    rows = [{"k": 1, "at": second * 1_000_000} for second in range(100)]
    schema = a_schema(k=pa.int64(), at=pa.timestamp("us"))
    left = p.read("left", pen.list_source(rows, schema), event_time="at")
    right = p.read("right", pen.list_source(rows[:1], schema), event_time="at")
    joined = left.join("x", pen.lookup_stream(right), on="k")
    joined.key_by("k").window("w", pen.tumbling("10s")).aggregate(n=pen.count()).write(
        "o", out
    )
    node = next(n for n in p.graph().nodes if n.operator == "x")
    with OperatorHarness(node.spec, *node.inputs, broadcast={1}) as harness:
        harness.watermark(EventTime(5_000_000), input=0)
        harness.watermark(EventTime(1_000_000), input=1)
        assert harness.barrier().watermark == EventTime(5_000_000)
    p.run_in_process("memory:")
    assert sum(row["n"] for row in out.rows()) == 100
