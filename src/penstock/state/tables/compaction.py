"""Which files of a table to merge next: tiered by size, neighbours only, runs bounded.

Pure. A plan names its exact inputs. The merged files replace them only if they are still
neighbours in the list (`apply_swap`), and never in a list restored from an epoch older than
the one the plan was made from: the plan's frontier may have dropped rows that are live there.

How it works

The list is cut into *runs*: neighbours whose visible key hashes are disjoint, or which one
compaction wrote, cost a reader as much as one file. Files of equal epoch and subtask are
never separated. The output has the epoch and subtask of its newest input, so when lists are
merged and sorted again it stays after everything older and before everything newer.

1. `min_compaction_epochs` runs of about one size, with nothing larger between them, become
   one run; the smallest runs merge first. So runs are larger towards the old end, with a few
   of each size, and a row is rewritten a few times until it lies in a larger run, or a newer
   row hides it. Runs are compared by size, not by how often they were merged: keys that are
   updated often give runs that merge without growing, and these must go on merging.
2. If there are still more than three quarters of `max_runs`, the neighbours that cost least
   merge. Above `max_runs` the next epoch waits.

Every plan turns at least two runs into one, so repeated planning ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

from penstock.core.ids import KeyRange
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.files.writer import FileDescription
from penstock.state.tables.table import CompactionConfig

_SMALLEST_TIER_BYTES = 256 << 10
"""Runs below this size count as equal: the cost of a small file does not depend on its bytes."""
_TIER_FACTOR = 4


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Neighbouring list entries to be replaced by one group of files with the same fold."""

    inputs: tuple[StateFile, ...]
    """Oldest first; of each only the visible range is merged."""
    drops_deleted: bool
    """Whether nothing older overlaps the inputs: tombstones and expired rows then hide nothing
    and may be dropped."""

    @property
    def size_bytes(self) -> int:
        """The bytes that are read and merged."""
        return _bytes_of(self.inputs)

    def describe(self, state_version: int, **described: Any) -> FileDescription:
        """Describe the output files; `described` adds fields or replaces those of the plan.

        The output has the epoch and the subtask of its newest input, even if another subtask
        writes it, and sees the smallest range that holds what the inputs see.
        """
        newest = self.inputs[-1]
        planned = FileDescription(
            newest.epoch,
            newest.subtask_index,
            state_version,
            level=max(file.level for file in self.inputs) + 1,
            visible=KeyRange(
                min(file.visible.start for file in self.inputs),
                max(file.visible.end for file in self.inputs),
            ),
            replaces=tuple(file.identity for file in self.inputs),
        )
        return replace(planned, **described)


def plan_compaction(
    files: Sequence[StateFile], config: CompactionConfig
) -> CompactionPlan | None:
    """Return the next merge that is due in a list, or None."""
    runs = cut_runs(files)
    due = next(chain(_due_by_size(runs, config), _due_by_number(runs, config)), None)
    if due is None:
        return None
    start, end = due
    inputs = tuple(file for run in runs[start:end] for file in run)
    older = [file for run in runs[:start] for file in run]
    hidden = any(restrict(older, file.visible) for file in inputs)
    return CompactionPlan(inputs, drops_deleted=not hidden)


def cut_runs(files: Sequence[StateFile]) -> list[tuple[StateFile, ...]]:
    """Cut a list into runs; files of one epoch and subtask stay in one run."""
    runs: list[tuple[StateFile, ...]] = []
    for _, part in groupby(files, key=lambda file: (file.epoch, file.subtask_index)):
        together = tuple(part)
        if runs and not any(
            old.visible.overlaps(new.visible) for old in runs[-1] for new in together
        ):
            runs[-1] += together
        else:
            runs.append(together)
    return runs


def _due_by_size(
    runs: Sequence[Sequence[StateFile]], config: CompactionConfig
) -> Iterator[tuple[int, int]]:
    """Yield ranges with enough runs of one tier and none above it, the lowest tier first."""
    tiers = [_tier(run) if _may_merge(run, config) else None for run in runs]
    least = max(2, config.min_compaction_epochs)
    for tier in sorted({tier for tier in tiers if tier is not None}):
        same: list[int] = []
        for at, other in [*enumerate(tiers), (len(runs), None)]:
            if other == tier:
                same.append(at)
            elif other is None or other > tier:
                if len(same) >= least:
                    yield same[0], same[-1] + 1
                same = []


def _due_by_number(
    runs: Sequence[Sequence[StateFile]], config: CompactionConfig
) -> Iterator[tuple[int, int]]:
    """Yield the range of runs that costs least to merge, if there are too many runs."""
    limit = max(1, config.max_runs * 3 // 4)
    width = len(runs) - limit + 1
    if width < 2:
        return
    sizes = [_bytes_of(run) for run in runs]
    stretches = [
        (sum(sizes[start : start + width]), -start)
        for start in range(limit)
        if all(_may_merge(run, config) for run in runs[start : start + width])
    ]
    if stretches:
        start = -min(stretches)[1]
        yield start, start + width


def _tier(run: Sequence[StateFile]) -> int:
    """Return the tier of a run's size: 0 for the smallest runs, one more for every fourfold."""
    tier, size = 0, _bytes_of(run)
    while size >= _SMALLEST_TIER_BYTES:
        tier, size = tier + 1, size // _TIER_FACTOR
    return tier


def _bytes_of(run: Sequence[StateFile]) -> int:
    return sum(file.size_bytes for file in run)


def _may_merge(run: Sequence[StateFile], config: CompactionConfig) -> bool:
    allowed = config.compact_generations
    return allowed is None or all(file.level in allowed for file in run)
