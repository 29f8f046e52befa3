"""Files stay small, say their one job first, and have names that mean something."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.project import ROOT, SOURCE, name_of, python_files, tracked_files

LARGEST_FILE_LINES = 450
HOMELESS = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
FILES = python_files()


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_stays_readable_in_one_sitting(path: Path) -> None:
    count = len(path.read_text(encoding="utf-8").splitlines())
    assert count <= LARGEST_FILE_LINES, "split it: a second job is hiding in it"


@pytest.mark.parametrize(
    "path", [path for path in FILES if not path.name.startswith("test_")], ids=name_of
)
def test_a_file_says_its_one_job_in_the_first_line(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, "the first line of a file says the one thing it decides"
    first, _, rest = docstring.partition("\n")
    assert 15 <= len(first) <= 100
    assert first[-1] in ".:" or not rest.strip(), f"the first line is a sentence: {first!r}"


def test_no_module_is_named_after_its_homelessness() -> None:
    homeless = [
        name_of(path)
        for path in FILES
        if HOMELESS & {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    ]
    assert homeless == [], "homeless code means a missing concept: name it"


def test_packages_of_the_source_tree_explain_themselves() -> None:
    for path in FILES:
        if path.name == "__init__.py" and "src" in path.parts:
            lines = (
                ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            ).splitlines()
            assert 3 <= len(lines) <= 8, f"{name_of(path)}: what lives here, what must not"


def test_only_the_two_public_packages_re_export() -> None:
    public = {"src/penstock/__init__.py", "src/penstock/testing/__init__.py"}
    for path in FILES:
        if path.name == "__init__.py" and name_of(path) not in public:
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert len(body) == 1, f"{name_of(path)} holds more than its docstring"


def test_a_conftest_stays_small() -> None:
    for path in FILES:
        if path.name == "conftest.py":
            assert len(path.read_text(encoding="utf-8").splitlines()) < 150, name_of(path)


def test_test_folders_are_no_packages() -> None:
    packages = [
        path for path in FILES if path.name == "__init__.py" and "tests" in path.parts
    ]
    assert packages == []


def test_unit_tests_mirror_the_source_tree() -> None:
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in FILES if path.is_relative_to(unit)}
    strays = [folder for folder in folders if not (SOURCE / "penstock" / folder).is_dir()]
    assert strays == []


# Written in pieces, so that this file does not contain what it forbids.
MACHINE_PATHS = re.compile(
    r"(?<![\w.~)}-])/(" + "|".join(["work", "root", "home", "Users", "opt"]) + ")/"
)
INDEX_OPTIONS = re.compile(
    "--(extra-)?index" + "-url|--find" + "-links|--trusted" + "-host"
)
REGISTRIES = re.compile(
    r"https?://[^\s'\"]*(py" + r"pi\.|/simp" + r"le\b|artifact" + "ory|nexus)"
)


def text_of(path: Path) -> str:
    """Return a file's text, bytes that are none replaced: data files count too."""
    return path.read_text(encoding="utf-8", errors="replace")


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in tracked_files()
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        if MACHINE_PATHS.search(line)
        or INDEX_OPTIONS.search(line)
        or REGISTRIES.search(line)
    ]
    assert found == [], (
        "whoever uses the project chooses where it lives and packages come from"
    )
