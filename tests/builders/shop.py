"""Tables of a miniature operator in three versions, and a model of what they should hold.

Every migration changes the value, so that one step too few, too many or twice shows.

| Version | value of a typed row  | value of a global key |
|---------|-----------------------|-----------------------|
| 1       | whole number n        | n                     |
| 2       | 2 n + 1, and a note   | 2 n + 1               |
| 3       | the same as text      | as text               |

The model is plain dictionaries and lists. It keeps a number together with the version that
wrote it, and an expiry together with its row: nothing is ever dropped from the model, only
hidden when it is read. A `ShopEpoch` writes to the tables and to the model at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import Subtask
from penstock.core.key_hash import hash_keys, owners_of
from penstock.state.files.migration import MigratableState
from penstock.state.tables.specs import (
    TableSpec,
    TimeDomain,
    global_table,
    keyed_table,
    time_keyed_table,
)
from penstock.state.tables.table import Frontier
from penstock.state.tables.table_manager import TableManager
from tests.builders.state_job import StateJob

SHOP = "shop"
TTL = 20
KEY: Any = pa.field("key", pa.string())
TIME: Any = pa.field("time", pa.timestamp("us"))
NUMBER: Any = pa.field("value", pa.int64())
TEXT: Any = pa.field("value", pa.string())
NOTE: Any = pa.field("note", pa.string())


class RowV1(MigratableState):
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema([KEY, NUMBER, TIME])


class RowV2(MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = RowV1
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema([NOTE, TIME, NUMBER, KEY])

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        value = pc.add(pc.multiply(previous.column("value"), 2), 1)
        columns = {name: previous.column(name) for name in ("key", "time")}
        columns |= {"value": value, "note": value.cast(pa.string())}
        return pa.RecordBatch.from_pydict(columns, schema=cls.SCHEMA)


class RowV3(MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = RowV2
    SCHEMA: ClassVar[pa.Schema | None] = pa.schema([KEY, TEXT, TIME])

    @classmethod
    def migrate(cls, previous: pa.RecordBatch) -> pa.RecordBatch:
        assert previous.column("note").equals(previous.column("value").cast(pa.string()))
        columns = {name: previous.column(name) for name in ("key", "time")}
        columns["value"] = previous.column("value").cast(pa.string())
        return pa.RecordBatch.from_pydict(columns, schema=cls.SCHEMA)


class CountV1(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 1
    value: int


class CountV2(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 2
    PreviousVersion: ClassVar[Any] = CountV1
    value: int

    @classmethod
    def migrate(cls, previous: CountV1) -> "CountV2":
        return cls(previous.value * 2 + 1)


class CountV3(msgspec.Struct, MigratableState):
    VERSION: ClassVar[int] = 3
    PreviousVersion: ClassVar[Any] = CountV2
    value: str

    @classmethod
    def migrate(cls, previous: CountV2) -> "CountV3":
        return cls(str(previous.value))


ROWS: dict[int, type[MigratableState]] = {1: RowV1, 2: RowV2, 3: RowV3}
COUNTS: dict[int, Any] = {1: CountV1, 2: CountV2, 3: CountV3}


def shop_specs(version: int = 1) -> dict[str, list[TableSpec]]:
    """Declare all tables in one version."""
    rows, keys = ROWS[version], ["key"]
    return {
        SHOP: [
            global_table("counts", str, COUNTS[version], uses_two_phase_commit=True),
            keyed_table("totals", rows, key_columns=keys, ttl=TTL, time_column="time"),
            keyed_table(
                "recent",
                rows,
                key_columns=keys,
                ttl=TTL,
                ttl_domain=TimeDomain.PROCESSING_TIME,
            ),
            keyed_table("lines", rows, key_columns=["key", "time"], routed_by=keys),
            time_keyed_table("panes", rows, time_column="time", key_columns=keys),
            time_keyed_table("marks", rows, time_column="time"),
        ]
    }


def value_at(number: int, written: int, version: int) -> Any:
    """What a number written by one version reads as in a later one."""
    if written == 1 and version > 1:
        number = number * 2 + 1
    return str(number) if version == 3 else number


def shop_rows(rows: Iterable[tuple[str, int, int]], version: int = 1) -> pa.RecordBatch:
    """Rows of key, number and time as one version declares them."""
    listed = list(rows)
    values = [value_at(number, version, version) for _, number, _ in listed]
    columns: dict[str, Any] = {
        "key": [key for key, _, _ in listed],
        "value": values,
        "time": [time for _, _, time in listed],
        "note": [str(value) for value in values],
    }
    schema: Any = ROWS[version].SCHEMA
    return pa.RecordBatch.from_pydict(
        {name: columns[name] for name in schema.names}, schema=schema
    )


def keys_batch(keys: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.string())})


def owned(batch: pa.RecordBatch, subtask: Subtask) -> pa.RecordBatch:
    """The rows whose key a subtask owns."""
    owners = owners_of(hash_keys([batch.column("key")]), subtask.parallelism)
    return batch.filter(pa.array(owners == subtask.index))


def owner_of_key(key: str, parallelism: int) -> int:
    return int(owners_of(hash_keys([pa.array([key])]), parallelism)[0])


def read_counts(manager: TableManager) -> dict[str, Any]:
    return {k: v.value for k, v in manager.get_global_keyed_state("counts").items()}


def read_keyed(managers: Iterable[TableManager], table: str) -> dict[str, tuple[Any, int]]:
    """Key → value and time; a key seen by two subtasks is an error."""
    found: dict[str, tuple[Any, int]] = {}
    for manager in managers:
        for batch in manager.get_keyed_state(table).scan():
            for key, value, time in _triples(batch):
                assert key not in found, f"{key!r} is in {table!r} twice"
                found[key] = (value, time)
    return found


def read_lines(managers: Iterable[TableManager]) -> list[tuple[str, Any, int]]:
    """All rows of the table with many rows per key, those of one key in its order."""
    rows: list[tuple[str, Any, int]] = []
    for manager in managers:
        view = manager.get_keyed_state("lines")
        keys = {key for batch in view.scan() for key, _, _ in _triples(batch)}
        found = view.get_all(keys_batch(sorted(keys))).rows
        rows += [triple for batch in found.to_batches() for triple in _triples(batch)]
    return sorted(rows, key=lambda row: row[0])


def read_time_keyed(
    managers: Iterable[TableManager], table: str
) -> list[tuple[str, Any, int]]:
    """All rows, those of one key in the order they were inserted."""
    rows = [
        triple
        for manager in managers
        for batch in manager.get_time_keyed_state(table).batches()
        for triple in _triples(batch)
    ]
    return sorted(rows, key=lambda row: row[0])


def _triples(batch: pa.RecordBatch) -> Iterable[tuple[str, Any, int]]:
    columns: list[Any] = [batch.column("key"), batch.column("value")]
    columns.append(batch.column("time").cast(pa.int64()))
    return zip(*(column.to_pylist() for column in columns), strict=True)


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
    lines: dict[str, dict[int, Written]] = field(default_factory=dict)
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

    def expected_lines(self, version: int) -> list[tuple[str, Any, int]]:
        """The rows of the table with many rows per key, which never expire, in order."""
        return [
            (key, row.value(version), time)
            for key, line in sorted(self.lines.items())
            for time, row in sorted(line.items(), key=lambda item: item[0])
        ]

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
            start = self.frontier.processing_time_micros if table == "recent" else time
            row = Written(number, self.version, time, start + TTL)
            if table == "lines":
                written.setdefault(key, {})[time] = row
            else:
                written[key] = row

    def delete(self, table: str, keys: Sequence[str]) -> None:
        for subtask, manager in self._subtasks():
            view = manager.get_keyed_state(table)
            delete = view.delete_all if table == "lines" else view.delete
            delete(owned(keys_batch(keys), subtask))
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
    assert read_lines(managers) == model.expected_lines(version)
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
