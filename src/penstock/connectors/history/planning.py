"""Epochs of the two sides as epochs of one source, and the split that hands over. Pure.

If history's rows tell the point, each split of history keeps how far its own rows have come. As
soon as a split has ended, what it keeps is *folded* into `#handover`: one epoch adds it there and
takes it from the split, or forgets the split where history does not need it. So the state does
not grow with files times partitions. Highest offsets are folded, so folding twice changes nothing.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from itertools import islice
from typing import Any

from penstock.connectors.history.handover import Handover, merge_ends
from penstock.connectors.history.sides import FOLDED, HISTORY, LIVE, ends_of, inner_states
from penstock.errors import ErrorCode, UserError
from penstock.operators.splits import SourcePlan, SplitPlan, SplitState

HANDOVER = "#handover"
"""The split that ends with the hand-over; its offset is the identity of the point and the offsets
behind the rows of history: at first of the splits that were folded, in the end of all."""
_MAX_FORGOTTEN = 10_000
"""How many splits of history an epoch forgets or folds."""


def plan_history(plan: SourcePlan, known: Mapping[str, SplitState]) -> SourcePlan:
    """Return an epoch of history as one of the whole source."""
    forgotten = [HISTORY + name for name in plan.forgotten]
    hold = _reached_by_all(inner_states(known, HISTORY))
    held = known.get(HANDOVER, SplitState()).max_event_time_micros
    splits = _prefixed(plan.splits, HISTORY)
    # An epoch that reads nothing is not worth its while.
    folded = (
        _find_foldable(known, {*forgotten, *(s.name for s in splits)}) if splits else []
    )
    before = ends_of(known.get(HANDOVER))
    ends = merge_ends(
        [before, *(ends_of(known.get(name)) for name in (*forgotten, *folded))]
    )
    splits += (SplitPlan(name, FOLDED, FOLDED, weight=0) for name in folded)
    is_later = hold is not None and (held is None or hold > held)
    if HANDOVER not in known or is_later or ends != before:
        splits.append(SplitPlan(HANDOVER, None, (hold, ends or None, False)))
    return replace(
        plan,
        splits=tuple(splits),
        is_complete=False,
        waiting=(*(HISTORY + name for name in plan.waiting), HANDOVER),
        forgotten=tuple(forgotten),
    )


def _find_foldable(known: Mapping[str, SplitState], others: Set[str]) -> list[str]:
    """Return the splits of history that have ended and keep offsets, but for `others`."""
    found = (
        name
        for name, state in known.items()
        if name.startswith(HISTORY) and state.ended and ends_of(state)
    )
    return list(islice((name for name in found if name not in others), _MAX_FORGOTTEN))


def find_ends_of_all(known: Mapping[str, SplitState]) -> dict[str, int]:
    """Return the point that the rows of history tell, once all of it was read."""
    return merge_ends(
        ends_of(s) for n, s in known.items() if n.startswith((HANDOVER, HISTORY))
    )


def plan_live(
    plan: SourcePlan, known: Mapping[str, SplitState], handed_over: Mapping[str, int]
) -> SourcePlan:
    """Return an epoch of the live side as one of the whole source; the first one hands over."""
    splits = _prefixed(plan.splits, LIVE)
    is_first = find_point(known) is None
    if is_first:
        splits.append(SplitPlan(HANDOVER, None, (None, dict(handed_over), True)))
    read = (name for name, s in known.items() if name.startswith(HISTORY) and s.ended)
    # An epoch that reads nothing is not worth its while.
    gone = () if is_first or not splits else tuple(islice(sorted(read), _MAX_FORGOTTEN))
    return replace(
        plan,
        splits=tuple(splits),
        waiting=tuple(LIVE + name for name in plan.waiting),
        forgotten=(*(LIVE + name for name in plan.forgotten), *gone),
        holds_watermark=plan.holds_watermark or is_first,
    )


def _prefixed(splits: Iterable[SplitPlan], prefix: str) -> list[SplitPlan]:
    return [replace(split, name=prefix + split.name) for split in splits]


def _reached_by_all(states: Mapping[str, SplitState]) -> int | None:
    """Return how far event time has come in every split of history; None if that is not known.

    If all that was begun has ended, the next rows come from splits that follow them.
    """
    times = [s.max_event_time_micros for s in states.values() if not s.ended]
    if times:
        known = [micros for micros in times if micros is not None]
        return min(known) if len(known) == len(times) else None
    ended = [s.max_event_time_micros for s in states.values()]
    return max((micros for micros in ended if micros is not None), default=None)


def find_point(known: Mapping[str, SplitState]) -> dict[str, int] | None:
    """Return the offsets at which live began; None as long as history is read."""
    state = known.get(HANDOVER)
    return dict(state.offset[1]) if state is not None and state.ended else None


def refuse_others(known: Mapping[str, SplitState], handover: Handover) -> None:
    """Refuse state of another source, and another point: rows would be missed or come twice."""
    state = known.get(HANDOVER, SplitState())
    before = None if state.offset is None else tuple(state.offset[0])
    if before is not None and not handover.goes_on_from(before, is_found=state.ended):
        raise UserError(
            f"the hand-over point was {_shown(before)} when this job began, and is "
            f"{_shown(handover.identity)} now: rows between the two would be missed or come "
            "twice. Undo the change, or give the step another name to begin anew",
            code=ErrorCode.INPUT_CHANGED,
        )
    for name in known:
        if name != HANDOVER and not name.startswith((HISTORY, LIVE)):
            raise UserError(
                f"the checkpoint has the split {name!r}, which is none of concat_sources: "
                "another source was read under this name. Give the step another name",
                code=ErrorCode.UNKNOWN_SPLIT,
            )


def _shown(identity: Any) -> str:
    return " ".join(str(part) for part in identity if part is not None)


def check_bounded(plan: SourcePlan) -> None:
    """Refuse a history that never ends, and one that is brought by Spark."""
    if plan.fed is not None:
        raise UserError(
            "history is brought by Spark, and concat_sources reads its sides itself: write the "
            "rows to files, or read a Delta table",
            code=ErrorCode.INVALID_CONFIG,
        )
    if not plan.is_complete:
        raise UserError(
            "history never ends, so the live side would never begin: give a source that ends, "
            "such as files without discover=",
            code=ErrorCode.INVALID_CONFIG,
        )
