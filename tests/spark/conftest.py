"""A short-named folder for programs that run a Spark of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def spark_scratch() -> Iterator[Path]:
    """Where killed drivers leave what they leave; it goes with the module's tests."""
    folder = Path(tempfile.mkdtemp(prefix="ps-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
