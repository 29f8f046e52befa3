"""File systems that can be full or read-only: small ones in memory, mounted for one test."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of that size, or skip the test where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a file system to fill up or to make read-only")
    command = [mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted here, even to root")
    try:
        yield
    finally:
        # Lazily: what the test still maps goes when it lets go of it.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    """Change a mounted file system: `ro`, `rw`, `size=…`."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
