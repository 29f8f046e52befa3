"""When the state of a key expires: a time to live after the last row of the key.

By event time the last row is the latest one, kept as a partial like any aggregate; by
processing time it is the epoch that brought rows. Pure.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.schema import StreamSchema
from penstock.core.signals import MAX_MICROS
from penstock.errors import ErrorCode, SchemaError, UserError
from penstock.operators.aggregates.aggregate import Aggregate
from penstock.operators.aggregates.extremes import Extreme
from penstock.operators.context import OperatorContext
from penstock.state.tables.specs import TimeDomain

RESULT = "ttl"
"""The aggregate that keeps the latest event time; no result of a user can have this name."""
LAST_SEEN = f"{RESULT}.value"
"""The column of the state that tells when a key was last seen."""
_MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class Expiry:
    """After how long, and by which clock, a key without rows is forgotten."""

    micros: int
    domain: TimeDomain

    def __post_init__(self) -> None:
        if not 0 < self.micros <= MAX_MICROS:
            raise UserError(
                f"a ttl of {self.micros} microseconds is not possible: it must be positive. "
                "Leave it out for results that are kept forever",
                code=ErrorCode.INVALID_NUMBER,
            )

    @classmethod
    def of(cls, micros: int, domain: TimeDomain | None, stream: StreamSchema) -> "Expiry":
        """Choose event time for a stream that has it, unless a clock is asked for."""
        has_time = stream.time_column is not None
        if domain is None:
            domain = TimeDomain.EVENT_TIME if has_time else TimeDomain.PROCESSING_TIME
        if domain is TimeDomain.EVENT_TIME and not has_time:
            raise SchemaError(
                "ttl by event time needs a stream with event times: name its timestamp column in "
                "Pipeline.read as event_time, or take TimeDomain.PROCESSING_TIME"
            )
        return cls(micros, domain)

    def hidden_aggregates(self, stream: StreamSchema) -> dict[str, Aggregate]:
        """Return what must be kept besides what the user asked for."""
        if self.domain is TimeDomain.PROCESSING_TIME or stream.time_column is None:
            return {}
        return {RESULT: Extreme(stream.time_column, None, is_max=True)}

    def now_micros(self, ctx: OperatorContext) -> int | None:
        """Return the clock; None while nothing can expire.

        The end of data is no passing of time: what is there then stays.
        """
        if self.domain is TimeDomain.PROCESSING_TIME:
            return ctx.processing_time_micros
        watermark = ctx.watermark
        if watermark is None or watermark.micros >= MAX_MICROS:
            return None
        return watermark.micros

    def due_micros(self, last_seen: Any) -> npt.NDArray[np.int64]:
        """Return when keys last seen at some instants expire; null is never."""
        if isinstance(last_seen, pa.ChunkedArray):
            last_seen = last_seen.combine_chunks()
        unit = last_seen.type.unit
        raw = last_seen.cast(pa.int64())
        values = raw.fill_null(0).to_numpy(zero_copy_only=False)
        # Whole numbers of Python do not wrap, but arrays do: stay below the end of time.
        if unit == "ns":
            micros = values // 1_000
        else:
            factor = _MICROS_PER_UNIT[unit]
            limit = MAX_MICROS // factor
            micros = np.clip(values, -limit, limit) * factor
        due = np.minimum(micros, MAX_MICROS - self.micros) + self.micros
        due[last_seen.is_null().to_numpy(zero_copy_only=False)] = MAX_MICROS
        return np.asarray(due, np.int64)
