"""What a job's checkpoints show of themselves: epochs, their tables, savepoints. Plain values."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, overload

from typing_extensions import override

Row: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One table of a step, as an epoch holds it."""

    step: str
    table: str
    kind: str
    """`keyed_table`, `time_keyed_table` or `global_table`."""
    file_count: int
    size_bytes: int
    row_count: int
    """Rows in its files. There may be fewer in the table: a key counts once per file."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """An epoch that is kept under a name."""

    name: str
    epoch: int
    kind: str
    """`savepoint`, or who else needs the epoch: a `branch`, or a `restore` under way."""
    made_at: datetime
    holder: str | None = None
    """The branch that needs it."""

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch}, {self.kind})"


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """One epoch that can be restored, pinned or branched."""

    epoch: int
    made_at: datetime
    is_committed: bool
    """False for the newest epoch while its sinks commit, or after its driver died meanwhile."""
    is_abandoned: bool
    """A restore has gone back to an epoch before it. It can be restored in turn."""
    savepoints: tuple[Savepoint, ...]
    tables: tuple[StoredTable, ...]
    new_bytes: int
    """The size of the files that it has and its predecessor in the list has not."""

    @property
    def size_bytes(self) -> int:
        """The size of all state files that it needs; most are shared with other epochs."""
        return sum(table.size_bytes for table in self.tables)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that have state in it."""
        return tuple(dict.fromkeys(table.step for table in self.tables))


class EpochList(Sequence[StoredEpoch]):
    """The epochs of a job that are kept, newest first. `print` and notebooks show a table."""

    def __init__(self, job: str, epochs: Sequence[StoredEpoch]) -> None:
        self.job = job
        self._epochs = tuple(epochs)

    @overload
    def __getitem__(self, index: int) -> StoredEpoch: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StoredEpoch, ...]: ...
    @override
    def __getitem__(self, index: int | slice) -> StoredEpoch | tuple[StoredEpoch, ...]:
        return self._epochs[index]

    @override
    def __len__(self) -> int:
        return len(self._epochs)

    @override
    def __repr__(self) -> str:
        if not self._epochs:
            return f"job {self.job!r} has no epoch yet"
        rows = [_TITLES, *map(_row, self._epochs)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_TITLES))]
        return "\n".join(
            "  ".join(
                text.ljust(width) for text, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in rows
        )

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        if not self._epochs:
            return f"<p>{html.escape(repr(self))}</p>"
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{html.escape(text)}</td>" for text in _row(epoch))
            + "</tr>"
            for epoch in self._epochs
        )
        return f"<table><tr>{head}</tr>{body}</table>"


_TITLES: Row = ("epoch", "made at", "size", "new", "state", "steps", "kept by")


def _row(epoch: StoredEpoch) -> Row:
    state = "ready" if epoch.is_committed else "committing"
    return (
        str(epoch.epoch),
        f"{epoch.made_at:%Y-%m-%d %H:%M:%S}",
        shown_bytes(epoch.size_bytes),
        shown_bytes(epoch.new_bytes),
        f"{state}, abandoned" if epoch.is_abandoned else state,
        ", ".join(epoch.steps),
        ", ".join(savepoint.name for savepoint in epoch.savepoints),
    )


def shown_bytes(size: float) -> str:
    """Return a number of bytes as people read it.

    >>> shown_bytes(512), shown_bytes(2048), shown_bytes(3_500_000)
    ('512 B', '2.0 KiB', '3.3 MiB')
    """
    if size < 1024:
        return f"{int(size)} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did."""

    epochs: tuple[int, ...]
    """The epochs that were given up."""
    deleted_objects: int

    def __str__(self) -> str:
        given_up = ", ".join(map(str, self.epochs)) or "none"
        return f"epochs given up: {given_up}; objects deleted: {self.deleted_objects}"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore will do at the job's next start."""

    epoch: int
    """The epoch that the job goes on from."""
    abandoned: tuple[int, ...]
    """The epochs that do not count from then on, newest first."""

    def __str__(self) -> str:
        abandoned = ", ".join(map(str, self.abandoned)) or "none"
        return (
            f"the next start goes on from epoch {self.epoch}; abandoned epochs: {abandoned}"
        )
