"""What leaves a task: in several batches where one cannot hold it, compressed where that is set."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.core.clock import new_token
from penstock.core.ids import OperatorId
from penstock.core.schema import StreamSchema
from penstock.core.settings import current
from penstock.graph.logical import MAIN
from penstock.runtime.plan.physical import PhysicalPlan, compile_graph
from penstock.runtime.task.exchange import Attempt, Mailbox, Outlet, outlets_of
from penstock.runtime.task.wire import Header, RecordKind, decode_batch
from tests.builders.pipelines import a_list

BLOBS = StreamSchema(pa.schema({"blob": pa.binary()}))
MIB = 1 << 20
MailboxT = TypeVar("MailboxT", bound=Mailbox)


def free_bytes() -> int:
    """Return how much memory is free; none where the system does not say."""
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Sizes(Mailbox):
    """Notes how large each payload of data is."""

    def __init__(self, plan: PhysicalPlan, attempt: Attempt) -> None:
        super().__init__(plan, attempt)
        self.bytes = 0

    def send(self, kind: RecordKind, header: Header, payload: Any) -> None:
        if kind is RecordKind.DATA:
            self.bytes += len(payload)


class RowCount(Mailbox):
    """Counts the rows of data instead of keeping gigabytes of them."""

    rows = 0

    def send(self, kind: RecordKind, header: Header, payload: object) -> None:
        if kind is RecordKind.DATA:
            self.rows += decode_batch(payload, BLOBS.arrow).num_rows


def blobs(count: int, size_bytes: int) -> pa.RecordBatch:
    """Return rows of zeros, whose memory is not touched before somebody copies them."""
    offsets: Any = np.arange(count + 1, dtype=np.int32) * np.int32(size_bytes)
    zeros: Any = np.zeros(count * size_bytes, dtype=np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(zeros)]
    column = pa.Array.from_buffers(pa.binary(), count, buffers)
    return pa.RecordBatch.from_arrays([column], schema=BLOBS.arrow)


def an_outlet(mailbox_type: Callable[..., MailboxT]) -> tuple[Outlet, MailboxT]:
    """Return the only way out of a source, and what it fills."""
    pipeline = Pipeline("job")
    source = list_source([], schema=BLOBS)
    pipeline.read("read", source).rebalance().write("out", a_list())
    plan = compile_graph(pipeline.graph())
    mailbox = mailbox_type(plan, Attempt(0, 0, new_token()))
    outlets = outlets_of(plan, plan.chains[0], mailbox, subtask=0, epoch=1)
    (outlet,) = outlets[OperatorId("read")][MAIN]
    return outlet, mailbox


@pytest.mark.slow
@pytest.mark.skipif(
    free_bytes() < 4 << 30, reason="only columns of 2 GiB do not fit into one batch"
)
def test_rows_that_do_not_fit_into_one_batch_are_all_sent() -> None:
    outlet, mailbox = an_outlet(RowCount)
    outlet.take(blobs(3, MIB))
    outlet.take(blobs(66, 31 * MIB))
    outlet.finish(None)
    assert mailbox.rows == 69


def test_the_setting_decides_whether_payloads_are_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = {}
    for compression in ("none", "lz4"):
        chosen = replace(current(), exchange_compression=compression)
        monkeypatch.setattr("penstock.runtime.task.exchange.current", lambda it=chosen: it)
        outlet, mailbox = an_outlet(Sizes)
        outlet.take(blobs(3, MIB))
        outlet.finish(None)
        sent[compression] = mailbox.bytes
    assert sent["none"] > 3 * MIB
    assert 0 < sent["lz4"] < MIB
