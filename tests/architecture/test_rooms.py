"""The architecture page shows the rooms that there are, and the steps that a batch takes."""

import subprocess
import sys

import pytest

from tests.architecture.project import ROOT, resolve, table_rows

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STEPS = table_rows(PAGE, ("Step", "Code", "What happens"))


def run_script(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_picture_of_the_rooms_is_what_the_files_say() -> None:
    checked = run_script("scripts/rooms.py", "--check")
    assert checked.returncode == 0, checked.stderr


def test_no_other_document_has_a_map_of_the_packages() -> None:
    for page in (ROOT / "README.md", ROOT / "AGENTS.md"):
        text = page.read_text(encoding="utf-8")
        assert "docs/architecture.md" in text
        assert "src/penstock/state/" not in text
        assert "`penstock.state`" not in text


@pytest.mark.slow
def test_a_batch_takes_the_twelve_steps_of_the_page() -> None:
    assert [step["Step"] for step in STEPS] == [str(number) for number in range(1, 13)]
    codes = [step["Code"].strip("`") for step in STEPS]
    for code in codes:
        assert callable(resolve(code)), code
    walked = run_script("scripts/house.py", "--walk")
    assert walked.returncode == 0, walked.stderr
    reading = walked.stdout.partition("The reading epoch, functions")[2]
    entered = {tuple(line.split()[-2:]) for line in reading.splitlines() if ".py:" in line}
    functions = {(where.partition(":")[0], name) for where, name in entered}
    missing = [
        code
        for code in codes
        if (
            code.partition(":")[0].removeprefix("penstock.").replace(".", "/") + ".py",
            code.partition(":")[2],
        )
        not in functions
    ]
    assert missing == [], "the second epoch of the walk does not pass here"
