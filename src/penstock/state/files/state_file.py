"""State files as values, and the algebra of the ordered lists that tables are folded from.

Pure. A table of one subtask is a list of files, oldest first; the fold of the list is the
table. Three facts make lists easy to reason about:

- Epochs never decrease along a list. Files of equal epoch hold disjoint key hashes (keyed
  tables) or are ordered by subtask (the global table).
- `visible` is the range of key hashes of a file that *this list* sees. A rescale narrows it
  instead of rewriting the file. It must not be widened again: the other part may meanwhile
  have been compacted elsewhere, and rows deleted there would reappear.
- A compacted group equals the fold of the files it `replaces`, as seen by the list it was
  made from, and takes their place in it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

from penstock.core.ids import FULL_RANGE, Epoch, KeyRange
from penstock.state.proto import state_pb2


@dataclass(frozen=True, slots=True)
class StateFile:
    """One Parquet file in a table's list. A subtask or a compaction writes it; it never changes."""

    path: str
    """Relative to the checkpoint URL, so that branches can refer to another job's files."""
    epoch: Epoch
    """The epoch that wrote it; for a compacted file the newest epoch it replaces."""
    subtask_index: int
    level: int
    """0 for a delta; a compacted file is one above the highest level that it replaces."""
    row_count: int
    size_bytes: int
    checksum: int
    footer_bytes: int
    """The length of the Parquet footer with its magic: a partial read fetches this first."""
    footer_checksum: int
    state_version: int
    min_time_micros: int | None = None
    max_time_micros: int | None = None
    min_key_hash: int | None = None
    max_key_hash: int | None = None
    last_expiry_micros: int | None = None
    """All rows are expired once the frontier reaches this; None if some row never expires."""
    visible: KeyRange = FULL_RANGE
    replaces: tuple[str, ...] = ()
    """The `identity` of each entry that this file's group replaces, in list order."""

    @property
    def identity(self) -> str:
        """The file and its visible range: equal for two entries iff they are the same entry."""
        return f"{self.path}#{self.visible.start:x}-{self.visible.end - 1:x}"

    def to_proto(self) -> state_pb2.StateFile:
        """Return the durable form: the same fields, and the first and last visible hash."""
        return state_pb2.StateFile(
            **{name: getattr(self, name) for name in (*_REQUIRED, *_OPTIONAL)},
            visible_first=self.visible.start,
            visible_last=self.visible.end - 1,
        )

    @classmethod
    def from_proto(cls, message: state_pb2.StateFile) -> "StateFile":
        """Return the value of a durable form."""
        values: dict[str, Any] = {name: getattr(message, name) for name in _REQUIRED}
        values |= {
            name: getattr(message, name) for name in _OPTIONAL if message.HasField(name)
        }
        values["epoch"] = Epoch(message.epoch)
        values["replaces"] = tuple(message.replaces)
        values["visible"] = KeyRange(message.visible_first, message.visible_last + 1)
        return cls(**values)


_OPTIONAL = (
    "min_time_micros",
    "max_time_micros",
    "min_key_hash",
    "max_key_hash",
    "last_expiry_micros",
)
_REQUIRED = tuple(
    field.name for field in fields(StateFile) if field.name not in {*_OPTIONAL, "visible"}
)


def restrict(files: Iterable[StateFile], key_range: KeyRange) -> tuple[StateFile, ...]:
    """Return the files narrowed to `key_range`, without files that have no key hash in it."""
    seen = []
    for file in files:
        visible = file.visible.intersection(key_range)
        low, high = file.min_key_hash, file.max_key_hash
        if visible is None:
            continue
        if low is None or high is None or (low < visible.end and high >= visible.start):
            seen.append(file if visible == file.visible else replace(file, visible=visible))
    return tuple(seen)


def merge_lists(lists: Iterable[Sequence[StateFile]]) -> tuple[StateFile, ...]:
    """Merge the lists of several subtasks into one, keeping the order of each.

    Parts of one file that touch become one entry again. That is only safe because each part
    comes from a list in which it is still visible.
    """
    ordered = sorted(
        {file.identity: file for files in lists for file in files}.values(),
        key=lambda file: (file.epoch, file.subtask_index, file.path, file.visible.start),
    )
    merged: list[StateFile] = []
    for file in ordered:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.path == file.path
            and last.visible.end >= file.visible.start
        ):
            end = max(last.visible.end, file.visible.end)
            merged[-1] = replace(last, visible=KeyRange(last.visible.start, end))
        else:
            merged.append(file)
    return tuple(merged)


def apply_swap(
    files: Sequence[StateFile],
    outputs: Sequence[StateFile],
    expired: Collection[str] = (),
) -> tuple[StateFile, ...] | None:
    """Put one compacted group in the place of what it replaces.

    The result is None if those exact entries, with the same visible ranges, are not
    neighbours in `files`: the list has changed during the compaction, which is then void.
    Entries named in `expired` may have left the list, though not all of them: their rows are
    hidden in the group as well.
    """
    present = [file.identity for file in files]
    wanted = [
        entry for entry in outputs[0].replaces if entry in present or entry not in expired
    ]
    if not wanted:
        return None
    for start in range(len(present) - len(wanted) + 1):
        if present[start : start + len(wanted)] == wanted:
            return (*files[:start], *outputs, *files[start + len(wanted) :])
    return None


def derive_missing(
    held: Sequence[StateFile], wanted: Sequence[StateFile]
) -> tuple[StateFile, ...] | None:
    """Return the files that turn a fold of `held` into a fold of `wanted`, or None.

    Compacted groups in `wanted` are matched against the files they replace, so that a swap
    alone costs no read. The oldest of these may be missing in `held`, whoever holds a newer one
    has let them go because they had expired. None means that `held` is not a prefix: the view
    is folded again.
    """
    position = start = 0
    # The files of a compacted group have equal `replaces`; any other file is its own group.
    for _, same in groupby(wanted, key=lambda file: file.replaces or file.identity):
        group = list(same)
        if position == len(held):
            return tuple(wanted[start:])
        start += len(group)
        if held[position].identity == group[0].identity:
            step = len(group)
            if [f.identity for f in held[position : position + step]] != [
                f.identity for f in group
            ]:
                return None
        else:
            replaces = group[0].replaces
            if held[position].identity not in replaces:
                return None
            still = replaces[replaces.index(held[position].identity) :]
            step = len(still)
            if tuple(f.identity for f in held[position : position + step]) != still:
                return None
        position += step
    return () if position == len(held) else None
