"""Restores and output files: which committed epochs are no part of the output any more.

A restore goes back to an older epoch, and the epochs after it are abandoned: their rows come
again under new numbers. Nothing is written at the restore itself. The first epoch after it
knows by its parent what it does not descend from, and from then on every list says so:

    epoch    1   2   3   4   5   restore of 2   6                  7
    parent       1   2   3   4                  2                  6
    its list                                    abandoned [3, 6)   abandoned [3, 6)

So a reader sees the old output until that epoch is committed and the new one from then on,
no row twice. A sink keeps the ranges in its state: a restore brings back those that held at
the restored epoch, so one that is undone needs nothing more. That lists are of acknowledged
epochs only, and the same whoever commits them, makes this safe against crashes and against
drivers that were replaced.
"""

from collections.abc import Iterable
from typing import TypeAlias

from penstock.connectors.files_records import CommittedEpoch, EpochRange
from penstock.operators.context import OperatorContext
from penstock.state.tables.specs import TableSpec, global_table

ABANDONED = "abandoned"

_Who: TypeAlias = tuple[str, str]
"""A job by name and identity."""


def abandoned_table() -> TableSpec:
    """Declare the table of abandoned epochs: the start of each range, by its end."""
    return global_table(ABANDONED, int, int)


def follows_restore(ctx: OperatorContext) -> bool:
    """Tell whether this is the first epoch after a restore that abandoned others."""
    return ctx.parent is not None and ctx.parent + 1 < ctx.epoch


def note_abandoned(ctx: OperatorContext) -> tuple[EpochRange, ...]:
    """Return the epochs before this one that it does not descend from; remember new ones."""
    table = ctx.get_global_keyed_state(ABANDONED)
    known: set[EpochRange] = {(start, end) for end, start in table.items()}
    if ctx.parent is not None and follows_restore(ctx):
        start, end = int(ctx.parent) + 1, int(ctx.epoch)
        known.add((start, end))
        if ctx.task.subtask.index == 0:
            table.insert(end, start)
    return tuple(sorted(known))


def drop_abandoned(records: Iterable[CommittedEpoch]) -> list[CommittedEpoch]:
    """Return the lists that the newest one of their job descends from, in order of epoch.

    Pure. What a list says counts unless it is abandoned itself: a later restore may have
    gone back to what an earlier one had abandoned.
    """
    abandoned: dict[_Who, set[EpochRange]] = {}
    kept = []
    for record in sorted(records, key=lambda record: record.epoch, reverse=True):
        ranges = abandoned.setdefault((record.job, record.identity), set())
        if not any(start <= record.epoch < end for start, end in ranges):
            ranges.update(record.abandoned)
            kept.append(record)
    return sorted(kept, key=lambda record: (record.epoch, record.operator))
