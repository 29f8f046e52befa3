"""What the checkpoint of format 1 holds, value by value. Frozen, like the bytes it describes."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.compat.v1_program import KEY_FIELDS, TYPES, VALUE_FIELDS

Key = tuple[str | None, int | None]
LOW: Key = ("", -1)
HIGH: Key = ("žluťoučký kůň 🐎", 2**63 - 1)
NULLS: Key = (None, None)
PLAIN: Key = ("plain", 7)

NANOS = 1_700_000_000_123_456_789
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)

TYPED: dict[str, tuple[Any, Any]] = {
    "int8": (-128, 127),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
    "uint16": (0, 2**16 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "float32": (-math.inf, 1.5),
    "float64": (-0.0, math.nan),
    "boolean": (False, True),
    "decimal": (Decimal("-9999999999999999.9999"), Decimal("0.0001")),
    "large_decimal": (Decimal(-(10**49)), Decimal(10**49)),
    "date32": (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    "date64": (dt.date(1969, 12, 31), dt.date(2024, 2, 29)),
    "time32": (dt.time(0, 0, 0), dt.time(23, 59, 59)),
    "time64": (dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999_999)),
    "seconds": (-1, 1_700_000_000),
    "millis": (-1, 1_700_000_000_123),
    "micros": (-1, 1_700_000_000_123_456),
    "nanos": (-1, NANOS),
    "duration": (dt.timedelta(days=-1), dt.timedelta(microseconds=1)),
    "string": ("", "žluťoučký 🐎"),
    "large_string": ("", "鍵"),
    "string_view": ("short", "longer than twelve bytes"),
    "binary": (b"", b"\x00\xff"),
    "large_binary": (b"", b"\xff" * 20),
    "fixed_binary": (b"\x00\x00\x00", b"abc"),
    "dictionary": ("low", "high"),
    "list": ([], [1, None, 3]),
    "large_list": ([""], ["a", None]),
    "fixed_list": ([0.5, None], [-0.0, math.inf]),
    "struct": ({"a": None, "b": []}, {"a": 1, "b": ["x", None]}),
    "map": ([], [("ä", 1), ("b", None)]),
    "nothing": (None, None),
}
"""Of every type a low and a high value; timestamps as counts of their unit."""


def typed_rows(*rows: tuple[Key, str]) -> pa.RecordBatch:
    """Rows of the table of all types: each a key with the low, the high or no values."""
    keys: list[Any] = [
        pa.array([key[place] for key, _ in rows], field.type)
        for place, field in enumerate(KEY_FIELDS)
    ]
    values = [
        pa.array([_value(name, which) for _, which in rows], kind)
        for name, kind in TYPES.items()
    ]
    return pa.RecordBatch.from_arrays(
        [*keys, *values], schema=pa.schema([*KEY_FIELDS, *VALUE_FIELDS])
    )


def _value(name: str, which: str) -> Any:
    if which == "none":
        return None
    return TYPED[name][0 if which == "low" else 1]


# What each kept epoch holds, as version 2 of the program reads it.
TYPED_ROWS: dict[int, dict[Key, str]] = {
    2: {LOW: "low", NULLS: "none", PLAIN: "low"},
    5: {LOW: "low", NULLS: "none", PLAIN: "high"},
}
COUNTS: dict[int, dict[str, tuple[int, str]]] = {
    2: {"a": (10, "version 1"), "b": (2, "version 1"), "ž": (3, "version 1")},
    5: {"a": (10, "version 1"), "ž": (4, "subtask 1"), "new": (5, "subtask 0")},
}
SETTINGS: dict[tuple[str, int], dict[str, Any]] = {
    ("pair", 1): {"list": [1, 2.5, None, b"\x00"], "nested": {"deep": True}}
}
NAMES: dict[int, dict[Key, tuple[str, int]]] = {
    2: {LOW: ("was low", 100), PLAIN: ("was plain", 200), NULLS: ("was null", 300)},
    5: {PLAIN: ("again", 500), NULLS: ("was null", 300)},
}
RECENT: dict[int, dict[Key, tuple[str, int]]] = {
    2: {LOW: ("was early", 1), HIGH: ("was late", 1)},
    5: {HIGH: ("was late", 1)},
}
PANES: dict[int, list[tuple[Key, str, int]]] = {
    2: [(LOW, "was one", 1), (LOW, "was two", 2), (NULLS, "was for ever", 3)],
    5: [(NULLS, "was for ever", 3), (NULLS, "and ever", 4), (HIGH, "three", 5)],
}
MARKS: dict[int, list[tuple[Key, str, int]]] = {
    2: [(PLAIN, "was a mark", 1)],
    5: [(PLAIN, "was a mark", 1), (PLAIN, "of one", 2), (PLAIN, "of two", 2)],
}
SINK = {
    1: {0: b"output of epoch 1"},
    2: {0: b"output of epoch 2"},
    3: {1: b"output of epoch 3"},
    4: {0: b"output of epoch 4", 1: b"more of epoch 4"},
    5: {1: b"output of epoch 5"},
}
"""What each epoch's sinks commit, by subtask. That of epoch 5 was never confirmed."""
