"""Documents do not lie: every Python block runs, every link leads somewhere."""

import contextlib
import doctest
import importlib
import io
import itertools
import re
from pathlib import Path

import pytest

from tests.architecture.project import (
    Block,
    blocks_of,
    markdown_files,
    module_names,
    name_of,
)

BLOCKS = [block for path in markdown_files() for block in blocks_of(path)]
PYTHON_BLOCKS = [
    block for block in BLOCKS if block.info.split(" ")[0] in ("python", "py", "pycon")
]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def expected_output(block: Block) -> str | None:
    """Return what a block must print: the `text` block right behind it, if there is one."""
    for before, after in itertools.pairwise(BLOCKS):
        if (
            before == block
            and after.path == block.path
            and after.follows
            and after.info == "text"
        ):
            return after.text
    return None


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.label)
def test_a_python_block_is_marked_as_nothing_but_python(block: Block) -> None:
    assert block.info == "python", (
        "a block that cannot run does not belong into the documents"
    )


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=lambda block: block.label)
def test_a_python_block_runs_and_prints_what_it_claims(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.label, "exec"), {"__name__": "__main__"})  # noqa: S102
    claimed = expected_output(block)
    assert claimed is None or printed.getvalue() == claimed


@pytest.mark.parametrize("name", module_names())
def test_the_examples_in_docstrings_are_true(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("path", markdown_files(), ids=name_of)
def test_relative_links_lead_to_files_that_exist(path: Path) -> None:
    targets = [match["target"] for match in LINK.finditer(path.read_text(encoding="utf-8"))]
    broken = [
        target
        for target in targets
        if "://" not in target
        and not target.startswith("#")
        and not (path.parent / target.partition("#")[0]).exists()
    ]
    assert broken == []
