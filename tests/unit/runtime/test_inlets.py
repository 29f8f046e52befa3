"""Inlets: records are joined for the operators, in order, and never far beyond a size."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.ids import OperatorId, Token
from penstock.core.schema import StreamSchema
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph
from penstock.runtime.task.exchange import (
    JOINED_BYTES,
    JOINED_ROWS,
    Attempt,
    ExchangeInput,
    Mailbox,
    Waiting,
    outlets_of,
)
from penstock.runtime.task.wire import Record, RecordKind
from tests.builders.graphs import CLICKS, a_graph, with_node

SCHEMA = CLICKS.arrow


def a_plan() -> PhysicalPlan:
    """Return two producers that one operator reads."""
    sizes = {"a": 1, "b": 1, "join": 1}
    return compile_graph(a_graph("a -r> join", "b -b> join", parallelism=sizes))


def some_rows(start: int, count: int) -> pa.RecordBatch:
    page = np.arange(start, start + count)
    columns: dict[str, Any] = {
        "user": pa.array([f"u{n % 7}" for n in range(count)]),
        "page": pa.array(page),
        "at": pa.array(page),
    }
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in SCHEMA], schema=SCHEMA
    )


def sent_by(plan: PhysicalPlan, task: int, batches: list[pa.RecordBatch]) -> list[Record]:
    chain, subtask = plan.task(0, task)
    mailbox = Mailbox(plan, Attempt(0, task, Token(f"{task:032x}")))
    for outputs in outlets_of(
        plan, chain, mailbox, subtask=subtask.index, epoch=1
    ).values():
        for outlet in outputs["main"]:
            for batch in batches:
                outlet.take(batch)
            outlet.finish(None)
    return list(mailbox.drain())


def read(plan: PhysicalPlan, records: list[Record]) -> dict[int, list[pa.RecordBatch]]:
    chain, subtask = plan.task(1, 0)
    mailbox = Mailbox(plan, Attempt(1, 0, Token("f" * 32)))
    found: dict[int, list[pa.RecordBatch]] = {}
    for _, index, batch in ExchangeInput(plan, chain, subtask, records, mailbox).batches():
        found.setdefault(index, []).append(batch)
    return found


def test_records_of_both_inputs_are_joined_in_order_whatever_their_turns() -> None:
    plan = a_plan()
    batch_rows = 20_000
    cargo = {
        task: [some_rows(n * batch_rows, batch_rows) for n in range(40)] for task in (0, 1)
    }
    sent = [sent_by(plan, task, batches) for task, batches in cargo.items()]
    assert all(sum(r.kind == RecordKind.DATA for r in records) > 20 for records in sent)
    turns = [record for pair in zip(*sent, strict=True) for record in pair]
    found = read(plan, turns)
    assert sorted(found) == [0, 1]
    for task, batches in found.items():
        expected = pa.Table.from_batches(cargo[task])
        assert pa.Table.from_batches(batches).equals(expected)
        assert len(batches) < 5
        assert all(
            batch.num_rows >= JOINED_ROWS or batch.nbytes >= JOINED_BYTES
            for batch in batches[:-1]
        )
        assert all(batch.num_rows < 2 * JOINED_ROWS for batch in batches)
        assert all(batch.nbytes < 2 * JOINED_BYTES for batch in batches)


def test_few_rows_of_many_records_are_one_batch() -> None:
    plan = a_plan()
    first, second = (sent_by(plan, task, [some_rows(0, 3)]) for task in (0, 1))
    found = read(plan, [*second, *first])
    assert {
        index: [batch.num_rows for batch in batches] for index, batches in found.items()
    } == {
        0: [3],
        1: [3],
    }


def test_a_batch_has_a_limited_number_of_rows_whatever_their_size() -> None:
    waiting = Waiting(is_joinable=True)
    nulls = pa.record_batch({"n": pa.nulls(JOINED_ROWS // 2)})
    enough = []
    for _ in range(2):
        waiting.add(nulls)
        enough.append(waiting.is_enough)
    assert enough == [False, True]
    assert waiting.take().num_rows == JOINED_ROWS
    assert (waiting.row_count, waiting.batches) == (0, [])


def test_dictionaries_are_not_joined() -> None:
    """Two dictionaries of 100 words each do not fit into one with indices of a byte."""
    words = StreamSchema(pa.schema({"word": pa.dictionary(pa.int8(), pa.string())}))
    graph = a_graph("a -r> join", "b -b> join", parallelism={"a": 1, "b": 1, "join": 1})
    for name in ("a", "b"):
        graph = with_node(
            graph, replace(graph.node(OperatorId(name)), outputs={"main": words})
        )
    join = replace(graph.node(OperatorId("join")), inputs=(words, words))
    plan = compile_graph(with_node(graph, join))
    first, second, third = (
        pa.record_batch(
            [
                pa.array([f"{turn}-{n}" for n in range(100)]).cast(
                    words.arrow.field("word").type
                )
            ],
            schema=words.arrow,
        )
        for turn in range(3)
    )
    chain, _ = plan.task(0, 0)
    mailbox = Mailbox(plan, Attempt(0, 0, Token("a" * 32)))
    (outlet,) = outlets_of(plan, chain, mailbox, subtask=0, epoch=1)[OperatorId("a")][
        "main"
    ]
    for batch in (first, second):
        outlet.take(batch)
        outlet._flush(outlet._lanes[0])
    outlet.finish(None)
    found = read(plan, [*mailbox.drain(), *sent_by(plan, 1, [third])])
    assert [batch.column(0).to_pylist() for batch in found[0]] == [
        first.column(0).to_pylist(),
        second.column(0).to_pylist(),
    ]
    assert found[1][0].equals(third)
