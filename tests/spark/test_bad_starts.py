"""A job whose Spark cannot start says why, soon, with an exit code, and leaves nothing behind."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import monotonic

import polars as pl
import pytest

import penstock as pen
from penstock.errors import ErrorCode
from tests.builders.spark_session import run_module, shared_session

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LONGEST_SECONDS = 45
"""Spark itself would try for a minute."""
SHELL = shutil.which("sh")


def run_program(
    tmp_path: Path, master: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program that cannot start Spark, in its own process."""
    known = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = run_module(
        "tests.spark.small_program",
        str(tmp_path / "checkpoints"),
        master,
        folder=tmp_path,
        variables={**known, **variables},
    )
    assert [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()] == []
    assert done.stdout == ""
    return done


def test_an_unreachable_master_is_told_within_seconds(tmp_path: Path) -> None:
    began = monotonic()
    done = run_program(tmp_path, "spark://127.0.0.1:1")
    assert monotonic() - began < LONGEST_SECONDS
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: the Spark master 'spark://127.0.0.1:1' cannot be reached (127.0.0.1:1: "
    )
    assert done.stderr.endswith("[engine-missing]\n")


def test_an_old_java_is_told_with_what_was_found_and_what_is_needed(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!{SHELL}\necho 'openjdk version \"11.0.21\" 2023-10-17' >&2\n", encoding="utf-8"
    )
    java.chmod(0o755)
    done = run_program(tmp_path, "local[2,4]", JAVA_HOME=str(tmp_path / "jdk"))
    assert done.returncode == 2
    assert done.stderr == (
        f"error: Spark cannot start: it needs Java 17 or newer, and {java} is Java 11.0.21. "
        "Install Java 17 or newer, or point JAVA_HOME to one (in a checkout: `make java`) "
        "[engine-missing]\n"
    )


def test_no_java_is_told(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    done = run_program(tmp_path, "local[2,4]", PATH=str(tmp_path / "bin"))
    assert done.returncode == 2
    assert "no Java was found (not on PATH)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_master_that_does_not_exist_is_told_with_what_spark_said(tmp_path: Path) -> None:
    done = run_program(tmp_path, "locl[2]")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Spark did not start with master 'locl[2]': ")
    assert "[engine-missing]" in done.stderr
    assert "Spark said:" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_workers_lack_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_on_the_driver.py").write_text(
        "def same(batch):\n    return batch\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    module = importlib.import_module("only_on_the_driver")
    pipeline = pen.Pipeline("spark-missing-module")
    numbers = pipeline.read("numbers", pen.impulse(count=5))
    numbers.filter(pl.col("counter") > 1).map_batches(module.same).write(
        "out", pen.blackhole()
    )
    with pytest.raises(pen.PenstockError, match="no module 'only_on_the_driver'") as raised:
        pipeline.run(str(tmp_path / "checkpoints"), session=shared_session())
    assert raised.value.code is ErrorCode.MISSING_PACKAGE
    assert pen.exit_code(raised.value) == 2
    records = list((tmp_path / "checkpoints").rglob("*.record"))
    assert records == []


_TWO_STARTS = """
import gc, warnings
from penstock.runtime.spark.session import open_session
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always", ResourceWarning)
    for _ in range(2):
        open_session("local[1]").stop()
    gc.collect()
print([str(each.message) for each in seen if "unclosed file" in str(each.message)])
"""


def test_a_second_start_of_spark_in_a_program_leaves_no_file_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TWO_STARTS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
