"""How much of which files an epoch reads, so that no subtask gets more than its budget.

Files that were begun come first, then new ones, each in order of name. Every subtask is
filled up in turn; a file goes to one subtask only. No file is begun before there is room
for it: one that waits with no rows read would hold the watermark of all the others back.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.connectors.files_formats import (
    Allowance,
    FileFormat,
    FileOffset,
    Reach,
    SourceFile,
)
from penstock.operators.splits import SourceBudget, SplitPlan

_FULL = 0.95
"""A subtask with so much of its budget planned takes no further file."""
_WEIGHT_OF_BUDGET = 1_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that has rows left, as far as known."""

    file: SourceFile
    start: FileOffset


def plan_files(
    candidates: Iterable[Candidate], budget: SourceBudget, format_: FileFormat
) -> tuple[tuple[SplitPlan, ...], bool]:
    """Return what to read, and whether more is there.

    The shares are those of the subtasks of a greedy dealing. The real one may pack files
    differently, so a subtask may get a third more than its budget, or a piece that cannot be
    smaller.
    """
    loads = [0.0] * max(1, budget.subtasks)
    plans: list[SplitPlan] = []
    has_more = False
    for candidate in candidates:
        least = loads.index(min(loads))
        reach = _reach(candidate, budget, loads[least], format_)
        if reach is None:
            has_more = True
            break
        load = max(reach.rows / budget.rows, reach.size_bytes / budget.size_bytes)
        loads[least] += load
        has_more |= not reach.is_whole
        weight = max(1, int(load * _WEIGHT_OF_BUDGET))
        plans.append(
            SplitPlan(candidate.file.path, tuple(candidate.start), reach.end, weight)
        )
    return tuple(plans), has_more


def _reach(
    candidate: Candidate, budget: SourceBudget, load: float, format_: FileFormat
) -> Reach | None:
    if load >= _FULL:
        return None
    allowance = Allowance(
        int(budget.rows * (1 - load)), int(budget.size_bytes * (1 - load)), load == 0
    )
    return format_.reach(candidate.file, candidate.start, allowance)
