"""Hypothesis strategies for Arrow types users put in state, and for values of them."""

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

Values = st.SearchStrategy[Any]


@dataclass(frozen=True)
class Kind:
    """An Arrow type and how to draw values of it, nulls aside."""

    data_type: Any
    values: Values


def _whole(data_type: Any, bits: int, *, signed: bool) -> Kind:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return Kind(data_type, st.integers(low, high) | st.sampled_from([low, high, 0]))


def _floating(data_type: Any, width: Any) -> Kind:
    odd = [math.nan, math.inf, -math.inf, 0.0, -0.0]
    values = st.floats(width=width) | st.sampled_from(odd)
    if width == 16:
        return Kind(data_type, values.map(np.float16))
    return Kind(data_type, values)


def _counted(data_type: Any, bits: int = 63, low: int | None = None) -> Kind:
    """Temporal types by their counts: what Python's own types cannot reach is drawn too."""
    least = -(1 << bits) + 1 if low is None else low
    counts = st.integers(least, (1 << bits) - 1)
    width = pa.int32() if bits < 32 else pa.int64()

    def of(count: int) -> Any:
        return pa.array([count], width).view(data_type)[0]

    return Kind(data_type, counts.map(of))


TEXT = st.text(max_size=20) | st.sampled_from(["", "ž", "鍵", "\0", "x" * 200])
BYTES = st.binary(max_size=20)
LEAVES: list[Kind] = [
    *(
        _whole(t, bits, signed=True)
        for t, bits in [
            (pa.int8(), 8),
            (pa.int16(), 16),
            (pa.int32(), 32),
            (pa.int64(), 64),
        ]
    ),
    *(
        _whole(t, bits, signed=False)
        for t, bits in [
            (pa.uint8(), 8),
            (pa.uint16(), 16),
            (pa.uint32(), 32),
            (pa.uint64(), 64),
        ]
    ),
    _floating(pa.float16(), 16),
    _floating(pa.float32(), 32),
    _floating(pa.float64(), 64),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.null(), st.none()),
    Kind(pa.decimal128(20, 5), st.decimals(-(10**14), 10**14, places=5)),
    Kind(pa.decimal256(60, 0), st.integers(-(10**59), 10**59).map(Decimal)),
    Kind(pa.date32(), st.dates()),
    Kind(pa.date64(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    Kind(pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
    Kind(pa.time64("us"), st.times()),
    _counted(pa.time64("ns"), 46, 0),
    *(_counted(pa.timestamp(unit), 53) for unit in ("s", "ms")),
    _counted(pa.timestamp("us")),
    _counted(pa.timestamp("ns")),
    _counted(pa.timestamp("us", "Europe/Prague")),
    _counted(pa.timestamp("ms", "UTC"), 53),
    *(_counted(pa.duration(unit), 53) for unit in ("s", "ms")),
    _counted(pa.duration("us")),
    _counted(pa.duration("ns")),
    *(Kind(t, TEXT) for t in (pa.string(), pa.large_string(), pa.string_view())),
    *(Kind(t, BYTES) for t in (pa.binary(), pa.large_binary(), pa.binary_view())),
    Kind(pa.binary(3), st.binary(min_size=3, max_size=3)),
    Kind(pa.dictionary(pa.int8(), pa.string()), TEXT),
    Kind(pa.dictionary(pa.int32(), pa.int64()), st.integers(-5, 5)),
]


def _maybe(values: Values) -> Values:
    return st.none() | values


def _lists(of: Callable[[Any], Any]) -> Callable[[Kind], Kind]:
    return lambda part: Kind(of(part.data_type), st.lists(_maybe(part.values), max_size=3))


def _fixed(part: Kind) -> Kind:
    values = st.lists(_maybe(part.values), min_size=2, max_size=2)
    return Kind(pa.list_(part.data_type, 2), values)


def _struct(parts: list[Kind]) -> Kind:
    names = ["a", "b", "ć"][: len(parts)]
    fields = [(name, part.data_type) for name, part in zip(names, parts, strict=True)]
    values = {name: _maybe(part.values) for name, part in zip(names, parts, strict=True)}
    return Kind(pa.struct(fields), st.fixed_dictionaries(values))


def _map(part: Kind) -> Kind:
    entries = st.lists(st.tuples(TEXT, _maybe(part.values)), max_size=3)
    return Kind(pa.map_(pa.string(), part.data_type), entries)


def _nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        inner.map(_lists(pa.list_)),
        inner.map(_lists(pa.large_list)),
        inner.map(_fixed),
        inner.map(_map),
        st.lists(inner, min_size=1, max_size=3).map(_struct),
    )


kinds: st.SearchStrategy[Kind] = st.recursive(
    st.sampled_from(LEAVES), _nested, max_leaves=4
)
"""Any type, nested some levels deep."""


@st.composite
def columns(draw: st.DrawFn, max_size: int = 6) -> Any:
    """Draw an array of any type, with nulls."""
    kind = draw(kinds)
    values = draw(st.lists(_maybe(kind.values), max_size=max_size))
    return pa.array(values, kind.data_type)


def spelled(column: Any) -> list[str]:
    """Write values out exactly: all bits of numbers, however they are nested."""
    return [_spell(scalar) for scalar in column]


def _spell(scalar: Any) -> str:
    if not scalar.is_valid:
        return "null"
    data_type = scalar.type
    if pa.types.is_dictionary(data_type):
        return _spell(scalar.dictionary[scalar.index.as_py()])
    if isinstance(scalar, pa.MapScalar | pa.StructScalar | pa.ListScalar) or hasattr(
        scalar, "values"
    ):
        return _spell_parts(scalar)
    if pa.types.is_temporal(data_type):
        return f"{data_type} {scalar.value}"
    return repr(scalar.as_py())


def _spell_parts(scalar: Any) -> str:
    if isinstance(scalar, pa.StructScalar):
        return "{" + ", ".join(f"{k}: {_spell(v)}" for k, v in scalar.items()) + "}"
    return "[" + ", ".join(_spell(part) for part in scalar.values) + "]"
