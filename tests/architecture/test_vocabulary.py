"""The glossary's words are types, and the words it replaces name nothing."""

import ast
import re

import pytest

from tests.architecture.project import (
    ROOT,
    SOURCE,
    markdown_files,
    name_of,
    python_files,
    resolve,
    table_rows,
)

ROWS = table_rows(
    (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"),
    ("Word", "Meaning", "Type", "Never say"),
)
TYPES = [row["Type"].strip("`") for row in ROWS if row["Type"]]
NEVER = ("snapshot",)
"""Words that no name of ours may contain; the other forbidden ones also have honest uses."""


@pytest.mark.parametrize("dotted", sorted(set(TYPES)))
def test_a_glossary_word_names_something_that_exists(dotted: str) -> None:
    assert resolve(dotted) is not None


def test_every_word_is_explained_once() -> None:
    words = [row["Word"] for row in ROWS]
    assert len(words) == len(set(words))
    assert all(row["Meaning"] for row in ROWS)


def test_the_words_every_reader_needs_are_in_the_glossary() -> None:
    needed = {
        *("job", "operator", "subtask", "batch", "signal", "watermark", "barrier", "epoch"),
        *("generation", "checkpoint", "table", "superstep", "savepoint"),
    }
    assert needed <= {row["Word"] for row in ROWS}


def test_no_name_uses_a_word_the_glossary_replaces() -> None:
    found = [
        f"{name_of(path)}: {node.name}"
        for path in python_files()
        if path.is_relative_to(SOURCE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and re.search("|".join(NEVER), node.name, re.IGNORECASE)
    ]
    assert found == []


def test_the_package_has_one_short_name_in_all_examples() -> None:
    # `ps` is pyspark.pandas for those who use Spark.
    found = [
        f"{name_of(path)}: {alias}"
        for path in [*python_files(), *markdown_files()]
        for alias in re.findall(r"\bpenstock as (\w+)", path.read_text(encoding="utf-8"))
        if alias != "pen"
    ]
    assert found == []


def test_the_readme_is_short_and_says_first_why_someone_on_spark_wants_this() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    start = "\n".join(lines[:10])
    for needed in ("Spark", "transformWithState", "rows/s", "docs/performance.md"):
        assert needed in start
