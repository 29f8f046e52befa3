"""Secrets: where a password is to be had, resolved only in the process that opens a connection.

    Secret(env="KAFKA_PASSWORD")          a variable of the process's environment
    Secret(file="/run/secrets/kafka")     the text of a file, without the end of its last line
    Secret(function=read_from_vault)      what a function of the user returns

A config, a graph, a plan of Spark and a pickle hold the reference, never the value. So no value
can get from there into a checkpoint, a log or an error. It is read again for every connection:
a password that was changed in its place counts from then on. No message shows a value, also none
that is of the wrong kind.
"""

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.core.settings import variable
from penstock.errors import ErrorCode, ExternalError, PenstockError, UserError

WAYS = (
    "pen.secret(env='NAME'), pen.secret(file='/run/secrets/name') or pen.secret(function)"
)
"""How users name a secret."""

_SECRET_NAME = re.compile(
    r".*(?:passw(?:or)?d|passphrase|secret|token|(?:access|account|private|ssl)[._-]?key"
    r"|key[._]pem|jaas[._]config|oauthbearer[._]config|user[._]info)",
    re.IGNORECASE | re.DOTALL,
)
"""What the names of options end with whose values are secrets, in Kafka's terms and others'."""
_NOTHING = (None, "", b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A reference to a secret; exactly one of its fields is set. It can be shown and pickled."""

    env: str | None = None
    """The name of a variable of the environment."""
    file: str | None = None
    """An absolute path."""
    function: Callable[[], Any] | None = None
    """Returns the value; its name is all that is shown of it."""

    def __repr__(self) -> str:
        if self.function is not None:
            return f"secret({_name_of(self.function)})"
        return (
            f"secret(env={self.env!r})" if self.env else f"secret(file={str(self.file)!r})"
        )

    def read(self) -> str:
        """Return the value, as it is in this process now."""
        if self.function is not None:
            return _call(self.function)
        if self.env is not None:
            value = variable(self.env)
            if value is None:
                raise _missing(
                    f"the environment variable {self.env!r} is not set in this process: set it "
                    "for the driver and for every executor (on Spark: "
                    f"spark.executorEnv.{self.env}, or the cluster's own way)",
                    variable=self.env,
                )
            return value
        return _read_file(Path(str(self.file)))


def resolve_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with the values of their secrets; keep it no longer than a connection.

    >>> resolve_secrets({"client.id": "penstock"})
    {'client.id': 'penstock'}
    """
    return {
        name: value.read() if isinstance(value, Secret) else value
        for name, value in options.items()
    }


def is_secret_name(name: str) -> bool:
    """Return whether the value of an option of this name is a secret.

    >>> is_secret_name("sasl.password"), is_secret_name("sasl.oauthbearer.client.secret")
    (True, True)
    >>> is_secret_name("sasl.username"), is_secret_name("ssl.ca.pem")
    (False, False)
    """
    return _SECRET_NAME.fullmatch(name) is not None


def refuse_literal_secrets(what: str, options: Mapping[str, Any]) -> None:
    """Refuse secrets that are written out in the options of a connector; shows none of them."""
    literal = [
        name
        for name, value in options.items()
        # Nothing, and a switch, is no secret. A number may be one, and so may what no option takes.
        if is_secret_name(name)
        and not isinstance(value, Secret | bool)
        and value not in _NOTHING
    ]
    if literal:
        named = ", ".join(map(repr, literal))
        raise UserError(
            f"{what} has the value of {named} written out, and options are part of graphs, "
            f"which are sent and kept: say where to find it, with {WAYS}",
            code=ErrorCode.INVALID_CONFIG,
            options=tuple(literal),
        )


def _read_file(path: Path) -> str:
    try:
        value = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        # Without the cause: it may hold the bytes of the secret.
        raise _missing(
            f"the secret in the file {str(path)!r} cannot be read ({why}): the file must be "
            "there, and readable, on the driver and on every executor",
            path=str(path),
        ) from None
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise _missing(f"the file {str(path)!r} of a secret is empty", path=str(path))
    return value


def _call(function: Callable[[], Any]) -> str:
    name = _name_of(function)
    try:
        value = function()
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001 (a function of the user may raise anything)
        where = traceback.extract_tb(error.__traceback__)[-1]
        # Without the message and the cause: they may hold the secret.
        raise ExternalError(
            f"the function {name!r} of a secret raised {type(error).__name__} in "
            f"{Path(where.filename).name}, line {where.lineno}; its message is not shown, as "
            "it may hold the secret",
            function=name,
        ) from None
    if isinstance(value, str) and value:
        return value
    returned = "an empty text" if value == "" else type(value).__name__
    raise UserError(
        f"the function {name!r} of a secret returned {returned}: it must return the secret as "
        "text",
        code=ErrorCode.INVALID_CONFIG,
        function=name,
    )


def _name_of(function: Callable[[], Any]) -> str:
    named = (
        getattr(function, "__qualname__", None)
        or getattr(function, "__name__", None)
        or type(function).__qualname__
    )
    return str(named).rpartition("<locals>.")[2]


def _missing(message: str, **facts: object) -> UserError:
    return UserError(message, code=ErrorCode.INVALID_CONFIG, **facts)
