"""`secret`, by which users name a password, and secrets inside of configs of operators.

A config holds plain values, so there a secret is a mapping of one key, and its function is pickled
as all functions of users are. `usable_options` makes a `Secret` of it again, in the process that
opens a connection; opening it reads the value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from penstock.core.secrets import WAYS, Secret, resolve_secrets
from penstock.errors import ErrorCode, UserError
from penstock.graph.logical import Plain, UserFunction
from penstock.operators.user_functions import pickle_function, unpickle_function

_KEY = "penstock.secret"
"""The only key of a mapping that stands for a secret."""
_SETTINGS = "PENSTOCK_"
"""The start of variables that are settings; others of that start are refused by every job."""


def secret(
    function: Callable[[], str] | None = None,
    *,
    env: str | None = None,
    file: str | PathLike[str] | None = None,
) -> Secret:
    """Name a secret, such as a password, for the options of Kafka, Delta and stores.

    `env` is a variable of the environment, `file` a file with nothing but the secret, and
    `function` is called without arguments and returns it. Driver and executors read it, each
    in its own place, whenever they open a connection; a job's start checks that the driver
    can. The value gets into no graph, checkpoint, plan, log or error.

    >>> {"sasl.username": "reader", "sasl.password": secret(env="KAFKA_PASSWORD")}
    {'sasl.username': 'reader', 'sasl.password': secret(env='KAFKA_PASSWORD')}
    """
    given = [way for way in (function, env, file) if way is not None]
    if len(given) != 1 or not (function is None or callable(function)):
        # Without what was given: it may be the secret itself.
        raise UserError(
            f"a secret is named in one of three ways: {WAYS}; the secret itself is never given",
            code=ErrorCode.INVALID_CONFIG,
        )
    if function is not None:
        return Secret(function=_PickledCall(pickle_function(function)))
    if file is not None:
        path: object = fspath(file)
        if isinstance(path, str) and path and "\0" not in path:
            return Secret(file=str(Path(path).expanduser().absolute()))
    elif isinstance(env, str) and env and "=" not in env and "\0" not in env:
        if env.upper().startswith(_SETTINGS):
            raise UserError(
                f"variables that begin with {_SETTINGS} are settings, and {env!r} is none: give "
                "the variable of the secret another name",
                code=ErrorCode.INVALID_CONFIG,
                variable=env,
            )
        return Secret(env=env)
    raise UserError(
        f"this names no environment variable and no file: write {WAYS}",
        code=ErrorCode.INVALID_CONFIG,
    )


@dataclass(frozen=True, slots=True)
class _PickledCall:
    """A function of the user that can be sent to any process and called there."""

    pickled: UserFunction

    @property
    def __name__(self) -> str:
        return self.pickled.name

    def __call__(self) -> Any:
        return unpickle_function(self.pickled)()


def plain_options(options: Mapping[str, Any]) -> dict[str, Plain]:
    """Return options as a config holds them: secrets as plain values."""
    return {name: _to_plain(value) for name, value in options.items()}


def usable_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a config as `open_store` takes them: secrets are `Secret`s again."""
    return {name: _from_plain(value) for name, value in options.items()}


def resolve_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a config with the values of their secrets, for a client library.

    Call it where a connection is opened, and keep the result no longer than that takes.
    """
    return resolve_secrets(usable_options(options))


def find_secrets(config: Mapping[str, Plain]) -> Iterator[Secret]:
    """Yield the secrets that a config names, at any depth."""
    for value in config.values():
        found = _from_plain(value)
        if isinstance(found, Secret):
            yield found
        elif isinstance(value, Mapping):
            yield from find_secrets(value)


def _to_plain(value: Any) -> Plain:
    if not isinstance(value, Secret):
        plain: Plain = value
        return plain
    if value.function is not None:
        call = value.function
        kept = call.pickled if isinstance(call, _PickledCall) else pickle_function(call)
        return {_KEY: {"function": kept}}
    return {_KEY: {"env": value.env} if value.env is not None else {"file": value.file}}


def _from_plain(value: Any) -> Any:
    if not (isinstance(value, Mapping) and value.keys() == {_KEY}):
        return value
    named = value[_KEY]
    if "function" in named:
        return Secret(function=_PickledCall(named["function"]))
    return Secret(**named)
