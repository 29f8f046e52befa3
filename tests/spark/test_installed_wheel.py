"""What `make dist` builds: installed elsewhere, it runs a job on Spark without the checkout.

The wheel goes into a new environment outside of the checkout. With the variable CI its
dependencies are installed there from the index as its metadata names them; otherwise they are
those of the environment that runs the tests, which saves half a gigabyte per run.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.builders.profile import takes_long
from tests.builders.spark_home import QUICK_JVM
from tests.builders.spark_session import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

JOB = """
from pathlib import Path

import polars as pl

import penstock as pen
from penstock.operators import ArrowOperator


class Twice(ArrowOperator):
    def name(self):
        return "twice"

    def process_batch(self, batch, ctx, collector):
        collector.collect(batch)
        collector.collect(batch)


def run():
    pipeline = pen.Pipeline("installed", parallelism=2)
    numbers = pipeline.read("numbers", pen.impulse(count=1_000))
    keyed = numbers.process("twice", Twice()).with_columns(k=pl.col("counter") % 7).key_by("k")
    keyed.aggregate("counts", n=pen.count()).write("out", pen.files("out", format="jsonl"))
    pipeline.run("checkpoints")
    changes = pl.from_arrow(pen.read_committed("out"))
    print("rows", changes.group_by("k").agg(pl.col("n").max())["n"].sum())
    print("from", Path(pen.__file__).parents[1])


if __name__ == "__main__":
    pen.main(run)
"""


def _run(*command: str | Path, folder: Path) -> str:
    """Run a program with nothing of the checkout in its variables; return what it printed."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("PYTHON", "PYTEST", "PENSTOCK", "SPARK", "VIRTUAL_ENV", "COV")
        )
    }
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**variables, "SPARK_SUBMIT_OPTS": QUICK_JVM, "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and source archive, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    hatchling = Path(sys.executable).with_name("hatchling")
    subprocess.run([hatchling, "build", "-d", folder], cwd=ROOT, check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder, "--without-pip"], check=True)
    (wheel,), found = built.glob("*.whl"), folder / "bin" / "python"
    install: list[str | Path] = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
    ]
    install += ["--python", found, "--constraint", ROOT / "requirements" / "dev.txt"]
    if os.environ.get("CI"):
        install += [f"{wheel}[spark]"]
    else:
        install += ["--no-deps", wheel]
        (site,) = folder.glob("lib/*/site-packages")
        shared = sysconfig.get_path("purelib")
        # A path of its own: what else lies in that folder is not installed editable.
        (site / "dependencies.pth").write_text(f"{shared}\n", encoding="utf-8")
    subprocess.run(install, check=True, timeout=600)
    return found


def test_the_wheel_holds_the_package_with_its_types_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"penstock"}
    for needed in ("py.typed", "__init__.pyi", "__main__.py", "operators/__init__.pyi"):
        assert f"penstock/{needed}" in names


def test_the_source_archive_holds_what_the_tests_need(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        parts = {name.split("/")[1] for name in opened.getnames()}
    assert parts >= {"src", "tests", "docs", "README.md", "LICENSE", "Makefile"}


@takes_long
def test_an_installed_wheel_runs_a_job_on_spark_from_another_folder(
    python: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    printed = _run(python, job, folder=tmp_path)
    assert "rows 2000\n" in printed
    assert f"from {python.parents[1]}" in printed


def test_the_version_names_what_results_depend_on(python: Path, tmp_path: Path) -> None:
    printed = _run(python, "-m", "penstock", "--version", folder=tmp_path)
    assert printed.startswith("penstock 0.")
    for name in ("Python 3.", "Spark 4.", "pyarrow ", "Polars "):
        assert name in printed
