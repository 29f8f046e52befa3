"""An aggregate whose own code raises, when it is built or while it runs, is named with its step."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

import penstock as pen
from penstock.errors import UserCodeError, UserError
from penstock.testing import run_pipeline

AT = dt.datetime(2024, 1, 1)  # noqa: DTZ001 (event times have no zone here)
ROWS = [{"k": "a", "x": n, "at": AT} for n in (1, 2)]


class Total(pen.Aggregate):
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"v": pl.col("x").sum()}

    def merge(self, v: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"v": v.sum()}

    def final(self, v: pl.Expr) -> pl.Expr:
        return v


def _raise(values: pl.Series) -> pl.Series:
    """Fail on data, but not on the rows without values that aggregates are checked with."""
    if len(values):
        raise ValueError("boom")
    return values


def _failing(values: pl.Expr) -> pl.Expr:
    return values.map_batches(_raise, return_dtype=pl.Int64, returns_scalar=True)


class FailsInPartial(Total):
    def partial(self) -> Mapping[str, pl.Expr]:
        return {"v": _failing(pl.col("x").sum())}


class FailsInMerge(Total):
    def merge(self, v: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"v": _failing(v.sum())}


class FailsInFinal(Total):
    def final(self, v: pl.Expr) -> pl.Expr:
        return v.map_batches(_raise, return_dtype=pl.Int64)


def build(step: str, aggregate: pen.Aggregate, out: Any) -> pen.Pipeline:
    pipeline = pen.Pipeline("p")
    keyed = pipeline.read("rows", pen.list_source(ROWS), event_time="at").key_by("k")
    if step == "kept":
        keyed.aggregate(step, n=pen.count(), total=aggregate).write("out", out)
    else:
        window = pen.session("1h") if step == "visits" else pen.tumbling("1h")
        windows = keyed.window(step, window)
        windows.aggregate(n=pen.count(), total=aggregate).write("out", out)
    return pipeline


@pytest.mark.parametrize("step", ["kept", "hours", "visits"])
@pytest.mark.parametrize(
    ("aggregate", "method"),
    [(FailsInPartial(), "partial"), (FailsInMerge(), "merge"), (FailsInFinal(), "final")],
)
def test_an_exception_while_it_runs_names_the_step_and_the_aggregate(
    step: str, aggregate: pen.Aggregate, method: str
) -> None:
    with pytest.raises(UserCodeError) as caught:
        run_pipeline(build(step, aggregate, pen.blackhole()))
    shown = f"total={type(aggregate).__name__} of step {step!r}"
    assert caught.value.message == (
        f"the aggregate {shown} raised ValueError in {method}: boom"
    )
    assert caught.value.context["step"] == step
    assert caught.value.context["aggregate"] == "total"
    assert any("in _raise" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("how", ["map_elements", "map_batches"])
@pytest.mark.parametrize("step", ["kept", "hours"])
def test_a_python_function_in_final_works(step: str, how: str) -> None:
    def double(value: Any) -> Any:
        return value + value if how == "map_batches" else int(f"{value + value}")

    class Doubled(Total):
        def final(self, v: pl.Expr) -> pl.Expr:
            doubled: pl.Expr = getattr(v, how)(double, return_dtype=pl.Int64)
            return doubled

    out = pen.list_sink(f"doubled-{step}-{how}")
    run_pipeline(build(step, Doubled(), out))
    (row,) = out.rows()
    assert row.get("after", row)["total"] == 6


class NoMerge(Total):
    def merge(self, v: pl.Expr) -> Mapping[str, pl.Expr]:
        raise KeyError("nope")


class NoPartial(Total):
    def partial(self) -> Mapping[str, pl.Expr]:
        raise ValueError("nothing to see")


class AlwaysFails(Total):
    def merge(self, v: pl.Expr) -> Mapping[str, pl.Expr]:
        def fail(values: pl.Series) -> pl.Series:
            raise ValueError("always")

        return {"v": v.map_batches(fail, return_dtype=pl.Int64, returns_scalar=True)}


@pytest.mark.parametrize(
    ("aggregate", "problem"),
    [
        (NoMerge(), "total: NoMerge: merge raised KeyError: 'nope'"),
        (NoPartial(), "total: NoPartial: partial raised ValueError: nothing to see"),
        (AlwaysFails(), "a function of it raised ValueError: always"),
    ],
)
def test_an_exception_while_it_is_built_names_the_step_and_the_aggregate(
    aggregate: pen.Aggregate, problem: str
) -> None:
    with pytest.raises(UserError, match="the aggregates of 'kept'") as caught:
        build("kept", aggregate, pen.blackhole()).graph()
    assert problem in caught.value.message
