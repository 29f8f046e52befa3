"""Aggregates that are changed, added, removed or renamed between two runs of a job."""

import datetime as dt
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.core.settings import CompactionSettings
from penstock.errors import ErrorCode, StateError, UserError
from penstock.operators.splits import SourceBudget
from penstock.runtime.driver.environment import DriverSettings
from penstock.state.storage.memory import MemoryStore
from penstock.testing import LocalJob

AT = dt.datetime(2024, 1, 1)  # noqa: DTZ001 (event times have no zone here)
NUMBERS = itertools.count()
KINDS = ["kept", "hours", "sliding", "visits"]
_COLUMNS: dict[str, Any] = {
    "k": pa.string(),
    "x": pa.int64(),
    "y": pa.int64(),
    "b": pa.bool_(),
    "at": pa.timestamp("us"),
}
SCHEMA = pa.schema(_COLUMNS)


class Job:
    """A job that reads two rows of each of two keys per run, under changing aggregates."""

    def __init__(self, kind: str, *, min_files: int = 100) -> None:
        self.kind = kind
        self._store = MemoryStore()
        self._min_files = min_files
        self._out = pen.list_sink(f"changed-{kind}-{next(NUMBERS)}")

    def run(
        self,
        keys: str = "ab",
        *,
        is_last: bool = False,
        allow_dropped: bool = False,
        **aggregates: Any,
    ) -> dict[str, dict[str, Any]]:
        """Run until all rows so far are read; return the results so far by key.

        Windows give their results in the last run only, when the data has ended.
        """
        rows = self._add(keys)
        pipeline = pen.Pipeline("changed", parallelism=2)
        source = pen.list_source(rows, schema=SCHEMA)
        keyed = pipeline.read("rows", source, event_time="at").key_by("k")
        if self.kind == "kept":
            keyed.aggregate("step", **aggregates).write("out", self._out)
        else:
            window: Any = {
                "hours": pen.tumbling("1h"),
                "sliding": pen.sliding("1h", "20m", offset="5m"),
                "visits": pen.session("1h"),
            }[self.kind]
            keyed.window("step", window).aggregate(**aggregates).write("out", self._out)
        settings = DriverSettings(
            budget=SourceBudget(rows=2),
            adapts_budget=False,
            allow_dropped_state=allow_dropped,
            compaction=CompactionSettings(
                min_files=self._min_files, min_expiring_files=100
            ),
        )
        job = LocalJob(pipeline, store=self._store, settings=settings)
        job.run(epochs=None if is_last else len(keys))
        return self._results()

    _given: list[dict[str, Any]]

    def _add(self, keys: str) -> list[dict[str, Any]]:
        self._given = getattr(self, "_given", [])
        self._given += [
            {"k": key, "x": 1, "y": 10, "b": True, "at": AT}
            for key in keys
            for _ in range(2)
        ]
        # More rows than a run reads keep the data from ending.
        return [*self._given, *[{"k": "z", "x": 0, "y": 0, "b": None, "at": AT}] * 4]

    def _results(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for row in self._out.rows():
            key = row.pop("k")
            own = {"change", "window_start", "window_end", "window_time"}
            found[key] = {n: value for n, value in row.items() if n not in own}
        return found


def problem_of(job: Job, **options: Any) -> StateError:
    with pytest.raises(StateError) as caught:
        job.run("", **options)
    return caught.value


class Weighted(pen.Aggregate):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def partial(self) -> Mapping[str, pl.Expr]:
        return {"v": (pl.col("x") * self.factor).sum()}

    def merge(self, v: pl.Expr) -> Mapping[str, pl.Expr]:
        return {"v": v.sum()}

    def final(self, v: pl.Expr) -> pl.Expr:
        return v


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        (pen.sum("x"), pen.sum("y"), ["was sum(x) and is declared as sum(y)"]),
        (pen.max("x"), pen.min("x"), ["was max(x) and is declared as min(x)"]),
        (
            pen.count(),
            pen.count(where=pl.col("x") > 1),
            ["was count() and is declared as count() where"],
        ),
        (
            pen.sum("x", where=pl.col("y") > 1),
            pen.sum("x", where=pl.col("y") > 2),
            ["dyn int: 1", "dyn int: 2"],
        ),
        (Weighted(2), Weighted(3), ["dyn int: 2", "dyn int: 3"]),
    ],
)
def test_an_aggregate_that_means_something_else_is_refused_and_both_are_named(
    kind: str, before: pen.Aggregate, after: pen.Aggregate, texts: Sequence[str]
) -> None:
    job = Job(kind)
    job.run(total=before)
    error = problem_of(job, total=after)
    assert error.code is ErrorCode.SCHEMA_MISMATCH
    assert "step 'step': aggregate 'total' was " in error.message
    assert all(text in error.message for text in texts)
    assert "give it another name" in error.message
    job.run(total=before)


def _one(rows: pl.DataFrame) -> int:
    return rows.height


def _other(rows: pl.DataFrame) -> int:
    return -rows.height


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        (pen.bool_and("b"), pen.bool_or("b"), ["bool_and(b)", "bool_or(b)"]),
        (pen.var("x"), pen.var_pop("x"), ["var(x)", "var_pop(x)"]),
        (
            pen.last("x", order_by="x"),
            pen.last("x", order_by="y"),
            ["last(x) by x", "last(x) by y"],
        ),
        (pen.arg_max("x", "y"), pen.arg_max("y", "x"), ["(x) by y", "(y) by x"]),
        (pen.quantile("x", 0.5), pen.quantile("x", 0.9), ["(x, 0.5)", "(x, 0.9)"]),
        (
            pen.quantile("x", 0.5),
            pen.quantile("x", 0.5, discrete=True),
            ["(x, 0.5) ", "(x, 0.5, discrete=True)"],
        ),
        (
            pen.collect_list("x", limit=2),
            pen.collect_list("x", limit=3),
            ["(x, limit=2, order_by=at)", "(x, limit=3, order_by=at)"],
        ),
        (
            pen.approx_distinct("x"),
            pen.approx_distinct("x", error=0.1),
            ["error=0.02", "error=0.1"],
        ),
        (
            pen.approx_top_k("x", 5, by="y"),
            pen.approx_top_k("x", 6, by="y"),
            ["(x, 5, error=0.01, by=y)", "(x, 6, error=0.01, by=y)"],
        ),
        (pen.corr("x", "y"), pen.covar_pop("x", "y"), ["corr(x, y)", "covar_pop(x, y)"]),
        (
            pen.aggregate_rows(_one, returns=pa.int64(), columns="x"),
            pen.aggregate_rows(_other, returns=pa.int64(), columns="x"),
            ["_one(rows of x, at)", "_other(rows of x, at)"],
        ),
    ],
)
def test_a_changed_argument_is_a_changed_meaning(
    before: pen.Aggregate, after: pen.Aggregate, texts: Sequence[str]
) -> None:
    job = Job("kept")
    job.run("a", total=before)
    error = problem_of(job, total=after)
    assert error.code is ErrorCode.SCHEMA_MISMATCH
    assert all(text in error.message for text in texts)
    job.run("a", total=before)


class Rewritten(Weighted):
    """Says itself what it means: the factor is written in another way each time."""

    def partial(self) -> Mapping[str, pl.Expr]:
        return {"v": pl.sum_horizontal([pl.col("x")] * self.factor).sum()}

    def meaning(self) -> str:
        return "a multiple of x"


def test_an_aggregate_of_ones_own_may_say_what_it_means() -> None:
    job = Job("kept")
    job.run("a", total=Rewritten(2))
    assert job.run("a", total=Rewritten(3)) == {"a": {"total": 10}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("min_files", [2, 100])
def test_an_aggregate_that_is_added_starts_empty_for_old_keys_and_says_so(
    kind: str, min_files: int, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(kind, min_files=min_files)
    job.run("ab", total=pen.sum("x"))
    job.run("cd", total=pen.sum("x"))
    added: dict[str, Any] = {
        "n": pen.count(),
        "ys": pen.sum("y"),
        "names": pen.count_distinct("k"),
        "own": Weighted(2),
        "mean": pen.avg("y"),
    }
    with caplog.at_level(logging.WARNING):
        job.run("ac", total=pen.sum("x"), **added)
    said = [r.getMessage() for r in caplog.records if "is new" in r.getMessage()]
    assert [text.split(": ")[2] for text in said] == [
        f"aggregate {name!r} is new" for name in added
    ]
    caplog.clear()
    found = job.run("e", is_last=True, total=pen.sum("x"), **added)
    assert not [r for r in caplog.records if "is new" in r.getMessage()]
    fresh = {"n": 2, "ys": 20, "names": 1, "own": 4, "mean": 10.0}
    assert found["a"] == found["c"] == {"total": 4, **fresh}
    assert found["e"] == {"total": 2, **fresh}
    if kind != "kept":  # an updating aggregate emits changes only
        empty = {"n": 0, "ys": None, "names": 0, "own": 0, "mean": None}
        assert found["b"] == {"total": 2, **empty}


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregate_that_is_removed_is_dropped_only_if_that_is_allowed(kind: str) -> None:
    job = Job(kind)
    job.run("ab", total=pen.sum("x"), n=pen.count())
    error = problem_of(job, total=pen.sum("x"))
    assert error.code is ErrorCode.NO_REGISTERED_TABLE
    assert "'n' (count()) is in the state and not declared" in error.message
    assert (
        "if an aggregate has only another name, write .was('n') behind it" in error.message
    )
    assert "allow_dropped_state=True" in error.message
    job.run("a", total=pen.sum("x"), allow_dropped=True)
    found = job.run("b", is_last=True, total=pen.sum("x"))
    assert found["a"] == found["b"] == {"total": 4}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("min_files", [2, 100])
def test_an_aggregate_that_comes_back_starts_empty_not_with_what_it_was(
    kind: str, min_files: int
) -> None:
    job = Job(kind, min_files=min_files)
    job.run("ab", total=pen.sum("x"), n=pen.count())
    job.run("a", total=pen.sum("x"), allow_dropped=True)
    job.run("b", total=pen.sum("x"), n=pen.sum("y"))
    found = job.run("ab", is_last=True, total=pen.sum("x"), n=pen.sum("y"))
    assert found["a"] == {"total": 6, "n": 20}
    assert found["b"] == {"total": 6, "n": 40}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("min_files", [2, 100])
def test_an_aggregate_that_is_renamed_goes_on_and_its_old_name_is_free(
    kind: str, min_files: int
) -> None:
    job = Job(kind, min_files=min_files)
    job.run("ab", total=pen.sum("x"))
    job.run("a", spent=pen.sum("x").was("total"))
    job.run("c", spent=pen.sum("x"))
    found = job.run("ab", is_last=True, spent=pen.sum("x"), total=pen.sum("y"))
    assert found["a"] == {"spent": 6, "total": 20}
    assert found["b"] == {"spent": 4, "total": 20}


def test_a_time_to_live_can_be_added_and_counts_from_the_next_row_of_a_key() -> None:
    job = Job("kept")
    job.run("ab", total=pen.sum("x"))
    found = job.run("a", total=pen.sum("x"), ttl="1h")
    assert found["a"] == {"total": 4}
    assert job.run("b", total=pen.sum("x"), ttl="2h")["b"] == {"total": 4}
    error = problem_of(job, total=pen.sum("x"))
    assert "'ttl' (max(at)) is in the state and not declared" in error.message


def test_what_is_kept_in_two_tables_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    job = Job("kept")
    job.run("ab", total=pen.sum("x"), ttl="1h")
    with caplog.at_level(logging.WARNING):
        job.run("a", total=pen.sum("x"), n=pen.count(), ttl="1h")
    assert len([r for r in caplog.records if "is new" in r.getMessage()]) == 1


def test_what_is_said_to_be_renamed_must_mean_the_same() -> None:
    job = Job("kept")
    job.run(total=pen.sum("x"))
    error = problem_of(job, spent=pen.sum("y").was("total"))
    assert "aggregate 'spent' was sum(x) and is declared as sum(y)" in error.message


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregate_that_changed_is_named_also_if_its_partials_have_other_types(
    kind: str,
) -> None:
    job = Job(kind)
    job.run("ab", total=pen.sum("x"), n=pen.count())
    error = problem_of(job, total=pen.avg("x"), n=pen.count())
    assert "aggregate 'total' was sum(x) and is declared as avg(x)" in error.message
    assert "state version" not in error.message


def test_a_name_from_before_is_of_no_account_once_the_new_one_is_known() -> None:
    job = Job("kept")
    job.run(total=pen.sum("x"))
    for _ in range(2):
        job.run(spent=pen.sum("x").was("older", "total"), more=pen.first("y").was("least"))
    assert job.run(is_last=True, spent=pen.sum("x"), more=pen.first("y"))["a"]["spent"] == 8


def test_two_cannot_have_been_the_same() -> None:
    pipeline = pen.Pipeline("p")
    keyed = pipeline.read("rows", pen.list_source([{"k": 1, "x": 1}])).key_by("k")
    keyed.aggregate("s", a=pen.sum("x").was("c"), b=pen.max("x").was("c"))
    with pytest.raises(UserError, match="'c' is the former name of several"):
        pipeline.graph()


@pytest.mark.parametrize("names", [(), (1,)])
def test_a_name_from_before_is_a_name(names: tuple[Any, ...]) -> None:
    with pytest.raises(UserError, match="was takes names of results"):
        pen.count().was(*names)


def test_check_says_what_becomes_of_each_aggregate(tmp_path: Any) -> None:
    def build(**aggregates: Any) -> pen.Pipeline:
        pipeline = pen.Pipeline("checked")
        keyed = pipeline.read("rows", pen.list_source([{"k": 1, "x": 1}])).key_by("k")
        keyed.aggregate("step", **aggregates).write("out", pen.blackhole())
        return pipeline

    build(a=pen.sum("x"), b=pen.max("x"), c=pen.count()).run_in_process(tmp_path)
    changed = build(a=pen.min("x"), d=pen.max("x").was("b"), e=pen.avg("x"))
    states = [(s.fate.value, s.detail) for s in changed.check(tmp_path).states]
    shown = [(fate, detail) for fate, detail in states if "'" in detail]
    assert shown == [
        (
            "refused",
            "aggregate 'a' was sum(x) and is declared as min(x): one cannot go on from the other",
        ),
        ("kept", "aggregate 'd' was called 'b'"),
        (
            "starts empty",
            "aggregate 'e' is new: it starts empty for all that is kept already",
        ),
        ("refused", "'c' (count()) is in the state and not declared"),
    ]
