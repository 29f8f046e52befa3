"""Timers: instants per key at which an operator wants to be called, kept in a table."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.state.tables.specs import TimeDomain


@dataclass(frozen=True, slots=True)
class DueTimers:
    """Timers of one time domain that are due, earliest first, each once."""

    domain: TimeDomain
    keys: pa.RecordBatch
    """The key columns, a row per timer."""
    due_micros: pa.Int64Array
    """When each was due, as it was set."""


class Timers:
    """The timers of one subtask in one time domain; see `OperatorContext.event_timers`."""

    def set(self, keys: pa.RecordBatch, due_micros: Any) -> None:
        """Set a timer per row; one that is set already stays set once."""
        raise NotImplementedError

    def cancel(self, keys: pa.RecordBatch, due_micros: Any) -> None:
        """Take back a timer per row; one that is not set is no error."""
        raise NotImplementedError
