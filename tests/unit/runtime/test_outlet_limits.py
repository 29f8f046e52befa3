"""Rows that are too many for one batch leave in several."""

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.api.pipeline import Pipeline
from penstock.connectors.memory import list_source
from penstock.core.ids import OperatorId
from penstock.core.schema import StreamSchema
from penstock.core.tokens import new_token
from penstock.graph.logical import MAIN
from penstock.runtime.outlets import Attempt, Mailbox, outlets_of
from penstock.runtime.physical import compile_graph
from penstock.runtime.wire import Header, RecordKind, decode_batch
from tests.builders.local_jobs import a_list

BLOBS = StreamSchema(pa.schema({"blob": pa.binary()}))
MIB = 1 << 20


def free_bytes() -> int:
    """Return how much memory is free; none where the system does not say."""
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class RowCount(Mailbox):
    """Counts the rows of data instead of keeping gigabytes of them."""

    rows = 0

    def send(self, kind: RecordKind, header: Header, payload: object) -> None:
        if kind is RecordKind.DATA:
            self.rows += decode_batch(payload, BLOBS.schema).num_rows


def blobs(count: int, size_bytes: int) -> pa.RecordBatch:
    """Return rows of zeros, whose memory is not touched before somebody copies them."""
    offsets: Any = np.arange(count + 1, dtype=np.int32) * np.int32(size_bytes)
    zeros: Any = np.zeros(count * size_bytes, dtype=np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(zeros)]
    column = pa.Array.from_buffers(pa.binary(), count, buffers)
    return pa.RecordBatch.from_arrays([column], schema=BLOBS.schema)


@pytest.mark.slow
@pytest.mark.skipif(
    free_bytes() < 4 << 30, reason="only columns of 2 GiB do not fit into one batch"
)
def test_rows_that_do_not_fit_into_one_batch_are_all_sent() -> None:
    pipeline = Pipeline("job")
    source = list_source([], schema=BLOBS)
    pipeline.read("read", source).rebalance().write("out", a_list())
    plan = compile_graph(pipeline.graph())
    mailbox = RowCount(plan, Attempt(0, 0, new_token()))
    outlets = outlets_of(plan, plan.chains[0], mailbox, subtask=0, epoch=1)
    (outlet,) = outlets[OperatorId("read")][MAIN]
    outlet.take(blobs(3, MIB))
    outlet.take(blobs(66, 31 * MIB))
    outlet.finish(None)
    assert mailbox.rows == 69
