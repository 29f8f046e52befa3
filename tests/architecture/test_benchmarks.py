"""Benchmarks leave no process behind, however they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.architecture.project import ROOT

PROGRAM = """
import sys
from benchmarks.sides import run_side
from tests.architecture.test_benchmarks import tell_and_stay

if __name__ == "__main__":
    run_side(tell_and_stay, sys.argv[1])
"""


def tell_and_stay(file: str) -> dict[str, object]:
    """Stand for a side whose JVM is at work."""
    Path(f"{file}.new").write_text(str(os.getpid()))
    Path(f"{file}.new").rename(file)
    while True:
        time.sleep(60)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_killed_benchmark_leaves_no_side_behind(tmp_path: Path) -> None:
    program, told = tmp_path / "program.py", tmp_path / "side"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    benchmark = subprocess.Popen(
        [sys.executable, str(program), str(told)], env={**os.environ, "PYTHONPATH": path}
    )
    try:
        while not told.exists():
            assert benchmark.poll() is None
            time.sleep(0.02)
        side = int(told.read_text())
        assert is_alive(side)
    finally:
        benchmark.send_signal(signal.SIGKILL)
        benchmark.wait()
    while is_alive(side):
        time.sleep(0.02)
