"""The set-up scripts say clearly what they found and what they could not do."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.architecture.project import ROOT, SOURCE, name_of, tracked_files

PROGRAMS = ["bash", "cmp", "head", "id", "sed", "touch"]
SCRIPTS = [
    path for path in tracked_files() if path.suffix == ".sh" or name_of(path) == ".ci/run"
]


class FakeSystem:
    """A folder of programs that stands in for the machine's PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for program in PROGRAMS:
            found = shutil.which(program)
            assert found is not None
            (folder / program).symlink_to(found)

    def add(self, name: str, script: str) -> None:
        """Put a program there, replacing one of the same name."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('bash')}\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def add_java(self, version: str) -> None:
        self.add("java", f"echo 'openjdk version \"{version}\" 2023-01-01' >&2")

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", *command],
            cwd=ROOT,
            env={"PATH": str(self.folder), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def system(tmp_path: Path) -> FakeSystem:
    folder = tmp_path / "bin"
    folder.mkdir()
    return FakeSystem(folder)


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_parses_stops_at_the_first_error_and_is_executable(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize(("version", "major"), [("17.0.9", 17), ("21", 21), ("25-ea", 25)])
def test_a_new_enough_java_is_found(system: FakeSystem, version: str, major: int) -> None:
    system.add_java(version)
    done = system.run("scripts/ensure_java.sh")
    assert done.returncode == 0, done.stderr
    assert f"Java {major} found" in done.stdout


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16.0.2"])
def test_an_old_java_without_a_package_manager_is_reported(
    system: FakeSystem, version: str
) -> None:
    system.add_java(version)
    done = system.run("scripts/ensure_java.sh")
    assert done.returncode == 1
    assert "no apt-get, dnf, apk or brew" in done.stderr
    assert "Install a JRE of version 17 or newer by hand" in done.stderr


def test_without_root_the_command_to_run_is_named(system: FakeSystem) -> None:
    system.add("id", "echo 1000")
    system.add("dnf", "exit 99")
    done = system.run("scripts/ensure_java.sh")
    assert done.returncode == 1
    assert "Run as root: dnf install java-17-openjdk-headless" in done.stderr


def test_a_jre_is_installed_from_the_first_package_that_exists(system: FakeSystem) -> None:
    system.add("id", "echo 0")
    java = system.folder / "java"
    system.add(
        "apt-get",
        f"""case "$*" in
            update*) ;;
            *openjdk-21*) printf '#!%s\\necho "openjdk version \\\\"21\\\\"" >&2' "$BASH" > {java}
                 {shutil.which("chmod")} +x {java} ;;
            *) echo "Unable to locate package" >&2; exit 100 ;;
        esac""",
    )
    done = system.run("scripts/ensure_java.sh")
    assert done.returncode == 0, done.stderr
    assert "Java 21 found" in done.stdout


def test_a_failing_package_manager_does_not_hide(system: FakeSystem) -> None:
    system.add("id", "echo 0")
    system.add("apk", "echo 'network unreachable' >&2; exit 1")
    done = system.run("scripts/ensure_java.sh")
    assert done.returncode == 1
    assert "network unreachable" in done.stderr
    assert "every package failed" in done.stderr


def test_an_old_python_is_refused_in_words(system: FakeSystem, tmp_path: Path) -> None:
    system.add("python3", '[ "$1" = --version ] && echo "Python 3.9.18"; [ "$1" != -c ]')
    done = system.run(
        "scripts/make_venv.sh", str(tmp_path / "venv"), "requirements/dev.txt"
    )
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "Found: python3 = Python 3.9.18" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_an_environment_of_the_same_lock_is_left_alone(
    system: FakeSystem, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    venv.mkdir()
    shutil.copy(ROOT / "requirements" / "dev.txt", venv / ".locked")
    done = system.run("scripts/make_venv.sh", str(venv), "requirements/dev.txt")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in venv.iterdir()] == [".locked"]


def test_every_planted_fault_has_exactly_one_place_in_the_code() -> None:
    faults = tomllib.loads(
        (ROOT / "scripts" / "planted_faults.toml").read_text(encoding="utf-8")
    )
    code = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    places = {
        fault["name"]: sum(
            text.count(old) for text in code for old, _ in fault["spellings"]
        )
        for fault in faults["fault"]
    }
    assert {name: count for name, count in places.items() if count != 1} == {}, (
        "give scripts/planted_faults.toml the spelling that the code has"
    )
