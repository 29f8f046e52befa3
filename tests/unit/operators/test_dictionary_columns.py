"""Columns whose batches have dictionaries of their own, which together do not fit into one."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.clock import new_token
from penstock.operators import EventTime
from penstock.testing import OperatorHarness

COUNT, BATCHES = 100, 3
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("k", pa.dictionary(pa.int8(), pa.string())),
        pa.field("at", pa.timestamp("us")),
    ]
)
"""An index of 8 bits tells 128 values apart: all batches together have more."""


def a_batch(number: int) -> pa.Table:
    """Return rows that are like those of no other batch."""
    ids = range(number * COUNT, (number + 1) * COUNT)
    places: Any = pa.array(range(COUNT), pa.int8())
    keys = pa.DictionaryArray.from_arrays(places, pa.array([f"key {id_}" for id_ in ids]))
    times = pa.array([0] * COUNT, pa.timestamp("us"))
    return pa.table([pa.array(ids, pa.int64()), keys, times], schema=SCHEMA)


def a_stream(p: pen.Pipeline, name: str) -> pen.Stream:
    """Return all batches as one stream."""
    first, *others = (
        p.read(f"{name}-{number}", pen.list_source(a_batch(number)), event_time="at")
        for number in range(BATCHES)
    )
    for other in others:
        first = first.union(other)
    return first


Step = Callable[[pen.Stream, pen.Stream], pen.Stream]
STEPS: dict[str, Step] = {
    "nothing": lambda left, _: left,
    "aggregate": lambda left, _: left.key_by("k").aggregate("s", n=pen.count()),
    "deduplicate": lambda left, _: left.deduplicate("s", "k", ttl="1h"),
    "keep last": lambda left, _: left.deduplicate("s", "id", keep="last"),
    "top": lambda left, _: left.top("s", 1, by="id", per="k"),
    "top of a table": lambda left, _: left.from_upserts("t", key="id").top(
        "s", 500, by="k"
    ),
    "interval join": lambda left, right: left.join("s", right, on="k", within=("0s", "0s")),
    "session join": lambda left, right: left.join(
        "s", right, on="id", window=pen.session("1s")
    ),
    "table join": lambda left, right: left.join(
        "s", right, on="k", how="full", ttl=(None, None)
    ),
    "lookup": lambda left, right: left.join("s", pen.lookup_stream(right), on="k"),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_rows_with_small_dictionaries_pass_every_step(step: Step) -> None:
    p, out = pen.Pipeline("p", parallelism=2), pen.list_sink(new_token())
    step(a_stream(p, "left"), a_stream(p, "right")).write("out", out)
    p.run_in_process("memory:")
    assert sorted({row["k"] for row in out.rows()}) == sorted(
        f"key {number}" for number in range(BATCHES * COUNT)
    )


def test_late_rows_of_sessions_have_the_layouts_in_which_they_came() -> None:
    p = pen.Pipeline("p")
    left, right = (
        p.read(name, pen.list_source([], SCHEMA), event_time="at") for name in "lr"
    )
    left.join("join", right, on="id", window=pen.session("1s")).write(
        "out", pen.blackhole()
    )
    node = next(node for node in p.graph().nodes if node.operator == "join")
    with OperatorHarness(node.spec, *node.inputs) as join:
        join.watermark(EventTime(10_000_000))
        join.barrier()
        for number in range(BATCHES):
            join.push(a_batch(number))
        join.barrier()
        assert len(join.take(pen.LATE)) == BATCHES * COUNT
