"""Laws of joins by event time: a plain model agrees in every epoch, whatever happens in between."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.operators import EventTime
from penstock.testing import Amnesia, OperatorHarness
from tests.builders.joins import (
    HOWS,
    SECOND,
    WHERE,
    IntervalModel,
    JoinJob,
    Row,
    WindowJoinModel,
    in_order,
    left_row,
    result_of,
    right_row,
)
from tests.builders.profile import by_profile

RUNS = by_profile(default=10, ci=25, nightly=500)
"""How many lives of a join are tried, by profile: a life takes a while."""

instants = st.integers(-30, 30)
rows = st.builds(
    lambda key, text, at, n: {"key": key, "text": text, "at": at, "n": n},
    st.sampled_from([0, 0, 1, None]),
    st.sampled_from(["a", "a", "b", None]),
    instants,
    st.integers(0, 5),
)


@dataclass(frozen=True)
class Epoch:
    """What happens in an epoch, and to the job after it."""

    left: Sequence[Row]
    right: Sequence[Row]
    watermark: int | None
    attempts: int
    parallelism: int | None
    """Go on with so many subtasks, in another process; None: in this one."""


epochs = st.builds(
    Epoch,
    st.lists(rows, max_size=6),
    st.lists(rows, max_size=6),
    st.none() | instants,
    st.sampled_from([1, 1, 2]),
    st.none() | st.integers(1, 3),
)
lives = st.lists(epochs, max_size=6)


def live(model: Any, life: Sequence[Epoch], amnesia: Amnesia, **options: Any) -> None:
    """Run a join and its model through the same epochs, and compare after each."""
    where = WHERE if model.where else None
    job = JoinJob([], [], how=model.how, where=where, **options)
    node = next(n for n in job.pipeline.graph().nodes if n.operator == "join")
    harness = OperatorHarness(node.spec, *node.inputs, amnesia=amnesia)
    reached: int | None = None
    for epoch in life:
        harness.push(list(map(left_row, epoch.left)), input=0)
        harness.push(list(map(right_row, epoch.right)), input=1)
        if epoch.watermark is not None:
            reached = max(epoch.watermark, epoch.watermark if reached is None else reached)
            harness.watermark(EventTime(reached * SECOND))
        harness.barrier(attempts=epoch.attempts)
        expected = model.run_epoch(epoch.left, epoch.right, reached)
        assert in_order(map(result_of, harness.take())) == expected
        if epoch.parallelism is not None:
            _check_late(harness, model)
            moved = harness.checkpoint()
            harness.close()
            harness = OperatorHarness.restore(
                moved, parallelism=epoch.parallelism, amnesia=amnesia
            )
    harness.end()
    assert in_order(map(result_of, harness.take())) == model.end()
    _check_late(harness, model)
    harness.close()


def _check_late(harness: OperatorHarness, model: Any) -> None:
    for output, late in zip((pen.LATE, pen.LATE_RIGHT), model.late, strict=True):
        found = Counter(row["n"] for row in harness.take(output))
        assert found == Counter(row["n"] for row in late)
        late.clear()


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(HOWS),
    bounds=st.tuples(st.integers(-8, 8), st.integers(-8, 8)).map(sorted),
    where=st.booleans(),
    life=lives,
    amnesia=st.sampled_from(Amnesia),
)
def test_an_interval_join_emits_in_every_epoch_what_its_model_does(
    *, how: str, bounds: list[int], where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    lower, upper = bounds
    model = IntervalModel(how, lower, upper, where)
    live(model, life, amnesia, within=(lower * SECOND, upper * SECOND))


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(HOWS),
    lengths=st.sampled_from([(5, 5), (7, 3), (6, 2), (3, 5)]),
    where=st.booleans(),
    life=lives,
    amnesia=st.sampled_from(Amnesia),
)
def test_a_join_in_windows_emits_in_every_epoch_what_its_model_does(
    *, how: str, lengths: tuple[int, int], where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    width, slide = lengths
    model = WindowJoinModel(how, width, slide, where=where)
    window = pen.sliding(width * SECOND, slide * SECOND)
    live(model, life, amnesia, window=window)


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    how=st.sampled_from(HOWS),
    gap=st.integers(1, 8),
    where=st.booleans(),
    life=lives,
    amnesia=st.sampled_from(Amnesia),
)
def test_a_join_in_sessions_emits_in_every_epoch_what_its_model_does(
    *, how: str, gap: int, where: bool, life: list[Epoch], amnesia: Amnesia
) -> None:
    model = WindowJoinModel(how, gap=gap, where=where)
    live(model, life, amnesia, window=pen.session(gap * SECOND))
