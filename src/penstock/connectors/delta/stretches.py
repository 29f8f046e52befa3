"""Which files of a Delta table one epoch reads together, so that a changelog is never wrong.

Within an epoch the order of changes does not matter: removals and additions of equal rows cancel
each other out (see `operators.changes`). Between epochs it does. An epoch that has the new row of
a key and a later one that removes the old row end with the key gone; a change that comes before the
insert of its row is lost. So the files of a changelog are read in stretches:

    version   rows are          stretch
    4         +  (the table)    ┐ may be cut anywhere, into as many epochs as the budget asks for:
    5         +                 ┘ rows are only added, each once
    6         - +                 belongs into one epoch, however large it is
    7         ~                   likewise: a file of changes holds both halves of updates
    8         -                   may be cut: rows are only removed

No stretch is begun before those in front of it are read to their ends, or are planned to be in
the same epoch, which then must not stop half-way (`EpochFiles.is_indivisible`). Rows that are no
changelog are one stretch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple

from penstock.connectors.delta.planning import Offset, RowsAre, WaitingFile
from penstock.connectors.files.formats import FileOffset, Packing, SourceFile
from penstock.operators.splits import SplitPlan


class LeftFile(NamedTuple):
    """A file that has rows left to be read."""

    name: str
    """That of its split."""
    version: int
    rows: RowsAre
    at: Offset | WaitingFile
    """How far it was read, or what the log tells of a file that was not begun."""


class Stretch(NamedTuple):
    """Files that may be read in any order."""

    files: Iterable[LeftFile]
    may_be_cut: bool
    """Several epochs may read it; otherwise one reads all of it."""


@dataclass(frozen=True, slots=True)
class EpochFiles:
    """What an epoch reads."""

    plans: tuple[SplitPlan, ...]
    has_more: bool
    """There is more, or this is more than the budget."""
    is_indivisible: bool
    """All of it must be read in this epoch."""


OpenFile = Callable[[LeftFile], tuple[SourceFile, Offset]]
"""Returns a file and how far it was read; it looks for the size if the log does not tell it."""


def to_stretches(left: Iterable[LeftFile]) -> Iterator[Stretch]:
    """Return the stretches of a changelog. Files of a version keep their order."""
    versions: list[tuple[RowsAre | None, list[LeftFile]]] = []
    for _, found in groupby(sorted(left, key=_version), _version):
        files = list(found)
        kinds = {file.rows for file in files}
        is_cut_safely = len(kinds) == 1 and RowsAre.CHANGES not in kinds
        versions.append((files[0].rows if is_cut_safely else None, files))
    for kind, group in groupby(versions, lambda version: version[0]):
        if kind is None:
            yield from (Stretch(files, may_be_cut=False) for _, files in group)
        else:
            alike = chain.from_iterable(files for _, files in group)
            yield Stretch(list(alike), may_be_cut=True)


def _version(file: LeftFile) -> int:
    return file.version


def plan_epoch(
    stretches: Iterable[Stretch], packing: Packing, open_file: OpenFile
) -> EpochFiles:
    """Return what an epoch reads: stretches, one behind the other, as long as they fit.

    A stretch that may be cut may be the last one, in part. One that may not is taken if it
    fits, or if it is the first: then the epoch is as large as the stretch. Files are opened one
    by one: of a million that wait, an epoch reads a few.
    """
    plans: list[SplitPlan] = []
    has_more = is_indivisible = False
    for stretch in stretches:
        if stretch.may_be_cut:
            found, has_more = _plan_some(stretch.files, packing, open_file)
            is_indivisible |= bool(plans and found)
        else:
            all_of_it = _plan_all(stretch.files, packing, open_file)
            if all_of_it is None:
                has_more = True
                break
            found, is_indivisible = all_of_it, True
        plans += found
        if has_more:
            break
    return EpochFiles(
        tuple(plans), has_more or (is_indivisible and packing.is_over), is_indivisible
    )


def _plan_some(
    files: Iterable[LeftFile], packing: Packing, open_file: OpenFile
) -> tuple[list[SplitPlan], bool]:
    """Return what fits, and whether more is left."""
    plans: list[SplitPlan] = []
    has_more = False
    for left in files:
        file, offset = open_file(left)
        found = packing.add(file, FileOffset(*offset[:3]))
        if found is None:
            return plans, True
        plan, is_whole = found
        plans.append(replace(plan, name=left.name, start=tuple(offset)))
        has_more |= not is_whole
    return plans, has_more


def _plan_all(
    files: Iterable[LeftFile], packing: Packing, open_file: OpenFile
) -> list[SplitPlan] | None:
    """Return all files, to their ends; None if they do not fit behind what is planned."""
    opened: list[tuple[str, Offset]] = []

    def offer() -> Iterator[tuple[SourceFile, FileOffset]]:
        for left in files:
            file, offset = open_file(left)
            opened.append((left.name, offset))
            yield file, FileOffset(*offset[:3])

    found = packing.add_all(offer())
    if found is None:
        return None
    return [
        replace(plan, name=name, start=tuple(offset))
        for plan, (name, offset) in zip(found, opened, strict=True)
    ]
