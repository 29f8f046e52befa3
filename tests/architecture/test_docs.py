"""Documents do not lie: every Python block runs, every link leads somewhere."""

import contextlib
import io
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.project import (
    ROOT,
    SOURCE,
    Block,
    blocks_of,
    markdown_files,
    module_name,
    name_of,
    python_files,
)
from tests.builders.spark_session import shared_session

BLOCKS = [block for path in markdown_files() for block in blocks_of(path)]
PYTHON_BLOCKS = [
    block for block in BLOCKS if block.info.split(" ")[0] in ("python", "py", "pycon")
]
EXAMPLES = [
    path
    for path in python_files()
    if path.is_relative_to(SOURCE) and ">>> " in path.read_text(encoding="utf-8")
]
RUN_EXAMPLES = """
import doctest, importlib, inspect, os, sys

class Finder(doctest.DocTestFinder):
    def _from_module(self, module, found):  # decorated methods are the module's own too
        own = inspect.unwrap(found) if inspect.isfunction(found) else found
        return super()._from_module(module, own)

def run(name):
    module, runner = importlib.import_module(name), doctest.DocTestRunner()
    for test in Finder().find(module, module.__name__):
        runner.run(test)
    written = [line for line in inspect.getsource(module).splitlines()
               if line.lstrip().startswith(">>> ")]
    print(f"{name}: {len(written)} examples, {runner.tries} tried")
    return runner.failures == 0 and runner.tries == len(written)

is_true = True
for name in sys.argv[1:]:
    folder = os.path.abspath(name)
    os.mkdir(folder)
    os.chdir(folder)
    is_true &= run(name)
    os.chdir("..")
sys.exit(not is_true)
"""
KAFKA = "localhost:9092"
"""Where documents find a broker."""
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


def test_a_python_block_is_marked_as_nothing_but_python() -> None:
    offenders = [block.label for block in PYTHON_BLOCKS if block.info != "python"]
    assert offenders == [], "a block that cannot run does not belong into the documents"


def needs_spark(block: Block) -> bool:
    """Tell whether a block runs on Spark; all of them then share one JVM."""
    return "from pyspark" in block.text


def needs_kafka(block: Block) -> bool:
    """Tell whether a block talks to a broker; it then meets that of the tests."""
    return KAFKA in block.text


def marks_of(block: Block) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.kafka] if needs_kafka(block) else []
    return [*marks, pytest.mark.spark, pytest.mark.slow] if needs_spark(block) else marks


RUN_BLOCKS = [
    pytest.param(block, marks=marks_of(block), id=block.label) for block in PYTHON_BLOCKS
]


@pytest.mark.parametrize("block", RUN_BLOCKS)
def test_a_python_block_runs_and_prints_what_it_claims(
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    text = block.text
    if needs_kafka(block):
        text = text.replace(KAFKA, request.getfixturevalue("kafka").bootstrap)
    if needs_spark(block):
        shared_session()  # what the block's getOrCreate then finds
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, block.label, "exec"), {"__name__": "__main__"})  # noqa: S102 (a block of the documents is what is run)
    claimed = expected_output(block)
    assert claimed is None or printed.getvalue() == claimed


def test_the_examples_in_docstrings_are_true(tmp_path: Path) -> None:
    """In a fresh process with a folder per module, as a reader would try them."""
    modules = [module_name(path) for path in EXAMPLES]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN_EXAMPLES, *modules],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_site_has_every_page_in_its_navigation() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    shown = set(re.findall(r": ([\w/]+\.md)$", site, re.MULTILINE))
    docs = ROOT / "docs"
    assert {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - shown == set()


def test_warnings_end_the_build_of_the_site() -> None:
    """What MkDocs is told not to say it does not count either: `--quiet` undoes `--strict`."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (build,) = re.findall(r"mkdocs build(.*)", makefile)
    assert build.split() == ["--strict"]


def test_relative_links_lead_to_files_that_exist() -> None:
    broken = [
        f"{name_of(path)}: {match['target']}"
        for path in markdown_files()
        for match in LINK.finditer(path.read_text(encoding="utf-8"))
        if "://" not in match["target"]
        and not match["target"].startswith("#")
        and not (path.parent / match["target"].partition("#")[0]).exists()
    ]
    assert broken == []
