"""Tests how records are handed to the client library: slices, and how many of them wait."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.kafka import producing
from penstock.connectors.kafka.output_records import KEY, VALUE
from penstock.connectors.kafka.producing import RecordSender


class Queue:
    """A producer that sends when somebody waits for it, and knows how much waited at most."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.sent: list[bytes] = []
        self.waits = 0
        self.most = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def produce_batch(self, _: str, messages: Sequence[dict[str, Any]], **__: Any) -> int:
        self.waiting += [message["value"] for message in messages]
        self.most = max(self.most, sum(map(len, self.waiting)))
        return len(messages)

    def poll(self, seconds: float) -> None:
        if seconds:
            self.waits += 1
            self.sent, self.waiting = self.sent + self.waiting, []

    def flush(self, _: float) -> None:
        self.poll(1)


def records(values: Sequence[bytes]) -> pa.RecordBatch:
    columns: list[Any] = [pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, names=[KEY, VALUE])


def test_small_batches_do_not_wait_for_each_other() -> None:
    queue = Queue()
    sender = RecordSender(queue, "t", timeout_s=1)
    values = [b"%d" % number for number in range(500)]
    assert sender.send(records([value]) for value in values) == 500
    assert queue.waits == 0
    sender.flush()
    assert queue.sent == values


@pytest.mark.parametrize("rows", [1, 7, 100])
def test_how_much_waits_is_bounded(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(producing, "SLICE_BYTES", 1_000)
    queue = Queue()
    sender = RecordSender(queue, "t", timeout_s=1)
    values = [b"x" * 100] * 700
    sender.send(records(values[at : at + rows]) for at in range(0, 700, rows))
    sender.flush()
    assert queue.sent == values
    assert queue.most <= 6_000
