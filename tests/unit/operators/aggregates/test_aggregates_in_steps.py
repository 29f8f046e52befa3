"""Every aggregate in every step: neither epochs nor subtasks nor splits change a result."""

import itertools
import random
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.settings import CompactionSettings
from penstock.errors import PenstockError, UserCodeError, UserError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.testing import LocalJob
from tests.builders.aggregate_cases import MORE_CASES, SKETCHES
from tests.builders.aggregated_rows import agrees, fold

NUMBERS = itertools.count()
FIRST = datetime(2026, 1, 1)  # noqa: DTZ001 (event times have no zone here)
_COLUMNS: dict[str, Any] = {
    "key": pa.int32(),
    "n": pa.int64(),
    "short": pa.int16(),
    "real": pa.float64(),
    "text": pa.string(),
    "price": pa.decimal128(9, 2),
    "flag": pa.bool_(),
    "at": pa.timestamp("us"),
}
SCHEMA = pa.schema(_COLUMNS)
PAIRS = ("corr", "covar_samp", "regr_slope", "regr_r2")
EVERY: dict[str, Any] = {
    **{name: aggregate for name, (aggregate, _) in MORE_CASES.items()},
    **SKETCHES,
    **{name: getattr(pen, name)("real", "short") for name in PAIRS},
}
WINDOWS: dict[str, Any] = {
    "tumbling": pen.tumbling("10s"),
    "sliding": pen.sliding("10s", "5s"),
    "session": pen.session("2s"),
}


def some_rows() -> list[dict[str, Any]]:
    chance = random.Random(3)
    rows = [
        {
            "key": chance.randint(0, 3),
            "n": chance.randint(0, 9),
            "short": chance.randint(-50, 50),
            "real": round(chance.gauss(0, 10), 2),
            "text": chance.choice("abcd"),
            "price": chance.randint(0, 99),
            "flag": chance.random() < 0.7,
            "at": FIRST + timedelta(seconds=chance.randint(0, 30)),
        }
        for _ in range(80)
    ]
    for row in rows:
        row[chance.choice(["n", "short", "real", "text", "flag"])] = None
    # The whole of the data is in order of time, except within a second.
    return sorted(rows, key=lambda row: row["at"])


def results(
    step: str, *, parallelism: int, epoch_rows: int, aggregates: dict[str, Any]
) -> dict[Any, dict[str, Any]]:
    """Return the final results by key and window."""
    out = pen.list_sink(f"steps-{next(NUMBERS)}")
    pipeline = pen.Pipeline("steps", parallelism=parallelism)
    source = pen.list_source(some_rows(), schema=SCHEMA)
    keyed = pipeline.read("rows", source, event_time="at").key_by("key")
    if step in WINDOWS:
        keyed.window("step", WINDOWS[step]).aggregate(**aggregates).write("out", out)
    else:
        ttl: dict[str, Any] = {"ttl": "1h"} if step == "expiring" else {}
        keyed.aggregate("step", **aggregates, **ttl).write("out", out)
    settings = DriverSettings(
        budget=SourceBudget(rows=epoch_rows),
        adapts_budget=False,
        compaction=CompactionSettings(min_files=2, min_expiring_files=2),
    )
    LocalJob(pipeline, settings=settings).run()
    if step in WINDOWS:
        return {(row["key"], row["window_start"]): row for row in out.rows()}
    return {key: row for (key,), row in fold(out.rows(), ["key"]).items()}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["updating", "expiring", *WINDOWS])
def test_results_are_the_same_at_any_parallelism_and_with_any_epochs(step: str) -> None:
    whole = results(step, parallelism=1, epoch_rows=1_000, aggregates=EVERY)
    cut = results(step, parallelism=2, epoch_rows=30, aggregates=EVERY)
    assert whole.keys() == cut.keys()
    assert len(whole) >= 4
    wrong = {
        (place, name): (cut[place][name], value)
        for place, row in whole.items()
        for name, value in row.items()
        if not agrees(cut[place][name], value, 1e3)
    }
    assert wrong == {}


def _fails(rows: pl.DataFrame) -> float:
    raise ValueError(f"no use for {rows.height > 0} rows")


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (_fails, UserCodeError, "r=aggregate_rows(_fails, columns=['n']) of step 'step'"),
        (lambda rows: "no number", UserError, "must return one double for each group"),
    ],
)
def test_a_function_over_rows_that_fails_is_named(
    function: Any, kind: type[PenstockError], text: str
) -> None:
    rows = pen.aggregate_rows(function, returns=pa.float64(), columns="n")
    with pytest.raises(kind) as caught:
        results("updating", parallelism=1, epoch_rows=1_000, aggregates={"r": rows})
    assert text in str(caught.value)


def test_a_function_over_rows_sees_them_in_order_and_is_not_called_without_any() -> None:
    def listed(rows: pl.DataFrame) -> list[int]:
        assert rows.columns == ["n"]
        return rows["n"].to_list()

    aggregates = {
        "all": pen.aggregate_rows(listed, returns=pa.list_(pa.int64()), columns=["n"]),
        "none": pen.aggregate_rows(
            listed, returns=pa.list_(pa.int64()), columns=["n"], where=pl.col("n") > 99
        ),
    }
    found = results("updating", parallelism=2, epoch_rows=7, aggregates=aggregates)
    for key, result in found.items():
        mine = [row for row in some_rows() if row["key"] == key]
        mine.sort(key=lambda row: (row["at"], row["n"] is None, row["n"] or 0))
        assert result == {"all": [row["n"] for row in mine], "none": None}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"returns": pa.int64(), "columns": []}, "name at least one column"),
        ({"returns": int, "columns": "n"}, "give a pyarrow type such as pa.int64()"),
        ({"returns": pa.int64(), "columns": [3]}, "3 is not the name of a column"),
        ({"returns": pa.int64(), "columns": "n", "where": 1}, "not a Polars expression"),
    ],
)
def test_a_function_over_rows_is_declared_fully(
    arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        pen.aggregate_rows(len, **arguments)
    assert problem in caught.value.message
