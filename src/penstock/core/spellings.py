"""Checks the words that users write, and answers a word of old with the one that replaced it.

A choice has the same spelling in all of Penstock: what happens to bad rows is `on_bad`, which
is "fail" or "divert", whoever finds them. A word that was renamed is never accepted silently
nor refused without help: the error names the new word.

| written | is answered by |
|---|---|
| an option's value | `check_choice` |
| a keyword argument of an earlier version | the decorator `renamed` |
| an attribute that does not exist | `absent` |
"""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Final, Literal, ParamSpec, TypeAlias, TypeVar

from penstock.errors import ErrorCode, UserError

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
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old, new in new_names.items():
                if old in kwargs:
                    raise UserError(
                        f"{function.__name__} has no option {old!r}: it is called {new!r}",
                        code=ErrorCode.INVALID_CONFIG,
                    )
            return function(*args, **kwargs)

        return checked

    return decorate


def absent(owner: str, name: str, hints: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that does not exist, with a hint if there is one.

    >>> str(absent("Pipeline", "foreach_batch", {"foreach_batch": "use start_attached"}))
    "Pipeline has no attribute 'foreach_batch': use start_attached"
    """
    hint = f": {hints[name]}" if name in hints else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}", name=name)
