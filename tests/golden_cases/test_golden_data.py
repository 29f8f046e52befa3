"""The golden data is found where it is said to be, and missed where somebody counts on it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.golden_cases.golden_case import (
    BESIDE,
    ROOT,
    VARIABLE,
    GoldenDataMissingError,
    find_golden_data,
)


def some_data(folder: Path) -> Path:
    for part in ("inputs", "expected"):
        (folder / part).mkdir(parents=True)
    return folder


def test_data_beside_the_project_is_found(tmp_path: Path) -> None:
    data = some_data(tmp_path / BESIDE)
    assert find_golden_data({}, tmp_path / "project") == data


def test_a_named_folder_goes_before_the_one_beside_the_project(tmp_path: Path) -> None:
    some_data(tmp_path / BESIDE)
    named = some_data(tmp_path / "elsewhere")
    assert find_golden_data({VARIABLE: str(named)}, tmp_path / "project") == named


def test_no_data_is_no_error(tmp_path: Path) -> None:
    assert find_golden_data({}, tmp_path / "project") is None


def test_a_named_folder_without_data_is_an_error_even_with_data_beside(
    tmp_path: Path,
) -> None:
    some_data(tmp_path / BESIDE)
    with pytest.raises(GoldenDataMissingError, match=VARIABLE):
        find_golden_data({VARIABLE: str(tmp_path / "lost")}, tmp_path / "project")


@pytest.mark.parametrize("is_there", [True, False])
def test_ci_counts_on_the_data_if_it_is_beside_the_project(
    tmp_path: Path, *, is_there: bool
) -> None:
    script = tmp_path / "project" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", script)
    programs = tmp_path / "bin"
    programs.mkdir()
    make = programs / "make"
    make.write_text(f'#!/bin/sh\necho "golden=${VARIABLE}"\n', encoding="utf-8")
    make.chmod(0o755)
    if is_there:
        (tmp_path / BESIDE).mkdir(parents=True)

    done = subprocess.run(
        [str(script)],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    named = str(tmp_path / BESIDE) if is_there else ""
    assert f"golden={named}\n" in done.stdout
