"""Settings of the whole suite: how hard Hypothesis tries, and a folder for each run.

| Profile | When | What |
|---|---|---|
| `default` | on a developer's machine | new examples each run, failures remembered in `.hypothesis` |
| `ci` | the variable CI is set | more, and the same for the same code: a red run can be repeated |
| `nightly` | HYPOTHESIS_PROFILE=nightly | many, always new |
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import settings

from penstock.core import settings as penstock_settings
from tests.builders.spark_home import RUN_FOLDER, RUN_PID

pytest_plugins = ["tests.builders.servers"]

settings.register_profile(
    "default", deadline=None, max_examples=35, stateful_step_count=25, print_blob=True
)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=80,
    stateful_step_count=40,
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, stateful_step_count=300, print_blob=True
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")
)


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder that all processes of this run share; it goes with the run."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="penstock-run-")
        os.environ[RUN_FOLDER] = folder
        os.environ[RUN_PID] = str(os.getpid())
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))
        # Cleaned up in the opposite order: nothing writes to the folder while it goes.
        from tests.builders.servers import end_servers

        config.add_cleanup(partial(end_servers, folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names of tests that differ between processes, which would collect different tests."""
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError(f"give these cases ids that are words: {unstable}")


@pytest.fixture
def whole_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hash keys with all bits, also where the suite is run with few, for what needs them."""
    monkeypatch.setenv("PENSTOCK_HASH_BITS", "64")
    penstock_settings._loaded.cache_clear()
    yield
    penstock_settings._loaded.cache_clear()
