"""Configs: from the plain values of a graph to the class a constructor asks for.

Every key that is missing, unknown or of the wrong type is reported at once. Functions and
bytes pass through as they are; lists become tuples where the class says so.
"""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from penstock.core.suggestion import did_you_mean
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import Plain

ConfigT = TypeVar("ConfigT")

_AS_THEY_ARE = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: Any
    is_required: bool


def check_config_type(kind: str, config_type: Any) -> None:
    """Refuse a class that configs cannot be read into, when its kind is registered."""
    problem = _find_type_problem(config_type)
    if problem is not None:
        raise UserError(
            f"the constructor of operator kind {kind!r} cannot be used: {problem}",
            code=ErrorCode.INVALID_CONFIG,
            kind=kind,
        )


def read_config(
    kind: str, config: Mapping[str, Plain], config_type: type[ConfigT]
) -> ConfigT:
    """Return the config as its class, or complain about every key that is wrong."""
    fields = {field.name: field for field in _fields_of(config_type)}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in config.items():
        if key not in fields:
            problems.append(f"{key!r} is unknown{did_you_mean(key, fields)}")
            continue
        try:
            values[key] = msgspec.convert(
                value, fields[key].type, builtin_types=_AS_THEY_ARE, str_keys=True
            )
        except msgspec.ValidationError as error:
            problems.append(f"{key!r}: {str(error)[:1].lower()}{str(error)[1:]}")
    problems += [
        f"{field.name!r} is missing: it is required, expected {_show(field.type)}"
        for field in fields.values()
        if field.is_required and field.name not in config
    ]
    if not problems:
        try:
            return config_type(**values)
        except (TypeError, ValueError) as error:
            problems.append(str(error))
    raise UserError(
        f"the config of operator kind {kind!r} is wrong:\n  " + "\n  ".join(problems),
        code=ErrorCode.INVALID_CONFIG,
        kind=kind,
        problems=tuple(problems),
    )


def _find_type_problem(config_type: Any) -> str | None:
    name = getattr(config_type, "__qualname__", repr(config_type))
    if isinstance(config_type, type) and dataclasses.is_dataclass(config_type):
        is_frozen = config_type.__dataclass_params__.frozen  # type: ignore[attr-defined]
    elif isinstance(config_type, type) and issubclass(config_type, msgspec.Struct):
        is_frozen = config_type.__struct_config__.frozen
    else:
        return f"its config_type is {name}, not a frozen dataclass or msgspec.Struct"
    if not is_frozen:
        return f"its config_type {name} is not frozen: configs are shared"
    try:
        for field in _fields_of(config_type):
            msgspec.msgpack.Decoder(field.type)
    except (TypeError, NameError) as error:
        return f"its config_type {name} has a field no config can fill: {error}"
    return None


def _fields_of(config_type: Any) -> list[_Field]:
    if issubclass(config_type, msgspec.Struct):
        return [
            _Field(field.name, field.type, field.required)
            for field in msgspec.structs.fields(config_type)
        ]
    hints = typing.get_type_hints(config_type, include_extras=True)
    return [
        _Field(
            field.name,
            hints[field.name],
            field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(config_type)
        if field.init
    ]


def _show(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
