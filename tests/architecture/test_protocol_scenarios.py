"""docs/design/protocol.md maps every scenario of the original protocol to a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/design/protocol.md").read_text(encoding="utf-8")
SCENARIO = re.compile(
    r"^\| (\d+) \| [^|]+ \| (same|adapted|impossible here)[^|]* \| ([^|]+) \|$", re.M
)
GAP = re.compile(r"^\| ([^|]+) \| [^|]+ \| (`test_[^|]+) \|$", re.M)
TEST_NAME = re.compile(r"`(test_\w+)`")


def defined_tests() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names |= set(
            re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.M)
        )
    return names


def test_all_fifty_scenarios_are_mapped() -> None:
    assert [int(number) for number, _, _ in SCENARIO.findall(TEXT)] == list(range(1, 51))


def test_what_is_adapted_or_impossible_says_why() -> None:
    rows = [row for row in TEXT.splitlines() if re.match(r"\| \d+ \|", row)]
    unexplained = [
        row for row in rows if re.search(r"\| (adapted|impossible here) \|", row)
    ]
    assert unexplained == []


def test_every_test_the_document_names_exists() -> None:
    named = set(TEST_NAME.findall(TEXT))
    assert len(named) > 40
    assert named - defined_tests() == set()


def test_every_gap_names_the_test_that_closes_it() -> None:
    section = TEXT.split("### Its gaps, closed")[1]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == len(GAP.findall(section)) >= 10
