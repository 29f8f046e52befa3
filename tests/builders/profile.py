"""How much a slow proof tries, by the profile that `tests/conftest.py` chooses."""

import random
from typing import TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")


def by_profile(default: T, ci: T, nightly: T) -> T:
    """Return what the profile in force asks for."""
    return {"default": default, "ci": ci, "nightly": nightly}[
        settings.get_current_profile_name()
    ]


takes_long = pytest.mark.skipif(
    bool(by_profile(default=1, ci=0, nightly=0)),
    reason="takes long, mostly for processes of its own: CI runs it, as does `CI=true make test`",
)
"""For a test that a developer's run leaves to CI."""


def a_start(step: int) -> int:
    """Return where to begin if one of `step` cases in turn is tried: another place each run.

    In CI it is always the first, so that a red run can be repeated.
    """
    return 0 if settings.get_current_profile_name() == "ci" else random.randrange(step)
