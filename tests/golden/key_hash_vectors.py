"""Keys of every type whose hashes are frozen in `key_hash.json`.

To add a type, append a case and run this file: it appends the hashes by the reference and
refuses to change one that is there.
"""

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.golden.key_hash_reference import hash_rows

VECTORS = Path(__file__).with_name("key_hash.json")

_WHOLE = [0, 1, -1, 42, -128, 127, None]
_TEXT = [
    "",
    "a",
    "abcdefg",
    "abcdefgh",
    "abcdefghi",
    "Zürich 東京 🚰",
    "x" * 64,
    "x" * 65,
    "x" * 128,
    "x" * 129,
    None,
]
_BYTES = [
    b"",
    b"\x00",
    b"\x00\x00",
    b"a",
    b"a\x00",
    bytes(range(128)),
    bytes(range(129)),
    None,
]
_FLOATS = [0.0, -0.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan"), None]
_DECIMALS = [
    Decimal("0.00"),
    Decimal("1.50"),
    Decimal("-1.50"),
    Decimal("9999999.99"),
    None,
]
_WIDE_DECIMALS = [
    *_DECIMALS,
    Decimal("92233720368547758.07"),
    Decimal("92233720368547758.08"),
    Decimal("-92233720368547758.08"),
    Decimal("-92233720368547758.09"),
    Decimal("123456789012345678901234567890123456.78"),
]
_INSTANTS = [
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2024, 2, 29, 12, tzinfo=UTC),
    None,
]
_POINTS = [{"x": 1, "y": "a"}, {"x": None, "y": None}, {"x": 1, "y": None}, None]
_LISTS = [[], [1], [1, 2], [2, 1], [None], [None, None], None]


def _array(values: Sequence[Any], data_type: pa.DataType) -> Any:
    return pa.array(values, data_type)


def _cases() -> dict[str, list[Any]]:
    """Return the key columns of each case by its name."""
    point = pa.struct([("x", pa.int32()), ("y", pa.string())])
    times = [time(0, 0), time(23, 59, 59), None]
    single: dict[str, tuple[Sequence[Any], pa.DataType]] = {
        "null": ([None, None], pa.null()),
        "boolean": ([False, True, None], pa.bool_()),
        **{f"int{bits}": (_WHOLE, getattr(pa, f"int{bits}")()) for bits in (8, 16, 32, 64)},
        "int64 limits": ([-(1 << 63), (1 << 63) - 1], pa.int64()),
        **{
            f"uint{bits}": ([0, 1, (1 << bits) - 1, None], getattr(pa, f"uint{bits}")())
            for bits in (8, 16, 32, 64)
        },
        "float16": (_FLOATS, pa.float16()),
        "float32": (_FLOATS, pa.float32()),
        "float64": ([*_FLOATS, 0.1, 5e-324], pa.float64()),
        "decimal32": (_DECIMALS, pa.decimal32(9, 2)),
        "decimal64": (_DECIMALS, pa.decimal64(18, 2)),
        "decimal128": (_WIDE_DECIMALS, pa.decimal128(38, 2)),
        "decimal256": ([*_WIDE_DECIMALS, Decimal(-(10**70))], pa.decimal256(76, 2)),
        "date32": ([date(1970, 1, 1), date(1900, 1, 1), None], pa.date32()),
        "date64": ([date(1970, 1, 1), date(1900, 1, 1), None], pa.date64()),
        "time32[s]": (times, pa.time32("s")),
        "time32[ms]": (times, pa.time32("ms")),
        "time64[us]": (times, pa.time64("us")),
        "time64[ns]": (times, pa.time64("ns")),
        **{
            f"timestamp[{u}]": (_INSTANTS, pa.timestamp(u)) for u in ("s", "ms", "us", "ns")
        },
        "timestamp[us, UTC]": (_INSTANTS, pa.timestamp("us", "UTC")),
        **{
            f"duration[{u}]": ([timedelta(0), timedelta(seconds=-3), None], pa.duration(u))
            for u in ("s", "ms", "us", "ns")
        },
        "month_day_nano_interval": (
            [(0, 0, 0), (1, -2, -3), None],
            pa.month_day_nano_interval(),
        ),
        "string": (_TEXT, pa.string()),
        "large_string": (_TEXT, pa.large_string()),
        "string_view": (_TEXT, pa.string_view()),
        "binary": (_BYTES, pa.binary()),
        "large_binary": (_BYTES, pa.large_binary()),
        "binary_view": (_BYTES, pa.binary_view()),
        "fixed_size_binary[3]": ([b"abc", b"\x00\x00\x00", None], pa.binary(3)),
        "fixed_size_binary[0]": ([b"", None], pa.binary(0)),
        "uuid extension": ([bytes(range(16)), None], pa.uuid()),
        "dictionary": (["b", "a", None, "b"], pa.dictionary(pa.int8(), pa.string())),
        "struct": (_POINTS, point),
        "struct without fields": ([{}, None], pa.struct([])),
        "struct in struct": (
            [{"p": one} for one in _POINTS] + [None],
            pa.struct([("p", point)]),
        ),
        "list": (_LISTS, pa.list_(pa.int64())),
        "large_list": (_LISTS, pa.large_list(pa.int64())),
        "fixed_size_list": ([[1, 2], [None, 2], None], pa.list_(pa.int64(), 2)),
        "list of strings": ([["a", ""], [""], [], None], pa.list_(pa.string())),
        "list of lists": (
            [[[1], []], [[], [1]], [None], None],
            pa.list_(pa.list_(pa.int8())),
        ),
    }
    whole, text = (
        _array([1, 2, None, None], pa.int64()),
        _array(["a", None, "a", None], pa.string()),
    )
    return {name: [_array(values, kind)] for name, (values, kind) in single.items()} | {
        "(int64, string)": [whole, text],
        "(string, int64)": [text, whole],
        "(int64, int64, int64)": [whole, whole, whole],
    }


CASES = _cases()


def read_vectors() -> dict[str, list[str]]:
    """Return the frozen hashes of each case, in hex."""
    vectors: dict[str, list[str]] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return vectors


def _append_missing() -> None:
    frozen = read_vectors() if VECTORS.exists() else {}
    for name, columns in CASES.items():
        hashes = [f"{one:016x}" for one in hash_rows(columns)]
        if frozen.setdefault(name, hashes) != hashes:
            raise SystemExit(f"the hashes of {name} would change: they never may")
    VECTORS.write_text(json.dumps(frozen, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _append_missing()
