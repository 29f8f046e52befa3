"""Inlets: records are joined for the operators, in order, and never far beyond a size."""

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.core.ids import Token
from penstock.runtime.inlets import JOINED_BYTES, ExchangeInput
from penstock.runtime.outlets import Attempt, Mailbox, outlets_of
from penstock.runtime.physical import PhysicalPlan, compile_graph
from penstock.runtime.wire import Record, RecordKind
from tests.builders.graphs import CLICKS, a_graph

SCHEMA = CLICKS.schema


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
        assert all(batch.nbytes >= JOINED_BYTES for batch in batches[:-1])
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
