"""A keyed table does what a dictionary does, whatever happens between two calls."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock.state.tables.expiry import TimeToLive
from tests.builders.table_machine import ODD_NAN, TableMachine
from tests.unit.state.tables.keyed_harness import a_schema

KEYS: dict[str, tuple[Any, list[list[Any]]]] = {
    "integer": (pa.int64(), [[n] for n in range(-8, 8)]),
    "text": (
        pa.string(),
        [[t] for t in ("", "a", "A", "ä", "a\u0308", "鍵", "\0", "x" * 70)],
    ),
    "large text or null": (pa.large_string(), [[None], [""], ["null"], ["ключ"], ["None"]]),
    "float": (
        pa.float64(),
        [[float("nan"), ODD_NAN], [0.0, -0.0], [None], [1.5], [-1.5], [float("inf")]],
    ),
    "decimal": (pa.decimal128(38, 3), [[None], *([Decimal(n) / 8] for n in range(-4, 4))]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [[None], *([{"a": a, "b": b}] for a in (None, 1, 2) for b in (None, "", "é"))],
    ),
    "list": (pa.list_(pa.int8()), [[None], [[]], [[None]], [[1]], [[1, 2]], [[2, 1]]]),
    "boolean": (pa.bool_(), [[True], [False], [None]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), [["a"], ["b"], [None], ["č"]]),
}
"""Of each kind of key the distinct keys, each with all its spellings."""

keys_chosen = st.lists(st.tuples(st.integers(0, 15), st.booleans()), max_size=12)
one_row = st.tuples(
    st.integers(0, 15), st.booleans(), st.integers(0, 99), st.integers(-5, 40)
)
rows_chosen = st.lists(one_row, max_size=2) | st.lists(one_row, max_size=12)


class KeyedTableMachine(TableMachine):
    """Random histories of one table, next to the dictionary it should equal.

    The model maps the number of a key to its row and the instant at which it expires.
    """

    @initialize(
        kind=st.sampled_from(sorted(KEYS)),
        second_column=st.booleans(),
        ttl=st.sampled_from([None, TimeToLive(10, "time"), TimeToLive(10)]),
        parallelism=st.integers(1, 3),
        memory_budget_bytes=st.sampled_from([600, 64 << 20]),
    )
    def declare(
        self,
        kind: str,
        second_column: bool,
        ttl: TimeToLive | None,
        parallelism: int,
        memory_budget_bytes: int,
    ) -> None:
        self.key_type, self.spellings = KEYS[kind]
        self.schema = a_schema(
            {
                "key": self.key_type,
                "value": pa.int64(),
                "more": pa.int8(),
                "time": pa.timestamp("us"),
                "notes": pa.list_(pa.string()),
            },
            *(["more", "key"] if second_column else ["key"]),
            ttl=ttl,
        )
        self.begin(
            self.schema, parallelism=parallelism, memory_budget_bytes=memory_budget_bytes
        )

    @rule(chosen=rows_chosen)
    def put(self, chosen: list[tuple[int, bool, int, int]]) -> None:
        self.is_dirty |= bool(chosen)
        numbers = [(number, odd) for number, odd, _, _ in chosen]
        times = [time for _, _, _, time in chosen]
        values = [value for _, _, value, _ in chosen]
        rows = pa.RecordBatch.from_arrays(
            [
                *self._keys(numbers).columns,
                pa.array(values, pa.int64()),
                pa.array(times, pa.timestamp("us")),
                pa.array(
                    [[f"ž{value}"] * (value % 3) for value in values], pa.list_(pa.string())
                ),
            ],
            ["key", "more", "value", "time", "notes"],
        )
        self.harness.put(rows)
        for number, _, value, time in chosen:
            self.model[self._identity(number)] = (value, self.expiry_of(time))

    @rule(chosen=keys_chosen)
    def delete(self, chosen: list[tuple[int, bool]]) -> None:
        self.is_dirty |= bool(chosen)
        self.harness.delete(self._keys(chosen))
        for number, _ in chosen:
            self.model.pop(self._identity(number), None)

    @rule(chosen=keys_chosen)
    def get(self, chosen: list[tuple[int, bool]]) -> None:
        found = self.harness.get(self._keys(chosen))
        assert self._values(found) == self._expected(self.model, chosen)
        for row in found:
            if row is not None:
                assert row["notes"] == [f"ž{row['value']}"] * (row["value"] % 3)

    @rule(chosen=keys_chosen)
    def catch_up(self, chosen: list[tuple[int, bool]]) -> None:
        self.harness.catch_up()
        found = self.harness.get_lagging(self._keys(chosen))
        assert self._values(found) == self._expected(self.durable, chosen)

    def live_values(self) -> list[int]:
        return [value for value, expiry in self.model.values() if self.is_live(expiry)]

    def _spelled(self, number: int, odd: bool) -> Any:
        spellings = self.spellings[number % len(self.spellings)]
        return spellings[-1 if odd else 0]

    def _keys(self, chosen: Sequence[tuple[int, bool]]) -> pa.RecordBatch:
        """Spell keys in the key columns; those that share a spelling differ in `more`."""
        return pa.RecordBatch.from_arrays(
            [
                pa.array([self._spelled(*choice) for choice in chosen], self.key_type),
                pa.array(
                    [number // len(self.spellings) for number, _ in chosen], pa.int8()
                ),
            ],
            ["key", "more"],
        )

    def _identity(self, number: int) -> int:
        """The same for numbers that spell the same key."""
        return number if len(self.schema.key_columns) == 2 else number % len(self.spellings)

    def _expected(
        self, model: dict[int, tuple[int, int | None]], chosen: Sequence[tuple[int, bool]]
    ) -> list[int | None]:
        rows = [model.get(self._identity(number)) for number, _ in chosen]
        return [
            row[0] if row is not None and self.is_live(row[1]) else None for row in rows
        ]

    def _values(self, found: list[dict[str, Any] | None]) -> list[int | None]:
        return [None if row is None else row["value"] for row in found]


TestKeyedTable = pytest.mark.slow(KeyedTableMachine.TestCase)
