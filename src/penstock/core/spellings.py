"""Finds what users mean by the words they write: public names, choices, spellings of old.

| written | is answered by |
|---|---|
| a public name of a package | `attach`, which imports it when it is first used |
| an attribute that does not exist | `absent`, with what to use instead |
| an option's value | `check_choice`; a choice has the same spelling everywhere |
| a keyword argument of an earlier version | the decorator `renamed` |

A word that was renamed is neither accepted silently nor refused without help: the error names
the new word.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from importlib.util import resolve_name
from inspect import currentframe
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

from penstock.errors import ErrorCode, UserError, naming_missing_extras

P = ParamSpec("P")
R = TypeVar("R")

OnBad: TypeAlias = Literal["fail", "divert"]
"""What happens to a row that cannot be used: it fails the job, or goes to the output `BAD`."""

_ON_BAD: Final = ("fail", "divert")
_OLD_ON_BAD: Final = {"side": "divert", "bad": "divert"}
"""What files and UDFs called it in earlier versions."""


def check_choice(
    option: str,
    value: object,
    choices: Sequence[str],
    *,
    where: str = "",
    old: Mapping[str, str] | None = None,
) -> None:
    """Raise unless `value` is one of the `choices`; `old` maps former values to new ones.

    `where` begins the message, such as "window 'w': ".

    >>> check_choice("mode", "rows", ("row", "arrow"))
    Traceback (most recent call last):
        ...
    penstock.errors.UserError: mode is 'rows': use 'row' or 'arrow'
    """
    if isinstance(value, str) and value in choices:
        return
    hint = ""
    if isinstance(value, str) and old and value in old:
        hint = f", which is called {old[value]!r}"
    raise UserError(
        f"{where}{option} is {value!r}{hint}: use {' or '.join(map(repr, choices))}",
        code=ErrorCode.INVALID_CONFIG,
    )


def diverts_bad(on_bad: object, *, where: str = "") -> bool:
    """Return whether bad rows go to the side output `BAD`, or raise if that is no choice.

    >>> diverts_bad("divert")
    True
    >>> diverts_bad("side")
    Traceback (most recent call last):
        ...
    penstock.errors.UserError: on_bad is 'side', which is called 'divert': use 'fail' or 'divert'
    """
    check_choice("on_bad", on_bad, _ON_BAD, where=where, old=_OLD_ON_BAD)
    return on_bad == "divert"


def renamed(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Answer keyword arguments of earlier versions with an error that names the new ones.

    >>> @renamed(lateness="watermark_delay")
    ... def read(watermark_delay="0s"): ...
    >>> read(lateness="5s")
    Traceback (most recent call last):
        ...
    penstock.errors.UserError: read has no option 'lateness': it is called 'watermark_delay'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        named = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old in kwargs:
                    raise UserError(
                        f"{named} has no option {old!r}: it is called {new!r}",
                        code=ErrorCode.INVALID_CONFIG,
                    )
            return function(*args, **kwargs)

        return checked

    return decorate


_CLOSE: Final = 0.7
"""How much two spellings must have in common for one to be taken for the other."""


def absent(
    owner: str, name: str, hints: Mapping[str, str], known: Iterable[str] = ()
) -> AttributeError:
    """Return the error for an attribute that does not exist, with a hint if there is one.

    A name without a hint may be a misspelt one: of the `known` attributes, or of the hints.

    >>> str(absent("Pipeline", "foreach_batch", {"foreach_batch": "use start_attached"}))
    "Pipeline has no attribute 'foreach_batch': use start_attached"
    >>> str(absent("Stream", "windw", {}, ["window", "write"]))
    "Stream has no attribute 'windw'; did you mean 'window'?"
    """
    hint = ""
    if not name.startswith("_"):  # else a tool looks for a method of its own
        public = [one for one in known if not one.startswith("_")]
        meant = get_close_matches(name, [*hints, *public], n=1, cutoff=_CLOSE)
        if name in hints or (meant and meant[0] in hints):
            hint = f": {hints.get(name) or hints[meant[0]]}"
        elif meant:
            hint = f"; did you mean {meant[0]!r}?"
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)


Attached: TypeAlias = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]
"""The `__getattr__`, `__dir__` and `__all__` of a package."""


def attach(package: str, file: str, *, others: Sequence[str] = ()) -> Attached:
    """Return what makes the names of a package's stub importable when they are first used.

    A worker, the command line or a test of one layer must not pay for the libraries of all of
    them, so the `__init__.py` of a public package imports nothing. The `__init__.pyi` beside
    it, which type checkers read, is read here for the same lines, so that the list exists
    once. Names may come from packages beside or above, which the usual libraries for this do
    not allow. `package` and `file` are `__name__` and `__file__`. A name that is only in one
    of the `others`, packages as well, is answered with its place.
    """
    homes = read_stub(package, Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            places = [other for other in others if name in import_module(other).__all__]
            hints = {name: f"import it from {places[0]}"} if places else {}
            if places and _asks_for_import(currentframe()):
                raise ImportError(
                    f"cannot import name {name!r} from {package!r}: {hints[name]}"
                )
            raise absent(package, name, hints, names)
        with naming_missing_extras():
            found = getattr(import_module(homes[name]), name)
        # The next use finds it without this function. It also hides a submodule of the same
        # name, which an import has just made an attribute of the package.
        sys.modules[package].__dict__[name] = found
        return found

    return get, lambda: list(names), list(names)


def _asks_for_import(frame: FrameType | None) -> bool:
    """Tell whether a `from … import` called: it replaces any AttributeError by one of its own."""
    caller = frame.f_back if frame is not None else None
    return caller is not None and caller.f_code.co_name == "_handle_fromlist"


def read_stub(package: str, stub: str) -> dict[str, str]:
    """Return the module of each name that a stub imports.

    >>> read_stub("penstock.operators", "from .timers import DueTimers as DueTimers")
    {'DueTimers': 'penstock.operators.timers'}
    >>> read_stub("penstock.operators", "from ..core.ids import JobId as JobId")
    {'JobId': 'penstock.core.ids'}
    """
    homes: dict[str, str] = {}
    for line in ast.parse(stub).body:
        if isinstance(line, ast.ImportFrom):
            home = resolve_name("." * line.level + (line.module or ""), package)
            homes.update((alias.name, home) for alias in line.names)
    return homes
