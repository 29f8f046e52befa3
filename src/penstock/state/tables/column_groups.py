"""Column groups: columns of a table that come and go together, such as an aggregate's partials.

A program may add, remove or rename a group between two runs. No file is written again for it:
such a change gives the table the next state version, and a file is read by the version that it
was written with.

    version of the file                              the columns of a group are
    before the group was added (`since`)             those of no rows: its `fill`
    before it was renamed (`former`)                 under its former name
    otherwise                                        under its name; a missing one is filled

The declaration in a checkpoint holds the groups with their history, in the metadata of the Arrow
schema. It also says what each group means, so that a group that means something else is found
before both are mixed. Declarations without groups are of unknown meaning: their columns are
taken for the groups of the same names.

Pure, except that a table's files are read by it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.core.arrow_types import have_same_values, relay

_METADATA_KEY = b"penstock.groups"


class Meaning(msgspec.Struct, frozen=True):
    """What the columns of a group hold, in words that only change with it."""

    outline: str
    """What is computed of which columns, in Penstock's own words."""
    expressions: str = ""
    """Expressions of users, as a library prints them."""
    dialect: str = ""
    """The library that printed them, with its version: another may print the same otherwise."""

    def differs_from(self, other: "Meaning") -> bool:
        """Return whether two meanings differ, as far as they can be compared."""
        if self.outline != other.outline:
            return True
        return self.dialect == other.dialect and self.expressions != other.expressions

    def __str__(self) -> str:
        if not self.expressions:
            return self.outline
        return f"{self.outline} of {self.expressions:.300}"


class FormerName(msgspec.Struct, frozen=True):
    """A name that a group had in files of the state versions below `until`."""

    name: str
    until: int


class StoredGroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group as a checkpoint's declaration holds it."""

    name: str
    columns: tuple[str, ...]
    """Each begins with the name of the group."""
    meaning: Meaning | None = None
    """None if it was written before meanings were recorded."""
    since: int = 0
    """The first state version whose files hold the group."""
    former: tuple[FormerName, ...] = ()
    """Oldest first."""

    def column_in(self, column: str, version: int) -> str | None:
        """Return what a column is called in files of a version; None if it is not in them."""
        if version < self.since:
            return None
        name = next((f.name for f in self.former if version < f.until), self.name)
        return name + column.removeprefix(self.name)


_GROUPS = msgspec.json.Decoder(tuple[StoredGroup, ...])


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """A group as an operator declares it."""

    name: str
    columns: tuple[str, ...]
    """None for a group that only says what the rows of the table are."""
    meaning: Meaning
    fill: bytes
    """One row of the columns in Arrow's IPC form: what rows hold from before the group."""
    was: tuple[str, ...] = ()
    """Names that the group may have in the checkpoint."""
    noun: str = "columns"
    """What a group is for the user, such as an aggregate."""
    is_whole: bool = False
    """Whether its meaning is that of all groups: none of them can come, go or be renamed alone."""


class GroupFate(Enum):
    """What a start does to a group."""

    KEPT = "kept"
    RECORDED = "recorded"
    """Its meaning was unknown and is taken to be the declared one."""
    RENAMED = "renamed"
    ADDED = "added"
    DROPPED = "dropped"
    CHANGED = "changed"
    """It means something else than before: refused."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What a start does to one group, in the user's words."""

    group: str
    fate: GroupFate
    detail: str
    is_whole: bool = False
    """Whether it is about all groups of the table."""


@dataclass(frozen=True)
class ColumnGroups:
    """All groups of a table, declared and with the history that a checkpoint gives them."""

    declared: tuple[ColumnGroup, ...]
    stored: tuple[StoredGroup, ...]
    """In the same order as declared."""

    @classmethod
    def new(cls, declared: Iterable[ColumnGroup]) -> "ColumnGroups":
        """Return the groups of a table without a checkpoint."""
        groups = tuple(declared)
        return cls(groups, tuple(StoredGroup(g.name, g.columns, g.meaning) for g in groups))

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that are in some group."""
        return frozenset(name for group in self.declared for name in group.columns)

    @cached_property
    def _fills(self) -> dict[str, Any]:
        fills = {}
        for group in (group for group in self.declared if group.columns):
            row = pa.ipc.open_stream(group.fill).read_all().combine_chunks()
            fills.update({name: row.column(name).chunk(0) for name in group.columns})
        return fills

    def to_metadata(self) -> dict[bytes, bytes]:
        """Return the groups as they are stored."""
        return {_METADATA_KEY: msgspec.json.encode(self.stored)}

    def read(
        self, rows: pa.RecordBatch, stored: pa.Schema, version: int
    ) -> list[Any] | None:
        """Return the columns of a schema out of rows of a file of a version.

        Columns of groups that are gone are left out. None if another column is missing or of
        another type.
        """
        sources = {
            column: group.column_in(column, version)
            for group in self.stored
            for column in group.columns
        }
        found, columns = rows.schema, []
        for field in stored:
            name = sources.get(field.name, field.name)
            index = -1 if name is None else found.get_field_index(name)
            if index >= 0 and have_same_values(found.field(index).type, field.type):
                columns.append(relay(rows.column(index), field.type))
            elif index < 0 and field.name in sources:
                places = np.zeros(rows.num_rows, np.int64)
                filled = self._fills[field.name].take(pa.array(places))
                columns.append(relay(filled, field.type))
            else:
                return None
        return columns


def with_groups(schema: bytes, groups: ColumnGroups) -> bytes:
    """Return a serialised schema with groups in its metadata."""
    read = pa.ipc.read_schema(pa.py_buffer(schema))
    return read.with_metadata(groups.to_metadata()).serialize().to_pybytes()


def stored_groups(schema: pa.Schema, fixed: Sequence[str]) -> tuple[StoredGroup, ...]:
    """Return the groups in a stored schema; without them, one per prefix of its columns.

    `fixed` are the columns that are in no group.
    """
    metadata = schema.metadata or {}
    if _METADATA_KEY in metadata:
        return _GROUPS.decode(metadata[_METADATA_KEY])
    columns: dict[str, list[str]] = {}
    for name in schema.names:
        if name not in fixed:
            columns.setdefault(name.rpartition(".")[0], []).append(name)
    return tuple(StoredGroup(name, tuple(of)) for name, of in columns.items())


def decide_groups(
    groups: ColumnGroups, stored: Sequence[StoredGroup], version: int
) -> tuple[ColumnGroups, int, tuple[GroupChange, ...]]:
    """Return declared groups with the history of stored ones, the state version, and the changes.

    `version` is that of the stored groups. It grows if a group is added, dropped or renamed,
    because files written from then on hold other columns.
    """
    known = {group.name: group for group in stored}
    declared = {group.name for group in groups.declared}
    followed: list[StoredGroup] = []
    changes: list[GroupChange] = []
    taken: set[str] = set()
    for group in groups.declared:
        former = [n for n in group.was if n in known and n not in (*declared, *taken)]
        name = group.name if group.name in known else former[0] if former else None
        if name is None:
            since = StoredGroup(group.name, group.columns, group.meaning, version + 1)
            followed.append(since)
            changes.append(_added(group))
            continue
        taken.add(name)
        change = _compare(group, known[name])
        changes.append(change)
        before = known[name]
        names = before.former
        if name != group.name:
            names = (*names, FormerName(name, version + 1))
        followed.append(
            StoredGroup(group.name, group.columns, group.meaning, before.since, names)
        )
    changes += [_dropped(known[name]) for name in known if name not in taken]
    whole = [c for c in changes if c.is_whole and c.fate is GroupFate.CHANGED]
    # What else has changed then is no problem of its own, and has no way out of its own.
    changes = whole or changes
    moves = (GroupFate.ADDED, GroupFate.DROPPED, GroupFate.RENAMED)
    if any(change.fate in moves for change in changes):
        version += 1
    return replace(groups, stored=tuple(followed)), version, tuple(changes)


def _added(group: ColumnGroup) -> GroupChange:
    detail = (
        f"{group.noun} {group.name!r} is new: it starts empty for all that is kept already"
    )
    return GroupChange(group.name, GroupFate.ADDED, detail)


def _dropped(group: StoredGroup) -> GroupChange:
    detail = (
        f"{group.name!r} ({group.meaning or 'of unknown meaning'}) is in the state and not "
        "declared"
    )
    return GroupChange(group.name, GroupFate.DROPPED, detail)


def _compare(group: ColumnGroup, before: StoredGroup) -> GroupChange:
    shown = group.noun if group.is_whole else f"{group.noun} {group.name!r}"
    if before.meaning is None:
        detail = f"{shown} is taken to be {group.meaning}: the checkpoint does not say what it is"
        return GroupChange(group.name, GroupFate.RECORDED, detail)
    if group.meaning.differs_from(before.meaning):
        detail = (
            f"{shown} was {before.meaning} and is declared as {group.meaning}: one cannot go on "
            "from the other"
        )
        return GroupChange(group.name, GroupFate.CHANGED, detail, group.is_whole)
    if before.name != group.name:
        detail = f"{shown} was called {before.name!r}"
        return GroupChange(group.name, GroupFate.RENAMED, detail)
    return GroupChange(group.name, GroupFate.KEPT, f"{shown} goes on")
