"""A sink that keeps a book of what was committed to it, and can be made to fail while it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.connectors.memory import StagingSink, staged_tables
from penstock.core.ids import Epoch
from penstock.operators.context import CommitContext

CommitHook: TypeAlias = Callable[[str, int], None]
"""Called with "before" or "after" the effect, and the epoch."""


@dataclass
class Book:
    """The outside world of one job: survives all of its drivers."""

    commits: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    """By operator and epoch: the rows, in order of subtask."""
    calls: list[tuple[str, int]] = field(default_factory=list)
    """Every call of `handle_commit`, repeated ones too."""
    hook: CommitHook | None = None

    def rows(self, operator: str) -> list[dict[str, Any]]:
        """Return what was committed, sorted so that two runs can be compared."""
        found = [
            row
            for (name, _), rows in self.commits.items()
            if name == operator
            for row in rows
        ]
        return sorted(found, key=repr)

    def output(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of every sink."""
        return {name: self.rows(name) for name in sorted({n for n, _ in self.commits})}


_BOOKS: dict[str, Book] = {}


def open_book(name: str) -> Book:
    """Begin an empty book; sinks find it by its name."""
    book = _BOOKS[name] = Book()
    return book


class BookSink(StagingSink):
    """Writes an epoch's rows into a book; a repeated commit must be of the same rows."""

    def __init__(self, book: str) -> None:
        super().__init__()
        self._book = book

    def name(self) -> str:
        return "book"

    def handle_commit(
        self,
        epoch: Epoch,
        commit_data: Mapping[str, Mapping[int, bytes]],
        ctx: CommitContext,
    ) -> None:
        book = _BOOKS[self._book]
        entry = (str(ctx.task.operator), int(epoch))
        book.calls.append(entry)
        if book.hook is not None:
            book.hook("before", epoch)
        tables = staged_tables(commit_data)
        rows = tuple(row for table in tables for row in table.to_pylist())
        known = book.commits.setdefault(entry, rows)
        if known != rows:
            raise AssertionError(f"{entry} was committed twice, with different rows")
        if book.hook is not None:
            book.hook("after", epoch)
