"""The clock of a time-keyed table: by which instant its rows are judged. The only such place.

Pure. A table shows in an epoch what was live when the epoch before ended, whichever clock it
goes by: an operator must still see what it has to close or fire. What the epoch's own time
has passed is let go when the epoch ends.

| Time domain | in an epoch | at its checkpoint, and for compaction |
|---|---|---|
| event time | the watermark of the epoch before | the watermark |
| processing time | the processing time of the epoch before | the processing time |
"""

from penstock.state.proto import state_pb2
from penstock.state.tables.table import Frontier


def clock_within_epoch(domain: state_pb2.TimeDomain, frontier: Frontier) -> int | None:
    """Return the instant by which rows are hidden in an epoch begun at `frontier`."""
    if domain == state_pb2.PROCESSING_TIME:
        return frontier.previous_processing_time_micros
    return frontier.watermark_micros


def clock_after_epoch(domain: state_pb2.TimeDomain, frontier: Frontier) -> int | None:
    """Return the instant by which rows are dropped when an epoch ends at `frontier`."""
    if domain == state_pb2.PROCESSING_TIME:
        return frontier.processing_time_micros
    return frontier.watermark_micros
