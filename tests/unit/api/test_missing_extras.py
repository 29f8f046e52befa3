"""Without Spark installed everything else works, and what needs it says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

import penstock

WITHOUT_SPARK = """
import sys


class NotInstalled:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())
import penstock as pen

pipeline = pen.Pipeline("p")
pipeline.read("numbers", pen.list_source([{"n": 1}])).write("out", pen.stdout())
"""


def run_without_spark(code: str) -> str:
    """Run code in a Python that lacks Spark; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK + code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_a_pipeline_runs_in_process_without_spark_installed() -> None:
    assert run_without_spark("pipeline.run_in_process('memory:')") == '{"n": 1}\n'


@pytest.mark.parametrize(
    "call",
    [
        "pipeline.run('memory:')",
        "pipeline.start('memory:')",
        "pen.dataframe",
        "pipeline.attach({}, checkpoint='', query_checkpoint='')",
    ],
)
def test_what_needs_spark_says_which_extra_to_install(call: str) -> None:
    code = f"""
try:
    {call}
except pen.PenstockError as error:
    print(error.code, error)
"""
    printed = run_without_spark(code)
    assert printed.startswith("engine-missing py")
    assert "is not installed: pip install 'penstock[spark]'" in printed


def test_a_package_that_came_as_files_without_metadata_can_be_imported() -> None:
    place = str(Path(penstock.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {place!r}); import penstock as pen"
    done = subprocess.run(
        # Without site packages, where the metadata of an installed one lies.
        [sys.executable, "-I", "-S", "-c", f"{code}; print(pen.__version__)"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "unknown\n", done.stderr
