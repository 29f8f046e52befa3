"""The laws of receipts: what a task accepts of its producers, what a driver of its tasks.

| what is tried | the law |
|---|---|
| records of whole producers in any order between them | accepted, whole, with receipts |
| one record lost, repeated, moved, of another attempt or sender | torn |
| reports of one attempt of each task, and of attempts nobody consumed | agreed |
| one report or receipt lost or changed, a second attempt at the end | not agreed |
| any reports at all | if agreed, then whole, and every receipt names what was chosen |
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from penstock.core.ids import Token
from penstock.core.watermark import EventTime
from penstock.runtime.driver.outcomes import Agreed, Failed, TaskKey, Torn, find_agreement
from penstock.runtime.plan.executor import ErrorPart, Receipt, TaskReport
from penstock.runtime.plan.physical import (
    PhysicalPlan,
    compile_graph,
    peers_of,
)
from penstock.runtime.task.exchange import Attempt, ExchangeInput, Mailbox, TornInputError
from penstock.runtime.task.wire import (
    BarrierPayload,
    Header,
    Record,
    RecordKind,
    decode_header,
    encode_barrier,
    encode_batch,
    encode_header,
)
from tests.builders.graphs import CLICKS, sound_graphs

OWN_TOKEN = Token("0" * 32)
LAWS = settings(
    # Each law is tried in many variants, on graphs of which some are too small for it.
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def token_of(level: int, task: int, attempt: int = 0) -> Token:
    return Token(f"{level + 1:08x}{task:08x}{attempt:016x}")


def rows_of(number: int) -> pa.RecordBatch:
    names = CLICKS.arrow.names
    empty: dict[str, object] = dict.fromkeys(names)
    return pa.RecordBatch.from_pylist([empty] * (number + 1), schema=CLICKS.arrow)


# ---- what a task accepts


@dataclass(frozen=True)
class Inbox:
    """A task and what was sent to it, by sender."""

    plan: PhysicalPlan
    level: int
    task: int
    sent: list[list[Record]]

    def read(self, records: Sequence[Record]) -> tuple[int, list[tuple[str, str]]]:
        """Return how many rows were accepted, and the receipts."""
        chain, subtask = self.plan.task(self.level, self.task)
        mailbox = Mailbox(self.plan, Attempt(self.level, self.task, OWN_TOKEN))
        inlet = ExchangeInput(self.plan, chain, subtask, records, mailbox)
        count = sum(batch.num_rows for _, _, batch in inlet.batches())
        return count, [(str(sender), str(token)) for sender, token in inlet.receipts()]


@st.composite
def inboxes(draw: st.DrawFn) -> Inbox:
    plan = compile_graph(draw(sound_graphs()))
    consumers = [key for key in plan.tasks() if key[0] > 0]
    assume(consumers)
    level, task = draw(st.sampled_from(consumers))
    chain, subtask = plan.task(level, task)
    sent = []
    for edge in plan.incoming(chain.number):
        producer = plan.chains[edge.source_chain]
        for index in peers_of(edge.exchange, producer.parallelism, subtask.index):
            sender = producer.first_task + index
            token = token_of(producer.level, sender)
            count = draw(st.integers(0, 3))
            headers = [
                Header(edge.number, level, task, producer.level, sender, token, sequence)
                for sequence in range(count + 1)
            ]
            records = [
                Record(
                    task, RecordKind.DATA, encode_header(header), encode_batch(rows_of(n))
                )
                for n, header in enumerate(headers[:-1])
            ]
            barrier = encode_barrier(BarrierPayload(count, False, EventTime(7)))
            end = Record(task, RecordKind.BARRIER, encode_header(headers[-1]), barrier)
            sent.append([*records, end])
    return Inbox(plan, level, task, sent)


def mixed(data: st.DataObject, sent: Sequence[Sequence[Record]]) -> list[Record]:
    """Mix senders; each keeps its own order."""
    queues = [list(records) for records in sent if records]
    found = []
    while queues:
        queue = data.draw(st.sampled_from(queues))
        found.append(queue.pop(0))
        if not queue:
            # By identity: two senders may have sent the same.
            queues = [other for other in queues if other is not queue]
    return found


@settings(LAWS)
@given(st.data())
def test_whole_producers_are_accepted_in_any_order_between_them(
    data: st.DataObject,
) -> None:
    inbox = data.draw(inboxes())
    records = mixed(data, inbox.sent)
    count, receipts = inbox.read(records)
    assert count == sum(
        rows_of(number).num_rows for sent in inbox.sent for number in range(len(sent) - 1)
    )
    assert len(receipts) == len(inbox.sent)
    for records in inbox.sent:
        header = decode_header(records[0].header)
        assert str(header.token) in {token for _, token in receipts}


def with_header(record: Record, **changes: object) -> Record:
    header = decode_header(record.header)._replace(**changes)  # type: ignore[arg-type]  # by field
    return record._replace(header=encode_header(header))


MISHAPS = [
    "lost",
    "repeated",
    "moved",
    "other-attempt",
    "second-attempt",
    "stranger",
    "miscounted",
    "gap",
]


@pytest.mark.parametrize("mishap", MISHAPS)
@settings(LAWS)
@given(st.data())
def test_a_mishap_of_one_record_is_noticed(mishap: str, data: st.DataObject) -> None:
    inbox = data.draw(inboxes())
    sent = [list(records) for records in inbox.sent]
    records = data.draw(st.sampled_from(sent))
    at = data.draw(st.integers(0, len(records) - 1))
    other = token_of(inbox.level, inbox.task, 99)
    match mishap:
        case "lost":
            del records[at]
        case "repeated":
            records.insert(data.draw(st.integers(at + 1, len(records))), records[at])
        case "moved":
            assume(len(records) > 1)
            to = data.draw(st.integers(0, len(records) - 1).filter(lambda i: i != at))
            records.insert(to, records.pop(at))
        case "other-attempt":
            # Alone it would be a whole, empty attempt.
            assume(len(records) > 1)
            records[at] = with_header(records[at], token=other)
        case "second-attempt":
            sent.append([with_header(record, token=other) for record in records])
        case "stranger":
            task = inbox.plan.supersteps[inbox.level - 1].task_count
            sent.append([with_header(record, producer_task=task) for record in records])
        case "miscounted":
            wrong = data.draw(st.integers(0, 9).filter(lambda n: n != len(records) - 1))
            barrier = encode_barrier(BarrierPayload(wrong, False, EventTime(7)))
            records[-1] = records[-1]._replace(payload=barrier)
        case "gap":
            for index, record in enumerate(records):
                records[index] = with_header(
                    record, sequence=decode_header(record.header).sequence + 1
                )
        case _:
            raise AssertionError(mishap)
    with pytest.raises(TornInputError):
        inbox.read(mixed(data, sent))


# ---- what a driver accepts


@st.composite
def consistent_runs(draw: st.DrawFn) -> tuple[PhysicalPlan, list[TaskReport]]:
    """One whole report of every task; receipts name the attempts that reported."""
    plan = compile_graph(draw(sound_graphs()))
    return plan, [whole_report(plan, level, task) for level, task in plan.tasks()]


def whole_report(plan: PhysicalPlan, level: int, task: int, attempt: int = 0) -> TaskReport:
    chain, subtask = plan.task(level, task)
    receipts = []
    for edge in plan.incoming(chain.number):
        producer = plan.chains[edge.source_chain]
        for index in peers_of(edge.exchange, producer.parallelism, subtask.index):
            sender = producer.first_task + index
            token = str(token_of(producer.level, sender))
            receipts.append(Receipt(edge.number, producer.level, sender, token))
    return TaskReport(level, task, str(token_of(level, task, attempt)), tuple(receipts))


def has_consumers(plan: PhysicalPlan, report: TaskReport) -> bool:
    chain, subtask = plan.task(report.level, report.task)
    return any(
        len(peers_of(e.exchange, plan.chains[e.target_chain].parallelism, subtask.index))
        for e in plan.outgoing(chain.number)
    )


@given(st.data())
def test_one_attempt_of_each_task_is_agreed_whatever_else_reported(
    data: st.DataObject,
) -> None:
    plan, reports = data.draw(consistent_runs())
    expected = {(report.level, report.task): report for report in reports}
    # Attempts that nobody consumed, whole or not, and reports that came twice do no harm.
    consumed = [report for report in reports if has_consumers(plan, report)]
    extra = data.draw(st.lists(st.sampled_from(consumed), max_size=4)) if consumed else []
    for number, report in enumerate(extra, 1):
        twin = whole_report(plan, report.level, report.task, number)
        failed = msgspec.structs.replace(twin, error=AN_ERROR, receipts=())
        torn = msgspec.structs.replace(twin, torn="half a record", receipts=())
        reports.append(data.draw(st.sampled_from([report, failed, torn, twin])))
    outcome = find_agreement(plan, data.draw(st.permutations(reports)))
    assert outcome == Agreed(expected)


AN_ERROR = ErrorPart("UserCodeError", "it raised", "user-code-raised", {}, ())
CHANGES = [
    "report-lost",
    "receipt-lost",
    "receipt-of-an-unknown-attempt",
    "report-not-whole",
    "two-stories",
    "second-attempt-at-the-end",
    "half-of-a-second-attempt",
]


def readers_of(reports: Sequence[TaskReport], report: TaskReport) -> list[int]:
    """Return the positions of the reports that hold a receipt for a task."""
    return [
        index
        for index, reader in enumerate(reports)
        if any((r.level, r.task) == (report.level, report.task) for r in reader.receipts)
    ]


def can_suffer(
    change: str, plan: PhysicalPlan, reports: Sequence[TaskReport], at: int
) -> bool:
    """Tell whether a change can be made to the report at a position."""
    if change.startswith("receipt"):
        return bool(reports[at].receipts)
    if change == "second-attempt-at-the-end":
        return not has_consumers(plan, reports[at])
    return change != "half-of-a-second-attempt" or len(readers_of(reports, reports[at])) > 1


@pytest.mark.parametrize("change", CHANGES)
@settings(LAWS)
@given(st.data())
def test_a_changed_set_of_reports_is_never_agreed(change: str, data: st.DataObject) -> None:
    plan, reports = data.draw(consistent_runs())
    candidates = [at for at in range(len(reports)) if can_suffer(change, plan, reports, at)]
    assume(candidates)
    at = data.draw(st.sampled_from(candidates))
    report = reports[at]
    replace = msgspec.structs.replace
    match change:
        case "report-lost":
            del reports[at]
        case "receipt-lost":
            gone = data.draw(st.integers(0, len(report.receipts) - 1))
            left = (*report.receipts[:gone], *report.receipts[gone + 1 :])
            reports[at] = replace(report, receipts=left)
        case "receipt-of-an-unknown-attempt":
            which = data.draw(st.integers(0, len(report.receipts) - 1))
            receipts = list(report.receipts)
            receipts[which] = replace(receipts[which], token="f" * 32)
            reports[at] = replace(report, receipts=tuple(receipts))
        case "report-not-whole":
            changes: list[dict[str, object]] = [
                {"error": AN_ERROR},
                {"torn": "half a record"},
                {"is_skipped": True},
            ]
            reports[at] = replace(report, **data.draw(st.sampled_from(changes)))
        case "two-stories":
            reports.append(replace(report, operators=(), torn="the other story"))
        case "second-attempt-at-the-end":
            reports.append(whole_report(plan, report.level, report.task, 1))
        case "half-of-a-second-attempt":
            # Some of several consumers read a second attempt, which reported as well.
            readers = readers_of(reports, report)
            reports.append(whole_report(plan, report.level, report.task, 1))
            chosen = data.draw(
                st.lists(
                    st.sampled_from(readers),
                    min_size=1,
                    max_size=len(readers) - 1,
                    unique=True,
                )
            )
            second = str(token_of(report.level, report.task, 1))
            for index in chosen:
                receipts = [
                    replace(r, token=second)
                    if (r.level, r.task) == (report.level, report.task)
                    else r
                    for r in reports[index].receipts
                ]
                reports[index] = replace(reports[index], receipts=tuple(receipts))
        case _:
            raise AssertionError(change)
    outcome = find_agreement(plan, data.draw(st.permutations(reports)))
    assert isinstance(outcome, Torn | Failed)


@given(st.data())
def test_whatever_is_agreed_holds_together(data: st.DataObject) -> None:
    # Up to two attempts of every task, each of which read any attempts of its producers.
    plan = compile_graph(data.draw(sound_graphs(largest=4)))
    reports = []
    for level, task in plan.tasks():
        for attempt in range(data.draw(st.sampled_from([1, 1, 1, 2]))):
            whole = whole_report(plan, level, task, attempt)
            receipts = tuple(
                msgspec.structs.replace(
                    receipt,
                    token=str(
                        token_of(receipt.level, receipt.task, data.draw(st.integers(0, 1)))
                    ),
                )
                if data.draw(st.integers(0, 4)) == 0
                else receipt
                for receipt in whole.receipts
            )
            reports.append(msgspec.structs.replace(whole, receipts=receipts))
    outcome = find_agreement(plan, reports)
    if isinstance(outcome, Agreed):
        check_agreed(plan, reports, outcome.reports)
    else:
        assert isinstance(outcome, Torn)


def check_agreed(
    plan: PhysicalPlan, reports: Sequence[TaskReport], chosen: dict[TaskKey, TaskReport]
) -> None:
    assert set(chosen) == set(plan.tasks())
    for key, report in chosen.items():
        assert report in reports
        assert report.is_whole
        assert (report.level, report.task) == key
        expected = whole_report(plan, *key).receipts
        assert {(r.edge, r.level, r.task) for r in report.receipts} == {
            (r.edge, r.level, r.task) for r in expected
        }
        for receipt in report.receipts:
            assert chosen[receipt.level, receipt.task].token == receipt.token
        if not has_consumers(plan, report):
            arrived = {r.token for r in reports if (r.level, r.task) == key}
            assert len(arrived) == 1
