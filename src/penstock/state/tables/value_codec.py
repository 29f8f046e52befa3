"""Keys and values of global tables ↔ msgpack: self-describing, typed, never pickle.

A type that msgpack cannot carry is refused when the table is declared. A value that would
come back as something else is refused when it is inserted, not when it is restored.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from penstock.errors import ErrorCode, StateError, UserError

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_UNORDERED_ENCODER = msgspec.msgpack.Encoder()


class ValueCodec:
    """Encodes and decodes values of one type. Immutable."""

    def __init__(self, value_type: Any, *, what: str) -> None:
        """Refuse a type that does not survive msgpack; `what` names it in messages."""
        self.value_type = value_type
        self._what = what
        try:
            self._decoder = msgspec.msgpack.Decoder(value_type)
            unknown = sorted(set(_foreign_types(inspect.type_info(value_type), set())))
        except (TypeError, ValueError) as error:
            raise _undeclarable(what, value_type, str(error)) from error
        if unknown:
            raise _undeclarable(what, value_type, f"msgpack has no form for {unknown[0]}")

    def encode(self, value: Any) -> bytes:
        """Return the one form of `value`: equal values of the type give equal bytes.

        But for dictionaries with other keys than text, which keep the order of their items.
        """
        try:
            data = _encode(value)
            decoded = self._decoder.decode(data)
            canonical = _encode(decoded)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
            raise self._unsupported(value, str(error)) from error
        if not (decoded == value or (type(decoded) is type(value) and canonical == data)):
            raise self._unsupported(value, f"it would come back as {decoded!r:.80}")
        return canonical

    def encode_key(self, key: Any) -> bytes:
        """Return the one form of a key, which must be hashable, and stay so."""
        data = self.encode(key)
        try:
            hash(key)
            hash(self._decoder.decode(data))
        except TypeError as error:
            raise StateError(
                f"{key!r:.80} of type {type(key).__name__} cannot be a {self._what}: {error}",
                code=ErrorCode.UNSUPPORTED_KEY_TYPE,
                what=self._what,
            ) from error
        return data

    def decode(self, data: bytes) -> Any:
        """Return a new value; changing it changes nothing else."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise StateError(
                f"a stored {self._what} is not a {_name(self.value_type)}: {error}. If the class "
                "has changed, give it the next VERSION and a migration from the old one",
                code=ErrorCode.UNDECODABLE,
                what=self._what,
            ) from error

    def _unsupported(self, value: Any, problem: str) -> StateError:
        return StateError(
            f"{value!r:.80} of type {type(value).__name__} cannot be a {self._what} declared as "
            f"{_name(self.value_type)}: {problem}",
            code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
            what=self._what,
        )


def _encode(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except TypeError:
        return _UNORDERED_ENCODER.encode(value)


def _foreign_types(node: Any, seen: set[int]) -> Iterator[str]:
    """Yield the types inside a type that msgspec would need a hook for."""
    if isinstance(node, tuple):
        for part in node:
            yield from _foreign_types(part, seen)
    elif isinstance(node, inspect.CustomType):
        yield _name(node.cls)
    elif isinstance(node, msgspec.Struct) and id(node) not in seen:
        seen.add(id(node))
        for field in node.__struct_fields__:
            yield from _foreign_types(getattr(node, field), seen)


def _undeclarable(what: str, value_type: Any, problem: str) -> UserError:
    return UserError(
        f"{_name(value_type)} cannot be the type of a {what}: {problem}. Use builtins, dates, "
        "UUID, Decimal, enums, tuples, dataclasses or msgspec.Struct",
        code=ErrorCode.UNSUPPORTED_VALUE_TYPE,
        what=what,
    )


def _name(value_type: Any) -> str:
    return value_type.__qualname__ if isinstance(value_type, type) else repr(value_type)
