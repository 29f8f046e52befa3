"""Event time of splits: from the rows seen to a watermark. Pure.

| a split that | says |
|---|---|
| has rows up to T | `T - lateness`: no row before that instant follows |
| has had no row yet | nothing: it keeps the watermark unknown |
| has had no row for the idle timeout | idle: it is left out |
| has ended | it is left out; unless nobody else is there to speak in that very epoch, then as if it had not |

Time without rows counts by the processing time of epochs, from the epoch in which the split
was first known. The watermark of all splits is the merged one (see `watermarks`). It may
fall when an idle split wakes up: whoever sends it on must not send less than before.
"""

from collections.abc import Iterable, Mapping

from penstock.core.signals import (
    IDLE,
    MAX_MICROS,
    MIN_MICROS,
    EventTime,
    Watermark,
)
from penstock.graph.logical import WatermarkSpec
from penstock.operators.splits import SplitState
from penstock.operators.watermarks import merge


def watermark_of_splits(
    states: Mapping[str, SplitState], spec: WatermarkSpec, now_micros: int
) -> Watermark | None:
    """Return the watermark of all splits together: None while one has not spoken.

    Without a split that has not ended it is idle; the end of all data is for the caller
    to know.
    """
    return merge(
        _watermark_of_split(state, spec, now_micros) for state in _live(states.values())
    )


def last_watermark(ended: Iterable[SplitState], spec: WatermarkSpec) -> Watermark:
    """Return what splits say that ended in this epoch, all of them: how far the latest came.

    Without it event time would stand still in a source whose splits are read whole.
    """
    latest = [s.max_event_time_micros for s in ended if s.max_event_time_micros is not None]
    return _to_event_time(max(latest), spec) if latest else IDLE


def next_idle_micros(
    states: Mapping[str, SplitState], spec: WatermarkSpec, now_micros: int
) -> int | None:
    """Return when the next split becomes idle if no rows come; None if none will."""
    timeout = spec.idle_timeout_micros
    if timeout is None:
        return None
    due = [
        state.last_active_micros + timeout
        for state in _live(states.values())
        if state.last_active_micros is not None and not _is_idle(state, spec, now_micros)
    ]
    return min(due, default=None)


def _live(states: Iterable[SplitState]) -> Iterable[SplitState]:
    return (state for state in states if not state.ended)


def _is_idle(state: SplitState, spec: WatermarkSpec, now_micros: int) -> bool:
    since, timeout = state.last_active_micros, spec.idle_timeout_micros
    return since is not None and timeout is not None and now_micros - since >= timeout


def _watermark_of_split(
    state: SplitState, spec: WatermarkSpec, now_micros: int
) -> Watermark | None:
    if _is_idle(state, spec, now_micros):
        return IDLE
    if state.max_event_time_micros is None:
        return None
    return _to_event_time(state.max_event_time_micros, spec)


def _to_event_time(latest_micros: int, spec: WatermarkSpec) -> EventTime:
    # The largest instant stands for the end of all data, which no row can announce.
    reached = min(latest_micros - spec.lateness_micros, MAX_MICROS - 1)
    return EventTime(max(reached, MIN_MICROS))
