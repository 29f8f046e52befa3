"""Every command of the runbook works, in the order of the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.app import app
from tests.architecture.project import ROOT
from tests.builders.profile import takes_long

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line]
EXPECTED = {"penstock doctor": {0}}
"""Exit codes of commands that may say no."""


@takes_long
@pytest.mark.slow
def test_the_commands_of_the_runbook_work_one_after_the_other(tmp_path: Path) -> None:
    folder, program = tmp_path, [sys.executable, "-m", "penstock"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "cd":
            folder = folder / words[1]
            continue
        assert words[0] == "penstock"
        ran = subprocess.run(
            [*program, *words[1:]],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode in EXPECTED.get(command, {0}), (command, ran.stderr)
        assert ran.stdout, command


def test_every_command_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`penstock ([a-z]+)", PAGE)) | {
        line.split()[1] for line in COMMANDS if line.startswith("penstock")
    }
    commands = app.registered_commands
    known = {each.name or getattr(each.callback, "__name__", "") for each in commands}
    known |= {str(group.name) for group in app.registered_groups}
    assert len(named) > 10
    assert named <= known
