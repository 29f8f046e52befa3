"""kill -9 at random moments, on a real disk, and go on each time, at another parallelism too."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from penstock.core.ids import JobId
from penstock.state.checkpoints import JobCheckpoints
from penstock.state.storage.urls import open_store
from penstock.testing import assert_job_is_whole
from tests.crash.killed_program import KEYS, ROWS

PROGRAM = Path(__file__).with_name("killed_program.py")
KILLS = 5


def start(folder: Path, parallelism: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), str(parallelism)],
        stderr=subprocess.PIPE,
    )


def newest_epoch(folder: Path) -> int:
    records = (folder / "checkpoints" / "counts" / "epochs").glob("*.record")
    return max((int(record.stem) for record in records), default=0)


def wait_for_an_epoch(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Wait until an epoch was published since, or the program has ended."""
    before = newest_epoch(folder)
    while process.poll() is None and newest_epoch(folder) == before:
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_and_resumed_it_counts_every_row_once(tmp_path: Path) -> None:
    dice = random.Random()  # any moment must do
    killed = 0
    for _ in range(KILLS):
        process = start(tmp_path, dice.choice([1, 2, 3]))
        wait_for_an_epoch(process, tmp_path)
        time.sleep(dice.random() * 0.3)
        killed += process.poll() is None
        process.kill()
        process.communicate()

    last = start(tmp_path, 2)
    _, errors = last.communicate(timeout=200)
    assert last.returncode == 0, errors.decode()

    assert killed >= 2, "the program ended before it could be killed: give it more rows"
    lines = [
        json.loads(line)
        for file in sorted((tmp_path / "out").glob("[0-9]*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    last_counts = {row["key"]: row["count"] for row in lines}
    assert last_counts == dict.fromkeys(range(KEYS), ROWS // KEYS)
    repeated = Counter((row["key"], row["count"]) for row in lines)
    assert set(repeated.values()) == {1}
    checkpoints = JobCheckpoints(open_store(str(tmp_path / "checkpoints")), JobId("counts"))
    assert_job_is_whole(checkpoints)
