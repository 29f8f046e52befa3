"""Laws of windows whose results change: after each epoch the folded output is what SQL computes.

The oracle keeps every change with the watermark that it met, and computes the windows that have
closed of what these still took. Sessions have a plain model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.core.schema import StreamSchema
from penstock.core.watermark import MAX_MICROS
from penstock.operators import EventTime
from penstock.operators.aggregates.compiler import compile_aggregates
from penstock.operators.windows.aggregation import WindowAggregation
from penstock.operators.windows.assignment import WindowGrid
from penstock.operators.windows.changed_rows import ChangedAggregation, compile_changed
from penstock.operators.windows.changing import changing_window_specs
from penstock.operators.windows.revised_sessions import revised_session_spec
from penstock.testing import Amnesia, OperatorHarness
from tests.builders.aggregated_rows import fold
from tests.builders.profile import by_profile
from tests.builders.windows import Row, WindowModel, micros

LIVES = by_profile(10, 40, 400)
"""How many lives of windows a property tries: a life takes a while."""
_TYPES: dict[str, Any] = {
    "key": pa.int64(),
    "at": pa.timestamp("us"),
    "value": pa.float64(),
}
COLUMNS = pa.schema(_TYPES)
ROWS = StreamSchema(COLUMNS, "at", ("key",))
CHANGES = StreamSchema(
    COLUMNS.append(pa.field("id", pa.int64())).append(pa.field("change", pa.string())),
    "at",
    ("key",),
    table_key=("id",),
)
ARITHMETIC: dict[str, tuple[pen.Aggregate, str]] = {
    "rows": (pen.count(), "count(*)"),
    "total": (pen.sum("value"), "sum(value)"),
    "mean": (pen.avg("value", where=pl.col("value") > 0), "avg(value) FILTER (value > 0)"),
}
KEPT: dict[str, tuple[pen.Aggregate, str]] = {
    **ARITHMETIC,
    "least": (pen.min("value"), "min(value)"),
    "middle": (pen.median("value"), "median(value)"),
    "different": (pen.count_distinct("value"), "count(DISTINCT value)"),
    "first": (
        pen.first("value"),
        "first(value ORDER BY moment, value) FILTER (value NOTNULL)",
    ),
}
instants = st.integers(-30, 60)
rows = st.fixed_dictionaries(
    {
        "key": st.none() | st.integers(0, 2),
        "at": instants,
        # Halves are added up exactly, in whatever order.
        "value": st.none() | st.integers(-6, 6).map(lambda n: n / 2),
    }
)


@dataclass(frozen=True)
class Epoch:
    """What happens in an epoch, and to the job after it."""

    rows: Sequence[Row]
    watermark: int | None
    attempts: int
    parallelism: int | None
    """Go on with so many subtasks, in another process; None: in this one."""


def lives(batches: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Epoch]]:
    return st.lists(
        st.builds(
            Epoch,
            batches,
            st.none() | instants,
            st.sampled_from([1, 1, 2]),
            st.none() | st.integers(1, 3),
        ),
        min_size=1,
        max_size=7,
    )


@dataclass
class Oracle:
    """All changes so far, each with the watermark that it met; SQL computes windows of them."""

    grid: WindowGrid
    lateness: int
    cases: Mapping[str, tuple[pen.Aggregate, str]]
    taken: list[Row] = field(default_factory=list)

    def table(self, watermark: int) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the results of all windows that a watermark has closed."""
        if not self.taken:
            return {}
        computed = ", ".join(f"{sql} AS {name}" for name, (_, sql) in self.cases.items())
        width, slide, offset = (
            self.grid.width_micros,
            self.grid.slide_micros,
            self.grid.offset_micros,
        )
        query = f"""
            WITH placed AS (
                SELECT *, moment - {width} + 1 AS low,
                       unnest(range(low + ((({offset} - low) % {slide}) + {slide}) % {slide},
                                    moment + 1, {slide})) AS start
                FROM changes
            ), left_over AS (
                SELECT id, key, moment, value, start FROM placed
                WHERE start + {width} <= {watermark}
                  AND (met IS NULL OR start + {width} + {self.lateness} > met)
                GROUP BY ALL HAVING sum(sign) > 0
            )
            SELECT key, start, start + {width} AS stop, {computed}
            FROM left_over GROUP BY key, start
        """  # noqa: S608 (names and numbers of this test alone)
        columns: dict[str, Any] = {
            "id": pa.int64(),
            "key": pa.int64(),
            "moment": pa.int64(),
        }
        columns |= {"value": pa.float64(), "sign": pa.int64(), "met": pa.int64()}
        with duckdb.connect() as connection:
            connection.register(
                "changes", pa.Table.from_pylist(self.taken, pa.schema(columns))
            )
            found = connection.sql(query).to_arrow_table().to_pylist()
        return {(row.pop("key"), row.pop("start"), row.pop("stop")): row for row in found}

    def is_late(self, row: Row, met: int | None) -> bool:
        model = WindowModel(
            self.grid.width_micros, self.grid.slide_micros, self.grid.offset_micros
        )
        starts = model.windows_of(row["at"])
        ends = [start + self.grid.width_micros + self.lateness for start in starts]
        return bool(starts) and met is not None and max(ends) <= met


def folded(emitted: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the table that emitted rows lead to; append-only rows are inserts."""
    changes = [
        {
            "change": "insert",
            **row,
            "window_start": micros(row["window_start"]),
            "window_end": micros(row["window_end"]),
        }
        for row in emitted
    ]
    for change in changes:
        del change["window_time"]
    return fold(changes, ["key", "window_start", "window_end"])


def as_late(found: Sequence[Row]) -> list[tuple[str, ...]]:
    names = ("key", "at", "value", "id", "sign")
    return sorted(tuple(repr(row.get(name)) for name in names) for row in found)


def run_life(
    operators: Any,
    stream: StreamSchema,
    life: Sequence[Epoch],
    amnesia: Amnesia,
    each_epoch: Any,
) -> OperatorHarness:
    """Let operators live; after each epoch tell all that was emitted, and the watermarks."""
    harness = OperatorHarness(operators, stream, amnesia=amnesia)
    emitted: list[dict[str, Any]] = []
    late: list[dict[str, Any]] = []
    reached: int | None = None
    for epoch in [*life, Epoch([], MAX_MICROS, 1, None)]:
        previous = reached
        if epoch.watermark == MAX_MICROS:
            out, reached = harness.end(), MAX_MICROS
        else:
            harness.push(list(epoch.rows))
            if epoch.watermark is not None:
                reached = (
                    epoch.watermark if reached is None else max(reached, epoch.watermark)
                )
                harness.watermark(EventTime(reached))
            out = harness.barrier(attempts=epoch.attempts)
        emitted += out.rows()
        late += [{**row, "at": micros(row["at"])} for row in out.rows(pen.LATE)]
        each_epoch(epoch.rows, previous, reached, emitted, late)
        if epoch.parallelism is not None:
            checkpoint = harness.checkpoint()
            harness.close()
            harness = OperatorHarness.restore(
                checkpoint, parallelism=epoch.parallelism, amnesia=amnesia
            )
    return harness


def check_windows(
    oracle: Oracle,
    operators: Any,
    stream: StreamSchema,
    life: Sequence[Epoch],
    amnesia: Amnesia,
) -> None:
    expected_late: list[Row] = []

    def check(
        given_rows: Sequence[Row],
        previous: int | None,
        reached: int | None,
        emitted: list[Any],
        late: list[Any],
    ) -> None:
        for row in given_rows:
            sign = -1 if row.get("change") in ("delete", "update-before") else 1
            number = row.get("id", len(oracle.taken))
            taken = {**row, "moment": row["at"], "id": number, "sign": sign}
            taken["met"] = previous
            if oracle.is_late(row, previous):
                expected_late.append(taken if "id" in row else {**taken, "id": None})
            oracle.taken.append(taken)
        if reached is not None:
            assert folded(emitted) == oracle.table(reached)
        signed = [
            {**row, "sign": -1 if row.get("change") == "delete" else 1} for row in late
        ]
        assert as_late(signed) == as_late(expected_late)

    harness = run_life(operators, stream, life, amnesia, check)
    try:
        # Nothing is left behind that no window needs any more.
        assert harness.state("panes").num_rows == 0
        if oracle.lateness:
            assert harness.state("emitted").num_rows == 0
    finally:
        harness.close()


def specs_of(
    grid: WindowGrid, lateness: int | None, aggregation: WindowAggregation
) -> tuple[Any, Any]:
    return changing_window_specs(
        grid,
        aggregation,
        lateness_micros=lateness,
        consumer="operator-2",
        shown="windows",
        diverts_bad=False,
    )


grids = st.builds(WindowGrid, st.integers(1, 20), st.integers(1, 20), st.integers(0, 30))
cases_strategy = st.sampled_from([ARITHMETIC, KEPT])


@pytest.mark.slow
@settings(max_examples=LIVES)
@given(
    grid=grids,
    lateness=st.integers(1, 60),
    life=lives(st.lists(rows, max_size=8)),
    cases=cases_strategy,
    amnesia=st.sampled_from(Amnesia),
)
def test_late_rows_change_windows_until_the_allowed_lateness_is_over(
    grid: WindowGrid,
    lateness: int,
    life: list[Epoch],
    cases: Any,
    amnesia: Amnesia,
) -> None:
    aggregates = {name: aggregate for name, (aggregate, _) in cases.items()}
    plan = compile_aggregates("test", aggregates, ROWS)
    specs = specs_of(grid, lateness, WindowAggregation(ROWS, plan))
    check_windows(Oracle(grid, lateness, cases), specs, ROWS, life, amnesia)


def as_changes(life: Sequence[Epoch]) -> list[Epoch]:
    """Return a life whose rows, which are new rows of ids, or none, are changes of a table."""
    table: dict[int, Row] = {}
    epochs = []
    number: Any
    row: Any
    for epoch in life:
        changes: list[Row] = []
        for number, row in epoch.rows:
            before = table.pop(number, None)
            if before is not None:
                kind = "delete" if row is None else "update-before"
                changes.append({**before, "id": number, "change": kind})
            if row is not None:
                kind = "insert" if before is None else "update-after"
                changes.append({**row, "id": number, "change": kind})
                table[number] = row
        epochs.append(replace(epoch, rows=changes))
    return epochs


@pytest.mark.slow
@settings(max_examples=2 * LIVES)
@given(
    grid=grids,
    lateness=st.none() | st.integers(1, 60),
    life=lives(st.lists(st.tuples(st.integers(0, 5), st.none() | rows), max_size=8)),
    cases=cases_strategy,
    amnesia=st.sampled_from(Amnesia),
)
def test_windows_of_a_changelog_hold_the_rows_that_are_left_when_they_close(
    grid: WindowGrid,
    lateness: int | None,
    life: list[Epoch],
    cases: Any,
    amnesia: Amnesia,
) -> None:
    aggregates = {name: aggregate for name, (aggregate, _) in cases.items()}
    plan = compile_changed("test", aggregates, CHANGES, ())
    specs = specs_of(grid, lateness, ChangedAggregation(CHANGES, plan))
    oracle = Oracle(grid, lateness or 0, cases)
    check_windows(oracle, specs, CHANGES, as_changes(life), amnesia)


@dataclass
class LateSessions:
    """What sessions with allowed lateness should be, epoch by epoch."""

    gap: int
    lateness: int
    kept: dict[Any, list[list[Row]]] = field(default_factory=dict)
    over: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    late: list[Row] = field(default_factory=list)

    def run_epoch(
        self, given_rows: Sequence[Row], previous: int | None, reached: int | None
    ) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Take an epoch's rows; return the sessions that have closed by now."""
        for row in given_rows:
            apart: list[list[Row]] = []
            joined = [row]
            for members in self.kept.get(row["key"], []):
                if any(abs(row["at"] - m["at"]) <= self.gap for m in members):
                    joined += members
                else:
                    apart.append(members)
            self.kept[row["key"]] = [*apart, joined]
        closed: dict[tuple[Any, ...], dict[str, Any]] = {}
        for key, sessions in self.kept.items():
            kept = []
            for members in sessions:
                times = [row["at"] for row in members]
                end = max(times) + self.gap
                if previous is not None and end + self.lateness < previous:
                    self.late += members
                    continue
                values = [row["value"] for row in members if row["value"] is not None]
                result = {
                    "rows": len(members),
                    "total": sum(values) if values else None,
                    "least": min(values, default=None),
                }
                shown = {(key, min(times), end): result}
                if reached is not None and end < reached:
                    closed |= shown
                if reached is None or end + self.lateness >= reached:
                    kept.append(members)
                else:
                    self.over |= shown
            self.kept[key] = kept
        return {**self.over, **closed}


@pytest.mark.slow
@settings(max_examples=LIVES)
@given(
    gap=st.integers(1, 12),
    lateness=st.integers(1, 60),
    life=lives(st.lists(rows, max_size=8)),
    amnesia=st.sampled_from(Amnesia),
)
def test_late_rows_extend_and_join_sessions_that_were_emitted(
    gap: int, lateness: int, life: list[Epoch], amnesia: Amnesia
) -> None:
    aggregates = {"rows": pen.count(), "total": pen.sum("value"), "least": pen.min("value")}
    plan = compile_aggregates("test", aggregates, ROWS)
    spec = revised_session_spec(
        gap,
        WindowAggregation(ROWS, plan),
        lateness_micros=lateness,
        shown="sessions",
        diverts_bad=False,
    )
    model = LateSessions(gap, lateness)

    def check(
        given_rows: Sequence[Row],
        previous: int | None,
        reached: int | None,
        emitted: list[Any],
        late: list[Any],
    ) -> None:
        expected = model.run_epoch(given_rows, previous, reached)
        assert folded(emitted) == expected
        assert as_late(late) == as_late(model.late)

    harness = run_life(spec, ROWS, life, amnesia, check)
    try:
        assert harness.state("sessions").num_rows == 0
    finally:
        harness.close()
