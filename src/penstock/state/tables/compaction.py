"""Which files of a table to merge next: tiered by level, neighbours only, runs bounded.

Pure. A plan names its exact inputs; what is merged is put in their place only if they are
still neighbours in the list (`apply_swap`), and never in a list restored from an epoch
older than the one the plan was made from: its frontier may have dropped rows there.

How it works

The list is cut into *runs*: neighbours whose visible key hashes are disjoint, or which one
compaction wrote, cost a reader as much as one file. Files of equal epoch and subtask are
never parted. The output takes the epoch and subtask of its newest input, so wherever lists
are merged and sorted again it stays after everything older and before everything newer.

1. `min_compaction_epochs` neighbouring runs of one level become one run of the next level,
   lowest level first. That alone leaves a few runs per level, and each row is rewritten
   once per level.
2. Where there are still more than 8 runs plus one per level, the cheapest neighbours merge.

Every plan turns at least two runs into one, so planning again and again ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from penstock.core.ids import Epoch
from penstock.core.key_range import KeyRange
from penstock.state.files.state_file import StateFile, restrict
from penstock.state.files.writer import FileDescription
from penstock.state.tables.table import CompactionConfig

BASE_RUN_LIMIT = 8
"""How many runs a table may keep, not counting one per level."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Neighbouring list entries to be replaced by one group of files with the same fold."""

    inputs: tuple[StateFile, ...]
    """Oldest first, each seen through its visible range only."""
    drops_deleted: bool
    """Whether nothing older overlaps the inputs, so that tombstones and expired rows, having
    nothing left to hide, may be dropped."""

    @property
    def epoch(self) -> Epoch:
        """The epoch of the output: its newest input's."""
        return self.inputs[-1].epoch

    @property
    def subtask_index(self) -> int:
        """The subtask of the output: its newest input's, whoever writes it."""
        return self.inputs[-1].subtask_index

    @property
    def level(self) -> int:
        """The level of the output: one above the highest of the inputs."""
        return max(file.level for file in self.inputs) + 1

    @property
    def replaces(self) -> tuple[str, ...]:
        """What the output stands for."""
        return tuple(file.identity for file in self.inputs)

    @property
    def visible(self) -> KeyRange:
        """The smallest range that holds all that the inputs see."""
        return KeyRange(
            min(file.visible.start for file in self.inputs),
            max(file.visible.end for file in self.inputs),
        )

    def describe(
        self,
        state_version: int,
        *,
        visible: KeyRange | None = None,
        time_column: str | None = None,
        expiry_column: str | None = None,
    ) -> FileDescription:
        """Describe the output files; `visible` narrows them to a part of the inputs' range."""
        return FileDescription(
            epoch=self.epoch,
            subtask_index=self.subtask_index,
            state_version=state_version,
            level=self.level,
            visible=visible or self.visible,
            replaces=self.replaces,
            time_column=time_column,
            expiry_column=expiry_column,
        )


def plan_compaction(
    files: Sequence[StateFile], config: CompactionConfig
) -> CompactionPlan | None:
    """Return the next merge that is due in a list, or None."""
    runs = cut_runs(files)
    for start, end in (
        *_due_by_level(runs, config),
        *_due_by_number(runs, config, run_limit(files)),
    ):
        return _plan(runs, start, end)
    return None


def for_expiring(config: CompactionConfig) -> CompactionConfig:
    """Return how a table is compacted whose rows all expire."""
    least = config.min_expiring_epochs
    return config if least is None else replace(config, min_compaction_epochs=least)


def run_limit(files: Sequence[StateFile]) -> int:
    """Return how many runs a list may keep: 8, and one per level."""
    return BASE_RUN_LIMIT + len({file.level for file in files})


def exceeds_run_limit(files: Sequence[StateFile]) -> bool:
    """Tell whether the next epoch must wait for a compaction of this list."""
    return len(cut_runs(files)) > run_limit(files)


def cut_runs(files: Sequence[StateFile]) -> list[tuple[StateFile, ...]]:
    """Cut a list into runs, none of which parts files of one epoch and subtask."""
    runs: list[tuple[StateFile, ...]] = []
    for _, part in groupby(files, key=lambda file: (file.epoch, file.subtask_index)):
        together = tuple(part)
        if runs and _are_disjoint(runs[-1], together):
            runs[-1] += together
        else:
            runs.append(together)
    return runs


def _are_disjoint(left: Sequence[StateFile], right: Sequence[StateFile]) -> bool:
    return not any(one.visible.overlaps(other.visible) for one in left for other in right)


def _due_by_level(
    runs: Sequence[Sequence[StateFile]], config: CompactionConfig
) -> Iterator[tuple[int, int]]:
    """Yield stretches of enough runs of one level, the lowest level first."""
    stretches: list[tuple[int, int, int]] = []
    start = 0
    for level, same in groupby(runs, key=_level):
        end = start + len(list(same))
        if end - start >= max(2, config.min_compaction_epochs) and _may_merge(
            level, config
        ):
            stretches.append((level, start, end))
        start = end
    for _, start, end in sorted(stretches):
        yield start, end


def _due_by_number(
    runs: Sequence[Sequence[StateFile]], config: CompactionConfig, limit: int
) -> Iterator[tuple[int, int]]:
    """Yield the stretch that costs least to merge, if there are more runs than the limit."""
    width = len(runs) - limit + 1
    if width < 2:
        return
    sizes = [sum(file.size_bytes for file in run) for run in runs]
    stretches = [
        (sum(sizes[start : start + width]), -start)
        for start in range(limit)
        if all(_may_merge(_level(run), config) for run in runs[start : start + width])
    ]
    if stretches:
        start = -min(stretches)[1]
        yield start, start + width


def _level(run: Sequence[StateFile]) -> int:
    return max(file.level for file in run)


def _may_merge(level: int, config: CompactionConfig) -> bool:
    return config.compact_generations is None or level in config.compact_generations


def _plan(runs: Sequence[Sequence[StateFile]], start: int, end: int) -> CompactionPlan:
    inputs = tuple(file for run in runs[start:end] for file in run)
    older = [file for run in runs[:start] for file in run]
    hidden = any(restrict(older, file.visible) for file in inputs)
    return CompactionPlan(inputs, drops_deleted=not hidden)
