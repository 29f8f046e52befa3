"""Routing: which rows of a batch go to which subtask of an edge's consumer. Pure."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.core.key_hash import owners_of
from penstock.core.schema import StreamSchema
from penstock.graph.logical import Exchange


def route_rows(
    batch: pa.RecordBatch,
    exchange: Exchange,
    schema: StreamSchema,
    *,
    subtask: int,
    parallelism: int,
    turn: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Return the parts of a batch by consumer; rows keep their order within a part.

    `turn` decides who gets the odd rows of a rebalanced batch; let it grow from batch to
    batch, so that short batches reach everybody.
    """
    match exchange:
        case Exchange.FORWARD:
            yield subtask, batch
        case Exchange.BROADCAST:
            for index in range(parallelism):
                yield index, batch
        case Exchange.REBALANCE:
            yield from _deal(batch, parallelism, turn)
        case Exchange.BY_KEY:
            if parallelism == 1:
                yield 0, batch
            else:
                yield from _split_by_key(batch, schema, parallelism)


def producers_of(exchange: Exchange, parallelism: int, subtask: int) -> range:
    """Return the producer subtasks that a consumer hears from; every one of them speaks."""
    if exchange is Exchange.FORWARD:
        return range(subtask, subtask + 1)
    return range(parallelism)


def consumers_of(exchange: Exchange, parallelism: int, subtask: int) -> range:
    """Return the consumer subtasks that a producer speaks to, rows or not."""
    if exchange is Exchange.FORWARD:
        return range(subtask, subtask + 1)
    return range(parallelism)


def _deal(
    batch: pa.RecordBatch, parallelism: int, turn: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    share, odd = divmod(batch.num_rows, parallelism)
    start = 0
    for position in range(parallelism):
        rows = share + (position < odd)
        if rows:
            yield (position + turn) % parallelism, batch.slice(start, rows)
        start += rows


def _split_by_key(
    batch: pa.RecordBatch, schema: StreamSchema, parallelism: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    owners = owners_of(schema.key_hashes_of(batch), parallelism)
    counts = np.bincount(owners, minlength=parallelism)
    if int(counts.max()) == batch.num_rows:
        yield int(counts.argmax()), batch
        return
    # Numbers of 16 bits are put in order without comparing them.
    narrow = owners.astype(np.uint16) if parallelism <= 1 << 16 else owners
    order = np.argsort(narrow, kind="stable")
    ordered = batch.take(pa.array(order, pa.int64()))
    start = 0
    for index, rows in enumerate(counts.tolist()):
        if rows:
            yield index, ordered.slice(start, rows)
        start += rows
