"""The commands that documents and CI name are the commands that exist."""

import re
import subprocess

from tests.architecture.project import ROOT, markdown_files

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
PAGES = [*markdown_files(), ROOT / "AGENTS.md", ROOT / "benchmarks" / "README.md"]
NAMED = re.compile(r"(?:^|`)make ([a-z][a-z0-9-]*)", re.MULTILINE)


def test_every_make_target_named_in_a_document_exists() -> None:
    named = {
        name for page in PAGES for name in NAMED.findall(page.read_text(encoding="utf-8"))
    }
    assert {"setup", "check", "proto"} <= named
    assert named - TARGETS == set()


def test_plain_make_lists_every_target() -> None:
    listing = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert set(re.findall(r"^  make ([a-z0-9-]+) ", listing, re.MULTILINE)) == TARGETS


def test_ci_runs_what_the_readme_tells_a_newcomer_to_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^run (.+)$", script, re.MULTILINE) == [
        *("make setup", "make demo", "make check"),
    ]
    # The last one contains the tests: see below.
    assert commands == ["make demo", "make test"]


def test_check_leaves_nothing_out() -> None:
    recipe = MAKEFILE.partition("\ncheck:")[2].partition("\n\n")[0]
    made = re.findall(r"\$\(MAKE\) --no-print-directory (.+)$", recipe, re.MULTILINE)
    targets = [word for line in made for word in line.split() if not word.startswith("-")]
    assert targets == ["lint", "proto-check", "docs", "servers", "test", "test-hash8"]
