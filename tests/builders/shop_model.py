"""What the shop's tables should hold, in plain dictionaries and lists.

A number is kept together with the version that wrote it, an expiry together with its row:
nothing is ever dropped here, only hidden when it is read.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from penstock.state.tables.table import Frontier
from tests.builders.shop_tables import value_at


@dataclass(frozen=True, slots=True)
class Written:
    """A number as one version wrote it."""

    number: int
    version: int
    time: int = 0
    expires_at: int | None = None

    def value(self, version: int) -> Any:
        return value_at(self.number, self.version, version)

    def is_live(self, instant: int | None) -> bool:
        return self.expires_at is None or instant is None or self.expires_at > instant


@dataclass
class ShopModel:
    """The contents after some epoch, and the time they are judged by."""

    counts: dict[str, Written] = field(default_factory=dict)
    totals: dict[str, Written] = field(default_factory=dict)
    recent: dict[str, Written] = field(default_factory=dict)
    panes: list[tuple[str, Written]] = field(default_factory=list)
    marks: list[tuple[str, Written]] = field(default_factory=list)
    frontier: Frontier = field(default_factory=Frontier)

    def copy(self) -> "ShopModel":
        return deepcopy(self)

    def expected_counts(self, version: int) -> dict[str, Any]:
        return {key: written.value(version) for key, written in self.counts.items()}

    def expected_keyed(self, table: str, version: int) -> dict[str, tuple[Any, int]]:
        """Key → value and time of the live rows of a keyed table."""
        by_event_time = table == "totals"
        rows: dict[str, Written] = self.totals if by_event_time else self.recent
        frontier = self.frontier
        instant = (
            frontier.watermark_micros if by_event_time else frontier.processing_time_micros
        )
        return {
            key: (row.value(version), row.time)
            for key, row in rows.items()
            if row.is_live(instant)
        }

    def expected_time_keyed(self, table: str, version: int) -> list[tuple[str, Any, int]]:
        """The live rows of a time-keyed table, those of one key as they were inserted."""
        rows = self.panes if table == "panes" else self.marks
        live = [
            (key, row.value(version), row.time)
            for key, row in rows
            if row.is_live(self.frontier.watermark_micros)
        ]
        return sorted(live, key=lambda row: row[0])


@dataclass
class CountsOfSubtask:
    """One subtask's view of the shared counts during an epoch: only real changes count."""

    before: Mapping[str, Written]
    version: int
    changes: dict[str, Written | None] = field(default_factory=dict)

    def insert(self, key: str, number: int) -> None:
        new = Written(number, self.version)
        old = self.before.get(key)
        if old is not None and old.value(self.version) == new.value(self.version):
            self.changes.pop(key, None)
        else:
            self.changes[key] = new

    def remove(self, key: str) -> None:
        if key in self.before:
            self.changes[key] = None
        else:
            self.changes.pop(key, None)

    def seen(self) -> dict[str, Any]:
        merged: dict[str, Written | None] = {**self.before, **self.changes}
        return {k: w.value(self.version) for k, w in merged.items() if w is not None}

    def apply_to(self, counts: dict[str, Written]) -> None:
        for key, written in self.changes.items():
            if written is None:
                counts.pop(key, None)
            else:
                counts[key] = written
