"""What tasks spend their time on: one file of cProfile statistics per task, if asked for."""

import cProfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.core.settings import current
from penstock.core.tokens import new_token


@contextmanager
def profiled(name: str) -> Iterator[None]:
    """Watch the body if the settings name a folder to leave the statistics in."""
    root = current().profile_root
    if root is None:
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        Path(root).mkdir(parents=True, exist_ok=True)
        profile.dump_stats(Path(root) / f"{name}-{new_token()}.prof")
