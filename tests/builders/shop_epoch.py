"""One running epoch of the shop, written to its tables and to the model at once."""

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.core.ids import Subtask
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.shop_model import CountsOfSubtask, ShopModel, Written
from tests.builders.shop_tables import (
    COUNTS,
    SHOP,
    TTL,
    keys_batch,
    owned,
    read_counts,
    read_keyed,
    read_time_keyed,
    shop_rows,
    value_at,
)
from tests.builders.state_job import StateJob

Row = tuple[str, int, int]
"""Key, number and time."""
Operation = tuple[Any, ...]
"""The name of a method of `ShopEpoch`, and its arguments."""


class ShopEpoch:
    """What all subtasks do in one epoch. Subtask indexes wrap around: any number is fine."""

    def __init__(self, job: StateJob, before: ShopModel, version: int) -> None:
        self.version = version
        self.epoch = job.epoch
        managers = job.open_subtasks()
        self.managers = [managers[SHOP, index] for index in range(job.parallelism)]
        self.frontier = Frontier(job.watermark, job.processing_time)
        self.model = before.copy()
        self.model.frontier = self.frontier
        self.counts = [CountsOfSubtask(before.counts, version) for _ in self.managers]
        self.committing: dict[int, bytes] = {}

    def apply(self, operations: Iterable[Operation]) -> None:
        """Carry out operations one after the other."""
        for name, *arguments in operations:
            getattr(self, name)(*arguments)

    def put(self, table: str, rows: Sequence[Row]) -> None:
        batch = shop_rows(rows, self.version)
        for subtask, manager in self._subtasks():
            manager.get_keyed_state(table).put(owned(batch, subtask))
        written = getattr(self.model, table)
        for key, number, time in rows:
            start = time if table == "totals" else self.frontier.processing_time_micros
            written[key] = Written(number, self.version, time, start + TTL)

    def delete(self, table: str, keys: Sequence[str]) -> None:
        for subtask, manager in self._subtasks():
            manager.get_keyed_state(table).delete(owned(keys_batch(keys), subtask))
        for key in keys:
            getattr(self.model, table).pop(key, None)

    def insert_panes(self, rows: Sequence[Row], expires_at: int | None) -> None:
        batch = shop_rows(rows, self.version)
        for subtask, manager in self._subtasks():
            manager.get_time_keyed_state("panes").insert(owned(batch, subtask), expires_at)
        self.model.panes += [
            (key, Written(number, self.version, time, expires_at))
            for key, number, time in rows
        ]

    def insert_marks(self, index: int, rows: Sequence[Row], expires_at: int | None) -> None:
        """Insert rows without a key, which belong to whoever writes them."""
        view = self.managers[index % len(self.managers)].get_time_keyed_state("marks")
        view.insert(shop_rows(rows, self.version), expires_at)
        self.model.marks += [
            (key, Written(number, self.version, time, expires_at))
            for key, number, time in rows
        ]

    def count(self, index: int, key: str, number: int | None) -> None:
        """Set a shared count, or remove it."""
        index %= len(self.managers)
        view = self.managers[index].get_global_keyed_state("counts")
        if number is None:
            view.remove(key)
            self.counts[index].remove(key)
        else:
            value = value_at(number, self.version, self.version)
            view.insert(key, COUNTS[self.version](value))
            self.counts[index].insert(key, number)

    def commit(self, index: int, data: str) -> None:
        """Hand over data for the sink; only the first counts."""
        index %= len(self.managers)
        if index not in self.committing:
            self.committing[index] = data.encode()
            self.managers[index].insert_committing_data("counts", data.encode())

    def check(self) -> None:
        """What subtasks see is what the model says, whether they are warm or cold."""
        for manager, counts in zip(self.managers, self.counts, strict=True):
            assert read_counts(manager) == counts.seen()
        check_typed_tables(self.managers, self.model, self.version)

    def check_lookups(self, keys: Sequence[str]) -> None:
        """Looking keys up finds the same as reading everything."""
        panes = self.model.expected_time_keyed("panes", self.version)
        for subtask, manager in self._subtasks():
            asked = owned(keys_batch(keys), subtask)
            wanted: list[Any] = asked.column("key").to_pylist()
            for table in ("totals", "recent"):
                expected = self.model.expected_keyed(table, self.version)
                found = manager.get_keyed_state(table).get(asked)
                assert found.found.tolist() == [key in expected for key in wanted]
                values = found.rows.column("value").to_pylist()
                assert values == [expected.get(key, (None, 0))[0] for key in wanted]
            grouped = manager.get_key_time_state("panes").get(asked)
            for place, key in enumerate(wanted):
                values = grouped.rows_of(place).column("value").to_pylist()
                assert values == [value for k, value, _ in panes if k == key]

    def finished(self, watermark: int | None) -> ShopModel:
        """Return the model after the epoch: subtasks' counts folded in their order."""
        for counts in self.counts:
            counts.apply_to(self.model.counts)
        self.model.frontier = Frontier(watermark, self.frontier.processing_time_micros)
        return self.model

    def _subtasks(self) -> Iterable[tuple[Subtask, TableManager]]:
        for index, manager in enumerate(self.managers):
            yield Subtask(index, len(self.managers)), manager


def check_typed_tables(
    managers: Sequence[TableManager], model: ShopModel, version: int
) -> None:
    """Compare the live rows of all subtasks with the model's."""
    for table in ("totals", "recent"):
        assert read_keyed(managers, table) == model.expected_keyed(table, version)
    panes = read_time_keyed(managers, "panes")
    assert panes == model.expected_time_keyed("panes", version)
    marks = read_time_keyed(managers, "marks")
    assert sorted(marks) == sorted(model.expected_time_keyed("marks", version))


def check_contents(
    managers: Sequence[TableManager], model: ShopModel, version: int
) -> None:
    """Compare everything that freshly loaded subtasks see with the model."""
    for manager in managers:
        assert read_counts(manager) == model.expected_counts(version)
    check_typed_tables(managers, model, version)
