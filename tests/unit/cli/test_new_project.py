"""A new project runs at once, and its tests pass."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock.cli.app import app
from penstock.cli.programs import load_pipeline
from tests.builders.profile import takes_long


def init(name: str) -> Result:
    return CliRunner().invoke(app, ["init", name])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = init("shop")
    assert made.exit_code == 0, made.output
    return tmp_path / "shop"


def test_it_has_one_program_tests_and_a_readme(project: Path) -> None:
    assert [path.name for path in project.glob("*.py")] == ["job.py"]
    assert (project / "tests" / "test_job.py").is_file()
    assert "penstock run job.py" in (project / "README.md").read_text()


def test_its_job_runs_and_ends_by_itself(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = load_pipeline(str(project / "job.py"))
    assert pipeline.name == "shop"
    pipeline.run_in_process(str(project / "checkpoints"))
    assert '"user": "ada", "total": 12' in capfd.readouterr().out


@takes_long
@pytest.mark.slow
def test_its_tests_pass_and_commands_find_its_checkpoints(project: Path) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=project,
            capture_output=True,
            text=True,
            check=False,
        )

    tested = call("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert tested.returncode == 0, tested.stdout
    ran = call("-m", "penstock", "run", "job.py", "--in-process")
    assert ran.returncode == 0, ran.stderr
    assert "ada" in ran.stdout
    assert "finished" in call("-m", "penstock", "status", "shop").stdout


@pytest.mark.parametrize("name", ["Shop", "1st", "my shop", "..", "a/../B"])
def test_a_name_that_no_job_can_have_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init(name).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(project: Path) -> None:
    (project / "job.py").write_text("mine")
    again = init("shop")
    assert again.exit_code == 2
    assert (project / "job.py").read_text() == "mine"
