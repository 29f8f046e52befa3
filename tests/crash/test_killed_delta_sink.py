"""kill -9 at random moments while Delta tables are written and merged into, with a reader at work."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.builders.profile import by_profile
from tests.crash.killed_delta_program import ROWS

PROGRAM = Path(__file__).with_name("killed_delta_program.py")
KILLS = by_profile(default=2, ci=3, nightly=30)


def start(folder: Path, parallelism: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), str(parallelism)],
        stderr=subprocess.PIPE,
    )


def version_of(folder: Path) -> int:
    return (
        DeltaTable(str(folder)).version() if DeltaTable.is_deltatable(str(folder)) else -1
    )


def read_numbers(folder: Path) -> list[int]:
    if version_of(folder) < 0:
        return []
    found = DeltaTable(str(folder)).to_pyarrow_table(columns=["counter"])
    return [int(str(value)) for value in found["counter"].to_pylist()]


@pytest.mark.slow
def test_killed_and_resumed_both_tables_are_those_of_all_rows(tmp_path: Path) -> None:
    dice = random.Random()  # any moment must do
    rows, counts = tmp_path / "rows", tmp_path / "counts"
    killed = seen = 0
    for _ in range(KILLS):
        process = start(tmp_path, dice.choice([1, 2, 3]))
        before = version_of(rows)
        deadline = time.monotonic() + 60
        while process.poll() is None and version_of(rows) <= before + 1:
            assert time.monotonic() < deadline, "the program does not come forward"
            time.sleep(0.002)
        time.sleep(dice.random() * 0.1)
        read = read_numbers(rows)
        assert len(set(read)) == len(read) >= seen
        seen = len(read)
        killed += process.poll() is None
        process.kill()
        process.communicate()

    last = start(tmp_path, 2)
    _, errors = last.communicate(timeout=200)
    assert last.returncode == 0, errors.decode()
    assert killed >= KILLS - 1, (
        "the program ended before it could be killed: give it more rows"
    )
    assert sorted(read_numbers(rows)) == list(range(ROWS))
    counted = DeltaTable(str(counts)).to_pyarrow_table().to_pylist()
    assert {row["part"]: row["n"] for row in counted} == dict.fromkeys(range(3), ROWS // 3)
