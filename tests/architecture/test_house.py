"""What `make house` says of the code is what it says it counts."""

import json
import subprocess
import sys
from pathlib import Path, PurePosixPath
from textwrap import dedent

import pytest

from scripts.house import (
    Lines,
    SourceFile,
    Step,
    count_lines,
    figures_of_walk,
    import_edges,
    names_imported,
    offence_of,
    read_sources,
)
from tests.architecture.project import ROOT
from tests.builders.profile import takes_long

EVERY_SORT_OF_LINE = '''\
"""A module.

Its docstring has three lines."""

import os
from pathlib import (
    Path,
)

# A comment.
LIMIT = 3  # a comment beside code
"""A docstring of a constant."""


class Thing:
    """A class."""

    size: int = 0
    """A docstring of a field."""

    def text(self) -> str:
        """Return it."""
        import json

        return """
# no comment

        """ + json.dumps(str(Path(os.sep)))
'''


def test_every_line_is_of_one_sort() -> None:
    counted = count_lines(EVERY_SORT_OF_LINE)
    # The blank line within the returned text is blank, the one in the docstring is not.
    assert counted == Lines(lines=28, code=12, imports=5, docstrings=7, comments=1, blank=8)
    assert counted.code + counted.docstrings + counted.comments + counted.blank == 28
    assert count_lines("") == Lines()


def source(path: str, text: str = "") -> SourceFile:
    return SourceFile(PurePosixPath(path), Lines(), frozenset(names_imported(dedent(text))))


def test_imports_lead_from_module_to_module() -> None:
    sources = [
        source("__init__.py", "from penstock.core.a import name"),
        source("core/__init__.py"),
        source("core/a.py", "import os, penstock.core.b"),
        source("core/b.py", "from penstock.core.b import itself"),
        source(
            "graph/c.py",
            """
            from penstock.core import a
            from penstock.core.a import name
            def late():
                from penstock.core.b import name
            """,
        ),
    ]
    edges = [(one.path.as_posix(), other.dotted) for one, other in import_edges(sources)]
    assert edges == [
        ("core/a.py", "penstock.core.b"),
        ("graph/c.py", "penstock.core.a"),
        ("graph/c.py", "penstock.core.b"),
    ]


def test_a_folder_is_marked_that_holds_too_many_files_or_too_few() -> None:
    assert [offence_of(20, 0), offence_of(4, 0), offence_of(1, 3)] == ["", "", ""]
    assert [offence_of(21, 0), offence_of(3, 0)] == ["> 20 files", "< 4 files"]


def test_a_walk_changes_the_package_between_neighbours() -> None:
    files = ["runtime/a.py", "runtime/b.py", "core/c.py", "runtime/a.py", "errors.py"]
    steps = [Step(file, line, "f") for line, file in enumerate(files)]
    assert figures_of_walk(steps) == {"functions": 5, "files": 4, "package_changes": 3}


def test_generated_files_do_not_count(tmp_path: Path) -> None:
    package = tmp_path / "src" / "penstock"
    package.mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "state_pb2.py"):
        (package / name).touch()
    assert [file.dotted for file in read_sources(tmp_path)] == [
        *("penstock", "penstock.errors"),
    ]


@pytest.mark.slow
@takes_long
def test_both_walks_run_with_the_code_of_this_checkout() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "house.py"), "--json", "--walk"],
        check=True,
        capture_output=True,
        text=True,
    )
    figures = json.loads(done.stdout)
    assert figures["files"] == len(read_sources(ROOT))
    closing, reading = figures["walks"]["closing"], figures["walks"]["reading"]
    assert 100 < closing["functions"] < reading["functions"]
    for walk in (closing, reading):
        packages = {step["file"].split("/")[0] for step in walk["steps"]}
        assert {"connectors", "core", "operators", "runtime", "state"} <= packages
        assert not {"api", "testing"} & packages
        for step in walk["steps"]:
            assert (ROOT / "src" / "penstock" / step["file"]).is_file()
