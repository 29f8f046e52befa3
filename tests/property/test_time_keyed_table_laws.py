"""A time-keyed table is a bag of rows, each gone once the watermark reaches its expiry."""

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.core.ids import owner_of
from penstock.core.key_hash import hash_keys
from penstock.state.files.state_file import StateFile
from penstock.state.tables.expiry import is_expired
from penstock.state.tables.specs import TableSpec, time_keyed_table
from penstock.state.tables.table import Files
from tests.unit.state.files.file_builders import a_schema
from tests.unit.state.tables.table_cluster import TableCluster

USERS = ["", "a", "b", "ü", None]
SCHEMA = a_schema(user=pa.string(), at=pa.timestamp("us"), n=pa.int64())
Row = tuple[str | None, int, int]
EDGES = st.sampled_from([-(1 << 63), -1, 0, (1 << 63) - 1])
times = st.integers(-20, 20) | EDGES
rows_chosen = st.lists(
    st.tuples(
        st.sampled_from(USERS),
        times,
        st.integers(0, 3),
        st.none() | st.integers(-20, 60) | EDGES,
    ),
    max_size=8,
)


def a_batch(rows: list[Row]) -> pa.RecordBatch:
    users, instants, numbers = ([row[place] for row in rows] for place in range(3))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(users, pa.string()),
            pa.array(instants, pa.timestamp("us")),
            pa.array(numbers, pa.int64()),
        ],
        schema=SCHEMA,
    )


def rows_in(table: pa.Table) -> list[Row]:
    columns: list[list[Any]] = [
        table["user"].to_pylist(),
        table["at"].cast(pa.int64()).to_pylist(),
        table["n"].to_pylist(),
    ]
    return list(zip(*columns, strict=True))


class TimeKeyedTableMachine(RuleBasedStateMachine):
    """Random histories of one table over several subtasks, next to a plain list."""

    spec: TableSpec

    @initialize(parallelism=st.integers(1, 3))
    def start(self, parallelism: int) -> None:
        self.cluster = TableCluster(self.spec, parallelism)
        self.model: list[tuple[Row, int | None]] = []
        self.running: list[Files] = []
        self.merged: dict[str, StateFile] = {}
        """Every file that was ever in a list when a merge was planned."""
        self.opened: tuple[Any, list[Any]] | None = None

    @rule(rows=rows_chosen, warm=st.booleans(), step=st.none() | st.integers(0, 15))
    def run_epoch(
        self,
        rows: list[tuple[str | None, int, int, int | None]],
        warm: bool,
        step: int | None,
    ) -> None:
        """Advance the watermark, or not, then insert rows, live or not."""
        watermark = self.cluster.watermark
        if step is not None:
            watermark = -20 + step if watermark is None else watermark + step
        before = self._live(watermark)
        self.model += [((user, at, n), expiry) for user, at, n, expiry in rows]

        def write(index: int, view: Any) -> None:
            if self.spec.name == "keyed":
                expected = [row for row in before if self._owner(row[0]) == index]
                assert Counter(rows_in(view.rows())) == Counter(expected)
            own = [row for row in rows if self._owner(row[0]) == index]
            batch = a_batch([(user, at, n) for user, at, n, _ in own])
            expiries = pa.array([row[3] for row in own], pa.timestamp("us"))
            view.insert(batch, expiries)

        self.cluster.run_epoch(write, watermark=watermark, warm=warm)

    @rule(parallelism=st.integers(1, 4))
    def rescale(self, parallelism: int) -> None:
        self.cluster.rescale(parallelism)

    @rule(index=st.integers(0, 3), minimum=st.integers(2, 4))
    def compact(self, index: int, minimum: int) -> None:
        compacted = self.cluster.compact(
            index % self.cluster.parallelism, min_compaction_epochs=minimum
        )
        if compacted is not None:
            self.running.append(compacted)
            lists = self.cluster.lists().values()
            self.merged |= {file.identity: file for files in lists for file in files}

    @precondition(lambda self: self.running)
    @rule(choice=st.integers(0, 9))
    def swap(self, choice: int) -> None:
        """Publish a compaction, however old; it is void where its live inputs have changed."""
        clock = self.cluster.watermark
        expired = {name for name, file in self.merged.items() if is_expired(file, clock)}
        self.cluster.swap(self.running.pop(choice % len(self.running)), expired)

    @rule(start=st.none() | times, end=st.none() | times)
    def read_a_range(self, start: int | None, end: int | None) -> None:
        expected = [
            row
            for row in self._live()
            if (start is None or row[1] >= start) and (end is None or row[1] < end)
        ]
        found = [row for view in self._views() for row in rows_in(view.rows(start, end))]
        assert Counter(found) == Counter(expected)

    @rule(users=st.lists(st.sampled_from(USERS), max_size=6))
    def look_up_keys(self, users: list[str | None]) -> None:
        if self.spec.name != "keyed":
            return
        for index, view in enumerate(self._views()):
            asked = [user for user in users if self._owner(user) == index]
            found = view.get(a_batch([(user, 0, 0) for user in asked]))
            for place, user in enumerate(asked):
                expected = [row for row in self._live() if row[0] == user]
                assert Counter(rows_in(found.rows_of(place))) == Counter(expected)

    @invariant()
    def all_live_rows_are_seen_once(self) -> None:
        found = [row for view in self._views() for row in rows_in(view.rows())]
        assert Counter(found) == Counter(self._live())
        earliest = [view.min_time() for view in self._views()]
        known = [time for time in earliest if time is not None]
        assert min(known, default=None) == min(
            (row[1] for row in self._live()), default=None
        )

    def _views(self) -> list[Any]:
        """Open all subtasks cold, once for each state they are in."""
        cluster = self.cluster
        state = (cluster.lists(), cluster.watermark)
        if self.opened is None or self.opened[0] != state:
            views = [cluster.view(index) for index in range(cluster.parallelism)]
            self.opened = state, views
        return self.opened[1]

    def _live(self, watermark: int | None = None) -> list[Row]:
        watermark = self.cluster.watermark if watermark is None else watermark
        return [
            row
            for row, expiry in self.model
            if watermark is None or expiry is None or expiry > watermark
        ]

    def _owner(self, user: str | None) -> int:
        key_hash = int(hash_keys([pa.array([user], pa.string())])[0])
        return owner_of(key_hash, self.cluster.parallelism)


class KeyedMachine(TimeKeyedTableMachine):
    spec = time_keyed_table("keyed", SCHEMA, key_columns=["user"], time_column="at")


class KeylessMachine(TimeKeyedTableMachine):
    spec = time_keyed_table("plain", SCHEMA, time_column="at")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [KeyedMachine, KeylessMachine])
def test_long_histories_keep_every_law(
    kind: type[TimeKeyedTableMachine], seed: int
) -> None:
    """Hypothesis leaves rules out to find small failures; here all of them mix."""
    random = Random(seed)
    machine = kind()
    machine.start(parallelism=random.randint(1, 3))

    def a_row() -> tuple[str | None, int, int, int | None]:
        expiry = random.choice([None, random.randint(-20, 60), (1 << 63) - 1])
        return random.choice(USERS), random.randint(-20, 20), random.randint(0, 3), expiry

    for _ in range(30):
        action = random.randrange(8)
        if action < 4:
            step = random.choice([None, random.randint(0, 6)])
            rows = [a_row() for _ in range(random.randrange(8))]
            machine.run_epoch(rows=rows, warm=random.random() < 0.7, step=step)
        elif action == 4:
            machine.rescale(parallelism=random.randint(1, 4))
        elif action == 5:
            machine.compact(index=random.randrange(4), minimum=random.randint(2, 4))
        elif action == 6 and machine.running:
            machine.swap(choice=random.randrange(10))
        else:
            machine.look_up_keys(users=random.choices(USERS, k=4))
            machine.read_a_range(start=random.randint(-20, 10), end=random.randint(-10, 20))
        machine.all_live_rows_are_seen_once()


TestKeyed = pytest.mark.slow(KeyedMachine.TestCase)
TestKeyless = pytest.mark.slow(KeylessMachine.TestCase)
