"""Whatever bit of a footer is flipped, the job that reads the file lives to name it."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_no_flipped_bit_in_the_footer_of_a_parquet_file_aborts_the_process() -> None:
    program = [sys.executable, "-m", "tests.crash.damaged_footers_program"]

    done = subprocess.run(program, capture_output=True, text=True, check=False)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}: {done.stderr}"
    assert lines[-1].startswith("survived")
    assert "'refused'" in lines[-1]
    assert "'read'" in lines[-1]
    assert "'without a name'" not in lines[-1]
