"""What a graph that cannot run is told: kept as text, one section for each kind of mistake."""

from pathlib import Path

import pytest

from penstock.errors import ErrorCode, GraphError
from penstock.graph.validate import find_problems, validate
from tests.golden.broken_graphs import BROKEN

KEPT = Path(__file__).parent / "graph_problems.txt"


def sections() -> dict[str, str]:
    """Return the kept messages by the name of the graph: the line `## name` starts each."""
    parts = KEPT.read_text(encoding="utf-8").split("## ")[1:]
    return {name: text.strip("\n") for name, _, text in (p.partition("\n") for p in parts)}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_graph_is_told_what_is_kept(name: str) -> None:
    with pytest.raises(GraphError) as raised:
        validate(BROKEN[name])
    assert raised.value.message == sections()[name]
    assert raised.value.code is ErrorCode.INVALID_GRAPH
    assert raised.value.context["problems"] == tuple(find_problems(BROKEN[name]))


def test_every_kept_message_belongs_to_a_broken_graph() -> None:
    assert list(sections()) == list(BROKEN)
