"""Suggestions: what somebody who wrote an unknown name probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """Return a clause that names the closest of the `known`, or all of them if none is close.

    It is made to follow "… is unknown", hence the leading separator.
    """
    choices = sorted(known)
    closest = get_close_matches(unknown, choices, n=1)
    if closest:
        return f"; did you mean {closest[0]!r}?"
    if not choices:
        return "; there are none"
    return f"; known are {', '.join(map(repr, choices))}"
