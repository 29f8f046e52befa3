"""Keys and values as msgpack: what round-trips, and when the rest is refused."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from penstock.errors import ErrorCode, StateError, UserError
from penstock.state.tables.specs import ValueCodec


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict):
    retries: int


@dataclasses.dataclass
class Node:
    name: str
    children: "list[Node]"


@dataclasses.dataclass(eq=False)
class Incomparable:
    n: int


class Offset(msgspec.Struct):
    split: str
    position: int


class Unknown:
    pass


@dataclasses.dataclass
class HoldsUnknown:
    inner: dict[str, list[Unknown]]


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (int, -(1 << 63)),
        (int, (1 << 64) - 1),
        (float, 1e-300),
        (bool, True),
        (str, "é中🦊\x00"),
        (bytes, b"\x00\xff"),
        (None, None),
        (int | None, None),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (frozenset[int], frozenset({3, 1})),
        (dict[int, str], {1: "a"}),
        (datetime.datetime, NOON),
        (datetime.datetime, NOON.replace(tzinfo=None)),
        (datetime.datetime, NOON.replace(year=1)),
        (datetime.date, datetime.date(2026, 1, 1)),
        (datetime.time, datetime.time(1, 2, 3, 4)),
        (datetime.timedelta, datetime.timedelta(days=-1, microseconds=1)),
        (decimal.Decimal, decimal.Decimal("-1.10")),
        (uuid.UUID, uuid.UUID(int=5)),
        (Colour, Colour.RED),
        (Point, Point(1, 2)),
        (Options, {"retries": 1}),
        (Node, Node("a", [Node("b", [])])),
        (Offset, Offset("s", 1)),
        (Any, {"a": [1, None, 2.5, b"x"]}),
    ],
)
def test_values_come_back_equal_and_of_their_type(value_type: Any, value: Any) -> None:
    codec = ValueCodec(value_type, what="value")
    found = codec.decode(codec.encode(value))
    assert found == value
    assert type(found) is type(value)


def test_nan_and_values_without_equality_come_back() -> None:
    floats = ValueCodec(float, what="value")
    assert floats.decode(floats.encode(float("nan"))) != 0
    plain = ValueCodec(Incomparable, what="value")
    assert plain.decode(plain.encode(Incomparable(4))).n == 4


def test_equal_values_have_one_form() -> None:
    codec = ValueCodec(dict[str, float], what="value")
    assert codec.encode({"a": 1, "b": 2}) == codec.encode({"b": 2.0, "a": 1.0})
    sets = ValueCodec(set[str], what="value")
    words = [f"word-{n}" for n in range(50)]
    encoded = sets.encode(set(words))
    words.reverse()
    assert sets.encode(set(words)) == encoded


@pytest.mark.parametrize(
    "value_type",
    [Unknown, HoldsUnknown, list[Unknown], complex, object, list[int] | set[int]],
)
def test_a_type_without_a_form_is_refused_when_declared(value_type: Any) -> None:
    with pytest.raises(
        UserError, match="cannot be the type of a value of table 't'"
    ) as raised:
        ValueCodec(value_type, what="value of table 't'")
    assert raised.value.code is ErrorCode.UNSUPPORTED_VALUE_TYPE


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        (int, "1"),
        (int, 1.5),
        (int, True),
        (int, 1 << 64),
        (str, b"a"),
        (str, "\ud800"),
        (Offset, Node("a", [])),
        (Any, Offset("a", 1)),
        (Any, (1, 2)),
        (Any, Unknown()),
        (list[int], [1, "a"]),
    ],
)
def test_a_value_that_would_not_come_back_is_refused(value_type: Any, value: Any) -> None:
    with pytest.raises(StateError, match="cannot be a value") as raised:
        ValueCodec(value_type, what="value").encode(value)
    assert raised.value.code is ErrorCode.UNSUPPORTED_VALUE_TYPE


@pytest.mark.parametrize(
    ("key_type", "key"), [(list[int], [1]), (Any, {"a": 1}), (Offset, Offset("a", 1))]
)
def test_a_key_that_cannot_be_hashed_is_refused(key_type: Any, key: Any) -> None:
    with pytest.raises(StateError, match="cannot be a key") as raised:
        ValueCodec(key_type, what="key").encode_key(key)
    assert raised.value.code is ErrorCode.UNSUPPORTED_KEY_TYPE


def test_keys_of_one_value_in_two_number_types_are_one_key() -> None:
    codec = ValueCodec(float, what="key")
    assert codec.encode_key(1) == codec.encode_key(1.0)


def test_bytes_of_another_type_are_reported() -> None:
    data = ValueCodec(str, what="value").encode("text")
    with pytest.raises(StateError, match="stored value is not a int") as raised:
        ValueCodec(int, what="value").decode(data)
    assert raised.value.code is ErrorCode.UNDECODABLE
