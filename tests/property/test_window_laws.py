"""Laws of windows: a plain model agrees in every epoch, whatever happens in between."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.graph.logical import OperatorSpec
from penstock.operators import EventTime
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.windows.aggregation import WindowAggregation
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.panes import pane_window_specs
from penstock.operators.windows.sessions import session_window_spec
from penstock.testing import Amnesia, OperatorHarness
from tests.builders.profile import by_profile
from tests.builders.windows import Result, Row, SessionModel, WindowModel

ROWS = StreamSchema(
    pa.schema([("key", pa.int64()), ("at", pa.timestamp("us")), ("value", pa.int64())]),
    "at",
    ("key",),
)
PLAN = compile_aggregates("test", {"rows": pen.count(), "total": pen.sum("value")}, ROWS)

RUNS = by_profile(default=25, ci=35, nightly=400)
"""How many lives of sessions are tried, by profile: a life takes a while."""

instants = st.integers(-60, 60)
rows = st.builds(
    lambda key, at, value: {"key": key, "at": at, "value": value},
    st.integers(0, 3),
    instants,
    st.integers(-5, 5),
)


@dataclass(frozen=True)
class Epoch:
    """What happens in an epoch, and to the job after it."""

    rows: Sequence[Row]
    watermark: int | None
    attempts: int
    parallelism: int | None
    """Go on with so many subtasks, in another process; None: in this one."""


epochs = st.builds(
    Epoch,
    st.lists(rows, max_size=12),
    st.none() | instants,
    st.sampled_from([1, 1, 2]),
    st.none() | st.integers(1, 3),
)


def results_of(emitted: Sequence[dict[str, Any]]) -> list[Result]:
    return sorted(
        (
            row["key"],
            _micros(row["window_start"]),
            _micros(row["window_end"]),
            row["rows"],
            row["total"],
        )
        for row in emitted
    )


def _micros(instant: Any) -> int:
    return int(pa.scalar(instant, pa.timestamp("us")).cast(pa.int64()).as_py())


def as_keys(found: Sequence[Row]) -> list[tuple[int, int, int]]:
    return sorted((row["key"], row["at"], row["value"]) for row in found)


def run_against(
    model: WindowModel | SessionModel,
    operators: OperatorSpec | Sequence[OperatorSpec],
    life: Sequence[Epoch],
    amnesia: Amnesia,
) -> Counter[str]:
    """Let operators and a model live the same life; return what the operators counted."""
    harness = OperatorHarness(operators, ROWS, amnesia=amnesia)
    late: list[Row] = []
    counted: Counter[str] = Counter()
    reached: int | None = None
    try:
        for epoch in life:
            harness.push(list(epoch.rows))
            if epoch.watermark is not None:
                reached = (
                    epoch.watermark if reached is None else max(reached, epoch.watermark)
                )
                harness.watermark(EventTime(reached))
            out = harness.barrier(attempts=epoch.attempts)
            counted.update(out.counters)
            assert results_of(out.rows()) == model.run_epoch(epoch.rows, reached)
            late += [{**row, "at": _micros(row["at"])} for row in out.rows(pen.LATE)]
            if isinstance(model, SessionModel):
                kept = sum(map(len, model.open.values()))
                assert harness.state("sessions").num_rows == kept
            if epoch.parallelism is not None:
                checkpoint = harness.checkpoint()
                harness.close()
                harness = OperatorHarness.restore(
                    checkpoint, parallelism=epoch.parallelism, amnesia=amnesia
                )
        assert results_of(harness.end().rows()) == model.end()
        # Nothing is left behind that no window needs any more.
        table = "sessions" if isinstance(model, SessionModel) else "panes"
        assert harness.state(table).num_rows == 0
    finally:
        harness.close()
    assert as_keys(late) == as_keys(model.late)
    assert counted["late_rows"] == len(late)
    return counted


@pytest.mark.slow
@given(
    width=st.integers(1, 30),
    slide=st.integers(1, 30),
    offset=st.integers(0, 40),
    life=st.lists(epochs, min_size=1, max_size=8),
    amnesia=st.sampled_from(Amnesia),
)
def test_every_epoch_closes_the_windows_that_a_plain_model_closes(
    width: int, slide: int, offset: int, life: list[Epoch], amnesia: Amnesia
) -> None:
    model = WindowModel(width, slide, offset)
    specs = pane_window_specs(
        WindowGrid(width, slide, offset),
        WindowAggregation(ROWS, PLAN),
        consumer="operator-2",
        shown="windows",
        diverts_bad=False,
    )
    counted = run_against(model, specs, life, amnesia)
    assert counted["rows_outside_windows"] == len(model.outside)


@pytest.mark.slow
@settings(max_examples=RUNS)
@given(
    gap=st.integers(1, 20),
    life=st.lists(epochs, min_size=1, max_size=8),
    amnesia=st.sampled_from(Amnesia),
)
@example(
    gap=10,
    life=[
        Epoch([{"key": 0, "at": 0, "value": 1}], 10, 1, None),  # stops at the session's end
        Epoch([], 11, 1, None),
    ],
    amnesia=Amnesia.NOTHING,
)
def test_every_epoch_closes_the_sessions_that_a_plain_model_closes(
    gap: int, life: list[Epoch], amnesia: Amnesia
) -> None:
    spec = session_window_spec(
        gap, WindowAggregation(ROWS, PLAN), shown="sessions", diverts_bad=False
    )
    run_against(SessionModel(gap), spec, life, amnesia)
