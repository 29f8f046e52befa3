"""Handoff: where a streaming query's thread gives a batch to a job's and waits for its commit.

    Spark's thread                                the job's thread
    feed(frame, batch id) ── offer, wake up ──►   plan: compare with the stored (query, batch)
          waits                                   run the epoch, publish it, commit its sinks
    returns, Spark notes the batch as done  ◄──   the batch is stored

| offered batch | what follows |
|---|---|
| batch 0, none is stored; or the stored one + 1 | it is read |
| a later one, none is stored | refused unless the source has `begins_late`: the job may have gone back |
| the stored one | not read again: it is committed, but Spark died before it noted the batch as done |
| any other, or one of another query | refused: rows would be lost or counted twice |
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame

from penstock.errors import ErrorCode, PenstockError, StateError, UserError
from penstock.graph.logical import OperatorSpec
from penstock.runtime.spark.frame_source import FrameStep, NextFrame, frames_spec
from penstock.runtime.spark.row_schemas import SchemaLike

_log = logging.getLogger(__name__)

_NEVER = timedelta(days=1)  # no polling: the query wakes the job when it has a batch


def attached(*, schema: SchemaLike, begins_late: bool = False) -> OperatorSpec:
    """Read the micro-batches of a streaming query, one per epoch; see `Pipeline.attach`.

    With `begins_late` a new job may begin with a later batch than the query's first.
    """
    return frames_spec("attached", Handoff(begins_late=begins_late), schema, _NEVER)


@dataclass(frozen=True, slots=True)
class BatchId:
    """A batch of a query: the query's id and the batch's number."""

    query: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of query {self.query}"


def is_stored_already(
    offered: BatchId, stored: BatchId | None, *, begins_late: bool = False
) -> bool:
    """Return whether a batch is stored already; refuse one that may not follow. Pure."""
    if stored is None:
        if offered.number == 0 or begins_late:
            return False
        raise StateError(
            f"{offered} cannot be the first one of this job: rows of earlier ones would be "
            "lost. If the job went back to an epoch before its first batch, start job and "
            "query anew; a new job that shall begin in the middle of a query is told so by "
            "pen.attached(schema=…, begins_late=True)",
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
    """Passes batches from one streaming query to one job, each in a thread of its own."""

    def __init__(self, *, begins_late: bool = False) -> None:
        self._begins_late = begins_late
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._wake_job: Callable[[], None] | None = None
        self._end: PenstockError | None = None

    def open(self, wake_job: Callable[[], None]) -> None:
        """Accept batches, because a job is there that takes them."""
        with self._changed:
            if self._wake_job is not None:
                raise UserError(
                    "this pipeline is attached already: stop that job first, or build another "
                    "pipeline",
                    code=ErrorCode.INVALID_CONFIG,
                )
            self._wake_job, self._end = wake_job, None

    def close(self, end: PenstockError) -> None:
        """End every wait with this error: the job has ended."""
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
        with self._changed:
            try:
                self._changed.wait_for(lambda: offer.is_done or self._end is not None)
                if not offer.is_done and self._end is not None:
                    raise self._end
            finally:
                self._offer = None

    def next_step(self, offset: Any) -> FrameStep:
        """Return the batch that waits, if it may follow the stored one. For the job's thread."""
        with self._changed:
            if self._wake_job is None:
                raise _not_attached()
            offer = self._offer
        if offer is None or offer.is_done:
            return None
        stored = None if offset is None else BatchId(*offset)
        if is_stored_already(offer.batch, stored, begins_late=self._begins_late):
            # The claim of the job has finished the commit of what was published.
            self.note_stored(offer.batch)
            return None
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
        "start the pipeline with Pipeline.attach, or Pipeline.start_attached for a query of "
        "your own",
        code=ErrorCode.INVALID_CONFIG,
    )
