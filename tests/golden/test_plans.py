"""Compiled plans are as they were: their text is kept under `plans`."""

from pathlib import Path

import pytest

from penstock.runtime.plan.physical import compile_graph, describe_plan
from tests.golden.plan_cases import PLANS

FOLDER = Path(__file__).parent / "plans"


@pytest.mark.parametrize("name", PLANS)
def test_a_graph_compiles_to_the_plan_that_is_kept(name: str) -> None:
    kept = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert describe_plan(compile_graph(PLANS[name])) == kept


def test_every_kept_plan_belongs_to_a_graph() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(PLANS)
