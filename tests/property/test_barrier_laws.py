"""Laws of barriers: what one attempt of each producer sent arrives whole, or is known to be torn."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.ids import Subtask, Token
from penstock.core.watermark import EventTime, merge
from penstock.graph.logical import LogicalGraph
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph
from penstock.runtime.task.exchange import (
    AbortedInputError,
    Attempt,
    ExchangeInput,
    Mailbox,
    Sender,
    TornInputError,
    outlets_of,
)
from penstock.runtime.task.wire import Record, RecordKind, decode_header
from tests.builders.graphs import CLICKS, a_graph


def a_plan(graph: LogicalGraph | None = None) -> PhysicalPlan:
    """Return two producers of two subtasks each that one operator of two reads."""
    lines = ("a -r> join", "b -b> join")
    sizes = {"a": 2, "b": 2, "join": 2}
    return compile_graph(graph or a_graph(*lines, parallelism=sizes))


PLAN = a_plan()


def some_rows(*pages: int) -> pa.RecordBatch:
    listed = [{"user": f"u{page}", "page": page, "at": page} for page in pages]
    return pa.RecordBatch.from_pylist(listed, schema=CLICKS.arrow)


def send(
    task: int, batches: Sequence[Sequence[int]], attempt: int, watermark: int = 0
) -> list[Record]:
    """Return what one attempt of a task of level 0 puts on the wire, each batch a record."""
    chain, subtask = PLAN.task(0, task)
    mailbox = Mailbox(PLAN, Attempt(0, task, Token(f"{attempt:032x}")))
    records: list[Record] = []
    outlets = outlets_of(PLAN, chain, mailbox, subtask=subtask.index, epoch=1)
    for outputs in outlets.values():
        for outlet in outputs["main"]:
            for pages in batches:
                outlet.take(some_rows(*pages))
                for lane in outlet._lanes.values():
                    outlet._flush(lane)
            outlet.finish(EventTime(watermark))
    records += mailbox.drain()
    return records


def for_consumer(records: Sequence[Record], task: int) -> list[Record]:
    return [record for record in records if record.route == task]


@dataclass
class Received:
    """What the consumer made of its input."""

    rows: dict[Sender, list[int]] = field(default_factory=dict)
    receipts: dict[Sender, str] = field(default_factory=dict)


def receive(records: Sequence[Record], task: int = 0) -> Received | str:
    """Return what arrived, or why it is torn."""
    chain, _ = PLAN.task(1, task)
    mailbox = Mailbox(PLAN, Attempt(1, task, Token("f" * 32)))
    inlet = ExchangeInput(PLAN, chain, Subtask(task, 2), records, mailbox)
    received = Received()
    try:
        by_input: dict[int, list[int]] = {}
        for _operator, index, batch in inlet.batches():
            pages = [row["page"] for row in batch.to_pylist()]
            by_input.setdefault(index, []).extend(pages)
    except TornInputError as torn:
        return str(torn)
    received.receipts = {sender: str(token) for sender, token in inlet.receipts()}
    received.rows = {Sender(i, 0, 0): sorted(pages) for i, pages in by_input.items()}
    return received


cargo = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=3)
cargos = st.lists(cargo, min_size=4, max_size=4)


def shuffled(data: st.DataObject, outputs: Sequence[Sequence[Record]]) -> list[Record]:
    """Mix producers in any order; each keeps its own."""
    queues = [list(output) for output in outputs if output]
    mixed = []
    while queues:
        index = data.draw(st.integers(0, len(queues) - 1))
        mixed.append(queues[index].pop(0))
        if not queues[index]:
            queues.pop(index)
    return mixed


@given(st.data(), cargos)
def test_any_order_between_producers_arrives_whole(
    data: st.DataObject, batches: list[list[list[int]]]
) -> None:
    outputs = [for_consumer(send(task, batches[task], task), 0) for task in range(4)]
    expected = receive([record for output in outputs for record in output])
    assert isinstance(expected, Received)
    assert receive(shuffled(data, outputs)) == expected
    tokens = {sender.task: token for sender, token in expected.receipts.items()}
    assert tokens == {task: f"{task:032x}" for task in range(4)}


@given(st.data(), cargos)
def test_lost_repeated_or_reordered_records_of_a_producer_are_detected(
    data: st.DataObject, batches: list[list[list[int]]]
) -> None:
    outputs = [for_consumer(send(task, batches[task], task), 0) for task in range(4)]
    victim = data.draw(st.integers(0, 3), label="victim")
    sent = outputs[victim]
    kept = data.draw(
        st.lists(st.sampled_from(range(len(sent))), max_size=len(sent) + 2), label="kept"
    )
    arrived = [sent[position] for position in kept]
    outputs[victim] = arrived
    result = receive(shuffled(data, outputs))
    if kept == list(range(len(sent))):
        assert isinstance(result, Received)
    else:
        assert isinstance(result, str)
        assert f"task {victim} of level 0" in result


@given(st.data(), cargos, cargo)
def test_records_of_two_attempts_are_never_taken_for_one(
    data: st.DataObject, batches: list[list[list[int]]], other: list[list[int]]
) -> None:
    outputs = [for_consumer(send(task, batches[task], task), 0) for task in range(4)]
    again = for_consumer(send(0, other, attempt=9), 0)
    first = outputs[0]
    merged = [
        data.draw(st.sampled_from([a, b])) for a, b in zip(first, again, strict=False)
    ] + data.draw(st.sampled_from([first[len(again) :], again[len(first) :], []]))
    outputs[0] = merged
    result = receive(shuffled(data, outputs))
    if merged in (first, again):
        assert isinstance(result, Received)
        token = result.receipts[Sender(0, 0, 0)]
        assert token == ("0" * 32 if merged == first else f"{9:032x}")
    else:
        assert isinstance(result, str)


@given(cargos, st.integers(0, 3))
def test_an_aborted_barrier_is_heard_whatever_else_came(
    batches: list[list[list[int]]], failed: int
) -> None:
    outputs = [for_consumer(send(task, batches[task], task), 0) for task in range(4)]
    chain, subtask = PLAN.task(0, failed)
    mailbox = Mailbox(PLAN, Attempt(0, failed, Token("e" * 32)))
    for outlets in outlets_of(
        PLAN, chain, mailbox, subtask=subtask.index, epoch=1
    ).values():
        for outlet in outlets["main"]:
            outlet.abort()
    outputs[failed] = for_consumer(list(mailbox.drain()), 0)
    records = [record for output in outputs for record in output]
    chain, _ = PLAN.task(1, 0)
    inlet = ExchangeInput(PLAN, chain, Subtask(0, 2), records, mailbox)
    with pytest.raises(AbortedInputError, match=f"task {failed} of level 0"):
        list(inlet.batches())


@given(st.lists(st.integers(-5, 5), min_size=4, max_size=4))
def test_the_watermark_of_an_input_is_that_of_all_its_producers(said: list[int]) -> None:
    records = [
        record
        for task in range(4)
        for record in for_consumer(send(task, [], task, watermark=said[task]), 1)
    ]
    chain, _ = PLAN.task(1, 1)
    mailbox = Mailbox(PLAN, Attempt(1, 1, Token("f" * 32)))
    inlet = ExchangeInput(PLAN, chain, Subtask(1, 2), records, mailbox)
    assert list(inlet.batches()) == []
    assert inlet.watermarks() == {
        ("join", 0): merge(map(EventTime, said[:2])),
        ("join", 1): merge(map(EventTime, said[2:])),
    }


@given(cargo)
def test_a_relay_changes_nothing_but_the_route(batches: list[list[int]]) -> None:
    """An edge that skips a level passes through tasks that do not read it."""
    plan = a_plan(
        a_graph("a -r> mid", "mid -r> end", "a -b> end", parallelism={"mid": 2, "end": 3})
    )
    chain, subtask = plan.task(0, 0)
    mailbox = Mailbox(plan, Attempt(0, 0, Token("a" * 32)))
    outlets = outlets_of(plan, chain, mailbox, subtask=subtask.index, epoch=1)
    for outputs in outlets.values():
        for outlet in outputs["main"]:
            for pages in batches:
                outlet.take(some_rows(*pages))
            outlet.finish(None)
    mailbox.report(b"report")
    sent = list(mailbox.drain())
    relayed: list[Record] = []
    for task in range(2):
        chain, subtask = plan.task(1, task)
        passing = Mailbox(plan, Attempt(1, task, Token("b" * 32)))
        arriving = [record for record in sent if record.route == task]
        list(ExchangeInput(plan, chain, subtask, arriving, passing).batches())
        relayed += passing.drain()
    skipping = [record for record in sent if decode_header(record.header).level != 1]
    assert sorted(map(_shown, relayed)) == sorted(map(_shown, skipping))
    for record in relayed:
        header = decode_header(record.header)
        if record.kind != RecordKind.REPORT:
            assert record.route == header.task


def _shown(record: Record) -> tuple[int, bytes, bytes]:
    return record.kind, record.header, bytes(record.payload)
