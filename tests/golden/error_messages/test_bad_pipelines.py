"""What those are told who made mistakes in a pipeline: kept as text, a section for each one.

To keep changed texts: `python -m tests.golden.error_messages.test_bad_pipelines`.
"""

import re
from pathlib import Path

import pytest

import penstock as pen
from tests.golden.error_messages.bad_pipelines import BAD

KEPT = Path(__file__).parent / "bad_pipelines.txt"


def message_of(name: str) -> str:
    """Return everything a user reads; lines are counted from the one that defines the function."""
    write = BAD[name]
    file, first = write.__code__.co_filename, write.__code__.co_firstlineno
    p = pen.Pipeline("auctions")
    write(p)
    try:
        p.graph()
    except pen.PenstockError as error:
        text = "\n".join([error.message, *getattr(error, "__notes__", ())])
        found = re.sub(
            rf"{re.escape(file)}:(\d+)", lambda at: f"line {int(at[1]) - first}", text
        )
        return f"{type(error).__name__} ({error.code})\n{found}"
    raise AssertionError(f"{name} has no mistakes")


def sections() -> dict[str, str]:
    parts = KEPT.read_text(encoding="utf-8").split("## ")[1:]
    return {name: text.strip("\n") for name, _, text in (p.partition("\n") for p in parts)}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_pipeline_is_told_what_is_kept(name: str) -> None:
    assert message_of(name) == sections()[name]


def test_every_kept_text_belongs_to_a_bad_pipeline() -> None:
    assert list(sections()) == list(BAD)


if __name__ == "__main__":
    KEPT.write_text(
        "".join(f"## {name}\n{message_of(name)}\n\n" for name in BAD), encoding="utf-8"
    )
