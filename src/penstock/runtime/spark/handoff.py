"""Handing the batches of a streaming query to a job, each exactly once.

    Spark's thread                                the job's thread
    feed(frame, batch id) ── offer, wake up ──►   plan: compare with the stored (query, batch)
          waits                                   run the epoch, publish it, commit its sinks
    returns, Spark notes the batch as done  ◄──   the batch is stored

| offered batch | what follows |
|---|---|
| batch 0, none is stored | it is read |
| a later one, none is stored | refused unless the source says `begins_late`: the job may have gone back |
| the stored one | Spark died before it noted the batch as done: it is published and committed |
| stored + 1 | it is read |
| any other, or one of another query | refused: rows would be lost or counted twice |
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from penstock.core.tokens import new_token
from penstock.errors import ErrorCode, PenstockError, StateError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.operators.process import source_spec
from penstock.runtime.spark.frame_source import (
    FrameSource,
    FrameStep,
    NextFrame,
    NoFrame,
    keep_feed,
)
from penstock.runtime.spark.row_schemas import SchemaLike, to_stream_schema

_log = logging.getLogger(__name__)

_NEVER = timedelta(days=1)
"""Nobody has to ask for batches: whoever has one says so."""


def attached(*, schema: SchemaLike, begins_late: bool = False) -> OperatorSpec:
    """Read the micro-batches of a streaming query, one per epoch; see `Pipeline.attach`.

    With `begins_late` a new job may begin with a later batch than the query's first.
    """
    token = new_token()
    keep_feed(token, Handoff(begins_late=begins_late))
    return source_spec(
        FrameSource("attached", token, to_stream_schema(schema), poll=_NEVER)
    )


@dataclass(frozen=True, slots=True)
class BatchId:
    """Which batch of which query."""

    query: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


def is_stored_already(
    offered: BatchId, stored: BatchId | None, *, begins_late: bool = False
) -> bool:
    """Tell whether a batch is part of the job already; refuse one that may not follow. Pure."""
    if stored is None:
        if offered.number == 0 or begins_late:
            return False
        raise StateError(
            f"{offered} cannot be the first one of this job: rows of earlier ones would be "
            "lost. If the job went back to an epoch before its first batch, start job and "
            "query anew; a new job that shall begin in the middle of a query is told so by "
            "ps.attached(schema=…, begins_late=True)",
            code=ErrorCode.NOT_RESTORABLE,
            offered=str(offered),
        )
    if offered == stored:
        return True
    if offered.query == stored.query and offered.number == stored.number + 1:
        return False
    if offered.query != stored.query:
        reason = "A query gets a new id when its own checkpoint is lost or replaced"
    elif offered.number < stored.number:
        reason = "The query went back further than its last batch"
    else:
        reason = "The batches between were given to somebody else, or the job went back"
    raise StateError(
        f"{offered} cannot follow {stored}, the last one of this job: rows would be lost or "
        f"counted twice. {reason}. Go on with the query and the checkpoint that belong "
        "together, or start both anew",
        code=ErrorCode.NOT_RESTORABLE,
        offered=str(offered),
        stored=str(stored),
    )


@dataclass(slots=True)
class _Offer:
    batch: BatchId
    frame: DataFrame
    is_done: bool = False


class Handoff:
    """Between one streaming query and one job. Each side uses it from a thread of its own."""

    def __init__(self, *, begins_late: bool = False) -> None:
        self._begins_late = begins_late
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._wake_job: Callable[[], None] | None = None
        self._end: PenstockError | None = None

    def open(self, wake_job: Callable[[], None]) -> None:
        """Let batches come in: a job is there that takes them."""
        with self._changed:
            if self._wake_job is not None:
                raise UserError(
                    "this pipeline is attached already: stop that job first, or build another "
                    "pipeline",
                    code=ErrorCode.INVALID_CONFIG,
                )
            self._wake_job, self._end = wake_job, None

    def close(self, end: PenstockError) -> None:
        """Let nobody wait any more: the job has ended, and this is why."""
        with self._changed:
            self._wake_job, self._end = None, end
            self._changed.notify_all()

    def hand_over(self, batch: BatchId, frame: DataFrame) -> None:
        """Give a batch to the job; return once it is published and its sinks have committed."""
        offer = _Offer(batch, frame)
        with self._changed:
            if self._offer is not None:
                raise UserError(
                    f"{batch} was given to a job that still reads {self._offer.batch}: a "
                    "source takes the batches of one query, one after the other",
                    code=ErrorCode.INVALID_CONFIG,
                )
            if self._wake_job is None:
                raise self._end or _not_attached()
            self._offer = offer
            wake_job = self._wake_job
        wake_job()
        try:
            with self._changed:
                self._changed.wait_for(lambda: offer.is_done or self._end is not None)
                if not offer.is_done and self._end is not None:
                    raise self._end
        finally:
            with self._changed:
                self._offer = None

    def next_step(self, offset: Any) -> FrameStep:
        """Return the batch that waits, if it may follow the stored one. For the job's thread."""
        with self._changed:
            if self._wake_job is None:
                raise _not_attached()
            offer = self._offer
        if offer is None or offer.is_done:
            return NoFrame()
        stored = None if offset is None else BatchId(*offset)
        if is_stored_already(offer.batch, stored, begins_late=self._begins_late):
            # Taking the job over has finished the commit of what was published.
            self.note_stored(offer.batch)
            return NoFrame()
        if stored is None and offer.batch.number > 0:
            _log.warning("this job begins with %s: earlier ones are not in it", offer.batch)
        return NextFrame(offer.frame, [offer.batch.query, offer.batch.number])

    def note_stored(self, batch: BatchId) -> None:
        """Note that a batch is published and committed."""
        with self._changed:
            if self._offer is not None and self._offer.batch == batch:
                self._offer.is_done = True
                self._changed.notify_all()


def _not_attached() -> UserError:
    return UserError(
        "an 'attached' source takes the batches of a streaming query, and none is attached: "
        "start the pipeline with Pipeline.attach, or Pipeline.foreach_batch for a query of "
        "your own",
        code=ErrorCode.INVALID_CONFIG,
    )
