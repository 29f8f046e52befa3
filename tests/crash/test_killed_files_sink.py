"""kill -9 at random moments while files are written, with a reader at work all the time."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock as pen
from penstock.state.storage.urls import open_store
from tests.crash.killed_files_program import ROWS

PROGRAM = Path(__file__).with_name("killed_files_program.py")
KILLS = 4


def start(folder: Path, parallelism: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), str(parallelism)],
        stderr=subprocess.PIPE,
    )


def read_numbers(out: str) -> list[int]:
    """Read as any user would; what is listed is there and as it was written."""
    return [row["counter"] for row in pen.read_committed(open_store(out)).to_pylist()]


@pytest.mark.slow
def test_killed_and_resumed_it_writes_every_row_once(tmp_path: Path) -> None:
    dice = random.Random()  # any moment must do
    out = str(tmp_path / "out")
    killed = seen = 0
    for _ in range(KILLS):
        process = start(tmp_path, dice.choice([1, 2, 3]))
        before = len(pen.committed_files(open_store(out)))
        while (
            process.poll() is None and len(pen.committed_files(open_store(out))) == before
        ):
            time.sleep(0.002)
        time.sleep(dice.random() * 0.1)
        read = read_numbers(out)
        assert len(set(read)) == len(read) >= seen
        seen = len(read)
        killed += process.poll() is None
        process.kill()
        process.communicate()

    last = start(tmp_path, 2)
    _, errors = last.communicate(timeout=200)
    assert last.returncode == 0, errors.decode()
    assert killed >= 2, "the program ended before it could be killed: give it more rows"
    assert sorted(read_numbers(out)) == list(range(ROWS))
    listed = {file.path for file in pen.committed_files(open_store(out))}
    found = {str(path.relative_to(out)) for path in Path(out).rglob("part-*")}
    assert found == listed
