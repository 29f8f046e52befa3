"""The first superstep without Spark: which parts it is a union of, by the parts' own methods."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock.core.ids import OperatorId
from penstock.operators.splits import SourceAssignment
from penstock.runtime.plan.epoch_plan import EpochPlan
from penstock.runtime.plan.physical import compile_graph
from penstock.runtime.spark import executor
from penstock.runtime.spark.executor import first_superstep
from penstock.runtime.spark.task import SuperstepTask
from tests.builders.graphs import a_graph


@dataclass(frozen=True)
class Frame:
    """A DataFrame of any kind of session: of this process, or of Spark Connect."""

    parts: tuple[str, ...]

    def toDF(self, *_: str) -> "Frame":  # noqa: N802 (Spark's name)
        return self

    def where(self, condition: str) -> "Frame":
        return Frame((f"{self.parts[0]} where {condition}",))

    def repartition(self, count: int) -> "Frame":
        return Frame((f"{self.parts[0]} x{count}",))

    def mapInArrow(self, task: SuperstepTask, _: str) -> "Frame":  # noqa: N802 (Spark's name)
        return Frame((self.parts[0] + (" fed" if task.is_fed else ""),))

    def union(self, other: "Frame") -> "Frame":
        return Frame(self.parts + other.parts)


PLAN = compile_graph(
    a_graph(
        *(f"{name} -r> write" for name in "abcd"),
        parallelism={"a": 1, "b": 2, "c": 3, "d": 1, "write": 1},
    )
)


def parts_of(monkeypatch: pytest.MonkeyPatch, fed: str) -> tuple[str, ...]:
    """Return the parts of the union if the sources of these names are fed."""
    monkeypatch.setattr(executor, "fed_frame", lambda name: Frame((name,)))
    assignments = {
        OperatorId(name): (
            SourceAssignment(fed=f"rows of {name}" if name in fed else None),
        )
        for name in "abcd"
    }
    session = SimpleNamespace(range=lambda *bounds: Frame((f"range({bounds[1]})",)))
    epoch = cast(EpochPlan, SimpleNamespace(assignments=assignments))
    task = SuperstepTask(b"", None, 0, cast(Any, None))
    frame: Any = first_superstep(cast(SparkSession, session), PLAN, epoch, task)
    return cast(Frame, frame).parts


def test_sources_that_read_by_themselves_are_one_part_between_those_that_are_fed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parts_of(monkeypatch, "") == ("range(7)",)
    assert parts_of(monkeypatch, "c") == ("range(3)", "rows of c x3 fed", "range(1)")
    assert parts_of(monkeypatch, "ab") == (
        "range(1) where false",
        "rows of a x1 fed",
        "rows of b x2 fed",
        "range(4)",
    )
