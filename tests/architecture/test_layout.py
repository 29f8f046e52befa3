"""Files stay small, say their one job first, and have names that mean something."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.architecture.project import ROOT, SOURCE, name_of, python_files, tracked_files

MOST_LINES = 450
FEWEST_LINES = 100
"""In the source tree: a file does one whole job."""
SMALL = {
    "src/penstock/__main__.py": "what `python -m penstock` runs has this name in Python",
    "src/penstock/cli/app.py": "the table of contents of the program",
    "src/penstock/core/versions.py": "it must import nothing: it answers where all else is broken",
}
"""Files of the source tree that are whole jobs although they are small, and why."""
MOST_FILES = 20
"""In a folder of the source tree."""
HOMELESS = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
FILES = python_files()
MODULES = [
    path for path in FILES if path.is_relative_to(SOURCE) and path.name != "__init__.py"
]


def test_files_are_whole_jobs_and_stay_readable_in_one_sitting() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    offenders = [
        f"{name_of(path)} has {count} lines, more than {MOST_LINES}: split it, a second job "
        "is hiding in it"
        for path, count in lines.items()
        if count > MOST_LINES
    ]
    for path in MODULES:
        name, is_small = name_of(path), lines[path] < FEWEST_LINES
        if is_small and name not in SMALL:
            offenders.append(
                f"{name} has {lines[path]} lines, less than {FEWEST_LINES}: bring it to the "
                "file whose job it is part of"
            )
        if name in SMALL and not is_small:
            offenders.append(f"{name} is not small: take it off the list of exceptions")
    gone = SMALL.keys() - {name_of(path) for path in MODULES}
    offenders += [f"{name} does not exist: take it off the list" for name in sorted(gone)]
    assert not offenders, "\n".join(["", *offenders])


def test_folders_of_the_source_tree_can_be_surveyed() -> None:
    folders = Counter(path.parent for path in FILES if path.is_relative_to(SOURCE))
    offenders = [
        f"{name_of(folder)} has {count} files, more than {MOST_FILES}"
        for folder, count in folders.items()
        if count > MOST_FILES
    ]
    assert offenders == []


def test_a_file_says_its_one_job_in_the_first_line() -> None:
    offenders = []
    for path in FILES:
        if path.name.startswith("test_"):
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first, _, rest = docstring.partition("\n")
        is_sentence = first[-1:] in {".", ":"} or not rest.strip()
        if not 15 <= len(first) <= 100 or not is_sentence:
            offenders.append(f"{name_of(path)}: {first!r}")
    rule = "the first line of a file says its job in a sentence of 15 to 100 characters"
    assert not offenders, "\n".join([rule, *offenders])


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


def test_only_the_three_public_packages_re_export() -> None:
    public = {
        "src/penstock/__init__.py",
        "src/penstock/operators/__init__.py",
        "src/penstock/testing/__init__.py",
    }
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
