"""How many sorted runs a list of state files is."""

from collections.abc import Sequence

from penstock.core.ids import KeyRange
from penstock.state.files.state_file import StateFile


def count_runs(files: Sequence[StateFile]) -> int:
    """Count the runs of a list: neighbours with disjoint visible ranges are one sorted run."""
    runs = 0
    covered: list[KeyRange] = []
    for file in files:
        if not covered or any(file.visible.overlaps(part) for part in covered):
            runs += 1
            covered = []
        covered.append(file.visible)
    return runs
