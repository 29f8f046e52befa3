"""A keyed table with many rows per key does what a dictionary of dictionaries does."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from penstock.state.tables.expiry import TimeToLive
from tests.builders.table_machine import ODD_NAN, TableMachine
from tests.unit.state.tables.keyed_harness import a_schema

Value = list[Any]
"""A value in all its spellings."""

PREFIXES: dict[str, tuple[Any, list[Value]]] = {
    "integer": (pa.int64(), [[-1], [0], [7], [None]]),
    "text": (pa.string(), [[None], [""], ["a"], ["č"]]),
    "list": (pa.list_(pa.int8()), [[None], [[]], [[1]], [[1, 2]]]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), [["a"], ["b"], [None], ["č"]]),
}
RESTS: dict[str, tuple[Any, list[Value]]] = {
    "integer": (pa.int32(), [[None], *([n] for n in (-300, -1, 0, 1, 2, 3, 300, 70_000))]),
    "unsigned": (pa.uint64(), [[n] for n in (0, 1, 2, 255, 2**63, 2**64 - 1)]),
    "float": (
        pa.float64(),
        [[None], [-np.inf], [-1.5], [0.0, -0.0], [1.5], [np.inf], [np.nan, ODD_NAN]],
    ),
    "text": (pa.string(), [[t] for t in ("", "\0", "A", "a", "a\0", "ab", "ä", "鍵")]),
    "bytes or null": (pa.large_binary(), [[None], [b""], [b"\x00"], [b"a"], [b"\xff"]]),
    "decimal": (pa.decimal128(38, 3), [[None], *([Decimal(n) / 8] for n in range(-4, 4))]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [[None], *([{"a": a, "b": b}] for a in (None, 1, 2) for b in (None, "", "é"))],
    ),
    "boolean": (pa.bool_(), [[None], [False], [True]]),
    "time": (pa.timestamp("ns"), [[None], [-5], [0], [1_000_000_007]]),
}
"""Of each type distinct values, ascending."""

prefixes_chosen = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=6)
key_chosen = st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans())
keys_chosen = st.lists(key_chosen, max_size=12)
rows_chosen = st.lists(
    st.tuples(key_chosen, st.integers(0, 99), st.integers(-5, 40)), max_size=3
) | st.lists(
    st.tuples(key_chosen, st.integers(0, 99), st.integers(-5, 40)),
    min_size=20,
    max_size=60,
)
Model = dict[int, dict[int, tuple[int, int | None]]]
"""Prefix → rest → value and expiry; prefix and rest by their numbers."""


class PrefixTableMachine(TableMachine):
    """Random histories of one table, next to what it should equal."""

    @initialize(
        prefix=st.sampled_from(sorted(PREFIXES)),
        rest=st.sampled_from(sorted(RESTS)),
        second_column=st.booleans(),
        ttl=st.sampled_from([None, TimeToLive(10, "time"), TimeToLive(10)]),
        parallelism=st.integers(1, 3),
        memory_budget_bytes=st.sampled_from([600, 64 << 20]),
    )
    def declare(
        self,
        *,
        prefix: str,
        rest: str,
        second_column: bool,
        ttl: TimeToLive | None,
        parallelism: int,
        memory_budget_bytes: int,
    ) -> None:
        self.prefix_type, self.prefixes = PREFIXES[prefix]
        self.rest_type, self.rests = RESTS[rest]
        self.has_second = second_column
        keys = ["rest", "prefix", "more"] if second_column else ["prefix", "rest"]
        schema = a_schema(
            {
                "value": pa.int64(),
                "rest": self.rest_type,
                "more": pa.int8(),
                "prefix": self.prefix_type,
                "time": pa.timestamp("us"),
                "notes": pa.list_(pa.string()),
            },
            *keys,
            ttl=ttl,
            routed_by=("prefix",),
        )
        self.begin(schema, parallelism=parallelism, memory_budget_bytes=memory_budget_bytes)

    @rule(chosen=rows_chosen)
    def put(self, chosen: list[tuple[tuple[int, int, bool], int, int]]) -> None:
        self.is_dirty |= bool(chosen)
        values = [value for _, value, _ in chosen]
        columns = {
            **self._keys([key for key, _, _ in chosen]),
            "value": pa.array(values, pa.int64()),
            "time": pa.array([time for _, _, time in chosen], pa.timestamp("us")),
            "notes": pa.array([["ž"] * (v % 3) for v in values], pa.list_(pa.string())),
        }
        self.harness.put(pa.record_batch(columns))
        for (prefix, rest, _), value, time in chosen:
            rows = self.model.setdefault(prefix, {})
            rows[self._number(rest)] = (value, self.expiry_of(time))

    @rule(chosen=keys_chosen)
    def delete(self, chosen: list[tuple[int, int, bool]]) -> None:
        self.is_dirty |= bool(chosen)
        self.harness.delete(pa.record_batch(self._keys(chosen)))
        for prefix, rest, _ in chosen:
            self.model.get(prefix, {}).pop(self._number(rest), None)

    @rule(chosen=prefixes_chosen)
    def delete_all(self, chosen: list[tuple[int, bool]]) -> None:
        self.is_dirty |= any(self._expected(self.model, chosen))
        self.harness.delete_all(self._prefixes(chosen))
        for prefix, _ in chosen:
            self.model.pop(prefix, None)

    @rule(chosen=keys_chosen)
    def get(self, chosen: list[tuple[int, int, bool]]) -> None:
        found = self.harness.get(pa.record_batch(self._keys(chosen)))
        rows = [self._live(self.model, prefix) for prefix, _, _ in chosen]
        assert [None if row is None else row["value"] for row in found] == [
            row.get(self._number(rest))
            for row, (_, rest, _) in zip(rows, chosen, strict=True)
        ]

    @rule(
        chosen=prefixes_chosen,
        limit=st.none() | st.integers(1, 20),
        last=st.booleans(),
        columns=st.sampled_from([None, "value", ["notes", "value"], ["rest", "value"]]),
    )
    def get_all(
        self,
        chosen: list[tuple[int, bool]],
        limit: int | None,
        last: bool,
        columns: Any,
    ) -> None:
        found = self.harness.get_all(
            self._prefixes(chosen), limit=limit, last=last, columns=columns
        )
        kept = slice(None, limit) if not last else slice(-(limit or 1000), None)
        expected = [values[kept] for values in self._expected(self.model, chosen)]
        assert [[row["value"] for row in rows] for rows in found] == expected
        for row in (row for rows in found for row in rows):
            assert "notes" not in row or row["notes"] == ["ž"] * (row["value"] % 3)

    @rule(chosen=prefixes_chosen)
    def catch_up(self, chosen: list[tuple[int, bool]]) -> None:
        self.harness.catch_up()
        found = self.harness.get_all_lagging(self._prefixes(chosen))
        expected = self._expected(self.durable, chosen)
        assert [[row["value"] for row in rows] for rows in found] == expected

    def live_values(self) -> list[int]:
        live = [self._live(self.model, prefix).values() for prefix in self.model]
        return [value for values in live for value in values]

    def _number(self, rest: int) -> int:
        """The place of a rest in the order of all of them."""
        distinct = len(self.rests) * (3 if self.has_second else 1)
        return rest % distinct

    def _spelled(self, spellings: Value, odd: bool) -> Any:
        return spellings[-1 if odd else 0]

    def _prefixes(self, chosen: list[tuple[int, bool]]) -> pa.RecordBatch:
        values = [self._spelled(self.prefixes[number], odd) for number, odd in chosen]
        return pa.record_batch({"prefix": pa.array(values, self.prefix_type)})

    def _keys(self, chosen: list[tuple[int, int, bool]]) -> dict[str, Any]:
        """Spell keys; with a second column each value of the first is in three rests."""
        numbers = [self._number(rest) for _, rest, _ in chosen]
        per_value = 3 if self.has_second else 1
        rests = [
            self._spelled(self.rests[number // per_value], odd)
            for number, (_, _, odd) in zip(numbers, chosen, strict=True)
        ]
        prefixes = self._prefixes([(prefix, odd) for prefix, _, odd in chosen])
        return {
            "prefix": prefixes.column("prefix"),
            "rest": pa.array(rests, self.rest_type),
            "more": pa.array([n % per_value - 1 for n in numbers], pa.int8()),
        }

    def _live(self, model: Model, prefix: int) -> dict[int, int]:
        """The values of a prefix by rest, in order."""
        return {
            rest: value
            for rest, (value, expiry) in sorted(model.get(prefix, {}).items())
            if self.is_live(expiry)
        }

    def _expected(self, model: Model, chosen: list[tuple[int, bool]]) -> list[list[int]]:
        return [list(self._live(model, prefix).values()) for prefix, _ in chosen]


TestPrefixTable = pytest.mark.slow(PrefixTableMachine.TestCase)
